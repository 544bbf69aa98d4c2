"""Limits on what comes in, for any ASGI application: no framework is needed, nor imported.

::

    app = RateLimitMiddleware(app, limiter, trusted_proxies=["10.0.0.0/8"])

Only HTTP requests are limited; WebSockets and the lifespan pass as they are.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from inspect import isawaitable
from typing import Any

from comporta.errors import RefusedError
from comporta.integrations.addresses import ClientAddress
from comporta.integrations.inbound import Headers, Inbound, Keys, Limits, Problem, refusal_problem

__all__ = ["ClientAddress", "RateLimitMiddleware", "RefusalMiddleware"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class RateLimitMiddleware:
    """Lets a request pass if its limit does, and tells the client how it stands.

    ``key(scope)`` says whose limit it is (``None``: not limited), and may be a coroutine function; left out
    it is the client's address, behind ``trusted_proxies``. ``limiter`` may be a list of limiters on one
    state, charged all or none; then ``key`` returns a list. A request for which ``exempt(scope)`` is true,
    which may be a coroutine function too, is not counted. ``name`` is what the limit is called to clients.
    ``on_error`` says what happens if the limit's state cannot be used at all: ``"open"`` lets requests pass,
    ``"closed"`` answers 503.
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
        self._inbound = Inbound(
            limiter, key=key, trusted_proxies=trusted_proxies, cost=cost, name=name, on_error=on_error
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http" or await self._exempted(scope):
            await self._app(scope, receive, send)
            return
        verdict = await self._inbound.admit(scope)
        if verdict.problem is None:
            await self._app(scope, receive, _telling(send, verdict.headers))
        else:
            await _answer(send, verdict.problem, verdict.headers)

    async def _exempted(self, scope: Scope) -> bool:
        """Say so; a coroutine that nobody awaits would be true, and every request exempt."""
        if self._exempt is None:
            return False
        said = self._exempt(scope)
        return bool(await said if isawaitable(said) else said)


class RefusalMiddleware:
    """Answers 503 with ``Retry-After`` where the application ran into a refusal by one of its upstreams.

    A :class:`comporta.RefusedError` (an open circuit, a limit that left no room in time) that comes out of
    the application before it began its answer is told to the client; a later one goes on to the server.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and answer for the application if it cannot."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except RefusedError as error:
            if begun:
                raise
            await _answer(send, refusal_problem(error), [])


def _telling(send: Send, headers: Headers) -> Send:
    """Return a ``send`` that adds headers to the start of the answer and leaves the rest as it is.

    All of them are lists, so what the application says of limits of its own stands beside them.
    """
    if not headers:
        return send

    async def telling(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *_encoded(headers)]}
        await send(message)

    return telling


async def _answer(send: Send, problem: Problem, headers: Headers) -> None:
    content = problem.content
    told = [*problem.headers, *headers, ("content-length", str(len(content)))]
    await send({"type": "http.response.start", "status": problem.status, "headers": _encoded(told)})
    await send({"type": "http.response.body", "body": content})


def _encoded(headers: Headers) -> list[tuple[bytes, bytes]]:
    return [(name.encode("ascii"), value.encode("ascii")) for name, value in headers]
