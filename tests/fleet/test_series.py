"""Which number is in which column of a history, and how to read a history."""

from __future__ import annotations

from typing import Any

import pytest

from comporta.fleet.series import (
    CACHE_LAYOUT,
    SERVICE_LAYOUT,
    UPSTREAM_LAYOUT,
    WAIT_BOUNDS,
    gauge_columns,
    history_columns,
    last_minute,
    percentile,
    phase_mark,
    series_layout,
    series_upstream,
    upstream_series,
    wait_column,
)
from comporta.stores.history import COLUMNS, SLOT_US, History, HistorySlot

NOW_US = 180_000_000 * SLOT_US + 5_000_000


def row(**columns: int) -> tuple[int, ...]:
    numbers = [0] * COLUMNS
    for name, number in columns.items():
        numbers[UPSTREAM_LAYOUT.sums.index(name)] = number
    return tuple(numbers)


def waits(*seconds: float) -> tuple[int, ...]:
    numbers = [0] * COLUMNS
    for wait in seconds:
        numbers[wait_column(wait)] += 1
    return tuple(numbers)


def summary(**others: Any) -> dict[str, Any]:
    return {"limit": 10.0, "tokens": 3, "phase": "closed", "paused": 0.0, "in_flight": None, **others}


def test_layouts__every_layout__fits_into_the_columns() -> None:
    assert UPSTREAM_LAYOUT.first_gauge + len(UPSTREAM_LAYOUT.gauges) <= COLUMNS
    assert CACHE_LAYOUT.first_gauge == SERVICE_LAYOUT.first_gauge == 3


def test_series_names__any_upstream__round_trip() -> None:
    assert upstream_series("pncp") == "upstream.pncp"
    assert series_upstream("upstream.a.b") == "a.b"
    assert series_upstream("cache") is None
    assert [series_layout(name) for name in ("cache", "service", "upstream.cache")] == [
        CACHE_LAYOUT,
        SERVICE_LAYOUT,
        UPSTREAM_LAYOUT,
    ]


def test_last_minute__older_slots__sums_only_slots_started_within_it() -> None:
    slots = [HistorySlot(age, row(calls=1, ok=1)) for age in (65.0, 55.0, 45.0, 5.0)]
    minute = last_minute(History(NOW_US, [*slots, HistorySlot(0.0, row(calls=2, failed=2, retries=3))]))
    assert {name: minute[name] for name in UPSTREAM_LAYOUT.sums} == {
        **dict.fromkeys(UPSTREAM_LAYOUT.sums, 0),
        "calls": 5,
        "ok": 3,
        "failed": 2,
        "retries": 3,
    }


def test_last_minute__no_calls__has_no_percentiles() -> None:
    minute = last_minute(History(NOW_US, []))
    assert minute == {
        **dict.fromkeys(UPSTREAM_LAYOUT.sums, 0),
        "wait_p50": None,
        "wait_p95": None,
        "wait_p99": None,
    }


def test_last_minute__cache_layout__has_three_counts() -> None:
    history = History(
        NOW_US, [HistorySlot(5.0, (4, 1, 2, *[0] * 21)), HistorySlot(1.0, (1, 0, 0, *[0] * 21))]
    )
    assert last_minute(history, CACHE_LAYOUT) == {"hits": 5, "stale": 1, "misses": 2}
    assert last_minute(History(NOW_US, []), SERVICE_LAYOUT) == {"requests": 0, "errors": 0, "refused": 0}


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [(0.0, 0), (0.001, 0), (0.002, 1), (0.01, 1), (0.05, 2), (0.3, 5), (1.0, 6), (4.0, 8), (10.1, 10)],
)
def test_wait_column__any_duration__is_the_matching_bucket(seconds: float, bucket: int) -> None:
    assert wait_column(seconds) == len(UPSTREAM_LAYOUT.sums) + bucket


def test_percentile__from_histogram__lies_in_the_right_bucket() -> None:
    buckets = waits(*[0.0] * 90, *[0.3] * 9, 80.0)[UPSTREAM_LAYOUT.first_bucket : UPSTREAM_LAYOUT.first_gauge]
    assert percentile(buckets, 50) == pytest.approx(0.001 * 50 / 90, abs=1e-6)
    p95 = percentile(buckets, 95)
    assert p95 is not None
    assert 0.25 < p95 < 0.5
    assert percentile(buckets, 99) == 0.5
    assert percentile(buckets, 100) == WAIT_BOUNDS[-1], "longer waits count as the last bound"
    assert percentile([0] * 8, 50) is None


def test_history_columns__any_history__lists_of_equal_length_in_local_time() -> None:
    gauges = gauge_columns(summary(limit=2.5, phase="open", paused=3.0, in_flight=4))
    column, bit = phase_mark("open")
    gauges[column] = bit | phase_mark("closed")[1]
    numbers = tuple(gauges.get(column, number) for column, number in enumerate(row(calls=2, open=2)))
    history = History(NOW_US, [HistorySlot(15.0, waits(0.0)), HistorySlot(5.0, numbers)])
    columns = history_columns(history, UPSTREAM_LAYOUT, 1000.0)
    assert {len(values) for values in columns.values()} == {2}
    assert columns["starts"] == [985.0, 995.0]
    assert columns["slots"] == [179_999_999, 180_000_000]
    assert columns["calls"] == [0, 2]
    assert columns["wait_p50"] == [0.0005, None]
    assert [columns[name] for name in UPSTREAM_LAYOUT.gauges] == [
        [None, 2.5],
        [None, 3],
        [None, 2],
        [None, 1],
        [None, 4],
    ], "a gauge that was not set is None, not 0"
    assert columns["phases"] == [[], [2, 0]]


def test_history_columns__service_layout__has_no_waits_and_no_gauges() -> None:
    columns = history_columns(History(NOW_US, [HistorySlot(5.0, (3, 2, 1, *[0] * 21))]), SERVICE_LAYOUT)
    assert columns == {
        "starts": [-5.0],
        "slots": [180_000_000],
        "requests": [3],
        "errors": [2],
        "refused": [1],
    }


def test_gauge_columns__no_permits_and_no_breaker__contain_the_rest() -> None:
    first = UPSTREAM_LAYOUT.first_gauge
    assert phase_mark(None) == (first + 2, 8)
    assert gauge_columns(summary(phase=None, tokens=-1)) == {
        first: 10_001,
        first + 1: 1,
        first + 3: 1,
    }
