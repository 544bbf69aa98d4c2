"""An hour of numbers, in memory, between processes and on servers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress

import pytest
from tests.support import Opens, command, redis_store, shared_store

from comporta.errors import StateFullError, StateTypeError
from comporta.stores.base import Outage
from comporta.stores.history import (
    CHUNKS,
    COLUMNS,
    NUMBER_MAX,
    SLOT_SECONDS,
    SLOTS,
    History,
    Recall,
    Slot,
    Tell,
    is_series,
)
from comporta.stores.memory import MemoryStore
from comporta.stores.records import Write
from comporta.stores.redis import RedisStore
from comporta.stores.slots import slot_of
from comporta.testing import ManualClock, Server

START = 1_800_000_000


def numbers(*first: int, **others: int) -> tuple[int, ...]:
    row = [*first, *[0] * (COLUMNS - len(first))]
    for column, number in others.items():
        row[int(column.removeprefix("c"))] = number
    return tuple(row)


def test_history__told_by_several_in_one_slot__adds_up_and_the_last_word_counts(opens: Opens) -> None:
    clock = ManualClock(START)
    with opens(clock) as store:
        assert store.apply(Recall("cache")) == History(START * 10**6, [])
        slot = store.apply(Tell("cache", [1, 2], {20: 7, 0: 5}))
        clock.advance(9)
        assert store.apply(Tell("cache", [1, 2, 3], {20: 8})) == slot
        clock.advance(1)
        assert store.apply(Tell("cache", [4])) == slot + 1
        clock.advance(2)
        assert store.apply(Recall("cache")) == History(
            (START + 12) * 10**6, [Slot(12.0, numbers(6, 4, 3, c20=8)), Slot(2.0, numbers(4))]
        )


def test_history__many_series__are_kept_apart(opens: Opens) -> None:
    with opens(ManualClock(START)) as store:
        for number, series in enumerate(("a", "upstream.a", "upstream.a.b")):
            store.apply(Tell(series, [number]))
        found = [store.apply(Recall(series)).slots for series in ("a", "upstream.a", "upstream.a.b", "b")]
    assert found == [[Slot(0.0, numbers(0))], [Slot(0.0, numbers(1))], [Slot(0.0, numbers(2))], []]


def test_history__longer_than_an_hour__keeps_the_last_hour(opens: Opens) -> None:
    clock = ManualClock(START)
    with opens(clock) as store:
        for number in range(SLOTS + 40):
            store.apply(Tell("a", [number]))
            clock.advance(SLOT_SECONDS)
        clock.advance(-SLOT_SECONDS)
        found = store.apply(Recall("a")).slots
        assert [slot.numbers[0] for slot in found] == list(range(40, SLOTS + 40))
        assert [slot.age for slot in found] == [SLOT_SECONDS * age for age in range(SLOTS - 1, -1, -1)]
        assert [slot.numbers[0] for slot in store.apply(Recall("a", 25)).slots] == [397, 398, 399]
        clock.advance(1800)
        assert len(store.apply(Recall("a")).slots) == SLOTS / 2
        store.apply(Tell("a", [7]))
        clock.advance(1800)
        assert [slot.numbers[0] for slot in store.apply(Recall("a")).slots] == [7]
        clock.advance(1800)
        assert store.apply(Recall("a")).slots == []


def test_history__clock_set_back__shows_nothing_of_a_time_to_come(opens: Opens) -> None:
    clock = ManualClock(START)
    with opens(clock) as store:
        for number in range(100):
            store.apply(Tell("a", [number]))
            clock.advance(SLOT_SECONDS)
        clock.advance(-50 * SLOT_SECONDS)
        assert [slot.numbers[0] for slot in store.apply(Recall("a")).slots] == list(range(51))
        store.apply(Tell("a", [1000]))
        clock.advance(49 * SLOT_SECONDS)
        found = [slot.numbers[0] for slot in store.apply(Recall("a")).slots]
        assert found == [*range(50), 1050], "what was still to come when something was told is dropped"
        clock.advance(-2 * 3600)
        store.apply(Tell("a", [1]))
        assert [slot.numbers[0] for slot in store.apply(Recall("a")).slots] == [1]


def test_history__number_too_large__stays_at_the_most(opens: Opens) -> None:
    with opens(ManualClock(START)) as store:
        store.apply(Tell("a", [2**40, 1], {23: 2**40}))
        store.apply(Tell("a", [1, NUMBER_MAX]))
        assert store.apply(Recall("a")).slots == [Slot(0.0, numbers(NUMBER_MAX, NUMBER_MAX, c23=NUMBER_MAX))]


def test_history__awaiting__is_the_same(valkey: Server) -> None:
    async def awaited(store: RedisStore) -> History:
        try:
            await store.apply_async(Tell("a", [3]))
            return await store.apply_async(Recall("a"))
        finally:
            await store.aclose()

    with redis_store(valkey, ManualClock(START)) as store:
        assert asyncio.run(awaited(store)).slots == [Slot(0.0, numbers(3))]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: Tell("a", [0] * 25), "adds must be at most 24 numbers, got 25"),
        (lambda: Tell("a", [0, -1]), "adds must be at least 0, got -1"),
        (lambda: Tell("a", [], {3: -2}), "sets must be at least 0, got -2"),
        (lambda: Tell("a", [], {}, [(3, 3)]), r"powers of two up to 128, got \[\(3, 3\)\]"),
        (lambda: Tell("a", [], {}, [(24, 1)]), "marks must be of columns 0 to 23"),
        (lambda: Tell("a", [], {24: 0}), r"sets must be of columns 0 to 23, got \[24\]"),
        (lambda: Recall("a", 0), "seconds must be above 0 and at most 3600, got 0"),
        (lambda: Recall("a", 3601), "seconds must be above 0 and at most 3600, got 3601"),
        (lambda: Recall("a b"), "series must be a name .* or kind.name, got 'a b'"),
        (lambda: Tell("upstream." + "x" * 101), "series must be a name"),
    ],
)
def test_history__what_makes_no_sense__is_refused_by_name(made: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        made()


def test_history__longest_name_of_an_upstream__is_one_of_a_series() -> None:
    assert is_series("upstream." + "x" * 100)
    assert not is_series("upstream.")
    assert not is_series("")


def test_history__while_alone__is_not_told_and_nothing_is_undone() -> None:
    for operation in (Tell("a", [1]), Recall("a")):
        assert operation.alone(Outage(0, 0, "", 1)) is None
        assert operation.undo(None) is None
    assert len(Tell("a").parts) == CHUNKS == 11


def test_history__table_full_of_others__says_so_and_keeps_what_there_is() -> None:
    clock = ManualClock(START)
    with shared_store(clock) as store:
        store.apply(Tell("a", [1]))
        with suppress(StateFullError):
            for number in range(1000):
                store.apply(Write("filling", str(number), b"x", None))
        store.apply(Tell("a", [1]))
        assert store.apply(Recall("a")).slots == [Slot(0.0, numbers(2))]
        with pytest.raises(StateFullError, match="no room for 'comporta_history:b:"):
            store.apply(Tell("b", [1]))


def test_history__on_a_server__is_one_small_key_that_ends_after_an_hour(server: Server) -> None:
    clock = ManualClock(START)
    with redis_store(server, clock) as store:
        for _ in range(SLOTS + 5):
            store.apply(Tell("upstream.pncp", [100] * 16, {20: 5}))
            clock.advance(SLOT_SECONDS)
        assert command(server, "KEYS", "*").count(b"comporta") == 1
        assert command(server, "HLEN", "comporta_history:upstream.pncp") == b":361\r\n"
        assert 3_600_000 < int(command(server, "PTTL", "comporta_history:upstream.pncp")[1:]) <= 3_610_000
        assert int(command(server, "MEMORY", "USAGE", "comporta_history:upstream.pncp")[1:]) < 80_000
        assert 0 <= slot_of(Tell("upstream.pncp")) == slot_of(Recall("upstream.pncp"))


def test_history__by_the_servers_own_clock__begins_now(valkey: Server) -> None:
    with redis_store(valkey) as store:
        store.apply(Tell("a", [1]))
        store.apply(Tell("a", [1]))
        found = store.apply(Recall("a"))
    assert sum(slot.numbers[0] for slot in found.slots) == 2
    assert 0 <= found.slots[-1].age < 3600


def test_history__something_else_at_its_key__is_named_and_left(valkey: Server) -> None:
    with redis_store(valkey, ManualClock(START)) as store:
        command(valkey, "SET", "comporta_history:a", "mine")
        with pytest.raises(StateTypeError, match=re.escape("'comporta_history:a'")):
            store.apply(Tell("a", [1]))


def test_history__slot_written_by_hand__is_read_as_far_as_it_makes_sense(valkey: Server) -> None:
    with redis_store(valkey, ManualClock(START)) as store:
        command(valkey, "HSET", "comporta_history:a", str(START // 10), "3 x 4", "last", "yesterday")
        assert store.apply(Recall("a")).slots == [Slot(0.0, numbers(3, 4))]
        store.apply(Tell("a", [1]))
        assert store.apply(Recall("a")).slots == [Slot(0.0, numbers(4, 4))]


def test_history__marks__are_there_until_the_slot_is_over() -> None:
    store = MemoryStore(clock := ManualClock(START))
    for marks in ([(21, 1)], [(21, 4), (22, 1)], [(21, 1)]):
        store.apply(Tell("a", marks=marks))
    clock.advance(SLOT_SECONDS)
    store.apply(Tell("a", [1]))
    assert [slot.numbers[21:23] for slot in store.apply(Recall("a")).slots] == [(5, 1), (0, 0)]


def test_history__key_of_somebody_else_among_others__is_the_only_one_that_fails(server: Server) -> None:
    with redis_store(server, ManualClock(START)) as store:
        command(server, "SET", "comporta_history:b", "something else")
        told = store.apply_all(
            [Tell("a", [1], {3: 2}, [(4, 1)]), Tell("b", [2], {3: 3}, [(4, 2)]), Tell("c", [3])]
        )
        found = store.apply_all([Recall("a"), Recall("b"), Recall("c")])
        for replies in (told, found):
            assert isinstance(replies[1], StateTypeError)
            assert "comporta_history:b" in str(replies[1])
        assert [history.slots[0].numbers[:5] for history in found[::2]] == [(1, 0, 0, 2, 1), (3, 0, 0, 0, 0)]
        with pytest.raises(StateTypeError):
            store.apply(Tell("b", [1]))
