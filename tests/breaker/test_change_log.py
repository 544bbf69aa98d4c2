"""A breaker on a store with a change log: its view is read again when the circuit changed, and every 5 s."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.breaker.drivers import Driver
from tests.stores.change_log_store import FailingChangeLogStore, manual_failover_with_changes
from tests.stores.manual_heartbeat import ManualHeartbeat, run_heartbeat

from comporta import CircuitBreaker
from comporta.breaker.operation import BreakerOperation
from comporta.breaker.poller import IDLE_AFTER_NS
from comporta.stores.base import Operation
from comporta.stores.failover.change_follower import FULL_READ_SECONDS
from comporta.stores.failover.heartbeat import POLL_SECONDS
from comporta.stores.failover.store import FailoverStore
from comporta.stores.failover.worker_registry import HEARTBEAT_SECONDS
from comporta.testing import ManualClock


class Worker:
    """A worker with a breaker, and the reads of circuits that its heartbeat makes."""

    def __init__(self, store: FailoverStore, primary: FailingChangeLogStore, **config: object) -> None:
        self.store = store
        self.driver = Driver(CircuitBreaker("pncp", state=store, **config), None)  # type: ignore[arg-type]
        self.reads = 0
        apply_many = primary.apply_many

        def count(operations: Sequence[Operation[Any]]) -> list[Any]:
            self.reads += sum(isinstance(operation, BreakerOperation) for operation in operations)
            return apply_many(operations)

        primary.apply_many = count  # type: ignore[method-assign]

    def poll(self) -> float | None:
        """Do what is due, and return the seconds until the next poll."""
        assert isinstance(self.store.heartbeat, ManualHeartbeat)
        return self.store.heartbeat.run_once(self.store, self.store.heartbeat.run)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000)


def worker_and_other(clock: ManualClock, **config: object) -> tuple[Worker, Driver]:
    """Return a worker with a heartbeat, and another one on the same circuit."""
    store, primary = manual_failover_with_changes(clock)
    other = Driver(CircuitBreaker("pncp", state=primary, **config), None)  # type: ignore[arg-type]
    return Worker(store, primary, **config), other


def settle(worker: Worker) -> None:
    """Use the breaker, and poll until its view is current."""
    assert worker.driver.refused() is None
    run_heartbeat(worker.store)
    worker.poll()
    worker.reads = 0


def test_view__circuit_unchanged__stays_valid_without_reads(clock: ManualClock) -> None:
    worker, _ = worker_and_other(clock)
    settle(worker)
    for _ in range(20):
        clock.advance(POLL_SECONDS)
        assert worker.poll() is not None
        assert worker.driver.refused() is None
    assert worker.reads == 0


def test_view__circuit_opened_by_another__is_read_at_the_next_poll(clock: ManualClock) -> None:
    worker, other = worker_and_other(clock, threshold=1)
    settle(worker)
    clock.advance(POLL_SECONDS)
    other.fails()
    worker.poll()
    assert worker.reads == 1
    assert worker.driver.refused() is not None


def test_view__circuit_forced_by_an_operator__is_read_at_the_next_poll(clock: ManualClock) -> None:
    worker, other = worker_and_other(clock)
    settle(worker)
    for how, expected in (("open", False), (None, True)):
        clock.advance(POLL_SECONDS)
        other.force(how)
        worker.poll()
        assert (worker.driver.refused() is None) is expected


def test_view__streak_half_of_the_threshold__is_ended_by_a_success_of_another(clock: ManualClock) -> None:
    worker, other = worker_and_other(clock, threshold=4)
    settle(worker)
    clock.advance(POLL_SECONDS)
    other.fails()
    worker.poll()
    assert worker.reads == 0, "one failure of four is not worth a read"
    other.fails()
    clock.advance(POLL_SECONDS)
    worker.poll()
    assert worker.reads == 1
    assert worker.driver.refused() is None
    assert other.get_state().failures == 0


def test_view__reply_from_before_a_change__is_not_confirmed(clock: ManualClock) -> None:
    worker, other = worker_and_other(clock, threshold=1)
    settle(worker)
    state = worker.driver.breaker._view.state
    clock.advance(POLL_SECONDS)
    other.fails()
    state.mark_changed(clock.now_ns() // 1000)
    assert not state.confirm(clock.now_ns())
    clock.advance(POLL_SECONDS)
    assert worker.driver.refused() is not None, "the view is too old, so the store is asked"


def test_view__unchanged_for_five_seconds__is_read_for_keys_written_by_hand(clock: ManualClock) -> None:
    worker, _ = worker_and_other(clock)
    settle(worker)
    for _ in range(round(FULL_READ_SECONDS / POLL_SECONDS) + 1):
        clock.advance(POLL_SECONDS)
        worker.driver.refused()
        worker.poll()
    assert worker.reads == 1


def test_view__cooldown_over__is_read_again(clock: ManualClock) -> None:
    worker, _ = worker_and_other(clock, threshold=1, cooldown_seconds=2)
    worker.driver.fails()
    settle_count = worker.reads
    run_heartbeat(worker.store)
    clock.advance(1)
    worker.poll()
    clock.advance(1)
    worker.poll()
    assert worker.reads > settle_count
    assert worker.driver.allow().probe


def test_breaker__idle__is_neither_read_nor_polled(clock: ManualClock) -> None:
    worker, _ = worker_and_other(clock)
    settle(worker)
    clock.advance(IDLE_AFTER_NS / 1e9 + 1)
    worker.poll()
    worker.reads = 0
    assert run_heartbeat(worker.store) == HEARTBEAT_SECONDS
    assert worker.reads == 0


def test_window__successes__are_reported_about_once_a_second(clock: ManualClock) -> None:
    worker, other = worker_and_other(clock, failure_ratio=0.5, window_seconds=60)
    settle(worker)
    for _ in range(10):
        clock.advance(POLL_SECONDS)
        assert worker.driver.refused() is None
        worker.poll()
    assert 1 <= worker.reads <= 3
    other.get_state()
    reply = other.breaker._view.state.reply
    assert reply is not None
    assert reply.calls >= 5
