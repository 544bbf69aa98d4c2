"""State in a dictionary: one process, all its threads and event loops.

A space (all keys of one limit, say) is a dictionary of its own. Dead states are swept out a few at a
time, about once a second while the store is in use, each within a minute of its end. At ``keys_max`` a
new key is refused with ``StateFullError``: a live one is never thrown out for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from threading import Lock
from typing import Any, TypeVar
from weakref import WeakSet

from comporta import forks
from comporta.clock import MONOTONIC, SECOND_US, Clock
from comporta.errors import StateFullError
from comporta.stores.base import GONE, Kind, Operation, Part, State, Step, StepOf, Stepper
from comporta.stores.records import RECORD

R = TypeVar("R")

# Without the global lock of CPython two threads really run at once: then all go by the store's lock.
ONE_THREAD_AT_A_TIME = getattr(sys, "_is_gil_enabled", lambda: sys.implementation.name == "cpython")()

_SWEEP_EVERY_US = SECOND_US
_SWEEP_ROUNDS = 60
_SWEEP_MIN = 256
_REFUSALS_MAX = 10_000
_VISITED_AT_ONCE = 500


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
        self.open_until_us = 0
        self._sweep_at_us = 0
        self._lock = Lock()
        self._spaces: dict[str, _Space] = {}
        self._followers: dict[tuple[str, str], WeakSet[MemoryBound]] = {}
        self._size = 0
        self._to_sweep: list[tuple[_Space, str]] = []
        self._sweep_share = 0
        self._full_sweep_at_us = 0
        forks.register(self)

    def __len__(self) -> int:
        """Return the number of keys held, dead ones included until they are swept out."""
        return self._size

    def apply(self, operation: Operation[R]) -> R:
        """Carry out an operation under the store's lock."""
        parts = operation.parts

        def applied(now_us: int) -> R:
            states = [self._state(part, now_us) for part in parts]
            new_states, reply = operation.step(states, now_us)
            changes = [(part, new) for part, new in zip(parts, new_states, strict=True) if new is not None]
            self._admit_all(changes, now_us)
            for part, new in changes:
                self._keep(part, new)
            return reply

        return self._alone(applied)

    def take_alone(self, space: _Space, key: str, step: Step[R], cost: int) -> R:
        """Do what a bound stepper could not do on its short way."""

        def taken(now_us: int) -> R:
            state = space.table.get(key)
            new, reply = step(state, now_us, cost)
            if new is not None:
                if state is None:
                    self._admit(now_us)
                space.table[key] = new
            return reply

        return self._alone(taken)

    def _alone(self, action: Callable[[int], R]) -> R:
        """Do something at a moment, under the lock, with bound steppers kept off their short way.

        The lock is taken by ``with`` and nothing else: an exception from a signal handler may come between
        any two steps, and a context manager of our own could be left half entered.
        """
        with self._lock:
            try:
                self.open_until_us = 0
                now_us = self.clock.now_ns() // 1000
                if now_us >= self._sweep_at_us:
                    self._sweep(now_us)
                return action(now_us)
            finally:
                self.open_until_us = self._sweep_at_us if ONE_THREAD_AT_A_TIME else 0

    async def apply_async(self, operation: Operation[R]) -> R:
        """Carry out an operation; it takes microseconds, so it is done on the spot."""
        return self.apply(operation)

    def entries(self, space: str) -> dict[str, bytes]:
        """Return the live records of a space."""

        def listed(now_us: int) -> dict[str, bytes]:
            table = self._space(space, RECORD).table
            return {key: value for key, (ends, value) in table.items() if ends > now_us}

        return self._alone(listed)

    async def entries_async(self, space: str) -> dict[str, bytes]:
        """Return what ``entries`` returns."""
        return self.entries(space)

    def bind(self, stepper: Stepper, space: str, change: Part, written: Callable[[Any], str]) -> MemoryBound:
        """Tie a stepper to a space of this store."""

        def bound(now_us: int) -> MemoryBound:
            made = MemoryBound(self, stepper, self._space(space, stepper), written)
            self._followers.setdefault((change.space, change.key), WeakSet()).add(made)
            self._tell(change, self._state(change, now_us))
            return made

        return self._alone(bound)

    def states(self, space: str, kind: Kind) -> dict[str, State]:
        """Return the states of a space themselves, for one who goes the short way of :class:`MemoryBound`.

        What is new is never put in here: it has to be counted.
        """
        return self._alone(lambda _: self._space(space, kind).table)

    def revisit(self, visit: Callable[[str, str, Kind, State, int], State | None]) -> None:
        """Show every state to ``visit``, and keep in its place what that returns (``None``: as it is).

        Some at a time, so that nobody has to wait long; what is new or gone meanwhile may not be shown.
        """
        places = self._alone(lambda _: [(name, key) for name, s in self._spaces.items() for key in s.table])

        def visited(now_us: int) -> None:
            for name, key in places[-_VISITED_AT_ONCE:]:
                space = self._spaces[name]
                state = space.table.get(key)
                new = None if state is None else visit(name, key, space.kind, state, now_us)
                if new is not None:
                    space.table[key] = new

        while places:
            self._alone(visited)
            del places[-_VISITED_AT_ONCE:]

    def close(self) -> None:
        """Forget everything: what only this process knew goes with it."""

        def forget(_: int) -> None:
            for space in self._spaces.values():
                space.table.clear()
            self._to_sweep.clear()
            self._size = 0

        self._alone(forget)

    def after_fork(self) -> None:
        """Free the lock that another thread of the parent may have held."""
        forks.renew(self._lock)

    def _admit(self, now_us: int) -> None:
        """Count one key more, or refuse it."""
        if self._size >= self.keys_max:
            self._sweep_all(now_us)
        if self._size >= self.keys_max:
            raise StateFullError(f"memory:// holds {self.keys_max} keys, all alive: no room for more")
        self._size += 1

    def _sweep(self, now_us: int) -> None:
        """Look at a share of the keys and drop the dead."""
        self._sweep_at_us = now_us + _SWEEP_EVERY_US
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
            self._sweep(now_us)
            while self._to_sweep:
                self._sweep(now_us)

    def _state(self, part: Part, now_us: int) -> State | None:
        state = self._space(part.space, part.kind).table.get(part.key)
        return None if state is None or part.kind.expires_us(state) <= now_us else state

    def _space(self, name: str, kind: Kind) -> _Space:
        space = self._spaces.get(name)
        if space is None:
            space = self._spaces[name] = _Space(kind)
        return space

    def _admit_all(self, changes: list[tuple[Part, State]], now_us: int) -> None:
        """Count all keys that are new, or none: no part of an operation is done without the others."""
        admitted = 0
        try:
            for part, new in changes:
                if new is not GONE and part.key not in self._spaces[part.space].table:
                    self._admit(now_us)
                    admitted += 1
        except StateFullError:
            self._size -= admitted
            raise

    def _keep(self, part: Part, state: State) -> None:
        table = self._spaces[part.space].table
        if state is GONE:
            del table[part.key]
            self._size -= 1
        else:
            table[part.key] = state
        self._tell(part, None if state is GONE else state)

    def _tell(self, part: Part, state: State | None) -> None:
        for bound in self._followers.get((part.space, part.key), ()):
            bound.revise(None if state is None else state[1])


class MemoryBound:
    """A stepper tied to one space; ``take`` is the shortest way from a key to a decision.

    It takes no lock. A decision is made on a state that never changes (a tuple), and the new state is
    written only if the old one is still there: a thread of CPython gives way only at calls and loops, and
    between that look and the write there is neither. Nor can a signal handler interrupt it there, so no
    exception can leave a lock behind. Everything rarer (a new key, a sweep, an operation on several keys)
    happens under the store's lock, which also closes this way while it is held.

    A refusal is remembered with the state it was made on: as long as that very state is there, the answer
    is the same until the moment it promised. Not so under a stepper that is in force only for a time
    (``lasting`` is false): what is in force after it may grant sooner.
    """

    __slots__ = (
        *("__weakref__", "_original", "_space", "_store", "_use", "_written"),
        *("attempt", "stepper", "take"),
    )

    take: Callable[[Any, int], int]
    attempt: Callable[[Any, int], int]

    def __init__(  # noqa: C901 - the hot path is one function on purpose
        self, store: MemoryStore, stepper: Stepper, space: _Space, written: Callable[[Any], str]
    ) -> None:
        self.stepper = self._original = stepper
        self._store = store
        self._space = space
        self._written = written
        table, step, now_ns = space.table, stepper.step, store.clock.now_ns
        get = table.get
        refusals: dict[Any, tuple[State, int, int]] = {}
        lasting = True

        def take(key: Any, cost: int) -> int:
            state = get(key)
            if state is not None:
                now_us = now_ns() // 1000
                if refusals and cost == 1:
                    refused = refusals.get(key)
                    if refused is not None and refused[0] is state and refused[1] <= now_us < refused[2]:
                        return refused[2] - now_us
                new, wait_us = step(state, now_us, cost)
                if new is None:
                    if cost == 1 and lasting:
                        remember(key, state, now_us, wait_us)
                    return wait_us
                try:
                    # one step for all other threads: no call and no loop from here to the write
                    if now_us < store.open_until_us and table[key] is state:
                        table[key] = new
                        return wait_us
                except KeyError:
                    pass  # swept out meanwhile
            return store.take_alone(space, written(key), step, cost)

        def remember(key: Any, state: State, now_us: int, wait_us: int) -> None:
            if len(refusals) >= _REFUSALS_MAX:
                refusals.clear()
            refusals[key] = (state, now_us, now_us + wait_us)

        def use(other: Stepper) -> None:
            nonlocal step, lasting
            step, lasting = other.step, getattr(other, "lasting", True)
            refusals.clear()

        self.take = self.attempt = take
        self._use = use

    async def stepper_async(self) -> Stepper:
        """Return the stepper in force."""
        return self.stepper

    def short_way(self, step_of: StepOf[R]) -> Callable[[Any, int], R]:
        """Return a way under the store's lock: it still takes no more than a few microseconds."""

        def attempt(key: Any, cost: int) -> R:
            return self._store.take_alone(self._space, self._written(key), step_of(self.stepper), cost)

        return attempt

    async def take_async(self, key: Any, cost: int) -> int:
        """Do what ``take`` does: it takes microseconds."""
        return self.take(key, cost)

    def revise(self, change: bytes | None) -> None:
        """Follow a change an operator made. Only with the store's lock held."""
        self.stepper = self._space.kind = stepper = self._original.revised(change)
        self._use(stepper)
