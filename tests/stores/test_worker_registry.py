"""The registry of live workers, on every engine."""

from __future__ import annotations

import pytest
from tests.support import StoreOpener, command, memory_store, redis_store

from comporta.errors import StateTypeError
from comporta.stores.failover.worker_registry import (
    REGISTRY_KEY,
    WORKERS_MAX,
    ListWorkers,
    RecordHeartbeat,
    RemoveWorker,
    Worker,
)
from comporta.stores.outage_info import Outage
from comporta.testing import ManualClock, Server


def worker(number: int) -> Worker:
    return Worker(Worker.new().host, number, 1, number)


def test_registry__workers_start_die_and_stop__counts_live_ones(open_store: StoreOpener) -> None:
    clock = ManualClock()
    with open_store(clock) as store:
        assert store.apply(ListWorkers()) == []
        assert store.apply(RemoveWorker(worker(9))) == 0
        assert [store.apply(RecordHeartbeat(worker(n))).worker_count for n in (1, 2, 3)] == [1, 2, 3]
        clock.advance(2)
        assert store.apply(RecordHeartbeat(worker(1))).worker_count == 3
        assert {(live.worker.pid, live.age) for live in store.apply(ListWorkers())} == {
            (1, 0),
            (2, 2),
            (3, 2),
        }
        clock.advance(1)
        assert store.apply(RecordHeartbeat(worker(1))).worker_count == 1, "the others were silent for 3 s"
        assert store.apply(RecordHeartbeat(worker(2))).worker_count == 2
        assert store.apply(RemoveWorker(worker(2))) == 1
        assert store.apply(RemoveWorker(worker(1))) == 0
        assert store.apply(ListWorkers()) == []


def test_registry__clock_set_back_an_hour__keeps_live_workers_only(
    open_store: StoreOpener,
) -> None:
    clock = ManualClock()
    with open_store(clock) as store:
        store.apply(RecordHeartbeat(worker(1)))
        store.apply(RecordHeartbeat(worker(2)))
        clock.advance(-3600)
        assert store.apply(RecordHeartbeat(worker(1))).worker_count == 2
        clock.advance(3)
        assert store.apply(RecordHeartbeat(worker(1))).worker_count == 1
        clock.advance(3600)
        assert store.apply(RecordHeartbeat(worker(1))).worker_count == 1


def test_registry__local_engine__counts_up_to_its_maximum() -> None:
    with memory_store(ManualClock()) as store:
        numbers = range(1, WORKERS_MAX + 5)
        counts = [store.apply(RecordHeartbeat(worker(number))).worker_count for number in numbers]
        assert counts[-1] == WORKERS_MAX
        assert store.apply(RecordHeartbeat(worker(1))).worker_count == WORKERS_MAX


def test_registry__key_of_another_type__is_left_alone(server: Server) -> None:
    with redis_store(server) as store:
        command(server, "SET", REGISTRY_KEY, "other")
        with pytest.raises(StateTypeError):
            store.apply(RecordHeartbeat(worker(1)))
        assert b"other" in command(server, "GET", REGISTRY_KEY)


def test_worker__formatted_and_parsed__is_the_same() -> None:
    worker = Worker("host:with:colons", 12, 34, 2**64 - 1)
    assert Worker.parse(str(worker)) == worker
    assert Worker.new() != Worker.new()
    assert RecordHeartbeat(worker).undo(1) is None
    assert RecordHeartbeat(worker).fallback(Outage(0, 0, "", 1)) is None
