"""A failover store whose failures and heartbeats a test controls; everything else about it is real."""

from __future__ import annotations

import uuid
from typing import TypeVar

from comporta import events
from comporta.clock import Clock
from comporta.errors import StateError, StateUnavailableError
from comporta.limits.acquire import LimitDefinition
from comporta.limits.config import LimitConfig
from comporta.stores.base import Operation
from comporta.stores.failover.heartbeat import Heartbeat
from comporta.stores.failover.heartbeat_run import HeartbeatRun
from comporta.stores.failover.store import FailoverStore
from comporta.stores.failover.worker_registry import Worker
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock

R = TypeVar("R")

STORE_DOWN = StateUnavailableError("the server is gone")
TEN_PER_SECOND = LimitDefinition(LimitConfig.parse("10/s").build_strategy(), "ten")


def kinds_since(count: int) -> list[str]:
    """Return the kinds of the events published after the first ``count``."""
    return [event.kind for event in events.latest_events()[count:]]


class FailingStore(MemoryStore):
    """State in memory at an address of its own that raises ``error`` for as long as it is set."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.address = f"test://{uuid.uuid4().hex}"
        self.error: StateError | None = None
        self.calls = 0

    def apply(self, operation: Operation[R]) -> R:
        self.calls += 1
        if self.error is not None:
            raise self.error
        return super().apply(operation)


class ManualHeartbeat(Heartbeat):
    """A heartbeat without a thread: the test calls it."""

    def __init__(self, store: FailoverStore) -> None:
        super().__init__(store)
        self.run = self._run = HeartbeatRun(Worker.new(), store.clock)

    def start(self) -> bool:
        self.run.stop_requested = False
        return True

    def stop(self) -> None:
        self.run.leaves_registry = True
        self.run.stop(0)

    def beat(self, store: FailoverStore) -> float | None:
        """Make the next heartbeat due, and do what is due."""
        self._last_beat_ns -= 10**12
        return self.run_once(store, self.run)


def run_heartbeat(store: FailoverStore) -> float | None:
    """Let the heartbeat of a store do what is due now."""
    assert isinstance(store.heartbeat, ManualHeartbeat)
    return store.heartbeat.beat(store)


def manual_failover(clock: ManualClock | None = None) -> tuple[FailoverStore, FailingStore]:
    """Return a failover store with a manual heartbeat, and the engine behind it."""
    primary = FailingStore(clock or ManualClock())
    return another_worker(primary), primary


def another_worker(primary: FailingStore) -> FailoverStore:
    """Return another failover store with a manual heartbeat in front of the same engine."""
    store = FailoverStore(lambda: primary, primary.address, primary.clock)
    store.heartbeat = ManualHeartbeat(store)
    return store
