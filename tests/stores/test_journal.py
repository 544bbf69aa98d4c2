"""The latest notes of all workers, in memory, between processes and on servers."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from tests.support import Opens, command, memory_store, redis_store

from comporta.errors import StateTypeError
from comporta.stores.base import Outage
from comporta.stores.journal import ENTRIES_MAX, ENTRY_BYTES_MAX, Latest, Note
from comporta.testing import ManualClock, Server


def test_journal__noted_one_by_one_and_together__the_newest_comes_first(opens: Opens) -> None:
    with opens(ManualClock()) as store:
        assert store.apply(Latest("events")) == []
        assert store.apply(Note("events", b"first")) == 1
        assert store.apply(Note("events", b"second", b"\0\xffthird")) == 2
        store.apply(Note("others", b"else"))
        assert store.apply(Latest("events")) == [b"\0\xffthird", b"second", b"first"]
        assert store.apply(Latest("events", 2)) == [b"\0\xffthird", b"second"]
        assert store.apply(Latest("others")) == [b"else"]


def test_journal__more_than_there_is_room_for__keeps_the_latest(opens: Opens) -> None:
    with opens(ManualClock()) as store:
        for number in range(0, 1000, 50):
            store.apply(Note("events", *(b"event %d" % each for each in range(number, number + 50))))
        found = store.apply(Latest("events"))
    assert found == [b"event %d" % number for number in range(999, 999 - ENTRIES_MAX, -1)]


def test_journal__longest_notes__keeps_some_of_them_whole(opens: Opens) -> None:
    with opens(ManualClock()) as store:
        noted = [b"%03d" % number + b"x" * (ENTRY_BYTES_MAX - 3) for number in range(250)]
        for start in range(0, 250, 50):
            store.apply(Note("events", *noted[start : start + 50]))
        found = store.apply(Latest("events"))
    assert 28 <= len(found) <= ENTRIES_MAX
    assert found == noted[: -len(found) - 1 : -1]


def test_journal__hour_without_a_note__is_forgotten() -> None:
    clock = ManualClock()
    with memory_store(clock) as store:
        store.apply(Note("events", b"a"))
        clock.advance(3599)
        assert store.apply(Latest("events")) == [b"a"]
        clock.advance(1)
        assert store.apply(Latest("events")) == []


def test_journal__on_a_server__is_one_key_that_ends_after_an_hour(server: Server) -> None:
    with redis_store(server) as store:
        for _ in range(10):
            store.apply(Note("events", *[b"x"] * 50))
        assert command(server, "HLEN", "comporta_journal:events") == b":201\r\n"
        assert 3_590_000 < int(command(server, "PTTL", "comporta_journal:events")[1:]) <= 3_600_000


def test_journal__something_else_at_its_key__is_named_and_left(valkey: Server) -> None:
    with redis_store(valkey) as store:
        command(valkey, "SET", "comporta_journal:events", "mine")
        with pytest.raises(StateTypeError, match=re.escape("'comporta_journal:events'")):
            store.apply(Note("events", b"a"))
        command(valkey, "DEL", "comporta_journal:events")
        command(valkey, "HSET", "comporta_journal:events", "next", "many")
        assert store.apply(Note("events", b"a")) == 1
        assert store.apply(Latest("events")) == [b"a"]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: Note("events"), "entries must be 1 to 50, got 0"),
        (lambda: Note("events", *[b"x"] * 51), "entries must be 1 to 50, got 51"),
        (lambda: Note("events", b""), "entry must be 1 to 1000 bytes, got 0"),
        (lambda: Note("events", b"x" * 1001), "entry must be 1 to 1000 bytes, got 1001"),
        (lambda: Latest("events", 0), "count must be 1 to 200, got 0"),
        (lambda: Latest("events", 201), "count must be 1 to 200, got 201"),
        (lambda: Latest("no name"), "name must be 1 to 100 of"),
    ],
)
def test_journal__what_makes_no_sense__is_refused_by_name(made: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        made()


def test_journal__while_alone__is_not_written_and_nothing_is_undone() -> None:
    for operation in (Note("events", b"x"), Latest("events")):
        assert operation.alone(Outage(0, 0, "", 1)) is None
        assert operation.undo(None) is None


def test_journal__reply_of_something_else__is_no_answer() -> None:
    with pytest.raises(TypeError, match="no notes"):
        Latest("events").parse([b"x", 1])
