"""The Lua version of the registry and of the barrier does exactly what the Python version does."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings
from tests.support import max_examples, redis_store

from comporta.stores.failover.barrier import RejoinRequest
from comporta.stores.failover.worker_registry import (
    RecordHeartbeat,
    RemoveWorker,
    ScheduleRejoin,
    Worker,
)
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock, Server

HOST = Worker.new().host

steps = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 300_000), st.integers(0, 4_000_000), st.integers(-50_000_000, 50_000_000)),
        st.sampled_from(["rejoin", "rejoin", "beat", "beat", "leave"]),
        st.integers(1, 4),
        st.integers(-1, 4),
        st.integers(1, 4),
        st.integers(-1, 4),
        st.integers(-1, 4),
    ),
    min_size=1,
    max_size=40,
)


def _operation(command: str, number: int, epoch: int, workers: int, *epochs: int) -> Any:
    worker = Worker(HOST, number, 1, number)
    if command == "rejoin":
        return ScheduleRejoin(worker, RejoinRequest(worker.member, epoch, workers, 1_600_000, *epochs))
    return RecordHeartbeat(worker, epoch) if command == "beat" else RemoveWorker(worker)


@settings(
    max_examples=max_examples(150),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=steps)
def test_lua__any_heartbeats_and_rejoins__replies_as_python_does(
    server: Server, steps: list[tuple[int, str, int, int, int, int, int]]
) -> None:
    clock = ManualClock(1_800_000_000)
    local = MemoryStore(clock)
    with redis_store(server, clock) as remote:
        for pause_us, command, *numbers in steps:
            clock.advance(pause_us / 1e6)
            operation = _operation(command, *numbers)
            assert remote.apply(operation) == local.apply(operation)
