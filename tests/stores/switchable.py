"""A shared store whose failures are chosen by the test: everything else about it is real."""

from __future__ import annotations

from typing import TypeVar

from comporta.clock import Clock
from comporta.errors import StateError
from comporta.stores.base import Operation
from comporta.stores.failover import FailoverStore
from comporta.stores.keeper import Keeper, Life
from comporta.stores.memory import MemoryStore
from comporta.stores.workers import Worker
from comporta.testing import ManualClock

R = TypeVar("R")


class Switchable(MemoryStore):
    """State in memory that fails with ``error`` as long as there is one."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.error: StateError | None = None
        self.calls = 0

    def apply(self, operation: Operation[R]) -> R:
        self.calls += 1
        if self.error is not None:
            raise self.error
        return super().apply(operation)


class Patient(Life):
    """A life in which nobody else has to be waited for."""

    def waited(self, moment_ns: int) -> bool:
        return not self.over


class ByHand(Keeper):
    """A keeper without a thread: its turns are called by the test."""

    def __init__(self, store: FailoverStore) -> None:
        super().__init__(store)
        self.life = self._life = Patient(Worker.here())

    def start(self) -> bool:
        self.life.over = False
        return True

    def stop(self) -> None:
        self.life.goodbye = True
        self.life.end(0)

    def move(self, store: FailoverStore) -> float | None:
        """Let it be time for a sign of life, and do what is due."""
        self._beat_ns -= 10**12
        return self.turn(store, self.life)


def moved(store: FailoverStore) -> float | None:
    """Let the keeper of a store do what is due now."""
    assert isinstance(store.keeper, ByHand)
    return store.keeper.move(store)


def by_hand(clock: ManualClock | None = None) -> tuple[FailoverStore, Switchable]:
    """Return a failover store whose keeper moves only when told, and the store it stands in front of."""
    primary = Switchable(clock or ManualClock())
    store = FailoverStore(lambda: primary, f"test://{id(primary)}", primary.clock)
    store.keeper = ByHand(store)
    return store, primary
