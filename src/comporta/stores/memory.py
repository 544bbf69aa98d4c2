"""State in a dictionary: one process, all its threads and event loops.

A space (all keys of one limit, say) is a dictionary of its own. Dead states are swept out a few at a
time, about once a second while the store is in use, each within a minute of its end. At ``keys_max`` a
new key is refused with ``StateFullError``: a live one is never thrown out for it.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any, TypeVar
from weakref import WeakSet

from comporta.clock import MONOTONIC, SECOND_US, Clock
from comporta.errors import StateFullError
from comporta.stores.base import GONE, Kind, Operation, Part, State, Stepper
from comporta.stores.records import RECORD

R = TypeVar("R")

_SWEEP_EVERY_US = SECOND_US
_SWEEP_ROUNDS = 60
_SWEEP_MIN = 256


class _Space:
    """The states of one space and how to tell when one is dead."""

    __slots__ = ("kind", "table")

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.table: dict[str, State] = {}


class MemoryStore:
    """A store for one process."""

    def __init__(self, clock: Clock = MONOTONIC, keys_max: int = 1_000_000) -> None:
        if keys_max < 1:
            raise ValueError(f"keys_max must be at least 1, got {keys_max}")
        self.clock = clock
        self.keys_max = keys_max
        self.sweep_at_us = 0
        self._lock = Lock()
        self._spaces: dict[str, _Space] = {}
        self._followers: dict[tuple[str, str], WeakSet[MemoryBound]] = {}
        self._size = 0
        self._to_sweep: list[tuple[_Space, str]] = []
        self._sweep_share = 0
        self._full_sweep_at_us = 0

    def __len__(self) -> int:
        """Return the number of keys held, dead ones included until they are swept out."""
        return self._size

    def apply(self, operation: Operation[R]) -> R:
        """Carry out an operation under the store's lock."""
        parts = operation.parts
        with self._lock:
            now_us = self.clock.now_ns() // 1000
            states = [self._state(part, now_us) for part in parts]
            new_states, reply = operation.step(states, now_us)
            for part, new in zip(parts, new_states, strict=True):
                if new is GONE:
                    self._drop(part)
                elif new is not None:
                    self._keep(part, new, now_us)
                    self._tell(part, new)
        return reply

    async def apply_async(self, operation: Operation[R]) -> R:
        """Carry out an operation; it takes microseconds, so it is done on the spot."""
        return self.apply(operation)

    def entries(self, space: str) -> dict[str, bytes]:
        """Return the live records of a space."""
        with self._lock:
            now_us = self.clock.now_ns() // 1000
            table = self._space(space, RECORD).table
            return {key: value for key, (ends, value) in table.items() if ends > now_us}

    async def entries_async(self, space: str) -> dict[str, bytes]:
        """Return what ``entries`` returns."""
        return self.entries(space)

    def bind(self, stepper: Stepper, space: str, change: Part, written: Callable[[Any], str]) -> MemoryBound:
        """Tie a stepper to a space of this store."""
        with self._lock:
            bound = MemoryBound(self, self._lock, stepper, self._space(space, stepper), written)
            self._followers.setdefault((change.space, change.key), WeakSet()).add(bound)
            self._tell(change, self._state(change, self.clock.now_ns() // 1000))
        return bound

    def close(self) -> None:
        """Forget everything: what only this process knew goes with it."""
        with self._lock:
            for space in self._spaces.values():
                space.table.clear()
            self._to_sweep.clear()
            self._size = 0

    def admit(self, now_us: int) -> None:
        """Count one key more, or refuse it. Only with the lock held."""
        if now_us >= self.sweep_at_us:
            self.sweep(now_us)
        if self._size >= self.keys_max:
            self._sweep_all(now_us)
        if self._size >= self.keys_max:
            raise StateFullError(f"memory:// holds {self.keys_max} keys, all alive: no room for more")
        self._size += 1

    def sweep(self, now_us: int) -> None:
        """Look at a share of the keys and drop the dead. Only with the lock held."""
        self.sweep_at_us = now_us + _SWEEP_EVERY_US
        if not self._to_sweep:
            self._to_sweep = [(s, key) for s in self._spaces.values() for key in s.table]
            self._sweep_share = max(_SWEEP_MIN, len(self._to_sweep) // _SWEEP_ROUNDS)
        looked_at = self._to_sweep[-self._sweep_share :]
        del self._to_sweep[-self._sweep_share :]
        for space, key in looked_at:
            state = space.table.get(key)
            if state is not None and space.kind.expires_us(state) <= now_us:
                del space.table[key]
                self._size -= 1

    def _sweep_all(self, now_us: int) -> None:
        """Look at every key, at most once a second: a flood of new keys must not make each cost this."""
        if now_us >= self._full_sweep_at_us:
            self._full_sweep_at_us = now_us + _SWEEP_EVERY_US
            self._to_sweep.clear()
            self.sweep(now_us)
            while self._to_sweep:
                self.sweep(now_us)

    def _state(self, part: Part, now_us: int) -> State | None:
        state = self._space(part.space, part.kind).table.get(part.key)
        return None if state is None or part.kind.expires_us(state) <= now_us else state

    def _space(self, name: str, kind: Kind) -> _Space:
        space = self._spaces.get(name)
        if space is None:
            space = self._spaces[name] = _Space(kind)
        return space

    def _keep(self, part: Part, state: State, now_us: int) -> None:
        table = self._spaces[part.space].table
        if part.key not in table:
            self.admit(now_us)
        table[part.key] = state

    def _drop(self, part: Part) -> None:
        del self._spaces[part.space].table[part.key]
        self._size -= 1
        self._tell(part, None)

    def _tell(self, part: Part, state: State | None) -> None:
        for bound in self._followers.get((part.space, part.key), ()):
            bound.revise(None if state is None else state[1])


class MemoryBound:
    """A stepper tied to one space; ``take`` is the shortest way from a key to a decision."""

    __slots__ = ("__weakref__", "_original", "_space", "_use", "attempt", "stepper", "take")

    take: Callable[[Any, int], int]
    attempt: Callable[[Any, int], int]

    def __init__(
        self,
        store: MemoryStore,
        lock: Lock,
        stepper: Stepper,
        space: _Space,
        written: Callable[[Any], str],
    ) -> None:
        self.stepper = self._original = stepper
        self._space = space
        table, step, now_ns = space.table, stepper.step, store.clock.now_ns
        get, acquire, release = table.get, lock.acquire, lock.release

        # everything it touches is a local, and the lock is not a context manager: it is the hot path
        def take(key: Any, cost: int) -> int:
            state = get(key)
            if state is None:
                key = written(key)
            acquire()
            try:
                now_us = now_ns() // 1000
                state = get(key)
                new, wait_us = step(state, now_us, cost)
                if new is not None:
                    if state is None:
                        store.admit(now_us)
                    elif now_us >= store.sweep_at_us:
                        store.sweep(now_us)
                    table[key] = new
            finally:
                release()
            return wait_us

        def use(other: Stepper) -> None:
            nonlocal step
            step = other.step

        self.take = self.attempt = take
        self._use = use

    async def take_async(self, key: Any, cost: int) -> int:
        """Do what ``take`` does: it takes microseconds."""
        return self.take(key, cost)

    def revise(self, change: bytes | None) -> None:
        """Follow a change an operator made. Only with the store's lock held."""
        self.stepper = self._space.kind = stepper = self._original.revised(change)
        self._use(stepper)
