"""Transports for httpx2 and httpx: every request of a client goes through an upstream.

The two packages have classes of the same names, but a client of one does not accept a transport of the other.
So the classes for a package are created when they are first needed. Each wraps a transport of that package.
An attempt lasts until the body of its response has ended (``body.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from comporta.upstream.body import OpenBody, ReadTimer
from comporta.upstream.call_state import CallTraits
from comporta.upstream.client_errors import client_error, is_ours
from comporta.upstream.httpx_streams import AsyncBodyStream, BodyStream
from comporta.upstream.replay import Replay, replay_rule

if TYPE_CHECKING:
    from comporta.upstream.flows import UpstreamCall
    from comporta.upstream.upstream import Upstream

PACKAGES = ("httpx2", "httpx")

REPEAT = "comporta_repeat"
"""In a request's ``extensions``: whether it may be retried, whatever its method."""

REPORT = "comporta"
"""In a response's ``extensions``: the :class:`CallReport` of its call."""

TIMEOUT = "timeout"
"""In a request's ``extensions``: the client's time-outs for ``connect``, ``read``, ``write`` and ``pool``."""

_NOT_STARTED = ReadTimer(None)


class TransportClasses(NamedTuple):
    """The two transport classes for one package."""

    blocking: type[Any]
    awaiting: type[Any]


class TimeoutsLeft(dict[str, float | None]):
    """The client's time-outs, each shortened to the time that the attempt has left when it is looked up."""

    __slots__ = ("timer",)

    timer: ReadTimer

    def __getitem__(self, name: str) -> float | None:
        return self.timer.shorten(super().__getitem__(name))

    def get(self, name: str, default: Any = None) -> Any:
        """Return the time-out of this name."""
        return self.timer.shorten(super().get(name, default))


class Exchange:
    """One request on its way through the policies; ``timer`` is that of the latest attempt."""

    __slots__ = ("_package", "_upstream", "request", "timer")

    def __init__(self, package: Any, upstream: Upstream, request: Any) -> None:
        self._package = package
        self._upstream = upstream
        self.request = request
        self.timer = _NOT_STARTED

    def execute(self, attempt: Callable[[Exchange], Any]) -> Any:
        """Make the attempts, blocking; return the response."""
        call = self._prepare(attempt)
        try:
            return self._with_body(call, call.execute())
        except Exception as error:
            if not is_ours(error):
                raise
            raise self._client_error(error) from error.__cause__

    async def execute_async(self, attempt: Callable[[Exchange], Any]) -> Any:
        """Make the attempts without blocking the event loop; return the response."""
        call = self._prepare(attempt)
        try:
            return self._with_body(call, await call.execute_async())
        except Exception as error:
            if not is_ours(error):
                raise
            raise self._client_error(error) from error.__cause__

    def _prepare(self, attempt: Callable[[Exchange], Any]) -> UpstreamCall:
        request = self.request
        if not isinstance(request, self._package.Request):
            client = type(request).__module__.partition(".")[0]
            raise TypeError(
                f"this transport is for {self._package.__name__}, got a request of {client}: "
                f"use transport(client={client!r})"
            )
        replay = replay_rule(
            request.method,
            request.headers,
            has_fixed_body=isinstance(request.stream, self._package.ByteStream),
            wish=request.extensions.get(REPEAT),
        )
        return self._upstream._prepare(attempt, (self,), {}, _call_traits(self._package, replay))

    def _with_body(self, call: UpstreamCall, response: Any) -> Any:
        response.extensions[REPORT] = call.report
        if call.is_body_open:
            response.stream.body = OpenBody(call, self.timer, self._timeout_error)
        return response

    def has_open_body(self, response: Any) -> bool:
        """Whether the body of a response has not been read yet."""
        return not isinstance(response.stream, self._package.ByteStream)

    def preload(self, response: Any, content: bytes) -> Any:
        """Decode a body that was read ahead, so that ``retry_if`` and ``classify`` can look at it."""
        response.request = self.request
        response.stream = self._package.ByteStream(content)
        response.read()
        response.is_stream_consumed = response.is_closed = False  # the caller may also stream it
        return response

    def start_timer(self) -> None:
        """Start an attempt."""
        self.timer = ReadTimer(self._upstream._options.timeout)

    def shorten_timeouts(self) -> None:
        """Cut the client's own time-outs to the time that the attempt may take."""
        if self.timer.seconds is not None:
            extensions = self.request.extensions
            extensions[TIMEOUT] = left = TimeoutsLeft(extensions.get(TIMEOUT) or {})
            left.timer = self.timer

    def _timeout_error(self, message: str) -> Exception:
        return self._client_error(TimeoutError(message))

    def _client_error(self, error: Exception) -> Exception:
        """Return a refusal or a time-out as an error of the client."""
        is_late = isinstance(error, TimeoutError)
        base = self._package.ReadTimeout if is_late else self._package.TransportError
        return client_error(self.timer.explain(error), base, request=self.request)


@cache
def _call_traits(package: Any, replay: Replay) -> CallTraits:
    """Return the traits that all requests of a package with the same ``replay`` share."""

    def has_open_body(response: Any) -> bool:
        return not isinstance(response.stream, package.ByteStream)

    return CallTraits(*replay, has_open_body, package.Response)


@cache
def transport_classes(name: str) -> TransportClasses:
    """Return the transport classes for a package, ``"httpx2"`` or ``"httpx"``."""
    if name not in PACKAGES:
        raise ValueError(f"client must be one of {', '.join(map(repr, PACKAGES))}, got {name!r:.100}")
    try:
        package: Any = import_module(name)
    except ImportError as error:
        raise ImportError(f"{name} is not installed: pip install 'comporta[{name}]'") from error
    return TransportClasses(_blocking_transport(package), _async_transport(package))


def _refuse_client(package: Any, client: str, other: str) -> Callable[..., Any]:
    """Return a method that raises an error: this transport is not for that kind of client."""

    def refuse(*arguments: object) -> Any:
        raise TypeError(f"this transport is for {package.__name__}.{client}: use upstream.{other}")

    return refuse


def _blocking_transport(package: Any) -> type[Any]:
    transport: Any = package.BaseTransport
    stream_class = type("BodyStream", (BodyStream, package.SyncByteStream), {})

    class UpstreamTransport(transport):  # type: ignore[misc]  # the package is imported at run time
        """Sends the requests of a client through an upstream, blocking."""

        def __init__(self, upstream: Upstream, inner: Any = None, buffer_body: int | None = None) -> None:
            self._upstream = upstream
            self._inner = package.HTTPTransport() if inner is None else inner
            self._buffer_body = buffer_body

        def handle_request(self, request: Any) -> Any:
            """Send a request as soon as the policies admit it."""
            return Exchange(package, self._upstream, request).execute(self._attempt)

        handle_async_request = __aenter__ = _refuse_client(package, "Client", "transport()")

        def _attempt(self, exchange: Exchange) -> Any:
            exchange.start_timer()
            exchange.shorten_timeouts()
            response = self._inner.handle_request(exchange.request)
            if exchange.has_open_body(response):
                stream = stream_class(response.stream)
                if self._buffer_body is not None and stream.read_ahead(self._buffer_body, exchange.timer):
                    return exchange.preload(response, stream.content)
                response.stream = stream
            return response

        def __enter__(self) -> UpstreamTransport:
            self._inner.__enter__()
            return self

        def __exit__(self, *ended: object) -> None:
            self._inner.__exit__(*ended)

        def close(self) -> None:
            """Close the wrapped transport."""
            self._inner.close()

    return UpstreamTransport


def _async_transport(package: Any) -> type[Any]:
    transport: Any = package.AsyncBaseTransport
    stream_class = type("AsyncBodyStream", (AsyncBodyStream, package.AsyncByteStream), {})

    class AsyncUpstreamTransport(transport):  # type: ignore[misc]  # as above
        """Sends the requests of a client through an upstream, for async clients."""

        def __init__(self, upstream: Upstream, inner: Any = None, buffer_body: int | None = None) -> None:
            self._upstream = upstream
            self._inner = package.AsyncHTTPTransport() if inner is None else inner
            self._buffer_body = buffer_body

        async def handle_async_request(self, request: Any) -> Any:
            """Send a request as soon as the policies admit it."""
            return await Exchange(package, self._upstream, request).execute_async(self._attempt)

        handle_request = __enter__ = _refuse_client(package, "AsyncClient", "sync.transport()")

        async def _attempt(self, exchange: Exchange) -> Any:
            exchange.start_timer()
            response = await self._inner.handle_async_request(exchange.request)
            if exchange.has_open_body(response):
                stream = stream_class(response.stream)
                if self._buffer_body is not None and await stream.read_ahead(self._buffer_body):
                    return exchange.preload(response, stream.content)
                response.stream = stream
            return response

        async def __aenter__(self) -> AsyncUpstreamTransport:
            await self._inner.__aenter__()
            return self

        async def __aexit__(self, *ended: object) -> None:
            await self._inner.__aexit__(*ended)

        async def aclose(self) -> None:
            """Close the wrapped transport."""
            await self._inner.aclose()

    return AsyncUpstreamTransport
