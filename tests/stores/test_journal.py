"""The latest entries of all workers, on every engine."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from tests.support import StoreOpener, command, memory_store, redis_store

from comporta.errors import StateTypeError
from comporta.stores.journal import ENTRIES_MAX, ENTRY_BYTES_MAX, AppendToJournal, ReadJournal
from comporta.stores.outage_info import Outage
from comporta.testing import ManualClock, Server


def test_journal__appended_singly_and_together__lists_the_newest_first(open_store: StoreOpener) -> None:
    with open_store(ManualClock()) as store:
        assert store.apply(ReadJournal("events")) == []
        assert store.apply(AppendToJournal("events", b"first")) == 1
        assert store.apply(AppendToJournal("events", b"second", b"\0\xffthird")) == 2
        store.apply(AppendToJournal("others", b"else"))
        assert store.apply(ReadJournal("events")) == [b"\0\xffthird", b"second", b"first"]
        assert store.apply(ReadJournal("events", 2)) == [b"\0\xffthird", b"second"]
        assert store.apply(ReadJournal("others")) == [b"else"]


def test_journal__more_entries_than_it_keeps__keeps_the_latest(open_store: StoreOpener) -> None:
    with open_store(ManualClock()) as store:
        for number in range(0, 1000, 50):
            store.apply(
                AppendToJournal("events", *(b"event %d" % each for each in range(number, number + 50)))
            )
        entries = store.apply(ReadJournal("events"))
    assert entries == [b"event %d" % number for number in range(999, 999 - ENTRIES_MAX, -1)]


def test_journal__longest_entries__keeps_the_latest_whole(open_store: StoreOpener) -> None:
    with open_store(ManualClock()) as store:
        appended = [b"%03d" % number + b"x" * (ENTRY_BYTES_MAX - 3) for number in range(250)]
        for start in range(0, 250, 50):
            store.apply(AppendToJournal("events", *appended[start : start + 50]))
        entries = store.apply(ReadJournal("events"))
    assert 28 <= len(entries) <= ENTRIES_MAX
    assert entries == appended[: -len(entries) - 1 : -1]


def test_journal__hour_without_an_entry__expires() -> None:
    clock = ManualClock()
    with memory_store(clock) as store:
        store.apply(AppendToJournal("events", b"a"))
        clock.advance(3599)
        assert store.apply(ReadJournal("events")) == [b"a"]
        clock.advance(1)
        assert store.apply(ReadJournal("events")) == []


def test_journal__on_a_server__is_one_key_that_expires_after_an_hour(server: Server) -> None:
    with redis_store(server) as store:
        for _ in range(10):
            store.apply(AppendToJournal("events", *[b"x"] * 50))
        assert command(server, "HLEN", "comporta_journal:events") == b":201\r\n"
        assert 3_590_000 < int(command(server, "PTTL", "comporta_journal:events")[1:]) <= 3_600_000


def test_journal__key_of_another_type__is_named_and_left_alone(valkey: Server) -> None:
    with redis_store(valkey) as store:
        command(valkey, "SET", "comporta_journal:events", "mine")
        with pytest.raises(StateTypeError, match=re.escape("'comporta_journal:events'")):
            store.apply(AppendToJournal("events", b"a"))
        command(valkey, "DEL", "comporta_journal:events")
        command(valkey, "HSET", "comporta_journal:events", "next", "many")
        assert store.apply(AppendToJournal("events", b"a")) == 1
        assert store.apply(ReadJournal("events")) == [b"a"]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: AppendToJournal("events"), "entries must be 1 to 50, got 0"),
        (lambda: AppendToJournal("events", *[b"x"] * 51), "entries must be 1 to 50, got 51"),
        (lambda: AppendToJournal("events", b""), "entry must be 1 to 1000 bytes, got 0"),
        (lambda: AppendToJournal("events", b"x" * 1001), "entry must be 1 to 1000 bytes, got 1001"),
        (lambda: ReadJournal("events", 0), "count must be 1 to 200, got 0"),
        (lambda: ReadJournal("events", 201), "count must be 1 to 200, got 201"),
        (lambda: ReadJournal("no name"), "name must be 1 to 100 of"),
    ],
)
def test_journal__invalid_argument__is_refused_by_name(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_journal__during_an_outage__has_no_fallback_and_no_undo() -> None:
    for operation in (AppendToJournal("events", b"x"), ReadJournal("events")):
        assert operation.fallback(Outage(0, 0, "", 1)) is None
        assert operation.undo(None) is None


def test_journal__malformed_reply__raises() -> None:
    with pytest.raises(TypeError, match="expected a list of bytes"):
        ReadJournal("events").parse([b"x", 1])
