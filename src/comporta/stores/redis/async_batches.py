"""The async side of the Redis store: the operations of one tick of an event loop are sent together.

Each event loop has one pipeline with one connection. A coroutine enqueues its operation and waits. At the end
of the tick the pipeline sends the whole batch in one write, most of it joined into one script call, and
delivers the replies. While one batch is in flight the next one fills up, so batches grow with the load and no
operation waits for a timer. Replies are exact: the server decides every one of them.

If a caller is cancelled after its operation was sent, the pipeline releases what the caller was granted.

This module opens no connections itself and does not know URLs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from threading import Lock
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

from redis.exceptions import NoScriptError, ResponseError

from comporta.clock import MONOTONIC
from comporta.errors import StateError, StateUnavailableError
from comporta.flow import missing_loop_error
from comporta.stores.base import Operation
from comporta.stores.redis.connection_async import AsyncRedisConnection, close_quietly
from comporta.stores.redis.deadline import AdaptiveDeadline
from comporta.stores.redis.errors import invalidates_connection, translate_connect_error, translate_error
from comporta.stores.redis.pool import CHECK_IDLE_AFTER_NS, CONNECT_ALLOWANCE_SECONDS, answered_recently
from comporta.stores.redis.protocol import ScriptCall, script_calls
from comporta.stores.redis.sentinel import AsyncConnect, Route

R = TypeVar("R")

_BATCH_MAX = 1024
_QUEUED_MAX = 100_000
_LATE_SECONDS = 0.005
GRACE_SECONDS = 0.01
"""How long after the deadline a reply may still be read, if the event loop was blocked until then."""


class PipelineServer(Protocol):
    """What a pipeline needs to know about its server; ``RedisStore`` implements it."""

    address: str
    deadline: AdaptiveDeadline
    connect_timeout: float
    route: Route
    uses_hash_tags: bool

    def now_us(self) -> int:
        """Return the time to pass to a script; 0 makes it use the server's clock."""

    def translate_call_error(self, error: Exception, call: ScriptCall) -> StateError:
        """Return the ``StateError`` for an error during a call."""


class Pipelines:
    """The pipelines to one server, one for each event loop that uses it."""

    def __init__(self, store: PipelineServer) -> None:
        self._store = store
        self._connect = store.route.async_connect()
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopPipeline] = WeakKeyDictionary()
        self._last: _LoopPipeline | None = None
        self._lock = Lock()

    async def apply(self, operation: Operation[R]) -> R:
        """Return the reply to an operation."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise missing_loop_error() from None
        pipeline = self._last
        if pipeline is None or pipeline.loop is not loop:
            pipeline = self._last = self._pipeline_for(loop)
        future = pipeline.enqueue(operation)
        try:
            reply: R = await future
        except asyncio.CancelledError:
            pipeline.undo_cancelled(operation, future)
            raise
        return reply

    def _pipeline_for(self, loop: asyncio.AbstractEventLoop) -> _LoopPipeline:
        with self._lock:  # other threads have event loops too
            pipeline = self._by_loop.get(loop)
            if pipeline is None:
                for other in [other for other in self._by_loop if other.is_closed()]:
                    del self._by_loop[other]  # a pipeline refers to its loop, so the weak key never dies
                pipeline = self._by_loop[loop] = _LoopPipeline(self._store, self._connect, loop)
            return pipeline

    async def aclose(self) -> None:
        """Close the running loop's pipeline."""
        self._last = None
        with self._lock:
            pipeline = self._by_loop.pop(asyncio.get_running_loop(), None)
        if pipeline is not None:
            await pipeline.aclose()


_Batch = list[tuple[Operation[Any], asyncio.Future[Any]]]
"""Operations that are sent together, each with the future of its reply."""


class _LoopPipeline:
    """One connection, shared by all coroutines of one event loop."""

    def __init__(self, store: PipelineServer, connect: AsyncConnect, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._open_connection = connect
        self.loop = loop
        self._connection: AsyncRedisConnection | None = None
        self._connect_task: asyncio.Task[None] | None = None
        self._batches: deque[_Batch] = deque()
        self._queued = 0
        self._send_task: asyncio.Task[None] | None = None
        self._closer: AsyncGenerator[None, None] | None = None
        self._sent = False
        self._used_ns = 0

    def enqueue(self, operation: Operation[Any]) -> asyncio.Future[Any]:
        """Add an operation to the next batch."""
        if self._queued >= _QUEUED_MAX:
            raise StateError(f"{_QUEUED_MAX} operations already wait for {self._store.address}")
        if not self._batches or len(self._batches[-1]) >= _BATCH_MAX:
            self._batches.append([])
        batch = self._batches[-1]
        future = self.loop.create_future()
        batch.append((operation, future))
        self._queued += 1
        if self._send_task is None:
            self._send_task = self.loop.create_task(self._send_batches())
        return future

    def undo_cancelled(self, operation: Operation[Any], future: asyncio.Future[Any]) -> None:
        """Undo a grant to a caller that was cancelled between the arrival of the reply and its resumption."""
        if not future.cancelled() and future.exception() is None:
            self._undo(operation, future.result())

    async def aclose(self) -> None:
        """Wait for the batches in flight, then close the connection."""
        while self._send_task is not None:
            await asyncio.wait([self._send_task])
        if self._connect_task is not None:
            self._connect_task.cancel()
            await asyncio.wait([self._connect_task])
        if self._connection is not None:
            await self._connection.disconnect()
            self._connection = None
        if self._closer is not None:
            await self._closer.aclose()

    async def _close_with_loop(self) -> AsyncGenerator[None, None]:
        """Close the connection when the event loop shuts its generators down, as ``asyncio.run`` does."""
        try:
            yield
        finally:
            await self._drop_connection()

    async def _send_batches(self) -> None:
        """Send batches until the queue is empty. If one fails, all queued batches fail with it."""
        try:
            while self._batches:
                error = await self._send(self._next_batch())
                if error is not None:
                    self._fail_queued(error)
                await asyncio.sleep(
                    0
                )  # callers that were just answered may enqueue again, for the next batch
        finally:
            self._send_task = None
            while self._batches:  # only if this task itself was cancelled
                _cancel_batch(self._next_batch())

    def _fail_queued(self, error: StateError) -> None:
        while self._batches:
            _fail_batch(self._next_batch(), error)

    def _next_batch(self) -> _Batch:
        batch = self._batches.popleft()
        self._queued -= len(batch)
        return batch

    async def _send(self, batch: _Batch) -> StateError | None:
        """Send one batch and deliver its replies; return the error if the whole batch failed."""
        calls = script_calls([operation for operation, _ in batch], uses_hash_tags=self._store.uses_hash_tags)
        self._sent = False
        try:
            replies = await self._exchange_in_time(calls)
        except Exception as error:
            failure = await self._handle_failure(error)
            _fail_batch(batch, failure)
            return failure
        except BaseException:
            await self._drop_connection()
            _cancel_batch(batch)
            raise
        for (operation, future), reply in zip(batch, replies, strict=True):
            self._deliver(operation, future, reply)
        return None

    async def _exchange_in_time(self, calls: list[ScriptCall]) -> list[Any]:
        """Exchange within the deadline, which begins when this batch is sent.

        Until then, the callers waited for the previous batch, which the server answered (otherwise they would
        have failed with it), or for a blocked event loop.
        """
        due = self.loop.time() + self._store.deadline.seconds + self._connect_allowance()
        async with asyncio.timeout(None) as bound:
            timer = self.loop.call_at(due, _end_exchange, self.loop, due, bound)
            try:
                return await self._exchange(calls)
            finally:
                timer.cancel()

    def _connect_allowance(self) -> float:
        """Return how much longer an exchange may take because this loop has to connect; see ``pool.py``.

        After an outage the server has answered only the heartbeat, and every loop connects again.
        """
        used_ns = self._used_ns
        answered_ns = max(used_ns, self._store.deadline.answered_ns) if used_ns else 0
        connects = self._connection is None and answered_recently(answered_ns)
        return CONNECT_ALLOWANCE_SECONDS if connects else 0.0

    async def _handle_failure(self, error: Exception) -> StateError:
        address = self._store.address
        if isinstance(error, TimeoutError) and not self._sent:
            return StateUnavailableError(f"still connecting to {address}; nothing was sent")
        await self._drop_connection()
        return error if isinstance(error, StateError) else translate_error(error, address)

    async def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await close_quietly(connection)

    def _deliver(self, operation: Operation[Any], future: asyncio.Future[Any], reply: Any) -> None:
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
            self.enqueue(undo).add_done_callback(_consume_error)

    async def _exchange(self, calls: list[ScriptCall]) -> list[Any]:
        now_us = self._store.now_us()
        connection = await self._ready_connection()
        packed = b"".join(call.command_bytes(now_us) for call in calls)
        self._sent = True
        sent_ns = MONOTONIC.now_ns()
        await connection.send_packed_command(packed, check_health=False)
        answers = [await _read_call(connection, call) for call in calls]
        self._used_ns = MONOTONIC.now_ns()
        self._store.deadline.record(self._used_ns - sent_ns)
        replies: list[Any] = []
        is_invalid = False
        for call, raw in zip(calls, answers, strict=True):
            if isinstance(raw, NoScriptError):  # it had no effect
                text = call.command_bytes(now_us, with_text=True)
                await connection.send_packed_command(text, check_health=False)
                raw = await _read_call(connection, call)  # noqa: PLW2901 - the same call's answer
            if isinstance(raw, ResponseError):
                replies += [self._store.translate_call_error(raw, call)] * len(call.operations)
                is_invalid = is_invalid or invalidates_connection(raw)
            else:
                replies += call.parse_replies(raw)
        if is_invalid:
            await self._drop_connection()
        return replies

    async def _ready_connection(self) -> AsyncRedisConnection:
        """Return the connection, checked if it was idle, or a new one.

        A separate task connects. It continues if the batch that waits for it gives up.
        """
        connection = self._connection
        was_idle = MONOTONIC.now_ns() - self._used_ns > CHECK_IDLE_AFTER_NS
        if connection is not None and was_idle and await _is_stale(connection):
            await self._drop_connection()
            connection = None
        while connection is None:
            is_older = self._connect_task is not None
            if self._connect_task is None:
                self._connect_task = self.loop.create_task(self._connect())
                self._connect_task.add_done_callback(self._on_connect_done)
            try:
                await asyncio.shield(self._connect_task)
            except StateError:
                if not is_older:  # the failure of an older attempt says nothing about the current server
                    raise
            connection = self._connection
        return connection

    async def _connect(self) -> None:
        try:
            self._connection = await self._open_connection(self._store.connect_timeout)
        except Exception as error:
            raise translate_connect_error(error, self._store.address) from error
        self._used_ns = MONOTONIC.now_ns()
        if self._closer is None:
            self._closer = self._close_with_loop()
            await anext(self._closer)  # from now on the event loop knows it

    def _on_connect_done(self, task: asyncio.Task[None]) -> None:
        self._connect_task = None
        _consume_error(task)


def _end_exchange(loop: asyncio.AbstractEventLoop, due: float, bound: asyncio.Timeout) -> None:
    """End an exchange at its deadline.

    If this timer itself is late, the event loop was blocked and the reply may already be in the socket. The
    exchange then gets ``GRACE_SECONDS`` more to read it.
    """
    now = loop.time()
    bound.reschedule(now + GRACE_SECONDS if now - due > _LATE_SECONDS else now)


async def _is_stale(connection: AsyncRedisConnection) -> bool:
    """Whether the server closed an idle connection, or sent something unexpected on it."""
    for _ in range(2):  # the event loop may not have noticed yet
        await asyncio.sleep(0)
    try:
        can_read = getattr(connection, "can_read", None) or connection.can_read_destructive
        return not connection.is_connected or bool(await can_read())
    except Exception:  # whatever the error, the connection is unusable
        return True


async def _read_call(connection: AsyncRedisConnection, call: ScriptCall) -> Any:
    """Read the reply to a call after any reply to ASKING, so that the next call gets its own reply."""
    asking_reply = await _read_reply(connection) if call.script.asking else None
    reply = await _read_reply(connection)
    return asking_reply if isinstance(asking_reply, ResponseError) else reply


async def _read_reply(connection: AsyncRedisConnection) -> Any:
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error


def _fail_batch(batch: _Batch, error: StateError) -> None:
    for _, future in batch:
        if not future.done():
            future.set_exception(error)


def _cancel_batch(batch: _Batch) -> None:
    for _, future in batch:
        future.cancel()


def _consume_error(future: asyncio.Future[Any]) -> None:
    """Mark a future's error as retrieved: if no caller awaits it, asyncio would log it."""
    if not future.cancelled():
        future.exception()
