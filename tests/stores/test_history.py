"""One hour of numbers per series, on every engine."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import pytest
from tests.support import StoreOpener, command, fill_with_records, redis_store, shared_store

from comporta.errors import StateFullError, StateTypeError
from comporta.stores.history import (
    CHUNKS,
    COLUMNS,
    NUMBER_MAX,
    SLOT_SECONDS,
    SLOTS,
    History,
    HistorySlot,
    ReadHistory,
    RecordHistory,
    is_series_name,
)
from comporta.stores.memory import MemoryStore
from comporta.stores.outage_info import Outage
from comporta.stores.redis.cluster_slots import operation_slot
from comporta.stores.redis.store import RedisStore
from comporta.testing import ManualClock, Server

START = 1_800_000_000


def numbers(*first: int, **others: int) -> tuple[int, ...]:
    row = [*first, *[0] * (COLUMNS - len(first))]
    for column, number in others.items():
        row[int(column.removeprefix("c"))] = number
    return tuple(row)


def test_history__several_workers_in_one_slot__adds_and_the_last_set_wins(open_store: StoreOpener) -> None:
    clock = ManualClock(START)
    with open_store(clock) as store:
        assert store.apply(ReadHistory("cache")) == History(START * 10**6, [])
        slot = store.apply(RecordHistory("cache", [1, 2], {20: 7, 0: 5}))
        clock.advance(9)
        assert store.apply(RecordHistory("cache", [1, 2, 3], {20: 8})) == slot
        clock.advance(1)
        assert store.apply(RecordHistory("cache", [4])) == slot + 1
        clock.advance(2)
        assert store.apply(ReadHistory("cache")) == History(
            (START + 12) * 10**6, [HistorySlot(12.0, numbers(6, 4, 3, c20=8)), HistorySlot(2.0, numbers(4))]
        )


def test_history__many_series__are_kept_apart(open_store: StoreOpener) -> None:
    with open_store(ManualClock(START)) as store:
        for number, series in enumerate(("a", "upstream.a", "upstream.a.b")):
            store.apply(RecordHistory(series, [number]))
        history = [
            store.apply(ReadHistory(series)).slots for series in ("a", "upstream.a", "upstream.a.b", "b")
        ]
    assert history == [
        [HistorySlot(0.0, numbers(0))],
        [HistorySlot(0.0, numbers(1))],
        [HistorySlot(0.0, numbers(2))],
        [],
    ]


def test_history__longer_than_an_hour__keeps_the_last_hour(open_store: StoreOpener) -> None:
    clock = ManualClock(START)
    with open_store(clock) as store:
        for number in range(SLOTS + 40):
            store.apply(RecordHistory("a", [number]))
            clock.advance(SLOT_SECONDS)
        clock.advance(-SLOT_SECONDS)
        history = store.apply(ReadHistory("a")).slots
        assert [slot.numbers[0] for slot in history] == list(range(40, SLOTS + 40))
        assert [slot.age for slot in history] == [SLOT_SECONDS * age for age in range(SLOTS - 1, -1, -1)]
        assert [slot.numbers[0] for slot in store.apply(ReadHistory("a", 25)).slots] == [397, 398, 399]
        clock.advance(1800)
        assert len(store.apply(ReadHistory("a")).slots) == SLOTS / 2
        store.apply(RecordHistory("a", [7]))
        clock.advance(1800)
        assert [slot.numbers[0] for slot in store.apply(ReadHistory("a")).slots] == [7]
        clock.advance(1800)
        assert store.apply(ReadHistory("a")).slots == []


def test_history__clock_set_back__shows_no_future_slots(open_store: StoreOpener) -> None:
    clock = ManualClock(START)
    with open_store(clock) as store:
        for number in range(100):
            store.apply(RecordHistory("a", [number]))
            clock.advance(SLOT_SECONDS)
        clock.advance(-50 * SLOT_SECONDS)
        assert [slot.numbers[0] for slot in store.apply(ReadHistory("a")).slots] == list(range(51))
        store.apply(RecordHistory("a", [1000]))
        clock.advance(49 * SLOT_SECONDS)
        history = [slot.numbers[0] for slot in store.apply(ReadHistory("a")).slots]
        assert history == [*range(50), 1050], "recording drops future slots"
        clock.advance(-2 * 3600)
        store.apply(RecordHistory("a", [1]))
        assert [slot.numbers[0] for slot in store.apply(ReadHistory("a")).slots] == [1]


def test_history__number_too_large__stays_at_the_maximum(open_store: StoreOpener) -> None:
    with open_store(ManualClock(START)) as store:
        store.apply(RecordHistory("a", [2**40, 1], {23: 2**40}))
        store.apply(RecordHistory("a", [1, NUMBER_MAX]))
        assert store.apply(ReadHistory("a")).slots == [
            HistorySlot(0.0, numbers(NUMBER_MAX, NUMBER_MAX, c23=NUMBER_MAX))
        ]


def test_history__awaiting_caller__gets_the_same(valkey: Server) -> None:
    async def record_and_read(store: RedisStore) -> History:
        try:
            await store.apply_async(RecordHistory("a", [3]))
            return await store.apply_async(ReadHistory("a"))
        finally:
            await store.aclose()

    with redis_store(valkey, ManualClock(START)) as store:
        assert asyncio.run(record_and_read(store)).slots == [HistorySlot(0.0, numbers(3))]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: RecordHistory("a", [0] * 25), "adds must be at most 24 numbers, got 25"),
        (lambda: RecordHistory("a", [0, -1]), "adds must be at least 0, got -1"),
        (lambda: RecordHistory("a", [], {3: -2}), "sets must be at least 0, got -2"),
        (lambda: RecordHistory("a", [], {}, [(3, 3)]), r"powers of two up to 128, got \[\(3, 3\)\]"),
        (lambda: RecordHistory("a", [], {}, [(24, 1)]), "marks must be of columns 0 to 23"),
        (lambda: RecordHistory("a", [], {24: 0}), r"sets must be of columns 0 to 23, got \[24\]"),
        (lambda: ReadHistory("a", 0), "seconds must be above 0 and at most 3600, got 0"),
        (lambda: ReadHistory("a", 3601), "seconds must be above 0 and at most 3600, got 3601"),
        (lambda: ReadHistory("a b"), "series must be a name .* or kind.name, got 'a b'"),
        (lambda: RecordHistory("upstream." + "x" * 101), "series must be a name"),
    ],
)
def test_history__invalid_argument__is_refused_by_name(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_series_name__longest_upstream_name__is_valid() -> None:
    assert is_series_name("upstream." + "x" * 100)
    assert not is_series_name("upstream.")
    assert not is_series_name("")


def test_history__during_an_outage__has_no_fallback_and_no_undo() -> None:
    for operation in (RecordHistory("a", [1]), ReadHistory("a")):
        assert operation.fallback(Outage(0, 0, "", 1)) is None
        assert operation.undo(None) is None
    assert len(RecordHistory("a").state_keys) == CHUNKS == 11


def test_history__table_full__raises_and_keeps_existing_series() -> None:
    clock = ManualClock(START)
    with shared_store(clock, memory=4) as store:
        store.apply(RecordHistory("a", [1]))
        fill_with_records(store)
        store.apply(RecordHistory("a", [1]))
        assert store.apply(ReadHistory("a")).slots == [HistorySlot(0.0, numbers(2))]
        with pytest.raises(StateFullError, match="no room for 'comporta_history:b:"):
            store.apply(RecordHistory("b", [1]))


def test_history__on_a_server__is_one_small_key_that_expires_after_an_hour(server: Server) -> None:
    clock = ManualClock(START)
    with redis_store(server, clock) as store:
        for _ in range(SLOTS + 5):
            store.apply(RecordHistory("upstream.pncp", [100] * 16, {20: 5}))
            clock.advance(SLOT_SECONDS)
        assert command(server, "KEYS", "*").count(b"comporta") == 1
        assert command(server, "HLEN", "comporta_history:upstream.pncp") == b":361\r\n"
        assert 3_600_000 < int(command(server, "PTTL", "comporta_history:upstream.pncp")[1:]) <= 3_610_000
        assert int(command(server, "MEMORY", "USAGE", "comporta_history:upstream.pncp")[1:]) < 80_000
        assert (
            0
            <= operation_slot(RecordHistory("upstream.pncp"))
            == operation_slot(ReadHistory("upstream.pncp"))
        )


def test_history__servers_own_clock__starts_now(valkey: Server) -> None:
    with redis_store(valkey) as store:
        store.apply(RecordHistory("a", [1]))
        store.apply(RecordHistory("a", [1]))
        history = store.apply(ReadHistory("a"))
    assert sum(slot.numbers[0] for slot in history.slots) == 2
    assert 0 <= history.slots[-1].age < 3600


def test_history__key_of_another_type__is_named_and_left_alone(valkey: Server) -> None:
    with redis_store(valkey, ManualClock(START)) as store:
        command(valkey, "SET", "comporta_history:a", "mine")
        with pytest.raises(StateTypeError, match=re.escape("'comporta_history:a'")):
            store.apply(RecordHistory("a", [1]))


def test_history__slot_written_by_hand__skips_words_that_are_not_numbers(valkey: Server) -> None:
    with redis_store(valkey, ManualClock(START)) as store:
        command(valkey, "HSET", "comporta_history:a", str(START // 10), "3 x 4", "last", "yesterday")
        assert store.apply(ReadHistory("a")).slots == [HistorySlot(0.0, numbers(3, 4))]
        store.apply(RecordHistory("a", [1]))
        assert store.apply(ReadHistory("a")).slots == [HistorySlot(0.0, numbers(4, 4))]


def test_history__marks__last_until_the_slot_ends() -> None:
    store = MemoryStore(clock := ManualClock(START))
    for marks in ([(21, 1)], [(21, 4), (22, 1)], [(21, 1)]):
        store.apply(RecordHistory("a", marks=marks))
    clock.advance(SLOT_SECONDS)
    store.apply(RecordHistory("a", [1]))
    assert [slot.numbers[21:23] for slot in store.apply(ReadHistory("a")).slots] == [(5, 1), (0, 0)]


def test_history__one_unusable_key_among_several__fails_alone(server: Server) -> None:
    with redis_store(server, ManualClock(START)) as store:
        command(server, "SET", "comporta_history:b", "another type")
        recorded = store.apply_many(
            [
                RecordHistory("a", [1], {3: 2}, [(4, 1)]),
                RecordHistory("b", [2], {3: 3}, [(4, 2)]),
                RecordHistory("c", [3]),
            ]
        )
        histories = store.apply_many([ReadHistory("a"), ReadHistory("b"), ReadHistory("c")])
        for replies in (recorded, histories):
            assert isinstance(replies[1], StateTypeError)
            assert "comporta_history:b" in str(replies[1])
        assert [history.slots[0].numbers[:5] for history in histories[::2]] == [
            (1, 0, 0, 2, 1),
            (3, 0, 0, 0, 0),
        ]
        with pytest.raises(StateTypeError):
            store.apply(RecordHistory("b", [1]))
