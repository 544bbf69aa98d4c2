"""The simulated server replies to heartbeats as their Python steps do, and without their bound."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from comporta.runtime import RUNTIME
from comporta.simulation import step_engine
from comporta.simulation.server import SimulatedServer
from comporta.simulation.step_engine import StepEngine
from comporta.simulation.virtual_time import NANOSECONDS, Scheduler
from comporta.stores.base import Operation
from comporta.stores.failover.barrier import RejoinRequest
from comporta.stores.failover.read_changes import ReadChanges
from comporta.stores.failover.worker_registry import (
    WORKERS_MAX,
    ListWorkers,
    RecordHeartbeat,
    RemoveWorker,
    ScheduleRejoin,
    Worker,
)
from comporta.stores.records import ReadRecord, WriteRecord


def ignore(*_: object) -> None:
    """Observe nothing."""


def worker(number: int) -> Worker:
    return Worker(RUNTIME.host(), number, 1, number)


def draw_request(random: Random, chosen: Worker) -> RejoinRequest:
    lost, used, waiting = (random.choice((-1, 0, 1)) for _ in range(3))
    return RejoinRequest(chosen.member, lost, random.randrange(1, 4), 600_000, used, waiting)


def draw_operation(random: Random, version: int) -> Operation[Any]:
    chosen = worker(random.randrange(6))
    beat = RecordHeartbeat(chosen, random.choice((-1, 0, 1, 2)))
    return random.choice(
        [
            beat,
            ReadChanges(version, beat),
            ReadChanges(version, beat),
            ReadChanges(version, ReadRecord("space", "key")),
            ReadChanges(version),
            RemoveWorker(chosen),
            ListWorkers(),
            ScheduleRejoin(chosen, draw_request(random, chosen)),
            WriteRecord("space", "key", b"x", None, change_name=random.choice(("a", "b"))),
        ]
    )


def replies(seed: int) -> list[Any]:
    """Return the replies of a server to random operations; its clock jumps now and then.

    A heartbeat follows each jump: what has expired is then gone, even if the clock jumps back.
    """
    random, scheduler, version = Random(seed), Scheduler(), 0
    server, seen = SimulatedServer(scheduler, StepEngine(), ignore), []
    for _ in range(400):
        scheduler.now_ns += random.choice((0, NANOSECONDS // 10, NANOSECONDS // 2))
        operation = draw_operation(random, version)
        if random.random() < 0.03:
            server.clock_error_us += random.choice((-3600, -1, 1, 3600)) * 1_000_000
            operation = RecordHeartbeat(worker(0))
        reply = server.execute(operation, "w0")
        if isinstance(operation, ReadChanges):
            version = reply.changes.version
        seen.append(sorted(reply) if isinstance(operation, ListWorkers) else reply)
    return seen


@pytest.mark.parametrize("seed", range(10))
def test_server__random_operations__replies_as_the_python_steps_do(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = replies(seed)
    monkeypatch.setattr(step_engine, "_OWN_STEPS", {})
    assert own == replies(seed)


def test_server__more_workers_than_a_record_holds__counts_all_of_them() -> None:
    server = SimulatedServer(Scheduler(), StepEngine(), ignore)
    counts = [
        server.execute(RecordHeartbeat(worker(number)), "w0").worker_count
        for number in range(WORKERS_MAX + 30)
    ]
    assert counts[-1] == WORKERS_MAX + 30


@pytest.mark.parametrize(
    ("memory", "waits", "expected"), [("kept", 0, 2), ("empty", 0, 0), ("old", 0, 0), ("old", 2, 1)]
)
def test_server__restart__remembers_the_workers_of_its_memory(memory: str, waits: int, expected: int) -> None:
    scheduler = Scheduler()
    server = SimulatedServer(scheduler, StepEngine(), ignore)
    server.execute(RecordHeartbeat(worker(0)), "w0")
    server.keep_snapshots()
    scheduler.run_until(waits * NANOSECONDS)
    server.execute(RecordHeartbeat(worker(1)), "w1")
    server.crash()
    server.restart(memory, NANOSECONDS)
    assert len(server.execute(ListWorkers(), "w0")) == expected
