"""Limits tied to a store: the effects that flows use, and a limit whose decisions a server makes.

A store of this process or machine binds a limit itself (:meth:`comporta.stores.base.Store.bind`).
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any
from weakref import WeakMethod

from comporta.flow import Effect, Perform
from comporta.limits.acquire import AcquireOperation, LimitDefinition
from comporta.limits.key import normalize_key
from comporta.limits.overrides.record import ExpiringStrategy
from comporta.limits.scripts import OVERRIDE_SPACE
from comporta.limits.strategies.base import Strategy
from comporta.stores.base import Store
from comporta.stores.bound_limit import Algorithm, BoundLimit, WouldBlock


class AcquireEffect:
    """Effect: take from a limit; its result is the wait in microseconds.

    A separate class rather than a ``Perform``, because every decision that needs a flow creates one.
    """

    __slots__ = ("_bound", "_cost", "_key")

    def __init__(self, bound: BoundLimit, key: Any, cost: int) -> None:
        self._bound = bound
        self._key = key
        self._cost = cost

    def block(self) -> int:
        """Take, blocking."""
        return self._bound.acquire(self._key, self._cost)

    async def wait(self) -> int:
        """Take, awaiting."""
        return await self._bound.acquire_async(self._key, self._cost)


def strategy_effect(bound: BoundLimit) -> Effect:
    """Return the effect that reads the strategy in effect, which an override may have changed."""
    return Perform(lambda: bound.algorithm, bound.algorithm_async)


class WrappedBoundLimit(BoundLimit):
    """A bound limit that wraps another one, which knows the strategy, the server and the leases."""

    __slots__ = ("inner",)

    def __init__(self, inner: BoundLimit) -> None:
        self.inner = inner

    @property
    def remote(self) -> Any:
        """The remote side of the wrapped limit."""
        return self.inner.remote

    @property
    def leases(self) -> Any:
        """The lease client of the wrapped limit."""
        return self.inner.leases

    @property
    def algorithm(self) -> Algorithm:
        """The strategy in effect."""
        return self.inner.algorithm

    @property
    def cached_algorithm(self) -> Any:
        """The strategy in effect as this process last saw it. Never blocks."""
        return self.inner.cached_algorithm

    async def algorithm_async(self) -> Algorithm:
        """Return the strategy in effect without blocking the event loop."""
        return await self.inner.algorithm_async()


class RemoteBoundLimit(BoundLimit):
    """A limit whose decisions a server makes; its script reads the override record.

    This process also follows the override, because during an outage workers divide the overridden limit. For
    waiting callers it can only estimate how long a pause will last, because a pause ends by the clock of the
    server.
    """

    __slots__ = ("__weakref__", "_current", "_definition", "_pause", "_store")

    decides_in_process = False

    def __init__(self, store: Store, definition: LimitDefinition) -> None:
        self._store = store
        self._definition = definition
        self._current = definition.strategy
        self._pause = (0, 0)
        store.follow(OVERRIDE_SPACE, definition.name, WeakMethod(self.apply_override))

    @property
    def remote(self) -> RemoteBoundLimit:
        """This object."""
        return self

    @property
    def cached_algorithm(self) -> Strategy:
        """The strategy under the last override that this process saw."""
        return self._current

    @property
    def algorithm(self) -> Strategy:
        """The configured strategy: the script applies the override."""
        return self._definition.strategy

    async def algorithm_async(self) -> Strategy:
        """Return the configured strategy."""
        return self._definition.strategy

    @staticmethod
    def try_acquire(key: Any, cost: int) -> int:
        """Raise ``WouldBlock``: every decision is a round trip."""
        raise WouldBlock

    def acquire(self, key: Any, cost: int) -> int:
        """Decide in one round trip."""
        return self._store.apply(AcquireOperation(self._definition, normalize_key(key), cost))

    def acquire_async(self, key: Any, cost: int) -> Coroutine[Any, Any, int]:
        """Decide in one round trip, shared with other calls of the same tick of the event loop."""
        return self._store.apply_async(AcquireOperation(self._definition, normalize_key(key), cost))

    def apply_override(self, override: bytes | None) -> None:
        """Record the override that is now in effect."""
        self._current = strategy = self._definition.strategy.with_override(override)
        until_us, length_us = 0, 0
        if isinstance(strategy, ExpiringStrategy):
            until_us, length_us = strategy.record.paused_until_us, strategy.record.pause_length_us
        if until_us != self._pause[0]:
            self._pause = (until_us, self._store.clock.now_ns() // 1000 + length_us if until_us else 0)

    def pause_left_us(self, now_us: int) -> int:
        """Return the longest time that the pause can still last, by the clock of this process."""
        return max(0, self._pause[1] - now_us)
