"""What is in front of all routes: how much a client may ask and send, and what is counted.

One step, not one for each: whatever a request passes on its way, every request pays for.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Final

from comporta.errors import ComportaError
from comporta.integrations.asgi import App, Message, Receive, Scope, Send
from comporta.integrations.inbound import Headers
from comporta.metrics import current_metrics
from comporta.service.problems import Problem

if TYPE_CHECKING:
    from comporta.service.parts import Parts

EXEMPT: Final = frozenset(("/livez", "/readyz", "/metrics", "/v1/health", "/", "/v1/dashboard"))
"""Paths that are not limited: whoever watches the service must see it, whatever else happens."""

EXEMPT_BELOW: Final = ("/dashboard/", "/v1/dashboard/")
"""All that is below these is not limited either; nor are pages that stay open calls under way."""

_SENTENCES = (ComportaError, ImportError, ValueError)
"""What says by itself what is wrong: an extra that is missing, a field of the configuration, a server."""

_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
_DIGITS_MAX = 18
_SECURE = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
)


class Front:
    """Lets a request through to the application, or answers it."""

    def __init__(self, app: App, body_bytes_max: int, calls_max: int) -> None:
        self._app = app
        self._body_bytes_max = body_bytes_max
        self._calls_max = calls_max
        self._calls = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, partial(_briefly, send))
            return
        began = perf_counter()
        told: Headers = []
        status = 0

        async def telling(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                more = [(name.encode("ascii"), value.encode("ascii")) for name, value in told]
                message = {**message, "headers": [*message.get("headers", ()), *more, *_SECURE]}
            await send(message)

        calls = 0 if _is_exempt(scope["path"]) else 1
        self._calls += calls
        try:
            await self._passed(scope, receive, telling, told)
        except asyncio.CancelledError:
            if status or not scope["app"].state.parts.leaving.is_set():
                raise
            await _cut_short().response()(scope, receive, telling)
        finally:
            self._calls -= calls
            _count(scope, status or 500, perf_counter() - began)

    async def _passed(self, scope: Scope, receive: Receive, send: Send, told: Headers) -> None:
        problem = None if _is_exempt(scope["path"]) else await self._refused(scope, told)
        if problem is None and _announced(scope) > self._body_bytes_max:
            problem = self._too_large()
        if problem is not None:
            await problem.response()(scope, receive, send)
            return
        await self._app(scope, self._bounded(receive), send)

    async def _refused(self, scope: Scope, told: Headers) -> Problem | None:
        """Return why a request may not pass now; what its client is told in any case goes to ``told``."""
        parts: Parts = scope["app"].state.parts
        if self._calls > self._calls_max:
            detail = f"more than {self._calls_max} requests are under way"
            return Problem(503, "Service Unavailable", detail, retry_after=1)
        if parts.clients is None:
            return None
        verdict = await parts.clients.admit(scope)
        told += verdict.headers
        if verdict.problem is None:
            return None
        status, title, detail, retry_after = verdict.problem
        return Problem(status, title, detail, retry_after=retry_after)

    def _bounded(self, receive: Receive) -> Receive:
        """Return a ``receive`` that ends with an error where a body is larger than allowed."""
        left = self._body_bytes_max

        async def bounded() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise self._too_large()
            return message

        return bounded

    def _too_large(self) -> Problem:
        detail = f"a body must be at most {self._body_bytes_max} bytes, got more"
        return Problem(413, "Content Too Large", detail, "body", headers={"connection": "close"})


def _cut_short() -> Problem:
    """Return the answer for a request that is still under way when this worker can wait no longer."""
    detail = "this worker is ending, and could not wait for what was asked for"
    return Problem(503, "Service Unavailable", detail, retry_after=1, headers={"connection": "close"})


def _is_exempt(path: str) -> bool:
    return path in EXEMPT or path.startswith(EXEMPT_BELOW)


def _announced(scope: Scope) -> int:
    """Return how large the body is said to be; without a word nobody knows."""
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() and len(value) < _DIGITS_MAX else 2**63
    return 0


def _count(scope: Scope, status: int, seconds: float) -> None:
    """Count a request by its route, of which there are few, and not by its path."""
    sink = current_metrics()
    if sink is None:
        return
    route = getattr(scope.get("route"), "path", "none")
    with suppress(Exception):  # a sink that fails must not stop an answer
        sink.counter("http_requests", 1, route=route, method=_method(scope), status=str(status))
        sink.histogram("http_request_seconds", seconds, route=route)


def _method(scope: Scope) -> str:
    return scope["method"] if scope["method"] in _METHODS else "other"


async def _briefly(send: Send, message: Message) -> None:
    """Pass on why it cannot start: in one sentence where it has one, else with the way to where it broke."""
    error = sys.exception()
    if message["type"] == "lifespan.startup.failed" and isinstance(error, _SENTENCES):
        message = {**message, "message": str(error)}
    await send(message)
