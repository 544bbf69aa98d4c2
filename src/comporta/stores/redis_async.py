"""The awaiting side of the Redis store: what is asked for in one tick goes out together.

Each event loop has one line to the server. A coroutine puts its operation on the line and waits; when the
tick is over everything on the line is sent as one write, most of it joined into one script call, and the
replies are handed out. While one batch is under way the next one gathers, so batches grow with the load
and nobody waits for a timer. Answers are exact: nothing is decided before the server has decided it.

A caller that is cancelled after its operation went out gets nothing; what it was granted is given back.
"""

from __future__ import annotations

import asyncio
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast
from weakref import WeakKeyDictionary

from redis.asyncio import ConnectionPool
from redis.exceptions import NoScriptError, RedisError, ResponseError

from comporta.clock import MONOTONIC
from comporta.errors import StateError
from comporta.stores.base import Operation
from comporta.stores.redis import STALE_AFTER_NS
from comporta.stores.wire import Call, calls_for, named

if TYPE_CHECKING:
    from comporta.stores.redis import RedisStore

R = TypeVar("R")

_BATCH_MAX = 1024
_WAITING_MAX = 100_000


class Connection(Protocol):
    """What is used of redis-py's connections, which are not typed."""

    @property
    def is_connected(self) -> bool: ...

    async def connect(self) -> None: ...

    async def disconnect(self, nowait: bool = False) -> None: ...

    async def send_packed_command(self, command: bytes, check_health: bool) -> None: ...

    async def read_response(self) -> Any: ...

    async def can_read_destructive(self) -> bool:
        """Look for data or an end nobody asked for; called ``can_read`` from redis-py 8 on."""


class Lines:
    """The lines of one store, one for each event loop that uses it."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _Line] = WeakKeyDictionary()
        self._last: _Line | None = None
        self._lock = Lock()

    async def apply(self, operation: Operation[R]) -> R:
        """Put an operation on the running loop's line and wait for its reply."""
        loop = asyncio.get_running_loop()
        line = self._last
        if line is None or line.loop is not loop:
            line = self._last = self._line_of(loop)
        future = line.put(operation)
        try:
            reply: R = await future
        except asyncio.CancelledError:
            line.give_back(operation, future)
            raise
        return reply

    def _line_of(self, loop: asyncio.AbstractEventLoop) -> _Line:
        with self._lock:  # other threads have loops, too
            line = self._by_loop.get(loop)
            if line is None:
                for other in [other for other in self._by_loop if other.is_closed()]:
                    del self._by_loop[other]  # a line holds its loop, so this does not happen by itself
                line = self._by_loop[loop] = _Line(self._store, loop)
            return line

    async def aclose(self) -> None:
        """Close the running loop's line."""
        self._last = None
        with self._lock:
            line = self._by_loop.pop(asyncio.get_running_loop(), None)
        if line is not None:
            await line.aclose()


class _Line:
    """One connection, used by all coroutines of one loop."""

    def __init__(self, store: RedisStore, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self.loop = loop
        options = store.options(blocking=False)
        pool = ConnectionPool.from_url(store.url, **options)
        self._connection = cast(Connection, pool.connection_class(**pool.connection_kwargs))
        self._waiting: list[tuple[Operation[Any], asyncio.Future[Any]]] = []
        self._sending: asyncio.Task[None] | None = None
        self._used_ns = 0

    def put(self, operation: Operation[Any]) -> asyncio.Future[Any]:
        """Add an operation to the next batch."""
        if len(self._waiting) >= _WAITING_MAX:
            raise StateError(f"{_WAITING_MAX} operations wait for {self._store.address} already")
        future = self.loop.create_future()
        self._waiting.append((operation, future))
        if self._sending is None:
            self._sending = self.loop.create_task(self._send_all())
        return future

    def give_back(self, operation: Operation[Any], future: asyncio.Future[Any]) -> None:
        """Undo what was granted to a caller that was cancelled after the answer came, but before it woke."""
        if not future.cancelled() and future.exception() is None:
            self._undo(operation, future.result())

    async def aclose(self) -> None:
        """Wait for what is under way, then close the connection."""
        while self._sending is not None:
            await asyncio.wait([self._sending])
        await self._connection.disconnect()

    async def _send_all(self) -> None:
        """Send batch after batch until nobody waits."""
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:_BATCH_MAX], self._waiting[_BATCH_MAX:]
                await self._send(batch)
                await asyncio.sleep(0)  # those just answered may ask again, and join the next batch
        finally:
            self._sending = None
            for _, future in self._waiting:  # only if this task itself was cancelled
                future.cancel()
            self._waiting.clear()

    async def _send(self, batch: list[tuple[Operation[Any], asyncio.Future[Any]]]) -> None:
        calls = calls_for([operation for operation, _ in batch])
        replies: list[Any] = []
        try:
            async with asyncio.timeout(self._store.timeout):
                replies = await self._exchange(calls)
        except (RedisError, OSError) as error:
            await self._connection.disconnect(nowait=True)
            replies = [named(error, self._store.address)] * len(batch)
        except BaseException:
            await self._connection.disconnect(nowait=True)
            for _, future in batch:
                future.cancel()
            raise
        for (operation, future), reply in zip(batch, replies, strict=True):
            self._answer(operation, future, reply)

    def _answer(self, operation: Operation[Any], future: asyncio.Future[Any], reply: Any) -> None:
        if not future.done():
            if isinstance(reply, StateError):
                future.set_exception(reply)
            else:
                future.set_result(reply)
        elif not isinstance(reply, StateError):
            self._undo(operation, reply)

    def _undo(self, operation: Operation[Any], reply: Any) -> None:
        undo = operation.undo(reply)
        if undo is not None:
            self.put(undo).add_done_callback(_unheard)

    async def _exchange(self, calls: list[Call]) -> list[Any]:
        now_us = self._store.now_us()
        connection = self._connection
        if MONOTONIC.now_ns() - self._used_ns > STALE_AFTER_NS:
            await self._look_at(connection)
        if not connection.is_connected:
            await connection.connect()
        packed = b"".join(call.packed(now_us) for call in calls)
        await connection.send_packed_command(packed, check_health=False)
        answers = [await self._read() for _ in calls]
        self._used_ns = MONOTONIC.now_ns()
        replies: list[Any] = []
        for call, raw in zip(calls, answers, strict=True):
            if isinstance(raw, NoScriptError):  # so it was not carried out
                text = call.packed(now_us, with_text=True)
                await connection.send_packed_command(text, check_health=False)
                raw = await self._read()  # noqa: PLW2901 - the same call's answer
            if isinstance(raw, ResponseError):
                error = named(raw, self._store.address, call.names())
                replies += [error] * len(call.operations)
            else:
                replies += call.replies(raw)
        return replies

    @staticmethod
    async def _look_at(connection: Connection) -> None:
        """Close a connection that the server closed while nobody used it."""
        for _ in range(2):  # the loop may not have heard of it yet
            await asyncio.sleep(0)
        try:
            look = getattr(connection, "can_read", None) or connection.can_read_destructive
            spoiled = connection.is_connected and await look()
        except RedisError:
            spoiled = True
        if spoiled:
            await connection.disconnect(nowait=True)

    async def _read(self) -> Any:
        try:
            return await self._connection.read_response()
        except ResponseError as error:
            return error


def _unheard(future: asyncio.Future[Any]) -> None:
    """Nobody waits for this one: take note of its error, so that asyncio does not complain of it."""
    if not future.cancelled():
        future.exception()
