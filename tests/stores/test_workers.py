"""Who shares a state: the registry of workers, in memory, between processes and on servers."""

from __future__ import annotations

import pytest
from tests.support import Opens, command, memory_store, redis_store

from comporta.errors import StateTypeError
from comporta.stores.base import Outage
from comporta.stores.workers import GATHER_SECONDS, WORKERS, WORKERS_MAX, Beat, Gather, Leave, Roll, Worker
from comporta.testing import ManualClock, Server


def numbered(number: int) -> Worker:
    here = Worker.here()
    return Worker(here.host, number, 1, number)


def test_registry__workers_come_die_and_leave__counts_who_is_alive(opens: Opens) -> None:
    clock = ManualClock()
    with opens(clock) as store:
        assert store.apply(Roll()) == []
        assert store.apply(Leave(numbered(9))) == 0
        assert [store.apply(Beat(numbered(n))) for n in (1, 2, 3)] == [1, 2, 3]
        clock.advance(2)
        assert store.apply(Beat(numbered(1))) == 3
        assert {(sign.worker.pid, sign.age) for sign in store.apply(Roll())} == {(1, 0), (2, 2), (3, 2)}
        clock.advance(1)
        assert store.apply(Beat(numbered(1))) == 1, "the others are silent for 3 s"
        assert store.apply(Beat(numbered(2))) == 2
        assert store.apply(Leave(numbered(2))) == 1
        assert store.apply(Leave(numbered(1))) == 0
        assert store.apply(Roll()) == []


def test_registry__clock_set_back_an_hour__neither_loses_the_living_nor_keeps_the_dead(opens: Opens) -> None:
    clock = ManualClock()
    with opens(clock) as store:
        store.apply(Beat(numbered(1)))
        store.apply(Beat(numbered(2)))
        clock.advance(-3600)
        assert store.apply(Beat(numbered(1))) == 2
        clock.advance(3)
        assert store.apply(Beat(numbered(1))) == 1
        clock.advance(3600)
        assert store.apply(Beat(numbered(1))) == 1


def test_registry__on_one_machine__counts_up_to_its_bound() -> None:
    with memory_store(ManualClock()) as store:
        counts = [store.apply(Beat(numbered(number))) for number in range(1, WORKERS_MAX + 5)]
        assert counts[-1] == WORKERS_MAX
        assert store.apply(Beat(numbered(1))) == WORKERS_MAX


def test_registry__somebody_elses_key__is_left_as_it_is(server: Server) -> None:
    with redis_store(server) as store:
        command(server, "SET", WORKERS, "mine")
        with pytest.raises(StateTypeError):
            store.apply(Beat(numbered(1)))
        assert b"mine" in command(server, "GET", WORKERS)


def test_worker__written_and_read__is_the_same() -> None:
    worker = Worker("host:with:colons", 12, 34, 2**64 - 1)
    assert Worker.read(str(worker)) == worker
    assert Worker.here() != Worker.here()
    assert Beat(worker).undo(1) is None
    assert Beat(worker).alone(Outage(0, 0, "", 1)) is None


def test_return__of_a_fleet__is_at_one_moment(opens: Opens) -> None:
    clock = ManualClock()
    ahead_us = round(GATHER_SECONDS * 1e6)
    with opens(clock) as store:
        assert store.apply(Gather()) == ahead_us, "the first sets it"
        clock.advance(0.25)
        assert store.apply(Gather()) == ahead_us - 250_000
        clock.advance(0.5)
        assert store.apply(Gather()) == ahead_us - 750_000, "too late to wait"
        clock.advance(0.5)
        assert store.apply(Gather()) == ahead_us, "another outage"
        clock.advance(-3600)
        assert store.apply(Gather()) == ahead_us, "a moment far off was set by another clock"
