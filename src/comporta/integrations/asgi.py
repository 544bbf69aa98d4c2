"""Middleware that limits inbound requests, for any ASGI application. It needs no web framework.

::

    app = RateLimitMiddleware(app, limiter, trusted_proxies=["10.0.0.0/8"])

The middleware limits HTTP requests; WebSockets and the lifespan protocol pass through.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from inspect import isawaitable
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

__all__ = ["ClientAddress", "RateLimitMiddleware", "RefusalMiddleware"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class RateLimitMiddleware:
    """Middleware that refuses requests beyond a limit with 429, and sends ``RateLimit`` headers.

    ``key(scope)`` returns the key of the limit (``None``: the request is not limited); the default is the
    client's address, behind ``trusted_proxies``. ``exempt(scope)`` returns whether to let a request pass
    without counting it. Both may be coroutine functions. ``limiter`` may be a list of limiters on one store,
    charged all or none; then ``key`` returns a list. ``name`` is the name of the limit in the headers.
    ``on_error`` applies if the store is unusable: ``"open"`` lets requests pass, ``"closed"`` answers 503.
    """

    def __init__(
        self,
        app: App,
        limiter: Limits,
        *,
        key: Callable[[Scope], Keys | Awaitable[Keys]] | None = None,
        trusted_proxies: Iterable[str] = (),
        cost: int = 1,
        exempt: Callable[[Scope], bool | Awaitable[bool]] | None = None,
        name: str | None = None,
        on_error: str = "open",
    ) -> None:
        if exempt is not None and not callable(exempt):
            raise TypeError(f"exempt must be a function of the scope, got {exempt!r:.100}")
        self._app = app
        self._exempt = exempt
        self._limit = InboundLimit(
            limiter, key=key, trusted_proxies=trusted_proxies, cost=cost, name=name, on_error=on_error
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request: pass it to the application, or refuse it."""
        if scope["type"] != "http" or await self._is_exempt(scope):
            await self._app(scope, receive, send)
            return
        decision = await self._limit.admit(scope)
        if decision.problem is None:
            await self._app(scope, receive, _send_with_headers(send, decision.headers))
        else:
            await _send_problem(send, decision.problem, decision.headers)

    async def _is_exempt(self, scope: Scope) -> bool:
        """Return whether the request is exempt. An awaitable result must be awaited: it is always truthy."""
        if self._exempt is None:
            return False
        result = self._exempt(scope)
        return bool(await result if isawaitable(result) else result)


class RefusalMiddleware:
    """Middleware that answers 503 with ``Retry-After`` when an upstream of the application refuses a call.

    It handles a :class:`comporta.RefusedError` (an open circuit, no capacity in time) that the application
    raises before it starts its response; a later error propagates to the server.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request to the application, and answer 503 if it raises a ``RefusedError``."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_started = False

        async def send_and_note(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        except RefusedError as error:
            if has_started:
                raise
            await _send_problem(send, refusal_problem(error), [])


def _send_with_headers(send: Send, headers: Headers) -> Send:
    """Return a ``send`` function that adds headers to the start of the response.

    The application may send the same headers for limits of its own: both are kept, because they are lists.
    """
    if not headers:
        return send

    async def send_message(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *_encode_headers(headers)]}
        await send(message)

    return send_message


async def _send_problem(send: Send, problem: RefusalProblem, headers: Headers) -> None:
    content = problem.content
    fields = [*problem.headers, *headers, ("content-length", str(len(content)))]
    await send({"type": "http.response.start", "status": problem.status, "headers": _encode_headers(fields)})
    await send({"type": "http.response.body", "body": content})


def _encode_headers(headers: Headers) -> list[tuple[bytes, bytes]]:
    return [(name.encode("ascii"), value.encode("ascii")) for name, value in headers]
