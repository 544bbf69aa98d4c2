"""Middleware that limits inbound requests, for any WSGI application: Flask, Django and others.

::

    app.wsgi_app = WsgiRateLimitMiddleware(app.wsgi_app, limiter, trusted_proxies=["10.0.0.0/8"])

It needs no web framework. Decisions, headers and problems are those of the ASGI middleware (``asgi.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from inspect import iscoroutinefunction
from types import TracebackType
from typing import Any

from comporta.errors import RefusedError
from comporta.integrations.client_ip import ClientAddress
from comporta.integrations.inbound_limit import (
    Headers,
    InboundLimit,
    Keys,
    Limits,
    RefusalProblem,
    refusal_problem,
)

__all__ = ["WsgiClientAddress", "WsgiRateLimitMiddleware", "WsgiRefusalMiddleware", "refusal_problem"]

Environ = dict[str, Any]
ExcInfo = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]
StartResponse = Callable[..., Callable[[bytes], object]]
WsgiApp = Callable[[Environ, StartResponse], Iterable[bytes]]


class WsgiClientAddress(ClientAddress):
    """A key function that returns the client's address from a WSGI environment."""

    def _peer(self, scope: Environ) -> str:
        return str(scope.get("REMOTE_ADDR") or "")

    def _forwarded_for(self, scope: Environ) -> str:
        return str(scope.get("HTTP_X_FORWARDED_FOR", ""))


class WsgiRateLimitMiddleware:
    """Middleware that refuses requests beyond a limit with 429, and sends ``RateLimit`` headers.

    The arguments are those of :class:`comporta.integrations.asgi.RateLimitMiddleware`, except that ``key``
    and ``exempt`` receive the WSGI environment and cannot be coroutine functions.
    """

    def __init__(
        self,
        app: WsgiApp,
        limiter: Limits,
        *,
        key: Callable[[Environ], Keys] | None = None,
        trusted_proxies: Iterable[str] = (),
        cost: int = 1,
        exempt: Callable[[Environ], bool] | None = None,
        name: str | None = None,
        on_error: str = "open",
    ) -> None:
        self._app = app
        self._exempt = None if exempt is None else _require_blocking("exempt", exempt)
        self._limit = InboundLimit(
            limiter,
            key=None if key is None else _require_blocking("key", key),
            trusted_proxies=trusted_proxies,
            cost=cost,
            name=name,
            on_error=on_error,
            address=WsgiClientAddress,
        )

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Handle a request: pass it to the application, or refuse it."""
        if self._exempt is not None and self._exempt(environ):
            return self._app(environ, start_response)
        decision = self._limit.admit_sync(environ)
        if decision.problem is None:
            return self._app(environ, _start_with_headers(start_response, decision.headers))
        return _problem_response(environ, start_response, decision.problem, decision.headers)


class WsgiRefusalMiddleware:
    """Middleware that answers 503 with ``Retry-After`` when an upstream of the application refuses a call.

    It handles a :class:`comporta.RefusedError` (an open circuit, no capacity in time) that the application
    raises before it starts its response; a later error propagates to the server. Flask and Django handle
    exceptions themselves, so this middleware never sees them: the guide shows what to write there.
    """

    def __init__(self, app: WsgiApp) -> None:
        self._app = app

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Pass the request to the application, and answer 503 if it raises a ``RefusedError``."""
        has_started = False

        def start_and_note(*args: Any) -> Callable[[bytes], object]:
            nonlocal has_started
            has_started = True
            return start_response(*args)

        try:
            chunks = self._app(environ, start_and_note)
            # A generator does nothing before its first chunk is requested.
            return chunks if has_started else _StartedResponse(chunks)
        except RefusedError as error:
            if has_started:
                raise
            return _problem_response(environ, start_response, refusal_problem(error), [])


class _StartedResponse:
    """The chunks of a response. Reading the first one makes the application run and report its errors."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = chunks
        self._iterator = iter(chunks)
        try:
            self._first = next(self._iterator, b"")
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[bytes]:
        yield self._first
        yield from self._iterator

    def close(self) -> None:
        """Close the application's response, as the server would."""
        close = getattr(self._chunks, "close", None)
        if close is not None:
            close()


def _require_blocking(name: str, function: Callable[[Environ], Any]) -> Callable[[Environ], Any]:
    """Return the function if WSGI can call it."""
    if not callable(function):
        raise TypeError(f"{name} must be a function of the WSGI environment, got {function!r:.100}")
    if iscoroutinefunction(function):
        raise TypeError(
            f"{name} must not be a coroutine function, WSGI cannot await it: got {function!r:.100}"
        )
    return function


def _start_with_headers(start_response: StartResponse, headers: Headers) -> StartResponse:
    """Return a ``start_response`` function that adds headers.

    The application may send the same headers for limits of its own: both are kept, because they are lists.
    """
    if not headers:
        return start_response

    def start(
        status: str, fields: list[tuple[str, str]], exc_info: ExcInfo | None = None
    ) -> Callable[[bytes], object]:
        fields = [*fields, *headers]
        return (
            start_response(status, fields) if exc_info is None else start_response(status, fields, exc_info)
        )

    return start


def _problem_response(
    request: Environ, start_response: StartResponse, problem: RefusalProblem, headers: Headers
) -> list[bytes]:
    content = problem.content
    fields = [*problem.headers, *headers, ("content-length", str(len(content)))]
    start_response(f"{problem.status} {problem.title}", fields)
    return [] if request.get("REQUEST_METHOD") == "HEAD" else [content]
