"""Limits on single routes of a FastAPI application, served by uvicorn."""

from __future__ import annotations

import runpy
import subprocess
import sys
from collections.abc import Iterator

import httpx2
import pytest
from fastapi import Depends, FastAPI, Request, WebSocket
from fastapi.testclient import TestClient
from starlette.testclient import WebSocketDenialResponse
from tests.integrations.serving import served

from comporta import CircuitOpenError, FixedWindowLimiter, TokenBucketLimiter
from comporta.integrations import fastapi as integration
from comporta.integrations.asgi import RateLimitMiddleware, RefusalMiddleware
from comporta.integrations.fastapi import RateLimited, refusals_as_problems
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock


def by_user(request: Request) -> str | None:
    return request.headers.get("x-user")


async def by_user_awaiting(request: Request) -> str | None:
    return by_user(request)


def application() -> FastAPI:
    app = FastAPI()
    store = MemoryStore(ManualClock())
    search = RateLimited(TokenBucketLimiter("2/minute", store, "search"))
    per_user = RateLimited(FixedWindowLimiter("1/hour", store, "user"), key=by_user, name="per user")
    awaiting = RateLimited(FixedWindowLimiter("1/hour", store, "awaiting"), key=by_user_awaiting)
    full = TokenBucketLimiter("5/hour", MemoryStore(ManualClock(), 1), "full")
    full.sync.acquire("somebody")
    closed = RateLimited(full, on_error="closed")

    @app.get("/search", dependencies=[Depends(search)])
    async def searched() -> str:
        return "found"

    @app.get("/user", dependencies=[Depends(per_user)])
    def users() -> str:
        return "yours"

    @app.get("/both", dependencies=[Depends(awaiting), Depends(search)])
    async def both() -> str:
        return "both"

    @app.get("/closed", dependencies=[Depends(closed)])
    async def never() -> str:
        return "never"

    @app.get("/upstream")
    async def upstream() -> str:
        raise CircuitOpenError("pncp", "secret.internal does not answer", None, 12.1)

    return app


@pytest.fixture(params=["as it stands", "with problems"])
def client(request: pytest.FixtureRequest) -> Iterator[httpx2.Client]:
    app = application()
    if request.param == "with problems":
        refusals_as_problems(app)
    with served(app) as url, httpx2.Client(base_url=url, trust_env=False, timeout=60) as made:
        made.headers["x-problems"] = request.param
        yield made


def check_refusal(client: httpx2.Client, response: httpx2.Response, status: int, wait: int) -> None:
    """A problem where the application was made to answer with them, FastAPI's own JSON where not."""
    assert (response.status_code, response.headers["Retry-After"]) == (status, str(wait))
    if client.headers["x-problems"] == "with problems":
        assert response.headers["Content-Type"] == "application/problem+json"
        assert response.json()["status"] == status
        assert response.json()["retry_after"] == wait
    else:
        assert response.headers["Content-Type"] == "application/json"
    assert f"try again in {wait} s" in response.json()["detail"]


def test_dependency__within_the_limit_and_beyond__tells_and_refuses(client: httpx2.Client) -> None:
    first, second, third = (client.get("/search") for _ in range(3))
    assert (first.status_code, first.json()) == (200, "found")
    assert first.headers["RateLimit-Policy"] == '"search";q=2;w=60'
    assert first.headers["RateLimit"] == '"search";r=1;t=30'
    assert second.headers["RateLimit"] == '"search";r=0;t=60'
    check_refusal(client, third, 429, 30)
    assert third.headers["RateLimit-Policy"] == '"search";q=2;w=60'
    assert third.headers["RateLimit"] == '"search";r=0;t=60'


def test_dependency__key_of_the_request__is_whose_limit_it_is(client: httpx2.Client) -> None:
    ann = [client.get("/user", headers={"X-User": "ann"}) for _ in range(2)]
    bob = client.get("/user", headers={"X-User": "bob"})
    nobody = [client.get("/user") for _ in range(3)]
    assert [response.status_code for response in ann] == [200, 429]
    assert bob.headers["RateLimit"] == '"per user";r=0;t=3600'
    assert [response.status_code for response in nobody] == [200, 200, 200]
    assert "RateLimit" not in nobody[0].headers


def test_dependency__two_on_a_route__both_are_told(client: httpx2.Client) -> None:
    found = client.get("/both", headers={"X-User": "ann"})
    assert found.headers["RateLimit"] == '"awaiting";r=0;t=3600, "search";r=1;t=30'
    check_refusal(client, client.get("/both", headers={"X-User": "ann"}), 429, 3600)


def test_dependency__state_that_cannot_be_used_and_closed__is_503(client: httpx2.Client) -> None:
    check_refusal(client, client.get("/closed"), 503, 5)


def test_dependency__on_a_websocket__limits_the_handshake() -> None:
    app = FastAPI()
    refusals_as_problems(app)
    limited = RateLimited(FixedWindowLimiter("1/hour", name="handshakes"))

    @app.websocket("/ws", dependencies=[Depends(limited)])
    async def greet(socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_text("hello")
        await socket.close()

    client = TestClient(app)
    with client.websocket_connect("/ws") as socket:
        assert socket.receive_text() == "hello"
    with pytest.raises(WebSocketDenialResponse) as refused, client.websocket_connect("/ws"):
        pass
    assert refused.value.status_code == 429
    assert refused.value.json()["title"] == "Too Many Requests"


def test_refusals_as_problems__open_circuit_in_a_route__is_503() -> None:
    app = application()
    refusals_as_problems(app)
    with served(app) as url:
        refused(httpx2.get(f"{url}/upstream", trust_env=False, timeout=60))


def test_refusal_middleware__added_to_an_application__answers_the_same() -> None:
    app = application()
    app.add_middleware(RefusalMiddleware)
    with served(app) as url:
        refused(httpx2.get(f"{url}/upstream", trust_env=False, timeout=60))


def test_rate_limit_middleware__added_to_an_application__limits_all_of_it() -> None:
    app = application()
    app.add_middleware(RateLimitMiddleware, limiter=FixedWindowLimiter("2/hour", name="all"))
    with served(app) as url, httpx2.Client(base_url=url, trust_env=False, timeout=60) as client:
        found = [client.get(path) for path in ("/search", "/nowhere", "/search")]
    assert [response.status_code for response in found] == [200, 404, 429]
    assert found[0].headers["RateLimit"] == '"search";r=1;t=30, "all";r=1;t=3600'
    assert found[1].headers["RateLimit"] == '"all";r=0;t=3600'


def refused(response: httpx2.Response) -> None:
    assert (response.status_code, response.headers["Retry-After"]) == (503, "13")
    assert response.headers["Content-Type"] == "application/problem+json"
    assert response.json()["retry_after"] == 13
    assert "secret" not in response.text


def test_import__library_missing__says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastapi", None)
    with pytest.raises(ImportError, match=r"needs the package fastapi: pip install 'comporta\[fastapi\]'"):
        runpy.run_path(integration.__file__)


def test_import__asgi_middleware__needs_no_framework() -> None:
    code = (
        "import sys, comporta.integrations.asgi\n"
        "print({'fastapi', 'starlette', 'uvicorn', 'asyncio'} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"
