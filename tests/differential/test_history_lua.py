"""The Lua versions of histories and journals do exactly what the Python versions do."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings
from tests.support import redis_store

from comporta.stores.base import Operation
from comporta.stores.history import COLUMNS, NUMBER_MAX, POWERS, ReadHistory, RecordHistory
from comporta.stores.journal import AppendToJournal, ReadJournal
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock, Server

pauses = st.one_of(
    st.just(0),
    st.integers(0, 30_000_000),
    st.integers(0, 900_000_000),
    st.sampled_from([3_590_000_000, 3_600_000_000, 3_609_999_999, 3_610_000_000, 7_200_000_000]),
    st.integers(-4_000_000_000, 4_000_000_000),  # an operator sets the server's clock back and forth
)
amounts = st.one_of(st.integers(0, 5), st.sampled_from([NUMBER_MAX - 1, NUMBER_MAX, 2**40]))
tellings = st.tuples(
    pauses,
    st.lists(amounts, max_size=COLUMNS),
    st.dictionaries(st.integers(0, COLUMNS - 1), amounts, max_size=5),
    st.lists(st.tuples(st.integers(0, COLUMNS - 1), st.sampled_from(POWERS)), max_size=4),
    st.sampled_from([1, 10, 11, 60, 1800, 3600]),
)
notes = st.binary(min_size=1, max_size=1000)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(steps=st.lists(tellings, min_size=1, max_size=40))
def test_lua__any_history_reports_and_times__replies_as_python_does(
    server: Server, steps: list[tuple[int, list[int], dict[int, int], list[tuple[int, int]], int]]
) -> None:
    clock = ManualClock(1_800_000_000)
    local = MemoryStore(clock)
    with redis_store(server, clock) as remote:
        for pause_us, adds, sets, marks, seconds in steps:
            clock.advance(pause_us / 1e6)
            recorded = [RecordHistory(series, adds, sets, marks) for series in ("upstream.n", "upstream.m")]
            operations: list[Operation[Any]] = [
                *recorded,
                ReadHistory("upstream.n", seconds),
                ReadHistory("upstream.m", seconds),
            ]
            assert remote.apply_many(operations) == [local.apply(operation) for operation in operations]
        assert remote.apply(ReadHistory("upstream.n")) == local.apply(ReadHistory("upstream.n"))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(steps=st.lists(st.tuples(st.lists(notes, min_size=1, max_size=50), st.integers(1, 200)), max_size=20))
def test_lua__any_journal_notes__replies_as_python_does_and_may_keep_more(
    valkey: Server, steps: list[tuple[list[bytes], int]]
) -> None:
    """Python bounds the journal in bytes and the server in notes, so the oldest notes may differ."""
    local = MemoryStore(ManualClock())
    with redis_store(valkey) as remote:
        for noted, count in steps:
            assert (
                remote.apply(AppendToJournal("n", *noted))
                == local.apply(AppendToJournal("n", *noted))
                == len(noted)
            )
            here, there = local.apply(ReadJournal("n", count)), remote.apply(ReadJournal("n", count))
            assert here == there[: len(here)]
            assert len(here) >= min(28, len(there))
