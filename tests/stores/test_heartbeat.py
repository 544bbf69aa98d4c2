"""The heartbeat: registration, overrides, and the start and end of its thread."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any
from weakref import WeakMethod

import pytest
from tests.stores.manual_heartbeat import (
    STORE_DOWN,
    TEN_PER_SECOND,
    ManualHeartbeat,
    kinds_since,
    manual_failover,
    run_heartbeat,
)
from tests.support import fallback_of, memory_store, wait_until

from comporta import events
from comporta.errors import (
    StateTypeError,
)
from comporta.limits.acquire import AcquireOperation
from comporta.limits.operation import LimitDemand, LimitOperation
from comporta.stores.base import Operation, Store
from comporta.stores.failover.heartbeat import Heartbeat, stop_all
from comporta.stores.failover.heartbeat_run import HeartbeatRun
from comporta.stores.failover.store import FailoverStore
from comporta.stores.failover.worker_registry import (
    HEARTBEAT_SECONDS,
    REGISTRY_KEY,
    REJOIN_SPACE,
    ListWorkers,
    RecordHeartbeat,
    Worker,
)
from comporta.stores.records import ReadRecord, WriteRecord
from comporta.testing import ManualClock


def run_of(store: FailoverStore) -> HeartbeatRun:
    run = store.heartbeat._run
    assert run is not None
    return run


def test_heartbeat__store_reachable__counts_workers_and_reads_overrides() -> None:
    store, primary = manual_failover()
    overrides: list[bytes | None] = []

    class Listener:
        def on_override(self, override: bytes | None) -> None:
            overrides.append(override)

    listener, collected = Listener(), Listener()
    store.heartbeat.follow_override("s", "k", WeakMethod(listener.on_override))
    store.heartbeat.follow_override("s", "other", WeakMethod(collected.on_override))
    del collected
    primary.apply(WriteRecord("s", "k", b"new", None))
    primary.apply(RecordHeartbeat(Worker("elsewhere", 1, 1, 1)))
    assert run_heartbeat(store) == HEARTBEAT_SECONDS
    assert overrides == [b"new"]
    assert store.worker_count == 2
    assert len(store.heartbeat._follower._listeners) == 1


def test_heartbeat__store_fails_without_callers__begins_an_outage() -> None:
    store, primary = manual_failover()
    primary.error = STORE_DOWN
    run_heartbeat(store)
    assert store.local_share is not None


def test_heartbeat__registry_key_unusable__publishes_an_event_and_goes_on() -> None:
    store, primary = manual_failover()
    count = len(events.latest_events())
    primary.error = StateTypeError("'comporta_workers' holds something else")
    run_heartbeat(store)
    assert store.local_share is None
    assert kinds_since(count) == ["state_denied"]


def test_heartbeat__stopped__leaves_the_registry() -> None:
    store, primary = manual_failover()
    run_heartbeat(store)
    assert len(primary.apply(ListWorkers())) == 1
    store.heartbeat.stop()
    assert run_heartbeat(store) is None
    assert primary.apply(ListWorkers()) == []
    primary.error = STORE_DOWN
    store.fail_over(STORE_DOWN)
    store.heartbeat.stop()
    assert run_heartbeat(store) is None, "the store is down: the registry cannot be changed"


def test_heartbeat__stopped_during_an_outage__leaves_the_registry() -> None:
    store, primary = manual_failover()
    assert isinstance(store.heartbeat, ManualHeartbeat)
    primary.apply(RecordHeartbeat(store.heartbeat.run.worker))
    store.fail_over(STORE_DOWN)
    store.heartbeat.stop()
    assert run_heartbeat(store) is None
    assert primary.apply(ListWorkers()) == []


@pytest.mark.parametrize("is_down", [False, True])
def test_heartbeat__stopped_during_an_outage__tries_once_to_report_what_it_granted(is_down: bool) -> None:
    clock = ManualClock()
    store, primary = manual_failover(clock)
    primary.error = STORE_DOWN
    store.apply(AcquireOperation(TEN_PER_SECOND, "k", 1))
    clock.advance(0.5)
    assert [store.apply(AcquireOperation(TEN_PER_SECOND, "k", 1)) for _ in range(5)] == [0] * 5
    primary.error = STORE_DOWN if is_down else None
    primary.calls = 0
    store.heartbeat.stop()
    assert run_heartbeat(store) is None
    # one report, if it arrives the record of the departure, and the worker leaves the registry
    assert primary.calls == (2 if is_down else 3)
    primary.error = None
    [reply] = primary.apply(LimitOperation([LimitDemand(TEN_PER_SECOND.strategy, "ten", "k", 0)]))
    assert reply.remaining == (10 if is_down else 5)


def test_heartbeat_thread__first_use_to_close__starts_and_stops() -> None:
    with memory_store() as primary:
        store = FailoverStore.wrap(primary, "memory://thread")
        heartbeat = store.heartbeat
        heartbeat.before_fork()
        heartbeat.after_fork_in_parent()
        store.apply(ReadRecord("s", "k"))
        first = run_of(store)
        store.apply(ReadRecord("s", "k"))
        assert run_of(store) is first
        wait_until(lambda: primary.apply(ListWorkers()))
        heartbeat.before_fork()
        assert not first.is_alive()
        heartbeat.after_fork_in_parent()
        second = run_of(store)
        assert second.is_alive()
        assert second.worker == first.worker, "the same worker"
        asyncio.run(store.aclose())
        assert not second.is_alive()
        assert primary.apply(ListWorkers()) == []
        heartbeat.stop()
        heartbeat.start()
        third = run_of(store)
        assert third.worker != second.worker
        heartbeat.after_fork()
        assert heartbeat._run is None
        third.stop(10)
        HeartbeatRun(Worker.new()).stop(10)


def test_heartbeat_thread__started_by_another_caller__is_left_running() -> None:
    with memory_store() as primary:
        heartbeat = FailoverStore.wrap(primary, "memory://other-caller").heartbeat
        other_run = HeartbeatRun(Worker.new())

        class ReplacedRun(HeartbeatRun):
            def is_alive(self) -> bool:
                heartbeat._run = other_run
                return False

        heartbeat._run = ReplacedRun(Worker.new())
        assert heartbeat.start()
        assert heartbeat._run is other_run


def test_heartbeat__replaced_run__ends() -> None:
    with memory_store() as primary:
        store = FailoverStore.wrap(primary, "memory://replaced")
        assert store.heartbeat.run_once(store, HeartbeatRun(Worker.new())) is None


def test_heartbeat_thread__store_garbage_collected__ends() -> None:
    with memory_store() as primary:
        store = FailoverStore.wrap(primary, "memory://collected")
        store.apply(ReadRecord("s", "k"))
        run = run_of(store)
        del store
        gc.collect()
        run.wake.set()
        wait_until(lambda: not run.is_alive())


def test_heartbeat_thread__exception_in_a_run__publishes_it_and_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with memory_store() as primary:
        store = FailoverStore.wrap(primary, "memory://exception")
        count = len(events.latest_events())

        def fail(self: Heartbeat, store: FailoverStore, run: HeartbeatRun) -> float:
            raise ZeroDivisionError

        monkeypatch.setattr(Heartbeat, "run_once", fail)
        store.apply(ReadRecord("s", "k"))
        wait_until(lambda: kinds_since(count))
        assert kinds_since(count)[0] == "heartbeat_failed"
        store.close()  # the thread still ends
        monkeypatch.undo()


def test_exit__several_heartbeats__leave_their_registries() -> None:
    with memory_store() as primary:
        store = FailoverStore.wrap(primary, "memory://exit")
        store.apply(ReadRecord("s", "k"))
        wait_until(lambda: primary.apply(ListWorkers()))
        stop_all()
        assert primary.apply(ListWorkers()) == []


def epoch_of(primary: Store) -> bytes:
    barrier = primary.apply(ReadRecord(REJOIN_SPACE, REGISTRY_KEY))
    assert barrier is not None
    return barrier.split()[0]


def test_heartbeat_thread__waiting_to_rejoin__rejoins_in_time_or_stops() -> None:
    with memory_store() as primary:
        store = FailoverStore.wrap(primary, "memory://rejoin")
        store.apply(AcquireOperation(TEN_PER_SECOND, "k", 1))
        for _ in range(2):  # the first outage counts as this worker's own fault
            primary.apply(RecordHeartbeat(Worker("elsewhere", 1, 1, 1)))
            store.fail_over(STORE_DOWN)
            wait_until(lambda: fallback_of(store) is None)
        assert epoch_of(primary) == b"1"
        store.fail_over(STORE_DOWN)
        wait_until(lambda: epoch_of(primary) == b"2")
        store.close()  # while it waits
        assert not store.is_healthy
        assert store.local_share is not None


def test_heartbeat__stopped_between_report_and_rejoin__does_not_rejoin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, _ = manual_failover()
    store.fail_over(STORE_DOWN)
    run_heartbeat(store)
    store.fail_over(STORE_DOWN)
    for answers in ([False], [True, False]):
        waits = iter(answers)
        monkeypatch.setattr(HeartbeatRun, "wait_until", lambda *_, waits=waits: next(waits))
        run_heartbeat(store)
        assert store.local_share is not None


def test_heartbeat__no_thread_available__store_works_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with memory_store() as primary:
        store = FailoverStore.wrap(primary, "memory://threadless")
        assert store.apply(AcquireOperation(TEN_PER_SECOND, "k", 1)) == 0
        assert not store.is_healthy
        store.fail_over(STORE_DOWN)
        store.close()


def test_heartbeat__two_override_listeners_of_a_key__calls_those_alive() -> None:
    store, primary = manual_failover()
    called: list[str] = []

    class Listener:
        def __init__(self, name: str) -> None:
            self.name = name

        def on_override(self, override: bytes | None) -> None:
            called.append(self.name)

    first, second = Listener("first"), Listener("second")
    for listener in (first, second):
        store.heartbeat.follow_override("s", "k", WeakMethod(listener.on_override))
    primary.apply(WriteRecord("s", "k", b"x", None))
    run_heartbeat(store)
    del second, listener
    gc.collect()
    run_heartbeat(store)
    assert called == ["first", "second", "first"]
    apply = primary.apply

    def apply_or_refuse(operation: Operation[Any]) -> Any:
        if isinstance(operation, ReadRecord):
            raise StateTypeError("not a record")
        return apply(operation)

    primary.apply = apply_or_refuse  # type: ignore[method-assign]
    run_heartbeat(store)
    assert fallback_of(store) is None


def test_heartbeat__two_forks_at_once__restarts_once() -> None:
    with memory_store() as primary:
        store = FailoverStore.wrap(primary, "memory://forks")
        store.apply(ReadRecord("s", "k"))
        heartbeat = store.heartbeat
        heartbeat.before_fork()
        heartbeat.before_fork()
        heartbeat.after_fork_in_parent()
        first = run_of(store)
        heartbeat.after_fork_in_parent()
        assert run_of(store) is first
        store.close()
