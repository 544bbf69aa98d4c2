"""A server's data as states, and operations carried out by their Python steps.

Scripts read the override record of a limit on the server; so does this engine. A few operations have separate
steps here, because a server carries them out differently from a local engine.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

from comporta.limits.budgets.operation import SettleOperation
from comporta.limits.concurrency.permits import PERMIT_SPACE
from comporta.limits.scripts import LIMIT_SPACE, OVERRIDE_SPACE
from comporta.simulation.server_engine import ServerEngine
from comporta.simulation.server_overrides import with_overrides
from comporta.simulation.server_registry import ServerRegistry
from comporta.stores.base import GONE, Operation, State, StateKey
from comporta.stores.changes import CHANGES_STATE_KEY, Changes, changes_since, note_change
from comporta.stores.failover.read_changes import ReadChanges, ReplyAndChanges
from comporta.stores.failover.worker_registry import BARRIER, ListWorkers, RecordHeartbeat, RemoveWorker
from comporta.stores.records import RECORD

_LIMIT_PREFIX = f"{LIMIT_SPACE}:"

States = dict[tuple[str, str], tuple[State, Any]]


class StepEngine(ServerEngine):
    """States by space and key, and the registry of live workers."""

    def __init__(self) -> None:
        self._states: States = {}
        self._registry = ServerRegistry()
        self._is_overridden = False  # whether a limit ever had an override
        self._unchanged: tuple[State | None, Changes] = (None, Changes(0, {}))

    def apply(self, operation: Operation[Any], now_us: int) -> tuple[Any, bool]:
        """Carry out an operation by its step, and record in the change log what it changed."""
        reply, changed = _OWN_STEPS.get(type(operation), _PYTHON_STEP)(self, operation, now_us)
        name = operation.changed_name(reply)
        if name is not None:
            log = note_change(self._state(CHANGES_STATE_KEY, now_us), name, now_us)
            self._set_state(CHANGES_STATE_KEY, log)
        return reply, changed

    def entries(self, space: str, now_us: int) -> dict[str, bytes]:
        """Return the live records of a space."""
        return {
            key: state[1]
            for (state_space, key), (state, state_type) in self._states.items()
            if state_space == space and state_type is RECORD and state[0] > now_us
        }

    def live_permits(self, name: str, now_us: int) -> list[str]:
        """Return the permits of a limit that are in use."""
        (permits, _), _ = self._states.get((PERMIT_SPACE, name), (((), ()), None))
        return [permit for ends_us, permit in permits if ends_us > now_us]

    def snapshot(self) -> tuple[States, ServerRegistry]:
        """Return a copy of the states and of the registry."""
        return dict(self._states), self._registry.copy()

    def restore(self, snapshot: tuple[States, ServerRegistry] | None) -> None:
        """Replace the states and the registry."""
        states, registry = snapshot or ({}, ServerRegistry())
        self._states, self._registry = dict(states), registry.copy()

    def _step(self, operation: Operation[Any], now_us: int) -> tuple[Any, bool]:
        """Carry out an operation by its Python step; returns the reply and whether a state changed."""
        keys, effective = operation.state_keys, operation
        if self._is_overridden and self._has_override(keys):
            effective = with_overrides(operation, lambda name: self._record(OVERRIDE_SPACE, name, now_us))
            keys = effective.state_keys
        states = [self._state(key, now_us) for key in keys]
        new_states, reply = effective.step(states, now_us)
        changed = False
        for key, new in zip(keys, new_states, strict=True):
            if new is not None:
                changed = True
                self._set_state(key, new)
        return reply, changed

    def _read_changes(self, operation: ReadChanges[Any], now_us: int) -> tuple[Any, bool]:
        """Carry out the operation inside, and read the change log, which usually has nothing new."""
        inner, reply, changed = operation.operation, None, False
        if inner is not None:
            reply, changed = _OWN_STEPS.get(type(inner), _PYTHON_STEP)(self, inner, now_us)
        log = self._state(CHANGES_STATE_KEY, now_us)
        known, none = self._unchanged
        if log is not None and log is known and operation.version == none.version:
            return ReplyAndChanges(reply, none), changed
        new_log, changes = changes_since(log, operation.version, now_us)
        if new_log is not None:
            self._set_state(CHANGES_STATE_KEY, new_log)
        self._unchanged = (new_log or log, Changes(changes.version, {}))
        return ReplyAndChanges(reply, changes), changed or new_log is not None

    def _beat(self, operation: RecordHeartbeat, now_us: int) -> tuple[Any, bool]:
        worker_count = self._registry.beat(operation.worker, now_us)
        barrier, pulse = operation.confirm(self._state(BARRIER, now_us), worker_count, now_us)
        if barrier is not None:
            self._set_state(BARRIER, barrier)
        return pulse, True

    def _remove_worker(self, operation: RemoveWorker, now_us: int) -> tuple[Any, bool]:
        return self._registry.remove(operation.worker, now_us), True

    def _list_workers(self, operation: ListWorkers, now_us: int) -> tuple[Any, bool]:
        return self._registry.live_workers(now_us), False

    def _settle(self, operation: SettleOperation, now_us: int) -> tuple[Any, bool]:
        """Settle as the script does: a call was granted some time ago, whatever the clock of its worker."""
        _, age_us = operation.script_args()
        at_server = copy(operation)
        at_server.granted_us = now_us - age_us
        return self._step(at_server, now_us)

    def _has_override(self, keys: Any) -> bool:
        states = self._states
        for key in keys:
            name = key.space.removeprefix(_LIMIT_PREFIX)
            if name is not key.space and (OVERRIDE_SPACE, name) in states:
                return True
        return False

    def _state(self, key: StateKey, now_us: int) -> State | None:
        space, name, state_type = key
        found = self._states.get((space, name))
        if found is None or state_type.expires_us(found[0]) <= now_us:
            return None
        return found[0]

    def _set_state(self, key: StateKey, state: State) -> None:
        if key.space == OVERRIDE_SPACE:
            self._is_overridden = True
        if state is GONE:
            self._states.pop((key.space, key.key), None)
        else:
            self._states[key.space, key.key] = (state, key.type)

    def _record(self, space: str, key: str, now_us: int) -> bytes | None:
        state = self._state(StateKey(space, key, RECORD), now_us)
        return None if state is None else state[1]


_Step = Callable[[StepEngine, Any, int], tuple[Any, bool]]

_PYTHON_STEP: _Step = StepEngine._step
_OWN_STEPS: dict[type[Operation[Any]], _Step] = {
    ReadChanges: StepEngine._read_changes,
    RecordHeartbeat: StepEngine._beat,
    RemoveWorker: StepEngine._remove_worker,
    ListWorkers: StepEngine._list_workers,
    SettleOperation: StepEngine._settle,
}
"""The operations that a server carries out differently from their Python steps."""
