"""Limits on the inbound requests of an aiohttp server, and responses to refusals.

::

    add_rate_limit(app, limiter, trusted_proxies=["10.0.0.0/8"])
    add_refusal_handler(app)

Decisions, headers and problems are those of the ASGI middleware (``asgi.py``). Both functions add a
middleware and a signal handler: a middleware alone comes too late for a response that its handler streams.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
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

try:
    from aiohttp import web
    from aiohttp.typedefs import Handler
except ImportError as error:
    raise ImportError(
        "comporta.integrations.aiohttp_server needs the package aiohttp: pip install 'comporta[aiohttp]'"
    ) from error

__all__ = ["AiohttpClientAddress", "add_rate_limit", "add_refusal_handler"]


def _request_key(name: str, kind: type) -> Any:
    """Return a key for data of a request: a name, unless this version of aiohttp has typed keys."""
    return web.RequestKey(name, kind) if hasattr(web, "RequestKey") else name


_STARTED_KEY = _request_key("comporta-response-started", bool)


class AiohttpClientAddress(ClientAddress):
    """A key function that returns the client's address from a request of an aiohttp server."""

    def _peer(self, scope: web.BaseRequest) -> str:
        return scope.remote or ""

    def _forwarded_for(self, scope: web.BaseRequest) -> str:
        return ",".join(scope.headers.getall("X-Forwarded-For", ()))


def add_rate_limit(
    app: web.Application,
    limiter: Limits,
    *,
    key: Callable[[web.Request], Keys | Awaitable[Keys]] | None = None,
    trusted_proxies: Iterable[str] = (),
    cost: int = 1,
    exempt: Callable[[web.Request], bool | Awaitable[bool]] | None = None,
    name: str | None = None,
    on_error: str = "open",
) -> None:
    """Refuse an application's requests beyond a limit with 429, and send ``RateLimit`` headers.

    The arguments are those of :class:`comporta.integrations.asgi.RateLimitMiddleware`, except that ``key``
    and ``exempt`` receive the request. The handshake of a WebSocket counts as a request. Limits added later
    are checked later: add them before the application starts.
    """
    if exempt is not None and not callable(exempt):
        raise TypeError(f"exempt must be a function of the request, got {exempt!r:.100}")
    limit = InboundLimit(
        limiter,
        key=key,
        trusted_proxies=trusted_proxies,
        cost=cost,
        name=name,
        on_error=on_error,
        address=AiohttpClientAddress,
    )
    headers_key = _request_key(f"comporta-headers-{id(limit)}", list)

    @web.middleware
    async def limit_requests(request: web.Request, handler: Handler) -> web.StreamResponse:
        if exempt is not None and await _is_exempt(exempt, request):
            return await handler(request)
        decision = await limit.admit(request)
        request[headers_key] = decision.headers
        return await handler(request) if decision.problem is None else _problem_response(decision.problem)

    async def send_headers(request: web.Request, response: web.StreamResponse) -> None:
        headers: Headers = request.get(headers_key, [])
        response.headers.extend(headers)

    app.middlewares.append(limit_requests)
    app.on_response_prepare.append(send_headers)


def add_refusal_handler(app: web.Application) -> None:
    """Make an application answer 503 with ``Retry-After`` when one of its upstreams refuses a call.

    It handles a :class:`comporta.RefusedError` (an open circuit, no capacity in time) that a handler raises
    before it starts its response; a later error propagates to the server.
    """
    app.middlewares.append(_handle_refusals)
    app.on_response_prepare.append(_note_start)


@web.middleware
async def _handle_refusals(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except RefusedError as error:
        if _STARTED_KEY in request:
            raise
        return _problem_response(refusal_problem(error))


async def _note_start(request: web.Request, _: web.StreamResponse) -> None:
    request[_STARTED_KEY] = True


async def _is_exempt(exempt: Callable[[web.Request], bool | Awaitable[bool]], request: web.Request) -> bool:
    """Return whether the request is exempt. An awaitable result must be awaited: it is always truthy."""
    result = exempt(request)
    return bool(await result if isawaitable(result) else result)


def _problem_response(problem: RefusalProblem) -> web.Response:
    return web.Response(body=problem.content, status=problem.status, headers=problem.headers)
