"""The WSGI middleware that limits inbound requests: plain applications, and Flask and Django on gunicorn."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server
from wsgiref.validate import validator

import httpx2
import pytest
from tests.integrations.gunicorn_server import gunicorn
from tests.support import memory_store, shared_store

from comporta import (
    CircuitOpenError,
    FixedWindowLimiter,
    LimitReachedError,
    SlidingWindowLimiter,
    TokenBucketLimiter,
)
from comporta.events import Event, listen
from comporta.integrations.wsgi import (
    Environ,
    StartResponse,
    WsgiApp,
    WsgiClientAddress,
    WsgiRateLimitMiddleware,
    WsgiRefusalMiddleware,
)
from comporta.stores.base import Store
from comporta.stores.memory import MemoryStore
from comporta.stores.registry import resolve_store
from comporta.testing import ManualClock, Server


def hello(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain"), ("X-Path", environ["PATH_INFO"])])
    return [b"hello"]


class QuietHandler(WSGIRequestHandler):
    """A request handler that logs nothing."""

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@contextmanager
def serve(app: WsgiApp, *, validate: bool = True) -> Iterator[httpx2.Client]:
    """Serve an application on a thread, checked against the WSGI standard, and yield a client for it."""
    with make_server(
        "127.0.0.1", 0, validator(app) if validate else app, handler_class=QuietHandler
    ) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            with httpx2.Client(base_url=url, trust_env=False, verify=False, timeout=60) as client:
                yield client
        finally:
            server.shutdown()
            thread.join()


def statuses(client: httpx2.Client, count: int, path: str = "/", **headers: str) -> list[int]:
    return [client.get(path, headers=headers).status_code for _ in range(count)]


def limit_app(app: WsgiApp, limit: str, **options: Any) -> WsgiApp:
    return WsgiRateLimitMiddleware(
        app, FixedWindowLimiter(limit, MemoryStore(ManualClock()), "api"), **options
    )


@pytest.mark.parametrize("kind", ["memory", "shared", "redis"])
def test_middleware__any_store__passes_with_headers_then_refuses(kind: str, valkey: Server) -> None:
    with memory_store() as memory, shared_store() as shared:
        stores: dict[str, Store] = {
            "memory": memory,
            "shared": shared,
            "redis": resolve_store(f"{valkey.url}?timeout=5"),
        }
        limiter = SlidingWindowLimiter("2/minute", stores[kind], "wsgi")
        limiter.sync.reset("127.0.0.1")
        with serve(WsgiRateLimitMiddleware(hello, limiter)) as client:
            first, _, refused = (client.get("/") for _ in range(3))
        limiter.store.close()
    assert (first.status_code, first.text) == (200, "hello")
    assert first.headers["RateLimit-Policy"] == '"wsgi";q=2;w=60'
    assert first.headers["RateLimit"].startswith('"wsgi";r=1;t=')
    assert refused.status_code == 429
    assert refused.reason_phrase == "Too Many Requests"
    assert refused.headers["Content-Type"] == "application/problem+json"
    assert 50 < int(refused.headers["Retry-After"]) <= 60
    assert refused.headers["RateLimit"].startswith('"wsgi";r=0;t=')
    assert refused.json()["detail"].startswith("The limit 'wsgi' is used up, try again in ")


def test_middleware__head_request_refused__has_no_body() -> None:
    with serve(limit_app(hello, "1/hour")) as client:
        client.get("/")
        refused = client.head("/")
    assert (refused.status_code, refused.content) == (429, b"")
    assert int(refused.headers["Content-Length"]) > 0


def test_middleware__key_and_exempt_functions__receive_the_environment() -> None:
    def by_user(environ: Environ) -> str | None:
        return environ.get("HTTP_X_USER")

    def is_health_check(environ: Environ) -> bool:
        return bool(environ["PATH_INFO"] == "/health")

    with serve(limit_app(hello, "1/hour", key=by_user, exempt=is_health_check)) as client:
        assert statuses(client, 3) == [200, 200, 200], "the key None is not limited"
        assert statuses(client, 2, **{"X-User": "ann"}) == [200, 429]
        assert statuses(client, 2, "/health", **{"X-User": "ann"}) == [200, 200]
        assert "RateLimit" not in client.get("/health").headers


@pytest.mark.parametrize(
    ("proxies", "admitted"), [([], 2), (["127.0.0.1"], 4)], ids=["no proxy", "trusted proxy"]
)
def test_middleware__forwarded_addresses__count_behind_trusted_proxies_only(
    proxies: list[str], admitted: int
) -> None:
    with serve(limit_app(hello, "2/hour", trusted_proxies=proxies)) as client:
        answers = [
            client.get("/", headers={"X-Forwarded-For": f"198.51.100.{number}, 192.0.2.{number % 2}"})
            for number in range(6)
        ]
    assert [answer.status_code for answer in answers].count(200) == admitted


@pytest.mark.parametrize(
    ("environ", "proxies", "key"),
    [
        ({"REMOTE_ADDR": "192.0.2.1"}, [], "192.0.2.1"),
        ({"REMOTE_ADDR": "", "HTTP_X_FORWARDED_FOR": "192.0.2.7"}, ["unix"], "192.0.2.7"),
        ({"HTTP_X_FORWARDED_FOR": "192.0.2.7"}, [], "unknown"),
    ],
)
def test_client_address__environment__gives_the_address(
    environ: Environ, proxies: list[str], key: str
) -> None:
    assert WsgiClientAddress(proxies)(environ) == key


def test_middleware__several_limiters__are_charged_together() -> None:
    store, address = MemoryStore(ManualClock()), WsgiClientAddress()
    several = [FixedWindowLimiter("9/hour", store, "total"), FixedWindowLimiter("1/hour", store, "client")]
    app = WsgiRateLimitMiddleware(hello, several, key=lambda environ: [None, address(environ)])
    with serve(app) as client:
        assert client.get("/").headers["RateLimit-Policy"] == '"total";q=9;w=3600, "client";q=1;w=3600'
        assert statuses(client, 1) == [429]


@pytest.mark.parametrize(("on_error", "status"), [("open", 200), ("closed", 503)])
def test_middleware__store_unusable__on_error_decides(on_error: str, status: int) -> None:
    full = TokenBucketLimiter("5/hour", MemoryStore(ManualClock(), 1), "full")
    full.sync.acquire("known")
    received: list[Event] = []
    stop = listen(received.append)
    with serve(WsgiRateLimitMiddleware(hello, full, on_error=on_error)) as client:
        assert client.get("/").status_code == status
    stop()
    assert [event.kind for event in received] == ["inbound_undecided"]


async def never_awaited(_: Environ) -> Any: ...


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": "x-api-key"}, "key must be a function of the WSGI environment, got 'x-api-key'"),
        ({"exempt": "/health"}, "exempt must be a function of the WSGI environment, got '/health'"),
        ({"key": never_awaited}, "key must not be a coroutine function, WSGI cannot await it"),
        ({"exempt": never_awaited}, "exempt must not be a coroutine function, WSGI cannot await it"),
    ],
)
def test_middleware__argument_that_wsgi_cannot_call__raises(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        limit_app(hello, "1/hour", **options)


def test_middleware__error_response_with_exc_info__has_ratelimit_headers() -> None:
    def failing(_: Environ, start_response: StartResponse) -> Iterable[bytes]:
        try:
            raise LookupError
        except LookupError as error:
            start_response(
                "500 Oops", [("Content-Type", "text/plain")], (LookupError, error, error.__traceback__)
            )
        return [b"oops"]

    with serve(limit_app(failing, "5/hour")) as client:
        answer = client.get("/")
    assert (answer.status_code, answer.headers["RateLimit"]) == (500, '"api";r=4;t=3600')


def refuse_call(_: Environ, __: StartResponse) -> Iterable[bytes]:
    raise CircuitOpenError("pncp", "secret.internal does not answer", None, 12.1)


def refusing_generator(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
    yield from refuse_call(environ, start_response)


@pytest.mark.parametrize("app", [refuse_call, refusing_generator])
def test_refusal_middleware__upstream_refusal__answers_503_without_details(app: WsgiApp) -> None:
    with serve(WsgiRefusalMiddleware(app), validate=False) as client:
        answer = client.get("/")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "13")
    assert answer.json()["title"] == "Service Unavailable"
    assert "secret" not in answer.text


def stream_chunks(_: Environ, start_response: StartResponse) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    yield b"first "
    yield b"second"


@pytest.mark.parametrize(("app", "text"), [(hello, "hello"), (stream_chunks, "first second")])
def test_refusal_middleware__no_refusal__passes_the_response(app: WsgiApp, text: str) -> None:
    with serve(WsgiRefusalMiddleware(app)) as client:
        assert client.get("/").text == text


def test_refusal_middleware__started_response__raises_for_the_server() -> None:
    def late(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        hello(environ, start_response)
        raise LimitReachedError("too late", "pncp", 1.0)

    with pytest.raises(LimitReachedError):
        WsgiRefusalMiddleware(late)({"PATH_INFO": "/"}, lambda *_: lambda _: None)


def test_refusal_middleware__response_with_close__is_closed_once() -> None:
    closed: list[str] = []

    class Chunks:
        def __init__(self, produce: Callable[[], bytes]) -> None:
            self._produce = produce

        def __iter__(self) -> Iterator[bytes]:
            yield self._produce()

        def close(self) -> None:
            closed.append("closed")

    def raise_refusal() -> bytes:
        raise LimitReachedError("no capacity", "pncp", 1.0)

    for produce in (lambda: b"hello", raise_refusal):
        response = WsgiRefusalMiddleware(lambda *_, produce=produce: Chunks(produce))(
            {"REQUEST_METHOD": "GET"}, lambda *_: lambda _: None
        )
        b"".join(response)
        getattr(response, "close", lambda: None)()
    assert closed == ["closed", "closed"]


@pytest.mark.parametrize("framework", ["flask", "django"])
def test_framework__on_gunicorn__limits_requests_and_answers_refusals(framework: str) -> None:
    environ = {"COMPORTA_TEST_LIMIT": "5/hour"}
    with (
        gunicorn(f"tests.integrations.wsgi_apps:{framework}_app()", environ=environ) as server,
        httpx2.Client(base_url=server.url, trust_env=False, verify=False, timeout=60) as client,
    ):
        refused = client.get("/refused")
        answers = [client.get("/", headers={"X-Forwarded-For": f"192.0.2.{n}"}) for n in range(6)]
        health = client.get("/health")
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "13")
    assert refused.headers["Content-Type"] == "application/problem+json"
    assert "secret" not in refused.text
    assert [answer.status_code for answer in answers] == [200] * 4 + [429] * 2
    assert answers[0].headers["RateLimit"].startswith('"inbound";r=3;t=')
    assert answers[5].json()["status"] == 429
    assert health.status_code == 200
    assert "RateLimit" not in health.headers
