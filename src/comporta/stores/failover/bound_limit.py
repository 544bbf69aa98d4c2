"""A limit bound to an engine of this machine that may fail: decided there, or from the local share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from comporta.errors import StateError
from comporta.stores.base import Operation, Store
from comporta.stores.bound_limit import Binding, LocalBoundLimit, StepOf, WouldBlock
from comporta.stores.failover.control import ENGINE_ERRORS, FailoverControl

R = TypeVar("R")


class GuardedStore(FailoverControl, Protocol):
    """What a bound limit uses of the failover store in addition to the switch itself."""

    is_healthy: bool

    def apply(self, operation: Operation[R]) -> R:
        """Apply an operation to the engine or to the local share."""

    async def apply_async(self, operation: Operation[R]) -> R:
        """Do the same without blocking the event loop."""


class FailoverBoundLimit(LocalBoundLimit):
    """A limit on an engine of this machine that may fail, or that cannot be opened yet."""

    fails_over = True

    def __init__(self, store: GuardedStore, binding: Binding) -> None:
        self._store = store
        self._binding = binding
        self.engine_limit = None
        self.try_acquire = self._build_fast_path()

    @property
    def algorithm(self) -> Any:
        """The algorithm in effect, or the last known one during an outage."""
        if self._store.local_share is None:
            try:
                return self._primary_bound().algorithm
            except ENGINE_ERRORS as error:
                self._store.fail_over(error)
        return self.cached_algorithm

    async def algorithm_async(self) -> Any:
        """Return the algorithm in effect, or the last known one, without blocking the event loop."""
        if self._store.local_share is None:
            try:
                return await self._primary_bound().algorithm_async()
            except ENGINE_ERRORS as error:
                self._store.fail_over(error)
        return self.cached_algorithm

    @property
    def cached_algorithm(self) -> Any:
        """The algorithm in effect as this process last saw it."""
        return self._binding.algorithm if self.engine_limit is None else self.engine_limit.cached_algorithm

    def acquire(self, key: Any, cost: int) -> int:
        """Decide on the engine, waiting as long as it allows, or from the local share."""
        if self._store.is_healthy:
            try:
                return self._primary_bound().acquire(key, cost)
            except ENGINE_ERRORS as error:
                return self._acquire_fallback(error, key, cost)
        return self._store.apply(self._operation(key, cost))

    async def acquire_async(self, key: Any, cost: int) -> int:
        """Do what ``acquire`` does without blocking the event loop."""
        if self._store.is_healthy:
            try:
                return await self._primary_bound().acquire_async(key, cost)
            except ENGINE_ERRORS as error:
                return self._acquire_fallback(error, key, cost)
        return await self._store.apply_async(self._operation(key, cost))

    def fast_path(self, step_of: StepOf[R]) -> Callable[[Any, int], R]:
        """Return the engine's fast path; it raises ``WouldBlock`` if the store has to fail over."""
        store = self._store
        engine_decide: Callable[[Any, int], R] | None = None

        def decide(key: Any, cost: int) -> R:
            nonlocal engine_decide
            if not store.is_healthy:
                raise WouldBlock
            try:
                if engine_decide is None:
                    engine_decide = self._primary_bound().fast_path(step_of)
                return engine_decide(key, cost)
            except ENGINE_ERRORS as error:
                raise WouldBlock from error  # the flow gets the same error, and fails over

        return decide

    def _acquire_fallback(self, error: StateError | OSError, key: Any, cost: int) -> int:
        return self._store.fail_over(error).apply(self._operation(key, cost))

    def _operation(self, key: Any, cost: int) -> Operation[int]:
        return self._binding.operation(self._binding.key_text(key), cost)

    def _primary_bound(self) -> LocalBoundLimit:
        """Return the limit bound to the engine, which may have become available only now."""
        limit = self.engine_limit
        if limit is None:
            limit = self.engine_limit = _bind(self._store.primary, self._binding)
        return limit

    def _build_fast_path(self) -> Callable[[Any, int], int]:
        store = self._store
        engine_try_acquire: Callable[[Any, int], int] | None = None

        def try_acquire(key: Any, cost: int) -> int:
            nonlocal engine_try_acquire
            if store.is_healthy:
                try:
                    if engine_try_acquire is None:
                        engine_try_acquire = self._primary_bound().try_acquire
                    return engine_try_acquire(key, cost)
                except ENGINE_ERRORS as error:
                    return self._acquire_fallback(error, key, cost)
            if store.local_share is None:
                raise WouldBlock  # the first use may have to open the engine, which takes a moment
            return store.apply(self._operation(key, cost))

        return try_acquire


def _bind(engine: Store, binding: Binding) -> LocalBoundLimit:
    bound = engine.bind(binding)
    if bound is None:
        raise TypeError(f"{type(engine).__name__} sets decides_in_process, so its bind() must return a limit")
    return bound
