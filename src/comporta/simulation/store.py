"""One worker's client of the simulated server: a store, as ``redis://`` is one.

Blocking callers use the real connection pool on simulated connections. The operations of an event loop share
one connection, each call with the deadline of the Redis store. Every error is the one that the Redis store
raises. This store knows nothing about failover: the real ``FailoverStore`` stands in front of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, TypeVar

from comporta.clock import MONOTONIC
from comporta.errors import StateError, StateTimeoutError, StateUnavailableError
from comporta.flow import running_loop
from comporta.simulation.connection import Endpoints, Reply, SimulatedConnection
from comporta.simulation.network import seconds_ns
from comporta.stores.base import Operation, Store
from comporta.stores.records import ReadRecord
from comporta.stores.redis.deadline import TIMEOUT_MAX_FACTOR, AdaptiveDeadline
from comporta.stores.redis.errors import translate_connect_error, translate_error
from comporta.stores.redis.pool import CONNECT_ALLOWANCE_SECONDS, BlockingPool
from comporta.stores.redis.store import CONNECT_TIMEOUT_SECONDS, TIMEOUT_SECONDS

R = TypeVar("R")

decided_ns: ContextVar[int] = ContextVar("decided_ns", default=0)
"""When the server decided the last reply to this thread or task, in virtual time."""

_PROBE: list[Operation[Any]] = [ReadRecord("simulation", "probe")]


class SimulatedStore(Store):
    """A client of the simulated server, in one worker."""

    batch_size = 256
    keeps_changes = True

    def __init__(
        self,
        ends: Endpoints,
        address: str = "redis://simulated",
        *,
        timeout: float = TIMEOUT_SECONDS,
        connect_timeout: float = CONNECT_TIMEOUT_SECONDS,
    ) -> None:
        self.address = address
        self.clock = MONOTONIC
        self.ends = ends
        self.deadline = AdaptiveDeadline(timeout, TIMEOUT_MAX_FACTOR * timeout)
        self.connect_timeout = self.connect_seconds_max = connect_timeout
        self._pool = BlockingPool(self._connect, address, self.deadline, connect_timeout)
        self._pipelines: dict[asyncio.AbstractEventLoop, _Pipeline] = {}

    def apply(self, operation: Operation[R]) -> R:
        """Carry out an operation in one round trip."""
        result: R = self._exchange([operation])[0]
        return result

    def apply_many(self, operations: Sequence[Operation[Any]]) -> list[Any]:
        """Carry out several operations in one round trip."""
        return self._exchange(list(operations))

    async def apply_async(self, operation: Operation[R]) -> R:
        """Carry out an operation without blocking the event loop."""
        loop = running_loop()
        pipeline = self._pipelines.get(loop)
        if pipeline is None:
            pipeline = self._pipelines[loop] = _Pipeline(self, loop)
        result: R = _read_values(await pipeline.apply(operation))[0]
        return result

    def entries(self, space: str) -> dict[str, bytes]:
        """Return the live records of a space, after one round trip."""
        self._exchange(_PROBE)
        return self.ends.server.entries(space)

    def probe(self) -> None:
        """Check that the server can be reached and written, within ``connect_timeout``."""
        try:
            self._pool.ensure_connection()
        except StateError:
            raise
        except Exception as error:
            raise translate_error(error, self.address) from error
        self._exchange(_PROBE)

    def close(self) -> None:
        """Close the connections of blocking callers."""
        self._pool.close()

    def close_connections(self) -> None:
        """Close the connections of blocking callers; they reopen when needed."""
        self._pool.close()

    def _exchange(self, operations: list[Operation[Any]]) -> list[Any]:
        try:
            return self._pool.exchange(operations, MONOTONIC.now_ns(), _read_values)  # type: ignore[arg-type]
        except StateError:
            raise
        except Exception as error:
            raise translate_error(error, self.address) from error

    def _connect(self, seconds: float) -> SimulatedConnection:
        connection = SimulatedConnection(self.ends)
        connection.set_deadline(MONOTONIC.now_ns(), seconds)
        connection.connect()
        return connection


class _Pipeline:
    """The connection of one event loop, and the calls that wait for their replies on it."""

    def __init__(self, store: SimulatedStore, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._loop = loop
        self._connection: SimulatedConnection | None = None
        self._connecting: asyncio.Future[SimulatedConnection] | None = None
        self._waiting: dict[int, tuple[asyncio.Future[Reply], list[Operation[Any]]]] = {}
        self._answered_ns = 0

    async def apply(self, operation: Operation[Any]) -> Reply:
        """Send an operation and return its reply; raises the ``StateError`` of the Redis store."""
        store = self._store
        try:
            connection = await self._ready_connection()
        except TimeoutError:
            raise StateUnavailableError(f"still connecting to {store.address}; nothing was sent") from None
        future = self._send(connection, operation)
        sent_ns = MONOTONIC.now_ns()
        try:
            async with asyncio.timeout(store.deadline.seconds):
                reply = await future
        except TimeoutError:
            message = f"{store.address} did not answer in time; the operation may have been carried out"
            self._drop(StateTimeoutError(message))
            raise StateTimeoutError(message) from None
        store.deadline.record(MONOTONIC.now_ns() - sent_ns)
        return reply

    async def _ready_connection(self) -> SimulatedConnection:
        connection = self._connection
        if connection is not None and not connection.is_closed:
            return connection
        answered_ns = max(self._answered_ns, self._store.deadline.answered_ns) if self._answered_ns else 0
        recently = not answered_ns or MONOTONIC.now_ns() - answered_ns < seconds_ns(1)
        if self._connecting is None:
            self._connecting = self._loop.create_future()
            self._loop.call_later(self._store.connect_timeout, self._give_up, self._connecting)
            self._connecting.add_done_callback(self._on_connected)
            connection = SimulatedConnection(self._store.ends)
            connection.on_message = lambda: self._soon(self._on_message, connection)
            connection.begin()
        async with asyncio.timeout(
            self._store.deadline.seconds + (CONNECT_ALLOWANCE_SECONDS if recently else 0)
        ):
            return await asyncio.shield(self._connecting)

    def _give_up(self, connecting: asyncio.Future[SimulatedConnection]) -> None:
        if not connecting.done():
            connecting.set_exception(translate_connect_error(TimeoutError("timed out"), self._store.address))

    def _on_connected(self, connecting: asyncio.Future[SimulatedConnection]) -> None:
        self._connecting = None
        if not connecting.cancelled() and connecting.exception() is None:
            self._connection = connecting.result()

    def _soon(
        self, callback: Callable[[SimulatedConnection], object], connection: SimulatedConnection
    ) -> None:
        with suppress(RuntimeError):  # the event loop was closed
            self._loop.call_soon_threadsafe(callback, connection)

    def _on_message(self, connection: SimulatedConnection) -> None:
        if not connection.arrived:
            return
        try:
            message = connection.take()
        except Exception as error:
            self._on_error(error, connection)
            return
        self._answered_ns = MONOTONIC.now_ns()
        if not isinstance(message, Reply):
            if self._connecting is not None and not self._connecting.done():
                self._connecting.set_result(connection)
            return
        future, operations = self._waiting.pop(id(message.request), (None, []))
        if future is None:
            return
        if not future.done():
            future.set_result(message)
        else:
            self._undo(operations[0], message.values[0])

    def _send(self, connection: SimulatedConnection, operation: Operation[Any]) -> asyncio.Future[Reply]:
        future: asyncio.Future[Reply] = self._loop.create_future()
        request = [operation]
        self._waiting[id(request)] = (future, request)
        connection.send_packed_command([request], check_health=False)
        return future

    def _on_error(self, error: Exception, connection: SimulatedConnection) -> None:
        if self._connecting is not None and not self._connecting.done():
            self._connecting.set_exception(translate_connect_error(error, self._store.address))
        elif connection is self._connection:
            self._drop(translate_error(error, self._store.address))

    def _drop(self, error: StateError) -> None:
        """Close the connection: every call that waits for a reply on it fails."""
        if self._connection is not None:
            self._connection.disconnect()
            self._connection = None
        waiting, self._waiting = self._waiting, {}
        for future, _ in waiting.values():
            if not future.done():
                future.set_exception(type(error)(*error.args))

    def _undo(self, operation: Operation[Any], value: Any) -> None:
        undo = operation.undo(value)
        if undo is not None and self._connection is not None:
            self._send(self._connection, undo).cancel()


def _read_values(reply: Reply) -> list[Any]:
    """Return the values of a reply, and remember for the caller when they were decided."""
    decided_ns.set(reply.decided_ns)
    return reply.values
