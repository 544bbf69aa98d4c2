"""The fast path of ``memory://``: from a key to a decision without a lock.

Everything rarer happens under the store's lock (``memory.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from comporta.stores.base import State
from comporta.stores.bound_limit import Algorithm, LocalBoundLimit, StepOf
from comporta.stores.bounded_cache import drop_oldest
from comporta.stores.memory_space import MemorySpace

if TYPE_CHECKING:
    from comporta.stores.memory import MemoryStore

R = TypeVar("R")

_REFUSALS_MAX = 10_000


class MemoryBoundLimit(LocalBoundLimit):
    """An algorithm tied to one space; ``acquire`` is the shortest path from a key to a decision.

    It takes no lock. A decision is made on an immutable state (a tuple), and the new state is written only if
    the old one is still in the dictionary. CPython switches threads, and runs signal handlers, only at calls
    and loops, and there is neither of these between that check and the write. Everything rarer (a new key, a
    sweep, an operation on several keys) happens under the store's lock, which also closes this path while it
    is held.

    A refusal is cached together with the state on which it is based: as long as that very object is in the
    dictionary, the answer stays the same until the time that it named. Refusals of an algorithm that is in
    effect only for a time (``lasting`` is false) are not cached, because the next algorithm may grant sooner.
    """

    __slots__ = (
        *("__weakref__", "_configured", "_key_text", "_on_switch", "_space", "_store"),
        *("acquire", "algorithm", "try_acquire"),
    )

    algorithm: Algorithm

    def __init__(  # noqa: C901 - the hot path is one function on purpose
        self, store: MemoryStore, algorithm: Algorithm, space: MemorySpace, key_text: Callable[[Any], str]
    ) -> None:
        self.algorithm = self._configured = algorithm
        self._store = store
        self._space = space
        self._key_text = key_text
        table, step, now_ns = space.table, algorithm.step, store.clock.now_ns
        get, whole = table.get, key_text(None)
        refusals: dict[Any, tuple[State, int, int]] = {}
        lasting = True

        def acquire(key: Any, cost: int) -> int:
            text = whole if key is None else key  # a known key is its own text
            state = get(text)
            if state is not None:
                now_us = now_ns() // 1000
                if refusals and cost == 1:
                    refusal = refusals.get(key)
                    if refusal is not None and refusal[0] is state and refusal[1] <= now_us < refusal[2]:
                        return refusal[2] - now_us
                new, wait_us = step(state, now_us, cost)
                if new is None:
                    if cost == 1 and lasting:
                        cache_refusal(key, state, now_us, wait_us)
                    return wait_us
                try:
                    # atomic for all other threads: no call and no loop from here to the write
                    if now_us < store.fast_path_until_us and table[text] is state:
                        table[text] = new
                        return wait_us
                except KeyError:
                    pass  # expired and removed in the meantime
            return store.step_locked(space, key_text(key), step, cost)

        def cache_refusal(key: Any, state: State, now_us: int, wait_us: int) -> None:
            drop_oldest(refusals, _REFUSALS_MAX)
            refusals[key] = (state, now_us, now_us + wait_us)

        def switch_algorithm(other: Algorithm) -> None:
            nonlocal step, lasting
            step, lasting = other.step, other.lasting
            refusals.clear()

        self.acquire = self.try_acquire = acquire
        self._on_switch = [switch_algorithm]

    async def algorithm_async(self) -> Algorithm:
        """Return the algorithm in effect."""
        return self.algorithm

    def fast_path(self, step_of: StepOf[R]) -> Callable[[Any, int], R]:
        """Return a function that decides as ``acquire`` does, without a lock, and caches no refusals."""
        store, space, key_text = self._store, self._space, self._key_text
        table, now_ns, whole = space.table, store.clock.now_ns, self._key_text(None)
        get, step = table.get, step_of(self.algorithm)

        def decide(key: Any, cost: int) -> R:
            text = whole if key is None else key
            state = get(text)
            if state is not None:
                now_us = now_ns() // 1000
                new, reply = step(state, now_us, cost)
                if new is None:
                    return reply
                try:
                    # atomic for all other threads: no call and no loop from here to the write
                    if now_us < store.fast_path_until_us and table[text] is state:
                        table[text] = new
                        return reply
                except KeyError:
                    pass  # expired and removed in the meantime
            return store.step_locked(space, key_text(key), step, cost)

        def switch_algorithm(other: Algorithm) -> None:
            nonlocal step
            step = step_of(other)

        self._on_switch.append(switch_algorithm)  # first: another thread may be switching
        switch_algorithm(self.algorithm)
        return decide

    async def acquire_async(self, key: Any, cost: int) -> int:
        """Do what ``acquire`` does, at once."""
        return self.acquire(key, cost)

    def apply_override(self, override: bytes | None) -> None:
        """Switch to the algorithm under an operator's override. The caller holds the store's lock."""
        self.algorithm = self._space.state_type = algorithm = self._configured.with_override(override)
        for switch_algorithm in self._on_switch:
            switch_algorithm(algorithm)
