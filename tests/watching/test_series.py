"""What stands in which column, and what a history says."""

from __future__ import annotations

from typing import Any

import pytest

from comporta.stores.history import COLUMNS, SLOT_US, History, Slot
from comporta.watching.series import (
    OF_CACHE,
    OF_SERVICE,
    UPSTREAM,
    WAIT_BOUNDS,
    columns_of,
    gauges_of,
    layout_of,
    minute_of,
    percentile,
    phase_seen,
    series_of,
    upstream_of,
    wait_column,
)

NOW_US = 180_000_000 * SLOT_US + 5_000_000


def row(**columns: int) -> tuple[int, ...]:
    numbers = [0] * COLUMNS
    for name, number in columns.items():
        numbers[UPSTREAM.sums.index(name)] = number
    return tuple(numbers)


def waited(*seconds: float) -> tuple[int, ...]:
    numbers = [0] * COLUMNS
    for wait in seconds:
        numbers[wait_column(wait)] += 1
    return tuple(numbers)


def shown(**others: Any) -> dict[str, Any]:
    return {"limit": 10.0, "tokens": 3, "phase": "closed", "paused": 0.0, "in_flight": None, **others}


def test_layouts__all_together__fit_into_the_columns() -> None:
    assert UPSTREAM.first_gauge + len(UPSTREAM.gauges) <= COLUMNS
    assert OF_CACHE.first_gauge == OF_SERVICE.first_gauge == 3


def test_names__of_series__tell_whose_they_are() -> None:
    assert series_of("pncp") == "upstream.pncp"
    assert upstream_of("upstream.a.b") == "a.b"
    assert upstream_of("cache") is None
    assert [layout_of(name) for name in ("cache", "service", "upstream.cache")] == [
        OF_CACHE,
        OF_SERVICE,
        UPSTREAM,
    ]


def test_minute__slots_of_more_than_a_minute__sums_those_that_began_in_it() -> None:
    slots = [Slot(age, row(calls=1, ok=1)) for age in (65.0, 55.0, 45.0, 5.0)]
    minute = minute_of(History(NOW_US, [*slots, Slot(0.0, row(calls=2, failed=2, retries=3))]))
    assert {name: minute[name] for name in UPSTREAM.sums} == {
        **dict.fromkeys(UPSTREAM.sums, 0),
        "calls": 5,
        "ok": 3,
        "failed": 2,
        "retries": 3,
    }


def test_minute__without_calls__has_no_percentiles() -> None:
    minute = minute_of(History(NOW_US, []))
    assert minute == {**dict.fromkeys(UPSTREAM.sums, 0), "wait_p50": None, "wait_p95": None, "wait_p99": None}


def test_minute__of_the_cache__is_its_three_figures() -> None:
    history = History(NOW_US, [Slot(5.0, (4, 1, 2, *[0] * 21)), Slot(1.0, (1, 0, 0, *[0] * 21))])
    assert minute_of(history, OF_CACHE) == {"hits": 5, "stale": 1, "misses": 2}
    assert minute_of(History(NOW_US, []), OF_SERVICE) == {"requests": 0, "errors": 0, "refused": 0}


@pytest.mark.parametrize(
    ("seconds", "part"),
    [(0.0, 0), (0.001, 0), (0.002, 1), (0.01, 1), (0.05, 2), (0.3, 5), (1.0, 6), (4.0, 8), (10.1, 10)],
)
def test_wait__of_some_seconds__is_counted_in_its_part(seconds: float, part: int) -> None:
    assert wait_column(seconds) == len(UPSTREAM.sums) + part


def test_percentiles__estimated_from_the_histogram__lie_in_the_right_part() -> None:
    parts = waited(*[0.0] * 90, *[0.3] * 9, 80.0)[UPSTREAM.first_wait : UPSTREAM.first_gauge]
    assert percentile(parts, 50) == pytest.approx(0.001 * 50 / 90, abs=1e-6)
    found = percentile(parts, 95)
    assert found is not None
    assert 0.25 < found < 0.5
    assert percentile(parts, 99) == 0.5
    assert percentile(parts, 100) == WAIT_BOUNDS[-1], "longer ones count as that"
    assert percentile([0] * 8, 50) is None


def test_columns__of_a_history__are_lists_of_one_length_in_the_readers_time() -> None:
    gauges = gauges_of(shown(limit=2.5, phase="open", paused=3.0, in_flight=4))
    column, power = phase_seen("open")
    gauges[column] = power | phase_seen("closed")[1]
    told = tuple(gauges.get(column, number) for column, number in enumerate(row(calls=2, open=2)))
    history = History(NOW_US, [Slot(15.0, waited(0.0)), Slot(5.0, told)])
    found = columns_of(history, UPSTREAM, 1000.0)
    assert {len(column) for column in found.values()} == {2}
    assert found["starts"] == [985.0, 995.0]
    assert found["slots"] == [179_999_999, 180_000_000]
    assert found["calls"] == [0, 2]
    assert found["wait_p50"] == [0.0005, None]
    assert [found[name] for name in UPSTREAM.gauges] == [
        [None, 2.5],
        [None, 3],
        [None, 2],
        [None, 1],
        [None, 4],
    ], "what nobody said is not 0"
    assert found["phases"] == [[], [2, 0]]


def test_columns__of_the_service__have_neither_waits_nor_gauges() -> None:
    found = columns_of(History(NOW_US, [Slot(5.0, (3, 2, 1, *[0] * 21))]), OF_SERVICE)
    assert found == {
        "starts": [-5.0],
        "slots": [180_000_000],
        "requests": [3],
        "errors": [2],
        "refused": [1],
    }


def test_gauges__without_permits_and_breaker__say_what_there_is() -> None:
    first = UPSTREAM.first_gauge
    assert phase_seen(None) == (first + 2, 8)
    assert gauges_of(shown(phase=None, tokens=-1)) == {
        first: 10_001,
        first + 1: 1,
        first + 3: 1,
    }
