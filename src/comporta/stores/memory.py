"""The engine behind ``memory://``: state in dictionaries of one process, for all its threads and event loops.

Each space (all keys of one limit, for example) has its own dictionaries (``memory_space.py``). The store
removes expired states a few at a time while it is in use, each within about a minute of its expiry. At
``keys_max`` it refuses a new key with ``StateFullError``: it never evicts a live one. No other process sees
its state.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Any, TypeVar
from weakref import WeakSet

from comporta import fork_safety
from comporta.clock import MONOTONIC, SECOND_US, Clock
from comporta.errors import StateFullError
from comporta.stores.base import GONE, Operation, State, StateKey, StateType, Store
from comporta.stores.bound_limit import Binding, Step
from comporta.stores.changes import CHANGES_STATE_KEY, note_change
from comporta.stores.memory_fast_path import MemoryBoundLimit
from comporta.stores.memory_space import MemorySpace
from comporta.stores.records import RECORD
from comporta.validators import require_integer

R = TypeVar("R")

# Without CPython's global lock two threads run at the same time: all callers then use the store's lock.
HAS_GIL = getattr(sys, "_is_gil_enabled", lambda: sys.implementation.name == "cpython")()

_SWEEP_EVERY_US = SECOND_US
_SWEEP_ROUNDS = 60
_SWEEP_MIN = 256
_SWEEP_MAX = 1024
_FULL_SWEEP_EVERY_US = SECOND_US // 100
_UPDATE_BATCH = 500


class MemoryStore(Store):
    """A store for one process."""

    address = "memory://"
    shared = False
    decides_in_process = True

    def __init__(self, clock: Clock = MONOTONIC, keys_max: int = 1_000_000) -> None:
        require_integer("keys_max", keys_max, 1)
        self.clock = clock
        self.keys_max = keys_max
        self.fast_path_until_us = 0
        self._sweep_at_us = 0
        self._lock = Lock()
        self._spaces: dict[str, MemorySpace] = {}
        self._bound_limits: dict[tuple[str, str], WeakSet[MemoryBoundLimit]] = {}
        self._size = 0
        self._older_count = max(1, keys_max // _SWEEP_MAX)
        self._to_sweep: list[tuple[MemorySpace, dict[str, Any]]] = []
        self._full_sweep_at_us = 0
        fork_safety.register(self)

    def __len__(self) -> int:
        """Return the number of keys, including expired ones that are not yet removed."""
        return self._size

    def apply(self, operation: Operation[R]) -> R:
        """Carry out an operation under the store's lock."""
        keys = operation.state_keys

        def apply_locked(now_us: int) -> R:
            states = [self._state(key, now_us) for key in keys]
            new_states, reply = operation.step(states, now_us)
            changes = [(key, new) for key, new in zip(keys, new_states, strict=True) if new is not None]
            self._reserve_keys(changes, now_us)
            for key, new in changes:
                self._store_state(key, new)
            name = operation.changed_name(reply) if self.keeps_changes else None
            if name is not None:
                log = note_change(self._state(CHANGES_STATE_KEY, now_us), name, now_us)
                self._store_state(CHANGES_STATE_KEY, log)
            return reply

        return self._run_locked(apply_locked)

    def step_locked(self, space: MemorySpace, key: str, step: Step[R], cost: int) -> R:
        """Apply a step to one key under the lock, where the fast path cannot."""

        def step_once(now_us: int) -> R:
            state = space.get(key)
            new, reply = step(state, now_us, cost)
            if new is not None:
                if state is None:
                    self._reserve_key(now_us)
                space.put(key, new)
            return reply

        return self._run_locked(step_once)

    def _run_locked(self, action: Callable[[int], R]) -> R:
        """Call ``action`` with the time, under the lock and with the fast paths closed.

        Only ``with`` takes the lock: a signal handler may raise between any two steps, and a context manager
        written in Python could be left half entered.
        """
        with self._lock:
            try:
                self.fast_path_until_us = 0
                now_us = self.clock.now_ns() // 1000
                if now_us >= self._sweep_at_us:
                    self._sweep(now_us)
                return action(now_us)
            finally:
                self.fast_path_until_us = self._sweep_at_us if HAS_GIL else 0

    async def apply_async(self, operation: Operation[R]) -> R:
        """Carry out an operation immediately, because it takes only microseconds."""
        return self.apply(operation)

    def entries(self, space: str) -> dict[str, bytes]:
        """Return the live records of a space."""

        def live_records(now_us: int) -> dict[str, bytes]:
            table = self._space(space, RECORD).table  # records are all in one dictionary
            return {key: value for key, (expires_us, value) in table.items() if expires_us > now_us}

        return self._run_locked(live_records)

    async def entries_async(self, space: str) -> dict[str, bytes]:
        """Return what ``entries`` returns, at once."""
        return self.entries(space)

    @property
    def worker_count(self) -> int:
        """1, because no other process sees this state."""
        return 1

    @property
    def memory(self) -> MemoryStore:
        """This store."""
        return self

    def bind(self, binding: Binding) -> MemoryBoundLimit:
        """Tie a limit's algorithm to a space of this store."""
        algorithm, override = binding.algorithm, binding.override

        def bind_locked(now_us: int) -> MemoryBoundLimit:
            space = self._space(binding.space, algorithm)
            bound = MemoryBoundLimit(self, algorithm, space, binding.key_text)
            self._bound_limits.setdefault((override.space, override.key), WeakSet()).add(bound)
            self._notify_bound_limits(override, self._state(override, now_us))
            return bound

        return self._run_locked(bind_locked)

    def space_states(self, space: str, state_type: StateType) -> dict[str, State]:
        """Return the live dictionary of a space, for callers with a fast path like :class:`MemoryBoundLimit`.

        They may replace states but never add a key: the store counts its keys.
        """
        return self._run_locked(lambda _: self._space(space, state_type).table)

    def update_states(self, update: Callable[[str, str, StateType, State, int], State | None]) -> None:
        """Replace every state by what ``update`` returns for it (``None``: leave it unchanged).

        It holds the lock for at most 500 states at a time. States that are added, removed or moved meanwhile
        may be left out.
        """
        parts = self._run_locked(
            lambda _: [(name, space, part) for name, space in self._spaces.items() for part in space.parts()]
        )
        for name, space, part in parts:
            keys = self._run_locked(partial(_keys_of, part))
            for start in range(0, len(keys), _UPDATE_BATCH):
                batch = keys[start : start + _UPDATE_BATCH]
                self._run_locked(partial(_update_batch, update, name, space, batch))

    def replace_state_types(self, replace: Callable[[StateType], StateType]) -> None:
        """Replace the type of each space by what ``replace`` returns for it."""

        def replace_locked(_: int) -> None:
            for space in self._spaces.values():
                space.state_type = replace(space.state_type)

        self._run_locked(replace_locked)

    def close(self) -> None:
        """Delete all states."""

        def clear(_: int) -> None:
            for space in self._spaces.values():
                space.clear()
            self._to_sweep.clear()
            self._size = 0

        self._run_locked(clear)

    def after_fork(self) -> None:
        """Reset the lock, which another thread of the parent may have held."""
        fork_safety.reinit_lock(self._lock)

    def _reserve_key(self, now_us: int) -> None:
        """Count one more key, or raise ``StateFullError``."""
        if self._size >= self.keys_max and now_us >= self._full_sweep_at_us:
            self._full_sweep_at_us = now_us + _FULL_SWEEP_EVERY_US  # not for every key of a flood
            self._sweep(now_us)
        if self._size >= self.keys_max:
            raise StateFullError(
                f"memory:// holds {self.keys_max} live keys and has no room for another; use fewer keys, or "
                "pass a MemoryStore with a larger keys_max"
            )
        self._size += 1

    def _sweep(self, now_us: int) -> None:
        """Check some of the keys and delete the expired states.

        All keys are checked once a minute. If that would be too many keys at a time, the store sweeps more
        often than once a second.
        """
        rounds = max(_SWEEP_ROUNDS, self._size // _SWEEP_MAX)
        self._sweep_at_us = now_us + _SWEEP_EVERY_US * _SWEEP_ROUNDS // rounds
        left = max(_SWEEP_MIN, self._size // rounds)
        if not self._to_sweep:
            self._to_sweep = [(space, part) for space in self._spaces.values() for part in space.parts()]
        while self._to_sweep and left > 0:
            space, part = self._to_sweep.pop()
            left -= len(part) + 1
            self._size -= space.remove_expired(part, now_us)

    def _state(self, key: StateKey, now_us: int) -> State | None:
        state = self._space(key.space, key.type).get(key.key)
        return None if state is None or key.type.expires_us(state) <= now_us else state

    def _space(self, name: str, state_type: StateType) -> MemorySpace:
        space = self._spaces.get(name)
        if space is None:
            space = self._spaces[name] = MemorySpace(state_type, self._older_count)
        return space

    def _reserve_keys(self, changes: list[tuple[StateKey, State]], now_us: int) -> None:
        """Count all new keys of an operation, or none of them if one has no room."""
        reserved = 0
        try:
            for key, new in changes:
                if new is not GONE and self._spaces[key.space].get(key.key) is None:
                    self._reserve_key(now_us)
                    reserved += 1
        except StateFullError:
            self._size -= reserved
            raise

    def _store_state(self, key: StateKey, state: State) -> None:
        space = self._spaces[key.space]
        if state is GONE:
            space.remove(key.key)
            self._size -= 1
        else:
            space.put(key.key, state)
        self._notify_bound_limits(key, None if state is GONE else state)

    def _notify_bound_limits(self, key: StateKey, state: State | None) -> None:
        for bound in self._bound_limits.get((key.space, key.key), ()):
            bound.apply_override(None if state is None else state[1])


def _keys_of(part: dict[str, Any], _: int) -> list[str]:
    return list(part)


def _update_batch(
    update: Callable[[str, str, StateType, State, int], State | None],
    name: str,
    space: MemorySpace,
    keys: list[str],
    now_us: int,
) -> None:
    for key in keys:
        state = space.get(key)
        new = None if state is None else update(name, key, space.state_type, state, now_us)
        if new is not None:
            space.put(key, new)
