"""The change log on a server is the one in Python, after any changes at any times."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings
from tests.stores.change_log_store import ChangeLogStore
from tests.support import max_examples, redis_store

from comporta.stores.base import Operation
from comporta.stores.changes import CHANGES_MAX
from comporta.stores.failover.read_changes import ReadChanges
from comporta.stores.failover.worker_registry import RecordHeartbeat, Worker
from comporta.stores.records import ABSENT, DeleteRecord, WriteRecord
from comporta.testing import ManualClock, Server

WORKER = Worker.new()

pauses_us = st.one_of(st.just(0), st.integers(1, 50), st.integers(-10_000_000, 10_000_000))
names = st.sampled_from(["a", "b", "rate_limiter_change:pncp", "não 1", "x y"])
steps = st.tuples(
    pauses_us,
    st.sampled_from(["write", "write absent", "delete", "read", "beat"]),
    names,
    st.integers(-3, 8),  # the version that is known: one that was seen, or another
)


def operation_of(command: str, name: str, version: int) -> Operation[object]:
    if command == "read":
        return ReadChanges(version)
    if command == "beat":
        return ReadChanges(version, RecordHeartbeat(WORKER))
    if command == "delete":
        return DeleteRecord("s", name, change_name=name)
    expected = ABSENT if command == "write absent" else None
    return WriteRecord("s", name, b"x", None, expected, change_name=name)


@settings(
    max_examples=max_examples(150),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(script=st.lists(steps, min_size=1, max_size=40))
def test_lua__any_changes_and_versions__replies_as_python_does(
    server: Server, script: list[tuple[int, str, str, int]]
) -> None:
    clock = ManualClock(1_800_000_000)
    local = ChangeLogStore(clock)
    seen = [0, 10**15, 2 * 10**15]
    with redis_store(server, clock) as remote:
        for pause_us, command, name, choice in script:
            clock.advance(pause_us / 1e6)
            operation = operation_of(command, name, seen[choice % len(seen)])
            reply = local.apply(operation)
            assert remote.apply(operation) == reply
            version = local.apply(ReadChanges(0)).changes.version
            assert remote.apply(ReadChanges(0)).changes.version == version
            seen.append(version)


def test_lua__more_names_than_the_log_keeps__drops_the_same_ones(server: Server) -> None:
    clock = ManualClock(1_800_000_000)
    local = ChangeLogStore(clock)
    with redis_store(server, clock) as remote:
        versions = []
        for number in range(CHANGES_MAX + 10):
            clock.advance(0.001)
            for store in (local, remote):
                store.apply(WriteRecord("s", "k", b"x", None, change_name=f"name {number}"))
            versions.append(local.apply(ReadChanges(0)).changes.version)
        for version in (versions[0], versions[490], versions[498], versions[499], versions[-2], versions[-1]):
            assert remote.apply(ReadChanges(version)) == local.apply(ReadChanges(version))
        assert local.apply(ReadChanges(versions[490])).changes.names is None
        assert len(local.apply(ReadChanges(versions[600])).changes.names or ()) == CHANGES_MAX + 9 - 600
