"""What a flow can want of a store and its clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from comporta.clock import Clock
from comporta.errors import StateError, StateForbiddenError, StateFullError, StateTypeError
from comporta.stores.base import Operation, Store

OF_ONE_KEY: Final = (StateForbiddenError, StateFullError, StateTypeError)
"""Troubles that concern one key only: the rest can be told and read without it."""


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


def asked(store: Store, operations: Sequence[Operation[Any]]) -> list[Any]:
    """Carry out some operations, in one call where that can be; returns the replies, or errors of one key."""
    if hasattr(store, "apply_all"):
        replies: list[Any] = store.apply_all(operations)
        return replies
    found: list[Any] = []
    for operation in operations:
        try:
            found.append(store.apply(operation))
        except OF_ONE_KEY as error:
            found.append(error)
    return found


class ApplyAll:
    """Effect: apply some operations, many in one call where that can be; the result has errors among it."""

    __slots__ = ("_operations", "_store")

    def __init__(self, store: Store, operations: Sequence[Operation[Any]]) -> None:
        self._store = store
        self._operations = operations

    def block(self) -> list[Any]:
        """Apply them, blocking; one that fails for a reason of its own is not the end of the others."""
        try:
            return asked(self._store, self._operations)
        except StateError as error:
            return [error] * len(self._operations)

    async def wait(self) -> list[Any]:
        """Apply them, awaiting: those of one moment go together."""
        import asyncio  # noqa: PLC0415 - see clock.py

        asking = [self._store.apply_async(operation) for operation in self._operations]
        return [_known(reply) for reply in await asyncio.gather(*asking, return_exceptions=True)]


def _known(reply: Any) -> Any:
    """Return a reply or an error of the state; any other error is whose mistake it is."""
    if isinstance(reply, BaseException) and not isinstance(reply, StateError):
        raise reply
    return reply


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
