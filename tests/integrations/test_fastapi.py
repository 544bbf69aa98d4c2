"""Rate limits on single routes of a FastAPI application, served by uvicorn."""

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
from tests.integrations.apps import serve

from comporta import CircuitOpenError, FixedWindowLimiter, TokenBucketLimiter
from comporta.integrations import fastapi as integration
from comporta.integrations.asgi import RateLimitMiddleware, RefusalMiddleware
from comporta.integrations.fastapi import RateLimited, add_problem_handlers
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock


def by_user(request: Request) -> str | None:
    return request.headers.get("x-user")


async def by_user_async(request: Request) -> str | None:
    return by_user(request)


def application() -> FastAPI:
    app = FastAPI()
    store = MemoryStore(ManualClock())
    search = RateLimited(TokenBucketLimiter("2/minute", store, "search"))
    per_user = RateLimited(FixedWindowLimiter("1/hour", store, "user"), key=by_user, name="per user")
    awaiting = RateLimited(FixedWindowLimiter("1/hour", store, "awaiting"), key=by_user_async)
    full = TokenBucketLimiter("5/hour", MemoryStore(ManualClock(), 1), "full")
    full.sync.acquire("known")
    closed = RateLimited(full, on_error="closed")

    @app.get("/search", dependencies=[Depends(search)])
    async def search_route() -> str:
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


@pytest.fixture(params=["default handlers", "problem handlers"])
def client(request: pytest.FixtureRequest) -> Iterator[httpx2.Client]:
    app = application()
    if request.param == "problem handlers":
        add_problem_handlers(app)
    with (
        serve(app) as url,
        httpx2.Client(base_url=url, trust_env=False, verify=False, timeout=60) as connected,
    ):
        connected.headers["x-problems"] = request.param
        yield connected


def check_refusal(client: httpx2.Client, response: httpx2.Response, status: int, wait: int) -> None:
    """Check a refusal: problem+json if the application has the handlers, FastAPI's JSON otherwise."""
    assert (response.status_code, response.headers["Retry-After"]) == (status, str(wait))
    if client.headers["x-problems"] == "problem handlers":
        assert response.headers["Content-Type"] == "application/problem+json"
        assert response.json()["status"] == status
        assert response.json()["retry_after"] == wait
    else:
        assert response.headers["Content-Type"] == "application/json"
    assert f"try again in {wait} s" in response.json()["detail"]


def test_dependency__within_and_beyond_the_limit__passes_then_refuses(client: httpx2.Client) -> None:
    first, second, third = (client.get("/search") for _ in range(3))
    assert (first.status_code, first.json()) == (200, "found")
    assert first.headers["RateLimit-Policy"] == '"search";q=2;w=60'
    assert first.headers["RateLimit"] == '"search";r=1;t=30'
    assert second.headers["RateLimit"] == '"search";r=0;t=60'
    check_refusal(client, third, 429, 30)
    assert third.headers["RateLimit-Policy"] == '"search";q=2;w=60'
    assert third.headers["RateLimit"] == '"search";r=0;t=60'


def test_dependency__key_function__selects_the_limit(client: httpx2.Client) -> None:
    ann = [client.get("/user", headers={"X-User": "ann"}) for _ in range(2)]
    bob = client.get("/user", headers={"X-User": "bob"})
    anonymous = [client.get("/user") for _ in range(3)]
    assert [response.status_code for response in ann] == [200, 429]
    assert bob.headers["RateLimit"] == '"per user";r=0;t=3600'
    assert [response.status_code for response in anonymous] == [200, 200, 200]
    assert "RateLimit" not in anonymous[0].headers


def test_dependency__two_on_a_route__sends_headers_of_both(client: httpx2.Client) -> None:
    response = client.get("/both", headers={"X-User": "ann"})
    assert response.headers["RateLimit"] == '"awaiting";r=0;t=3600, "search";r=1;t=30'
    check_refusal(client, client.get("/both", headers={"X-User": "ann"}), 429, 3600)


def test_dependency__store_unusable_and_closed__answers_503(client: httpx2.Client) -> None:
    check_refusal(client, client.get("/closed"), 503, 5)


def test_dependency__websocket_route__limits_the_handshake() -> None:
    app = FastAPI()
    add_problem_handlers(app)
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


def test_problem_handlers__open_circuit_in_a_route__answers_503() -> None:
    app = application()
    add_problem_handlers(app)
    with serve(app) as url:
        assert_upstream_refusal(httpx2.get(f"{url}/upstream", trust_env=False, verify=False, timeout=60))


def test_refusal_middleware__fastapi_application__answers_503() -> None:
    app = application()
    app.add_middleware(RefusalMiddleware)
    with serve(app) as url:
        assert_upstream_refusal(httpx2.get(f"{url}/upstream", trust_env=False, verify=False, timeout=60))


def test_rate_limit_middleware__fastapi_application__limits_every_route() -> None:
    app = application()
    app.add_middleware(RateLimitMiddleware, limiter=FixedWindowLimiter("2/hour", name="all"))
    with serve(app) as url, httpx2.Client(base_url=url, trust_env=False, verify=False, timeout=60) as client:
        responses = [client.get(path) for path in ("/search", "/nowhere", "/search")]
    assert [response.status_code for response in responses] == [200, 404, 429]
    assert responses[0].headers["RateLimit"] == '"search";r=1;t=30, "all";r=1;t=3600'
    assert responses[1].headers["RateLimit"] == '"all";r=0;t=3600'


def assert_upstream_refusal(response: httpx2.Response) -> None:
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
