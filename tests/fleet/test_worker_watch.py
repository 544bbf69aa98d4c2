"""Workers that leave or stop responding become events, once in the whole fleet."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from tests.processes.fleet import new_state_name, open_state, remove_shared_state, start_workers
from tests.stores.manual_heartbeat import manual_failover
from tests.support import wait_until

from comporta import events
from comporta.breaker.admission import worker_name
from comporta.fleet import fleet_status_flow
from comporta.fleet.counters import PendingCounts
from comporta.fleet.publisher import PublisherLoop
from comporta.fleet.status_writer import FleetStatusWriter
from comporta.fleet.worker_watch import GUARDS, RECHECK_SECONDS, TURNS, WorkerWatch
from comporta.flow import run
from comporta.runtime import RUNTIME
from comporta.stores.failover.registration import leave_registry
from comporta.stores.failover.worker_registry import DEAD_SECONDS, RecordHeartbeat, Worker
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock

OTHER = Worker(RUNTIME.host(), 17, 0, 5)
OTHER_NAME = f"{RUNTIME.host()}:17"


@pytest.fixture
def published_events() -> Iterator[list[events.Event]]:
    received: list[events.Event] = []
    stop = events.listen(received.append)
    yield received
    stop()


@pytest.fixture
def registry(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock)


def this_worker(token: int = 1) -> Worker:
    return Worker(RUNTIME.host(), RUNTIME.pid(), 0, token)


def beat(store: MemoryStore, *workers: Worker) -> None:
    for each in workers:
        store.apply(RecordHeartbeat(each))


def test_worker_watch__worker_silent__is_reported_once_after_a_second_look(
    registry: MemoryStore, clock: ManualClock, published_events: list[events.Event]
) -> None:
    watches = [WorkerWatch(registry), WorkerWatch(registry)]
    beat(registry, this_worker(), OTHER)
    for watch in watches:
        watch.check()
    clock.advance(DEAD_SECONDS)
    beat(registry, this_worker())
    for watch in watches:
        watch.check()
    assert published_events == []
    assert all(watch.has_suspects for watch in watches)
    for watch in watches:
        watch.check()
    [event] = published_events
    assert (event.kind, event.source, event.severity) == ("worker_lost", OTHER_NAME, "error")
    assert event.text == f"worker {OTHER_NAME} stopped responding: no heartbeat for 3 s"
    assert not any(watch.has_suspects for watch in watches)

    beat(registry, OTHER)
    for watch in watches:
        watch.check()
    assert published_events[1].text == f"worker {OTHER_NAME} responds again"
    clock.advance(DEAD_SECONDS)
    beat(registry, this_worker())
    for watch in (*watches, *watches):
        watch.check()
    assert [event.kind for event in published_events[2:]] == ["worker_lost"]


def test_worker_watch__worker_exits_normally__left(
    clock: ManualClock, published_events: list[events.Event]
) -> None:
    failover, registry = manual_failover(clock)
    watches = [WorkerWatch(registry), WorkerWatch(registry)]
    beat(registry, this_worker(), OTHER)
    for watch in watches:
        watch.check()
    leave_registry(failover, OTHER)
    for watch in watches:
        watch.check()
    assert [(event.kind, event.text) for event in published_events] == [
        ("worker_left", f"worker {OTHER_NAME} left")
    ]


def test_worker_watch__registry_lost_for_a_moment__reports_nothing(
    registry: MemoryStore, clock: ManualClock, published_events: list[events.Event]
) -> None:
    watch = WorkerWatch(registry)
    beat(registry, this_worker(), OTHER)
    watch.check()
    clock.advance(DEAD_SECONDS)
    watch.check()
    beat(registry, this_worker(), OTHER)
    watch.check()
    assert not watch.has_suspects
    clock.advance(DEAD_SECONDS)
    watch.forget()
    watch.check()
    watch.check()
    assert published_events == []


def test_worker_watch__not_a_guard__looks_only_now_and_then(
    registry: MemoryStore, clock: ManualClock, published_events: list[events.Event]
) -> None:
    watch = WorkerWatch(registry)
    guards = [Worker(RUNTIME.host(), number, 0, number) for number in range(GUARDS)]
    beat(registry, *guards, this_worker(token=99))
    watch.check()
    clock.advance(DEAD_SECONDS)
    for _ in range(TURNS - 1):
        watch.check()
    looked = [watch.has_suspects]
    watch.check()
    assert [*looked, watch.has_suspects] == [False, True]
    watch.check()
    assert len(published_events) == GUARDS + 1, "this worker sends no heartbeats in this test either"


def test_publisher__suspects__looks_again_within_a_second(registry: MemoryStore, clock: ManualClock) -> None:
    loop = PublisherLoop(FleetStatusWriter(registry, {}, PendingCounts(), 2.0), 2.0)
    beat(registry, this_worker(), OTHER)
    loop.writer.publish()
    assert loop.next_interval() == 2.0
    clock.advance(DEAD_SECONDS)
    loop.writer.publish()
    assert loop.next_interval() == RECHECK_SECONDS


def test_fleet__worker_killed_and_another_stopped__events_say_which() -> None:
    name = new_state_name()
    try:
        with (
            open_state(f"shared://{name}") as store,
            start_workers(3, "publish_calls", state=f"shared://{name}", calls=1) as workers,
        ):
            host = worker_name().rpartition(":")[0]
            _, stopped, killed = (one.go().result() for one in workers)
            wait_until(lambda: len(run(fleet_status_flow(store))["workers"]) == 3)
            os.kill(killed, signal.SIGKILL)

            def texts() -> set[str]:
                return {event["text"] for event in run(fleet_status_flow(store))["events"] or ()}

            lost = f"worker {host}:{killed} stopped responding: no heartbeat for 3 s"
            wait_until(lambda: lost in texts())
            assert workers[1].go().result() == "done"
            wait_until(lambda: f"worker {host}:{stopped} left" in texts())
            assert not any(f"{host}:{stopped} stopped" in text for text in texts())
            assert workers[0].go().result() == "done"
    finally:
        remove_shared_state(name)
