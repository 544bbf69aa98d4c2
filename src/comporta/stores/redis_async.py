"""The awaiting side of the Redis store: what is asked for in one tick goes out together.

Each event loop has one line to the server. A coroutine puts its operation on the line and waits; when the
tick is over everything on the line is sent as one write, most of it joined into one script call, and the
replies are handed out. While one batch is under way the next one gathers, so batches grow with the load
and nobody waits for a timer. Answers are exact: nothing is decided before the server has decided it.

A caller that is cancelled after its operation went out gets nothing; what it was granted is given back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from redis.exceptions import NoScriptError, ResponseError

from comporta.clock import MONOTONIC
from comporta.errors import StateError, StateUnavailableError
from comporta.stores.base import Operation
from comporta.stores.connecting_async import Connection, closed
from comporta.stores.naming import named, spoils, unreached
from comporta.stores.pool import CONNECTING_SECONDS, STALE_AFTER_NS, calm
from comporta.stores.routes import Goes
from comporta.stores.wire import Call, calls_for

if TYPE_CHECKING:
    from comporta.stores.redis import RedisStore

R = TypeVar("R")

_BATCH_MAX = 1024
_WAITING_MAX = 100_000
_LATE_SECONDS = 0.005
CHANCE_SECONDS = 0.01
"""What a reply gets that could not be read because the loop was blocked."""


class Lines:
    """The lines of one store, one for each event loop that uses it."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._connect = store.route.awaiting()
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _Line] = WeakKeyDictionary()
        self._last: _Line | None = None
        self._lock = Lock()

    async def apply(self, operation: Operation[R], late: float = 0.0) -> R:
        """Put an operation on the running loop's line, for a caller that waits ``late`` seconds already."""
        loop = asyncio.get_running_loop()
        line = self._last
        if line is None or line.loop is not loop:
            line = self._last = self._line_of(loop)
        future = line.put(operation, late)
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
                line = self._by_loop[loop] = _Line(self._store, self._connect, loop)
            return line

    async def aclose(self) -> None:
        """Close the running loop's line."""
        self._last = None
        with self._lock:
            line = self._by_loop.pop(asyncio.get_running_loop(), None)
        if line is not None:
            await line.aclose()


class _Batch:
    """What goes out together, and since when the first of it waits."""

    __slots__ = ("asked", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.asked: list[tuple[Operation[Any], asyncio.Future[Any]]] = []


class _Line:
    """One connection, used by all coroutines of one loop."""

    def __init__(self, store: RedisStore, connect: Goes, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._route = connect
        self.loop = loop
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._batches: deque[_Batch] = deque()
        self._waiting = 0
        self._sending: asyncio.Task[None] | None = None
        self._sent = False
        self._used_ns = 0

    def put(self, operation: Operation[Any], late: float = 0.0) -> asyncio.Future[Any]:
        """Add an operation to the next batch, which waits as long as the one of it that waits longest."""
        if self._waiting >= _WAITING_MAX:
            raise StateError(f"{_WAITING_MAX} operations wait for {self._store.address} already")
        if not self._batches or len(self._batches[-1].asked) >= _BATCH_MAX:
            self._batches.append(_Batch(self.loop.time()))
        batch = self._batches[-1]
        if late:
            batch.since = min(batch.since, self.loop.time() - late)
        future = self.loop.create_future()
        batch.asked.append((operation, future))
        self._waiting += 1
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
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        if self._connection is not None:
            await self._connection.disconnect()
            self._connection = None

    async def _send_all(self) -> None:
        """Send batch after batch until nobody waits; who waits behind one that fails is told so at once."""
        try:
            while self._batches:
                error = await self._send(self._next())
                if error is not None:
                    self._give_up(error)
                await asyncio.sleep(0)  # those just answered may ask again, and join the next batch
        finally:
            self._sending = None
            while self._batches:  # only if this task itself was cancelled
                _cancel(self._next())

    def _give_up(self, error: StateError) -> None:
        while self._batches:
            _tell(self._next(), error)

    def _next(self) -> _Batch:
        batch = self._batches.popleft()
        self._waiting -= len(batch.asked)
        return batch

    async def _send(self, batch: _Batch) -> StateError | None:
        """Send one batch and hand out its replies; returns the error if it failed as a whole."""
        calls = calls_for([operation for operation, _ in batch.asked], tagged=self._store.tagged)
        self._sent = False
        try:
            replies = await self._in_time(calls, batch.since)
        except Exception as error:
            failure = await self._failed(error)
            _tell(batch, failure)
            return failure
        except BaseException:
            await self._drop()
            _cancel(batch)
            raise
        for (operation, future), reply in zip(batch.asked, replies, strict=True):
            self._answer(operation, future, reply)
        return None

    async def _in_time(self, calls: list[Call], since: float) -> list[Any]:
        """Exchange within the deadline of who waits longest, or shortly where the loop itself was late."""
        connects = self._connection is None and calm(self._used_ns)  # see pool.py
        bound_seconds = self._store.timeout + (CONNECTING_SECONDS if connects else 0.0)
        due = max(since + bound_seconds, self.loop.time() + CHANCE_SECONDS)
        async with asyncio.timeout(None) as bound:
            timer = self.loop.call_at(due, _over, self.loop, due, bound)
            try:
                return await self._exchange(calls)
            finally:
                timer.cancel()

    async def _failed(self, error: Exception) -> StateError:
        address = self._store.address
        if isinstance(error, TimeoutError) and not self._sent:
            return StateUnavailableError(f"still connecting to {address}; nothing was sent")
        await self._drop()
        return error if isinstance(error, StateError) else named(error, address)

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await closed(connection)

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
        connection = await self._ready()
        packed = b"".join(call.packed(now_us) for call in calls)
        self._sent = True
        await connection.send_packed_command(packed, check_health=False)
        answers = [await _read(connection, call) for call in calls]
        self._used_ns = MONOTONIC.now_ns()
        replies: list[Any] = []
        spoilt = False
        for call, raw in zip(calls, answers, strict=True):
            if isinstance(raw, NoScriptError):  # so it was not carried out
                text = call.packed(now_us, with_text=True)
                await connection.send_packed_command(text, check_health=False)
                raw = await _read(connection, call)  # noqa: PLW2901 - the same call's answer
            if isinstance(raw, ResponseError):
                replies += [self._store.explained(raw, call)] * len(call.operations)
                spoilt = spoilt or spoils(raw)
            else:
                replies += call.replies(raw, self._store.heard)
        if spoilt:
            await self._drop()
        return replies

    async def _ready(self) -> Connection:
        """Return the connection; one that was idle is looked at first, one that is not there is made.

        It is made by a task of its own, that goes on when who waits for it gives up.
        """
        connection = self._connection
        stale = connection is not None and MONOTONIC.now_ns() - self._used_ns > STALE_AFTER_NS
        if connection is not None and stale and await _spoiled(connection):
            await self._drop()
            connection = None
        while connection is None:
            if self._connecting is None:
                self._connecting = self.loop.create_task(self._connect())
                self._connecting.add_done_callback(self._connected)
            await asyncio.shield(self._connecting)
            connection = self._connection
        return connection

    async def _connect(self) -> None:
        try:
            self._connection = await self._route(self._store.connect_timeout)
        except Exception as error:
            raise unreached(error, self._store.address) from error
        self._used_ns = MONOTONIC.now_ns()

    def _connected(self, task: asyncio.Task[None]) -> None:
        self._connecting = None
        _unheard(task)


def _over(loop: asyncio.AbstractEventLoop, due: float, bound: asyncio.Timeout) -> None:
    """End an exchange whose time is over.

    A timer that is late itself means that the loop was blocked, and the reply may lie in the socket unread:
    then it gets a moment to be read.
    """
    now = loop.time()
    bound.reschedule(now + CHANCE_SECONDS if now - due > _LATE_SECONDS else now)


async def _spoiled(connection: Connection) -> bool:
    """Whether an idle connection was closed by the server, or holds something nobody asked for."""
    for _ in range(2):  # the loop may not have heard of it yet
        await asyncio.sleep(0)
    try:
        look = getattr(connection, "can_read", None) or connection.can_read_destructive
        return not connection.is_connected or bool(await look())
    except Exception:  # whatever it is, this connection is of no use
        return True


async def _read(connection: Connection, call: Call) -> Any:
    """Read the reply to a call; both, where a word stands before it, or the next call would get the other."""
    refused = await _reply(connection) if call.script.asking else None
    reply = await _reply(connection)
    return refused if isinstance(refused, ResponseError) else reply


async def _reply(connection: Connection) -> Any:
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error


def _tell(batch: _Batch, error: StateError) -> None:
    for _, future in batch.asked:
        if not future.done():
            future.set_exception(error)


def _cancel(batch: _Batch) -> None:
    for _, future in batch.asked:
        future.cancel()


def _unheard(future: asyncio.Future[Any]) -> None:
    """Nobody may wait for this one: take note of its error, so that asyncio does not complain of it."""
    if not future.cancelled():
        future.exception()
