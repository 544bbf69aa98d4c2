"""Limits on the inbound requests of an aiohttp server, over real connections."""

from __future__ import annotations

import asyncio
import runpy
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from comporta import CircuitOpenError, FixedWindowLimiter, LimitReachedError, TokenBucketLimiter
from comporta.integrations import aiohttp_server as integration
from comporta.integrations.aiohttp_server import AiohttpClientAddress, add_rate_limit, add_refusal_handler
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock


async def hello(_: web.Request) -> web.Response:
    return web.Response(text="hello")


async def stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"first ")
    await response.write(b"second")
    return response


async def raise_not_found(_: web.Request) -> web.Response:
    raise web.HTTPNotFound


async def raise_refusal(_: web.Request) -> web.Response:
    raise CircuitOpenError("pncp", "secret.internal does not answer", None, 12.1)


async def refused_late(request: web.Request) -> web.StreamResponse:
    await stream(request)
    raise LimitReachedError("too late", "pncp", 1.0)


async def greet(request: web.Request) -> web.WebSocketResponse:
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    await socket.send_str("hello")
    await socket.close()
    return socket


def application() -> web.Application:
    app = web.Application()
    app.router.add_get("/", hello)
    app.router.add_get("/stream", stream)
    app.router.add_get("/missing", raise_not_found)
    app.router.add_get("/refused", raise_refusal)
    app.router.add_get("/refused-late", refused_late)
    app.router.add_get("/ws", greet)
    return app


def limiter(limit: str = "2/minute", name: str = "api") -> TokenBucketLimiter:
    return TokenBucketLimiter(limit, MemoryStore(ManualClock()), name)


def serve(app: web.Application, use: Callable[[aiohttp.ClientSession], Awaitable[Any]]) -> Any:
    """Serve an application on a free port and return what ``use`` returns, given a client for it."""

    async def run() -> Any:
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            port = runner.addresses[0][1]
            async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client:
                return await use(client)
        finally:
            await runner.cleanup()

    return asyncio.run(run())


def get(app: web.Application, *paths: str, headers: dict[str, str] | None = None) -> list[Any]:
    """Return the responses to one request for each path, with the body as ``response.content``."""

    async def use(client: aiohttp.ClientSession) -> list[Any]:
        responses = []
        for path in paths:
            async with client.get(path, headers=headers) as response:
                await response.read()
                responses.append(response)
        return responses

    responses: list[Any] = serve(app, use)
    return responses


def body(response: Any) -> str:
    return bytes(response._body).decode()


def test_add_rate_limit__within_and_beyond_the_limit__passes_then_refuses() -> None:
    app = application()
    add_rate_limit(app, limiter())
    first, second, third = get(app, "/", "/", "/")
    assert (first.status, body(first)) == (200, "hello")
    assert first.headers["RateLimit-Policy"] == '"api";q=2;w=60'
    assert first.headers["RateLimit"] == '"api";r=1;t=30'
    assert second.headers["RateLimit"] == '"api";r=0;t=60'
    assert (third.status, third.headers["Retry-After"]) == (429, "30")
    assert third.headers["Content-Type"] == "application/problem+json"
    assert third.headers["RateLimit"] == '"api";r=0;t=60'
    assert '"detail": "The limit \'api\' is used up, try again in 30 s."' in body(third)


@pytest.mark.parametrize(("path", "status"), [("/stream", 200), ("/missing", 404), ("/nowhere", 404)])
def test_add_rate_limit__streamed_response_or_error__has_ratelimit_headers(path: str, status: int) -> None:
    app = application()
    add_rate_limit(app, limiter())
    [response] = get(app, path)
    assert response.status == status
    assert response.headers["RateLimit"] == '"api";r=1;t=30'


def test_add_rate_limit__two_limits__sends_headers_of_both_and_checks_in_order() -> None:
    app = application()
    add_rate_limit(app, limiter("3/minute", "all"))
    add_rate_limit(app, limiter("1/minute", "few"))
    first, second = get(app, "/", "/")
    assert first.headers.getall("RateLimit") == ['"all";r=2;t=20', '"few";r=0;t=60']
    assert second.status == 429
    assert "The limit 'few' is used up" in body(second)


def test_add_rate_limit__websocket__counts_the_handshake() -> None:
    app = application()
    add_rate_limit(app, limiter("1/minute"))

    async def use(client: aiohttp.ClientSession) -> int:
        async with client.ws_connect("/ws") as socket:
            assert await socket.receive_str() == "hello"
        with pytest.raises(aiohttp.WSServerHandshakeError) as handshake:
            await client.ws_connect("/ws")
        return handshake.value.status

    assert serve(app, use) == 429


@pytest.mark.parametrize(
    ("proxies", "admitted"), [([], 2), (["127.0.0.1"], 4)], ids=["no proxy", "trusted proxy"]
)
def test_add_rate_limit__forwarded_addresses__count_behind_trusted_proxies_only(
    proxies: list[str], admitted: int
) -> None:
    app = application()
    add_rate_limit(app, limiter(), trusted_proxies=proxies)

    async def use(client: aiohttp.ClientSession) -> int:
        statuses = []
        for number in range(6):
            forwarded = {"X-Forwarded-For": f"198.51.100.{number}, 192.0.2.{number % 2}"}
            async with client.get("/", headers=forwarded) as response:
                statuses.append(response.status)
        return statuses.count(200)

    assert serve(app, use) == admitted


def test_add_rate_limit__several_limiters_with_a_key__are_charged_together() -> None:
    app = application()
    store = MemoryStore(ManualClock())
    address = AiohttpClientAddress()
    several = [FixedWindowLimiter("9/hour", store, "total"), FixedWindowLimiter("1/hour", store, "client")]
    add_rate_limit(app, several, key=lambda request: [None, address(request)])
    first, second = get(app, "/", "/")
    assert first.headers["RateLimit-Policy"] == '"total";q=9;w=3600, "client";q=1;w=3600'
    assert (first.status, second.status) == (200, 429)


def test_add_rate_limit__key_and_exempt_functions__receive_the_request() -> None:
    async def by_user(request: web.Request) -> str:
        return request.headers["X-User"]

    async def is_health_check(request: web.Request) -> bool:
        return request.path == "/missing"

    app = application()
    add_rate_limit(app, limiter("1/minute"), key=by_user, exempt=is_health_check)
    responses = get(app, "/", "/missing", "/missing", "/", headers={"X-User": "ann"})
    assert [response.status for response in responses] == [200, 404, 404, 429]
    assert "RateLimit" not in responses[1].headers


def test_add_rate_limit__exempt_that_is_no_function__raises() -> None:
    with pytest.raises(TypeError, match="exempt must be a function of the request, got '/health'"):
        add_rate_limit(application(), limiter(), exempt="/health")  # type: ignore[arg-type]


def test_add_refusal_handler__open_circuit__answers_503_without_details() -> None:
    app = application()
    add_refusal_handler(app)
    passed, response = get(app, "/", "/refused")
    assert body(passed) == "hello"
    assert (response.status, response.headers["Retry-After"]) == (503, "13")
    assert response.headers["Content-Type"] == "application/problem+json"
    assert "secret" not in body(response)


def test_add_refusal_handler__response_started__breaks_the_connection() -> None:
    app = application()
    add_refusal_handler(app)
    with pytest.raises(aiohttp.ClientPayloadError):
        get(app, "/refused-late")


def test_import__library_missing__says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(ImportError, match=r"needs the package aiohttp: pip install 'comporta\[aiohttp\]'"):
        runpy.run_path(integration.__file__)
