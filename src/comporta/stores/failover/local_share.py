"""This worker's share of every limit during one outage, kept in its own memory.

It applies operations in the form they take during an outage (:meth:`Operation.fallback`) and collects, for
the recovery, the reports of what it granted. It does not know when an outage begins or ends.
"""

from __future__ import annotations

from typing import TypeVar

from comporta.clock import Clock
from comporta.errors import StateAuthError, StateError, StateFullError, StateUnavailableError
from comporta.stores.base import Operation, State, StateType
from comporta.stores.memory import MemoryStore
from comporta.stores.outage_info import Outage

R = TypeVar("R")

FALLBACK_KEYS_MAX = 100_000
"""How many keys a worker keeps during an outage; it refuses further keys until the recovery."""


class LocalShare:
    """One outage: what is known about it, and this worker's local state.

    ``rejects_all`` is true if the server denied this worker before any reply, so that every operation raises.
    """

    __slots__ = ("cause", "full_outage", "outage", "rejects_all", "store")

    def __init__(self, outage: Outage, cause: StateError, clock: Clock) -> None:
        self.outage = outage
        self.full_outage = outage._replace(full=True)
        self.cause = cause
        self.store = MemoryStore(clock, FALLBACK_KEYS_MAX)
        self.rejects_all = False

    def apply(self, operation: Operation[R]) -> R:
        """Apply the fallback of an operation to the local state."""
        if self.rejects_all:
            raise StateAuthError(str(self.cause)) from self.cause
        fallback = operation.fallback(self.outage)
        if fallback is None:
            raise self.unavailable_error() from self.cause
        try:
            return self.store.apply(fallback)
        except StateFullError:
            refusal = operation.fallback(self.full_outage)
            return self.store.apply(refusal or fallback)

    def divide_by(self, worker_count: int) -> bool:
        """Divide by more workers from now on; false if there are no more than before.

        The count never falls during an outage. Earlier grants are reported as before.
        """
        outage = self.outage
        if worker_count <= outage.worker_count:
            return False
        first = outage.first_worker_count or outage.worker_count
        self.outage = outage = outage._replace(worker_count=worker_count, first_worker_count=first)
        self.full_outage = outage._replace(full=True)
        self.store.replace_state_types(lambda state_type: state_type.with_outage(outage))
        return True

    def freeze(self) -> None:
        """Stop granting, because the store would not know what is granted after the last report."""
        self.outage = self.outage._replace(is_ending=True)

    def thaw(self) -> None:
        """Grant again, because the outage continues after all."""
        self.outage = self.outage._replace(is_ending=False)

    def unavailable_error(self) -> StateUnavailableError:
        """Return the error for an operation that makes sense only where all workers see it."""
        return StateUnavailableError(f"not possible without the shared state: {self.cause}")

    def collect_reports(self) -> list[Operation[object]]:
        """Return the operations that report to the shared store what was granted since the last call."""
        reports: list[Operation[object]] = []

        def take_report(
            space: str, key: str, state_type: StateType, state: State, now_us: int
        ) -> State | None:
            report, reported_state = state_type.take_report(space, key, state, now_us)
            if report is not None:
                reports.append(report)
            return reported_state

        self.store.update_states(take_report)
        return reports
