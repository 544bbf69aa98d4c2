"""Reads of the change log that operations of callers carry, so that a busy worker need not poll."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import redis
from tests.stores.change_log_store import (
    FailingChangeLogStore,
    Follower,
    manual_failover_with_changes,
    write,
)
from tests.stores.manual_heartbeat import TEN_PER_SECOND, ManualHeartbeat, run_heartbeat
from tests.support import command, redis_store

from comporta import StateTypeError, StateUnavailableError, Upstream
from comporta.limits.acquire import AcquireOperation
from comporta.stores.base import Operation
from comporta.stores.failover.change_follower import FULL_READ_SECONDS
from comporta.stores.failover.heartbeat import POLL_SECONDS
from comporta.stores.failover.log_reads import CARRY_AFTER_SECONDS
from comporta.stores.failover.read_changes import ReadChanges
from comporta.stores.failover.store import FailoverStore
from comporta.stores.records import ReadRecord
from comporta.stores.redis.protocol import ScriptCall
from comporta.testing import ManualClock, Server
from comporta.testing.redis_server import wait_until

ACQUIRE = AcquireOperation(TEN_PER_SECOND, "k", 1)


class BusyWorker:
    """A worker whose subscriber follows changes closely. ``call`` applies an operation as a caller does."""

    def __init__(self, *, awaiting: bool = False) -> None:
        self.clock = ManualClock()
        self.store, self.primary = manual_failover_with_changes(self.clock)
        self.follower = Follower(closely=True)
        self.log_reads = 0
        self._awaiting = awaiting
        self._count_log_reads(self.primary)
        self.store.subscribe(self.follower)
        run_heartbeat(self.store)
        self.store.apply(ACQUIRE)  # the store is open and the heartbeat runs
        self.log_reads = 0

    def _count_log_reads(self, primary: FailingChangeLogStore) -> None:
        apply = primary.apply

        def count(operation: Operation[Any]) -> Any:
            self.log_reads += isinstance(operation, ReadChanges)
            return apply(operation)

        primary.apply = count  # type: ignore[method-assign]

    def call(self, operation: Operation[Any] = ACQUIRE) -> Any:
        if self._awaiting:
            return asyncio.run(self.store.apply_async(operation))
        return self.store.apply(operation)

    def poll(self) -> float | None:
        """Let the heartbeat do what is due between two beats, and return the seconds until the next poll."""
        heartbeat = self.store.heartbeat
        assert isinstance(heartbeat, ManualHeartbeat)
        return heartbeat.run_once(self.store, heartbeat.run)


@pytest.fixture(params=[False, True], ids=["blocking", "awaiting"])
def worker(request: pytest.FixtureRequest) -> BusyWorker:
    return BusyWorker(awaiting=request.param)


def test_call__last_read_is_recent__carries_none(worker: BusyWorker) -> None:
    worker.clock.advance(CARRY_AFTER_SECONDS / 2)
    worker.call()
    assert worker.log_reads == 0


def test_call__log_read_is_due__carries_it_and_confirms_at_once(worker: BusyWorker) -> None:
    worker.clock.advance(CARRY_AFTER_SECONDS)
    worker.call()
    assert worker.log_reads == 1
    assert worker.follower.confirmed[-1] == worker.clock.now_ns()
    worker.call()
    assert worker.log_reads == 1, "one call carries it"


def test_heartbeat__caller_has_read_the_log__does_not_ask_until_that_is_old(worker: BusyWorker) -> None:
    worker.clock.advance(CARRY_AFTER_SECONDS)
    worker.call()
    asked_ns = worker.clock.now_ns()
    worker.clock.advance(0.05)
    left = worker.poll()
    assert left is not None
    assert left == pytest.approx(POLL_SECONDS - 0.05)
    assert (worker.log_reads, worker.follower.confirmed[-1]) == (1, asked_ns)
    worker.clock.advance(left)
    assert worker.poll() == POLL_SECONDS
    assert worker.log_reads == 2


def test_call__finds_a_change__wakes_the_heartbeat_that_passes_it_on(worker: BusyWorker) -> None:
    confirmed = len(worker.follower.confirmed)
    worker.follower.changed.clear()
    worker.clock.advance(CARRY_AFTER_SECONDS)
    write(worker.primary, "k", b"x")
    worker.call()
    assert (len(worker.follower.confirmed), worker.follower.changed) == (confirmed, [])
    assert worker.store.heartbeat.run.wake.is_set()  # type: ignore[attr-defined]
    worker.poll()
    assert worker.follower.changed == [worker.clock.now_ns() // 1000]


def test_call__everything_is_to_be_read_again__leaves_it_to_the_heartbeat(worker: BusyWorker) -> None:
    confirmed = len(worker.follower.confirmed)
    worker.clock.advance(FULL_READ_SECONDS)
    worker.call()
    assert len(worker.follower.confirmed) == confirmed
    assert worker.store.heartbeat.run.wake.is_set()  # type: ignore[attr-defined]


def test_call__no_subscriber_follows_closely__carries_none(worker: BusyWorker) -> None:
    worker.follower.closely = False
    worker.poll()
    worker.clock.advance(CARRY_AFTER_SECONDS)
    worker.call()
    assert worker.log_reads == 0


@pytest.mark.parametrize("fails", [ACQUIRE, ReadChanges])
def test_call__one_of_both_keys_unusable__concerns_only_that_one(worker: BusyWorker, fails: Any) -> None:
    apply = worker.primary.apply

    def apply_or_refuse(operation: Operation[Any]) -> Any:
        if operation is fails or (fails is ReadChanges and isinstance(operation, ReadChanges)):
            raise StateTypeError("not a record")
        return apply(operation)

    confirmed = len(worker.follower.confirmed)
    worker.primary.apply = apply_or_refuse  # type: ignore[method-assign]
    worker.clock.advance(CARRY_AFTER_SECONDS)
    assert isinstance(worker.call(), int)
    assert worker.store.fallback is None
    assert (len(worker.follower.confirmed) > confirmed) is (fails is ACQUIRE)


def test_call__store_fails_with_a_read_on_board__begins_an_outage(worker: BusyWorker) -> None:
    worker.clock.advance(CARRY_AFTER_SECONDS)
    worker.primary.error = StateUnavailableError("gone")
    assert isinstance(worker.call(), int)
    assert worker.store.fallback is not None


def test_apply_many__operations_of_several_scripts__one_round_trip(valkey: Server) -> None:
    with redis_store(valkey) as store:
        operations: list[Operation[Any]] = [ReadRecord("s", "k"), ReadChanges(0), ReadRecord("s", "k")]
        for prepare in (lambda: None, lambda: command(valkey, "SCRIPT", "FLUSH"), lambda: None):
            prepare()
            first, log, last = store.apply_many(operations)
            assert (first, log.reply, last) == (None, None, None)
            assert len(store._pool.idle) == 1


@pytest.mark.parametrize("knows_scripts", [True, False])
def test_apply_many__one_key_of_another_type__is_the_error_of_that_operation(
    valkey: Server, knows_scripts: bool
) -> None:
    with redis_store(valkey) as store:
        store.apply_many([ReadRecord("s", "k"), ReadChanges(0)])
        if not knows_scripts:
            command(valkey, "SCRIPT", "FLUSH")
        command(valkey, "SET", "comporta_changes", "x")
        value, error = store.apply_many([ReadRecord("s", "k"), ReadChanges(0)])
        assert value is None
        assert isinstance(error, StateTypeError)


@pytest.mark.parametrize(
    ("refuse", "text"),
    [
        (lambda server: command(server, "REPLICAOF", "127.0.0.1", "1"), "MASTERDOWN|READONLY"),
        (
            lambda server: command(server, "CONFIG", "SET", "requirepass", "x"),
            "NOAUTH|WRONGPASS",
        ),
    ],
    ids=["replica", "password"],
)
def test_apply_many__server_refuses_all__raises_and_keeps_no_connection(
    refuse: Callable[[Server], object], text: str
) -> None:
    with Server() as server, redis_store(server) as store:
        store.apply_many([ReadRecord("s", "k"), ReadChanges(0)])
        command(server, "CONFIG", "SET", "replica-serve-stale-data", "no")
        refuse(server)
        if "NOAUTH" in text:
            store.close_connections()
        with pytest.raises(StateUnavailableError, match=text):
            store.apply_many([ReadRecord("s", "k"), ReadChanges(0)])
        assert len(store._pool.idle) == 0


def test_upstream__steady_calls_on_a_server__heartbeat_asks_rarely(valkey: Server) -> None:
    with redis_store(valkey) as primary:
        store = FailoverStore.wrap(primary, "redis://test")
        upstream = Upstream("pncp", limit="1000000/s", state=store)
        upstream.sync.call(bool)
        wait_until(lambda: store.heartbeat.log_reads.is_wanted, "the breaker is followed", 60)
        asked: list[ReadChanges[Any]] = []
        apply = primary.apply

        def count(operation: Operation[Any]) -> Any:
            if isinstance(operation, ReadChanges) and operation.operation is None:
                asked.append(operation)
            return apply(operation)

        primary.apply = count  # type: ignore[method-assign]
        read = store.heartbeat.log_reads
        carried: set[int] = set()

        def has_carried_ten() -> bool:
            upstream.sync.call(bool)
            carried.add(read._carried_ns)
            return len(carried) >= 10

        wait_until(has_carried_ten, "ten calls carried a read", 60)
        assert len(asked) < len(carried)
        store.close()


def test_apply_many__server_out_of_memory__raises(valkey: Server) -> None:
    with redis_store(valkey) as store:
        call = ScriptCall(ReadChanges(0).script, [ReadChanges(0)])
        with pytest.raises(StateUnavailableError, match="OOM"):
            store._replies_to(call, redis.exceptions.ResponseError("OOM command not allowed"))
