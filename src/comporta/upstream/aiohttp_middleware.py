"""A client middleware for aiohttp: every request of a session goes through an upstream.

An attempt lasts until the body of its response has been received, or the response is closed. aiohttp receives
small bodies together with the headers; then the attempt has ended when the session returns the response.
"""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakMethod

import aiohttp
from aiohttp import ClientConnectionError, ClientHandlerType, ClientRequest, ClientResponse, StreamReader
from aiohttp.payload import BytesPayload

from comporta.upstream.body import OpenBody, ReadTimer
from comporta.upstream.call_state import CallTraits
from comporta.upstream.client_errors import client_error, is_ours
from comporta.upstream.replay import replay_rule

if TYPE_CHECKING:
    from comporta.upstream.upstream import Upstream


class UpstreamMiddleware:
    """A middleware for a session: ``aiohttp.ClientSession(middlewares=[upstream.middleware()])``."""

    def __init__(self, upstream: Upstream, *, repeat: bool | None, buffer_body: int | None) -> None:
        self._upstream = upstream
        self._repeat = repeat
        self._buffer_body = buffer_body

    async def __call__(self, request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        """Send a request as soon as the policies admit it."""
        replay = replay_rule(
            request.method,
            request.headers,
            has_fixed_body=not request.body or isinstance(request.body, BytesPayload),
            wish=self._repeat,
        )
        timers: list[ReadTimer] = []
        call = self._upstream._prepare(
            self._attempt,
            (request, handler, timers),
            {},
            CallTraits(*replay, _has_open_body, ClientResponse),
        )
        try:
            response: ClientResponse = await call.execute_async()
        except Exception as error:
            if not is_ours(error):
                raise
            is_late = isinstance(error, TimeoutError)
            base = aiohttp.ServerTimeoutError if is_late else aiohttp.ClientError
            explained = timers[-1].explain(error) if timers else error
            raise client_error(explained, base) from error.__cause__
        response.comporta = call.report  # type: ignore[attr-defined]  # an extra attribute
        if call.is_body_open:
            _observe_body(response, OpenBody(call, timers[-1], aiohttp.ServerTimeoutError))
        return response

    async def _attempt(
        self, request: ClientRequest, handler: ClientHandlerType, timers: list[ReadTimer]
    ) -> ClientResponse:
        timers.append(ReadTimer(self._upstream._options.timeout))
        response = await handler(request)
        if self._buffer_body is not None:
            try:
                await _read_ahead(response.content, self._buffer_body)
            except BaseException:
                response.close()
                raise
        return response


async def _read_ahead(content: StreamReader, size: int) -> None:
    """Wait until the whole body, or more than ``size`` bytes of it, has been received."""
    parts: list[bytes] = []
    while size >= 0 and (part := await content.readany()):
        parts.append(part)
        size -= len(part)
    if parts:
        with warnings.catch_warnings():  # deprecated, but there is no other way to put data back
            warnings.simplefilter("ignore", DeprecationWarning)
            content.unread_data(b"".join(parts))


def _has_open_body(response: ClientResponse) -> bool:
    return response.connection is not None


def _observe_body(response: ClientResponse, body: OpenBody) -> None:
    """Pass reads of the body through ``body``, and conclude the call when the connection is released."""
    connection, content = response.connection, response.content
    _allow_collection(response)
    response.content = ContentReader(content, body, response)
    if connection is None:
        _end_body(content, body)  # the rest of the body has arrived in the meantime
    else:
        connection.add_callback(partial(_end_body, content, body))


def _allow_collection(response: ClientResponse) -> None:
    """Let the garbage collector collect a response that the program no longer references.

    aiohttp keeps the response alive, and with it its connection and its permit, through a callback of the
    stream that the connection feeds. In a version of aiohttp without that list of callbacks, it stays alive.
    """
    callbacks = getattr(response.content, "_eof_callbacks", [])
    callbacks[:] = [
        _weak(each) if getattr(each, "__self__", None) is response else each for each in callbacks
    ]


def _weak(method: Callable[[], object]) -> Callable[[], None]:
    reference = WeakMethod(method)

    def call_if_alive() -> None:
        (reference() or _do_nothing)()

    return call_if_alive


def _do_nothing() -> None:
    """Do nothing: the response has been collected."""


def _end_body(content: StreamReader, body: OpenBody) -> None:
    """Conclude the call, unless a read is in progress: that read does it. Never waits."""
    if not body.is_reading:
        error = content.exception()
        # aiohttp sets an error of exactly this class when the caller closes the response
        body.drop(None if type(error) is ClientConnectionError else error)


class ContentReader(StreamReader):
    """The ``content`` of a response: a reader whose reads are bounded and observed."""

    __slots__ = ("_body", "_inner", "_response")

    def __init__(self, inner: StreamReader, body: OpenBody, response: ClientResponse) -> None:
        self._inner = inner
        self._body = body
        self._response = response  # so that a program may keep only the content

    def __repr__(self) -> str:
        return repr(self._inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)  # attributes that this object does not have

    async def _observe(self, step: Callable[[], Awaitable[Any]]) -> Any:
        """Make one read of the inner reader; an error of the body closes the response."""
        try:
            part, error = await self._body.read_async(partial(self._try_step, step))
        except BaseException:
            self._response.close()
            raise
        if self._inner.is_eof():
            await self._body.finish_async()
        if error is not None:
            raise error
        return part

    async def _try_step(self, step: Callable[[], Awaitable[Any]]) -> tuple[Any, Exception | None]:
        """Return what a read returned, or an error that concerns this read and not the body.

        Such an error means that the body is shorter than the caller expected, or its line too long.
        """
        try:
            return await step(), None
        except Exception as error:
            if isinstance(error, TimeoutError) or self._inner.exception() is not None:
                raise
            return None, error

    async def read(self, n: int = -1) -> bytes:
        """Read ``n`` bytes, or all."""
        part: bytes = await self._observe(partial(self._inner.read, n))
        return part

    async def readany(self) -> bytes:
        """Read what has arrived."""
        part: bytes = await self._observe(self._inner.readany)
        return part

    async def readline(self, **options: Any) -> bytes:
        """Read one line."""
        part: bytes = await self._observe(partial(self._inner.readline, **options))
        return part

    async def readuntil(self, separator: bytes = b"\n", **options: Any) -> bytes:
        """Read up to a separator."""
        part: bytes = await self._observe(partial(self._inner.readuntil, separator, **options))
        return part

    async def readchunk(self) -> tuple[bytes, bool]:
        """Read one chunk, and whether it was the last part of an HTTP chunk."""
        part: tuple[bytes, bool] = await self._observe(self._inner.readchunk)
        return part

    async def readexactly(self, n: int) -> bytes:
        """Read ``n`` bytes, not fewer."""
        part: bytes = await self._observe(partial(self._inner.readexactly, n))
        return part

    async def wait_eof(self) -> None:
        """Wait until the whole body has been received."""
        await self._observe(self._inner.wait_eof)


def _forward(name: str) -> Any:
    def call_inner(self: ContentReader, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._inner, name)(*args, **kwargs)

    return call_inner


for _name in (
    *("at_eof", "exception", "feed_data", "feed_eof", "get_read_buffer_limits", "is_eof", "on_eof"),
    *("read_nowait", "set_exception", "set_read_chunk_size", "unread_data"),
):
    setattr(ContentReader, _name, _forward(_name))
