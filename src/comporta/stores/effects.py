"""What a flow can want of a store and its clock."""

from __future__ import annotations

from typing import Any

from comporta.clock import Clock
from comporta.stores.base import Operation, Store


class Apply:
    """Effect: apply an operation to a store."""

    __slots__ = ("_operation", "_store")

    def __init__(self, store: Store, operation: Operation[Any]) -> None:
        self._store = store
        self._operation = operation

    def block(self) -> Any:
        """Apply it, blocking."""
        return self._store.apply(self._operation)

    async def wait(self) -> Any:
        """Apply it, awaiting."""
        return await self._store.apply_async(self._operation)


class Sleep:
    """Effect: let time pass."""

    __slots__ = ("_clock", "_seconds")

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds

    def block(self) -> None:
        """Hold the thread."""
        self._clock.sleep(self._seconds)

    async def wait(self) -> None:
        """Hold nothing."""
        await self._clock.sleep_async(self._seconds)
