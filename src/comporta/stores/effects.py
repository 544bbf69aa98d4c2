"""What a flow can want of a store."""

from __future__ import annotations

from typing import Any

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
