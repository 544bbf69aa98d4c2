"""The ASGI middleware in a plain Starlette application, served by uvicorn."""

from __future__ import annotations

import httpx2
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from tests.integrations.apps import serve

from comporta import CircuitOpenError, FixedWindowLimiter
from comporta.integrations.asgi import RateLimitMiddleware, RefusalMiddleware


async def hello(_: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


async def raise_refusal(_: Request) -> PlainTextResponse:
    raise CircuitOpenError("pncp", "secret.internal does not answer", None, 12.1)


def application() -> Starlette:
    search = Middleware(RateLimitMiddleware, limiter=FixedWindowLimiter("1/hour", name="search"))
    return Starlette(
        routes=[
            Route("/", hello),
            Route("/search", hello, middleware=[search]),
            Route("/refused", raise_refusal),
        ],
        middleware=[
            Middleware(RateLimitMiddleware, limiter=FixedWindowLimiter("5/hour", name="all")),
            Middleware(RefusalMiddleware),
        ],
    )


def test_starlette__limits_of_application_and_route__both_hold_and_refusals_become_503() -> None:
    with (
        serve(application()) as url,
        httpx2.Client(base_url=url, trust_env=False, verify=False, timeout=60) as client,
    ):
        refusal = client.get("/refused")
        first, second = client.get("/search"), client.get("/search")
        others = [client.get("/") for _ in range(3)]
    assert (refusal.status_code, refusal.headers["Retry-After"]) == (503, "13")
    assert refusal.headers["RateLimit"].startswith('"all";r=4;')
    assert "secret" not in refusal.text
    assert first.headers["RateLimit"].startswith('"search";r=0;')
    assert (second.status_code, second.json()["title"]) == (429, "Too Many Requests")
    assert "'search'" in second.json()["detail"]
    assert [other.status_code for other in others] == [200, 200, 429]
    assert "'all'" in others[2].json()["detail"]
