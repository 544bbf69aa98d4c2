"""Effects of flows that need a store or its clock: apply operations, and sleep.

A flow yields an effect and receives its result (``flow.py``); it does not know whether its driver blocks or
awaits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from comporta.clock import Clock
from comporta.errors import StateError
from comporta.flow import running_loop
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


class ApplyMany:
    """Effect: apply several operations, in one call if the store can; errors are among the results."""

    __slots__ = ("_operations", "_store")

    def __init__(self, store: Store, operations: Sequence[Operation[Any]]) -> None:
        self._store = store
        self._operations = operations

    def block(self) -> list[Any]:
        """Apply them, blocking. An error of the whole store is the result of each."""
        try:
            return self._store.apply_many(self._operations)
        except StateError as error:
            return [error] * len(self._operations)

    async def wait(self) -> list[Any]:
        """Apply them, awaiting. A server store sends the operations of one tick together."""
        import asyncio  # noqa: PLC0415 - see clock.py

        running_loop()
        calls = [self._store.apply_async(operation) for operation in self._operations]
        return [_reraise_unexpected(reply) for reply in await asyncio.gather(*calls, return_exceptions=True)]


def _reraise_unexpected(reply: Any) -> Any:
    """Return a reply or a ``StateError``; raise any other exception."""
    if isinstance(reply, BaseException) and not isinstance(reply, StateError):
        raise reply
    return reply


class Sleep:
    """Effect: wait for some seconds of a clock."""

    __slots__ = ("_clock", "_seconds")

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds

    def block(self) -> None:
        """Block the thread."""
        self._clock.sleep(self._seconds)

    async def wait(self) -> None:
        """Wait without blocking the event loop."""
        await self._clock.sleep_async(self._seconds)
