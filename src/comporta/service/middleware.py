"""The middleware in front of all routes: client limits, body size, security headers and request metrics.

It is one ASGI layer rather than several because every request pays for each layer.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from itertools import count as count_from
from time import perf_counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from fastapi import Request, Response

from comporta.errors import ComportaError
from comporta.integrations.asgi import App, Message, Receive, Scope, Send
from comporta.integrations.client_ip import ClientAddress
from comporta.integrations.inbound_limit import Headers
from comporta.metrics import count, observe
from comporta.service.logs import ACCESS_LOGGER, current_request_id
from comporta.service.problems import HttpProblem

if TYPE_CHECKING:
    from comporta.service.container import Container

EXEMPT_PATHS: Final = frozenset(("/livez", "/readyz", "/metrics", "/", "/v1/dashboard"))
"""Paths without limits: monitoring must work under any load."""

UNCOUNTED_PATHS: Final = frozenset(("/v1/health",))
"""Paths under the client limit that do not count as calls: a worker that is full still reports its health."""

EXEMPT_PREFIXES: Final = ("/dashboard/", "/v1/dashboard/")
"""Paths below these have no limits either, and their open streams do not count as calls."""

Endpoint = Callable[[Request], Awaitable[Response]]

_SELF_EXPLANATORY = (ComportaError, ImportError, ValueError)
"""Errors whose message is enough: a missing extra, a wrong setting, a server that refuses us."""

_CLOSE_HEADER = (b"connection", b"close")
"""A worker that is about to end asks its clients for new connections, which other workers accept."""

_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
_DIGITS_MAX = 18
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_REQUEST_NUMBERS = count_from(1)
_WORKER_ID = secrets.token_hex(4)
_ACCESS_LOG = logging.getLogger(ACCESS_LOGGER)
_SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
)


class ServiceMiddleware:
    """Passes a request to the application or rejects it.

    ``fast_endpoints`` are called for a GET request of their path without the layers of the framework, which
    would take a fifth of the time of a cached search.
    """

    def __init__(
        self,
        app: App,
        body_bytes_max: int,
        calls_max: int,
        trusted_proxies: Iterable[str] = (),
        fast_endpoints: Mapping[str, Endpoint] = MappingProxyType({}),
    ) -> None:
        self._app = app
        self._body_bytes_max = body_bytes_max
        self._calls_max = calls_max
        self._calls = 0
        self._fast_endpoints = fast_endpoints
        self._address = ClientAddress(trusted_proxies)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or the lifespan of the application."""
        if scope["type"] != "http":
            await self._app(scope, receive, partial(_send_short_startup_error, send))
            return
        began = perf_counter()
        container: Container = scope["app"].state.container
        request_id = _request_id(scope)
        current_request_id.set(request_id)
        limit_headers: Headers = []
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                extra = [(name.encode("ascii"), value.encode("ascii")) for name, value in limit_headers]
                extra.append((b"x-request-id", request_id.encode("ascii")))
                if container.is_draining or container.shutting_down.is_set():
                    extra.append(_CLOSE_HEADER)
                message = {**message, "headers": [*message.get("headers", ()), *extra, *_SECURITY_HEADERS]}
            await send(message)

        calls = 1 if is_limited(scope["path"]) and scope["path"] not in UNCOUNTED_PATHS else 0
        self._calls += calls
        try:
            await self._handle(scope, receive, send_with_headers, limit_headers)
        except asyncio.CancelledError:
            if status or not container.shutting_down.is_set():
                raise
            await _shutdown_problem().response()(scope, receive, send_with_headers)
        finally:
            self._calls -= calls
            seconds = perf_counter() - began
            _record_request(scope, status or 500, seconds)
            if container.config.access_log:
                self._log_access(scope, status or 500, seconds)

    def _log_access(self, scope: Scope, status: int, seconds: float) -> None:
        """Log a request without its query, which may have user names."""
        client, method, path = self._address(scope), scope["method"], scope["path"]
        _ACCESS_LOG.info("%s %s %.200r %d %.1f ms", client, method, path, status, seconds * 1e3)

    async def _handle(self, scope: Scope, receive: Receive, send: Send, limit_headers: Headers) -> None:
        problem = await self._rejection(scope, limit_headers) if is_limited(scope["path"]) else None
        if problem is None and _declared_length(scope) > self._body_bytes_max:
            problem = self._too_large_problem()
        if problem is not None:
            await problem.response()(scope, receive, send)
            return
        endpoint = self._fast_endpoints.get(scope["path"]) if scope["method"] == "GET" else None
        if endpoint is None:
            await self._app(scope, self._bounded_receive(receive), send)
        else:
            await _call_endpoint(endpoint, scope, receive, send)

    async def _rejection(self, scope: Scope, limit_headers: Headers) -> HttpProblem | None:
        """Return why a request is rejected, or ``None``; add the headers of the client limit either way."""
        container: Container = scope["app"].state.container
        if self._calls > self._calls_max and scope["path"] not in UNCOUNTED_PATHS:
            detail = f"more than {self._calls_max} requests are in progress"
            return HttpProblem(503, "Service Unavailable", detail, retry_after=1)
        if container.client_admission is None:
            return None
        admission = await container.client_admission.admit(scope)
        limit_headers += admission.headers
        if admission.problem is None:
            return None
        status, title, detail, retry_after = admission.problem
        return HttpProblem(status, title, detail, retry_after=retry_after)

    def _bounded_receive(self, receive: Receive) -> Receive:
        """Return a ``receive`` that raises once the body is larger than allowed."""
        left = self._body_bytes_max

        async def receive_bounded() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise self._too_large_problem()
            return message

        return receive_bounded

    def _too_large_problem(self) -> HttpProblem:
        detail = f"the body must be at most {self._body_bytes_max} bytes, got more"
        return HttpProblem(413, "Content Too Large", detail, "body", headers={"connection": "close"})


async def _call_endpoint(endpoint: Endpoint, scope: Scope, receive: Receive, send: Send) -> None:
    """Call an endpoint and send its response; an error gets the response that the application gives it."""
    request = Request(scope, receive, send)
    try:
        response = await endpoint(request)
    except Exception as error:
        handlers = scope["app"].exception_handlers
        handler = next((handlers[each] for each in type(error).__mro__[:-3] if each in handlers), None)
        if handler is None:
            raise  # the outermost layer responds and logs it
        response = await handler(request, error)
    await response(scope, receive, send)


def _shutdown_problem() -> HttpProblem:
    """Return the response for a request that shutdown interrupts."""
    detail = "this worker is shutting down and could not finish the request"
    return HttpProblem(503, "Service Unavailable", detail, retry_after=1)


def is_limited(path: str) -> bool:
    """Whether the client limit applies to a path."""
    return path not in EXEMPT_PATHS and not path.startswith(EXEMPT_PREFIXES)


def _request_id(scope: Scope) -> str:
    """Return the id that the client or a proxy gave the request, or a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return str(value, "ascii")
    return f"{_WORKER_ID}-{next(_REQUEST_NUMBERS)}"


def _declared_length(scope: Scope) -> int:
    """Return the ``Content-Length`` of a request, or 0 if it has none."""
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() and len(value) < _DIGITS_MAX else 2**63
    return 0


def _record_request(scope: Scope, status: int, seconds: float) -> None:
    """Count a request by its route, because routes are few and paths are not."""
    route = getattr(scope.get("route"), "path", "none")
    count("http_requests", 1, route=route, method=_method_label(scope), status=str(status))
    observe("http_request_seconds", seconds, route=route)


def _method_label(scope: Scope) -> str:
    return scope["method"] if scope["method"] in _METHODS else "other"


async def _send_short_startup_error(send: Send, message: Message) -> None:
    """Report a startup error with its message only if that is enough, otherwise with its traceback."""
    error = sys.exception()
    if message["type"] == "lifespan.startup.failed" and isinstance(error, _SELF_EXPLANATORY):
        message = {**message, "message": str(error)}
    await send(message)
