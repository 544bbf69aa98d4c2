"""Builds the operations on one circuit from what this process knows: its cached state and its counters."""

from __future__ import annotations

from comporta.breaker.admission import Admission, worker_name
from comporta.breaker.cached_state import CachedState
from comporta.breaker.config import BreakerConfig
from comporta.breaker.counters import CallCounters
from comporta.breaker.operation import BreakerOperation, CircuitSnapshot
from comporta.breaker.state import FAIL, NO_ADMISSION, READ, SUCCEED, CircuitRequest
from comporta.stores.base import Store
from comporta.stores.failover.worker_registry import WORKERS_MAX

_REPORTING_COMMANDS = (READ, FAIL, SUCCEED)
"""The commands that carry the counts; with other commands the circuit ignores them."""


class OperationBuilder:
    """Builds the operations on one circuit in one store."""

    __slots__ = ("_counters", "_name", "_rules", "_slow_text", "_state", "_store")

    def __init__(
        self, store: Store, name: str, config: BreakerConfig, state: CachedState, counters: CallCounters
    ) -> None:
        self._store = store
        self._name = name
        self._rules = config._rules
        self._slow_text = f"slower than {config.slow_seconds or 0:g} s"
        self._state = state
        self._counters = counters

    def build(
        self, command: str, admission: Admission | None = None, *, probe: int = 0, reason: str = ""
    ) -> BreakerOperation:
        """Return the operation for a command, which also reports the counts since the last report."""
        calls, slow = self._counters.take() if command in _REPORTING_COMMANDS else (0, 0)
        reply = self._state.reply
        if admission is not None:
            generation, probe = admission.generation, admission.probe
        else:
            generation = reply.generation if command == READ and reply is not None else NO_ADMISSION
        if slow and not reason:
            reason = self._slow_text
        return self._operation(
            CircuitRequest(
                command,
                generation,
                probe,
                -1 if probe else self._counters.succeeded_us(),
                calls,
                slow,
                owner=worker_name(),
                reason=reason,
            )
        )

    def build_local_read(self, generation: int) -> BreakerOperation:
        """Return a read without counts, which creates this worker's own circuit during an outage."""
        return self._operation(CircuitRequest(READ, generation, owner=worker_name()))

    def _operation(self, request: CircuitRequest) -> BreakerOperation:
        worker_count = self._store.worker_count or WORKERS_MAX
        return BreakerOperation(
            self._name,
            self._rules,
            request,
            self._snapshot,
            worker_count,
            store_clock=self._state.store_clock,
        )

    def _snapshot(self) -> CircuitSnapshot:
        return self._state.snapshot()._replace(succeeded_us=self._counters.succeeded_us())
