"""The ASGI middleware that limits inbound requests: called directly, and over real connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import httpx2
import pytest
from tests.integrations.apps import (
    Reply,
    close_connections,
    hello,
    request,
    responses,
    scope_of,
    serve,
    serve_in_process,
)
from tests.processes.fleet import flush_server
from tests.support import StoreFactory, memory_store, redis_store, shared_store, wait_until_async

from comporta import (
    BaseLimiter,
    CircuitOpenError,
    FixedWindowLimiter,
    LeakyBucketLimiter,
    LimitConfig,
    LimitKey,
    LimitReachedError,
    LimitStrategy,
    SlidingWindowLimiter,
    StateError,
    TokenBucketLimiter,
)
from comporta.events import Event, listen
from comporta.headers import requested_pause
from comporta.integrations.asgi import App, ClientAddress, RateLimitMiddleware, RefusalMiddleware
from comporta.stores.base import Store
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock, Server

WRONG = "mistyped"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", "shared", "redis"])
def store(request: pytest.FixtureRequest, clock: ManualClock) -> Iterator[Store]:
    """Provide an empty store of each kind, on a manual clock."""
    factories: dict[str, StoreFactory] = {
        "memory": memory_store,
        "shared": shared_store,
        "redis": lambda clock: redis_store(request.getfixturevalue("valkey"), clock),
    }
    with factories[request.param](clock) as opened:
        yield opened


@pytest.fixture
def received_events() -> Iterator[list[Event]]:
    events: list[Event] = []
    stop = listen(events.append)
    yield events
    stop()


def replies(app: App, count: int, store: Store | None = None, **scope: Any) -> list[Reply]:
    return responses(app, *[scope_of(**scope)] * count, store=store)


def test_middleware__within_the_limit__passes_with_ratelimit_headers(store: Store) -> None:
    app = RateLimitMiddleware(hello, SlidingWindowLimiter("2/minute", store, "api"))
    first, second = replies(app, 2, store)
    assert (first.status, first.body) == (200, b"hello")
    assert first.headers == {
        "content-type": "text/plain",
        "ratelimit-policy": '"api";q=2;w=60',
        "ratelimit": '"api";r=1;t=60',
    }
    assert second.headers["ratelimit"] == '"api";r=0;t=60'


def test_middleware__limit_exhausted__refuses_until_retry_after_has_passed(
    store: Store, clock: ManualClock
) -> None:
    app = RateLimitMiddleware(hello, SlidingWindowLimiter("2/minute", store, "api"))
    *_, refused = replies(app, 3, store)
    assert refused.status == 429
    assert refused.headers["retry-after"] == "60"
    assert refused.headers["ratelimit"] == '"api";r=0;t=60'
    assert refused.headers["ratelimit-policy"] == '"api";q=2;w=60'
    assert requested_pause(refused.headers, 0) == 60
    assert refused.problem == {
        "type": "about:blank",
        "title": "Too Many Requests",
        "status": 429,
        "detail": "The limit 'api' is used up, try again in 60 s.",
        "retry_after": 60,
    }
    clock.advance(60)
    assert replies(app, 1, store)[0].status == 200


@pytest.mark.parametrize(
    ("limiter", "limit", "policy"),
    [
        (TokenBucketLimiter, "10/s", '"a";q=10;w=1'),
        (TokenBucketLimiter, "100/minute burst 20", '"a";q=20;w=12'),
        (TokenBucketLimiter, "7/minute", '"a";q=7;w=60'),
        (TokenBucketLimiter, "3/s burst 10", '"a";q=10;w=4'),
        (LeakyBucketLimiter, "10/s burst 5", '"a";q=5;w=1'),
        (FixedWindowLimiter, "5/15m", '"a";q=5;w=900'),
        (SlidingWindowLimiter, "5/h", '"a";q=5;w=3600'),
        (SlidingWindowLimiter, LimitConfig(1, 1000, 60, lease=True), '"a";q=1000;w=60'),
        (
            FixedWindowLimiter,
            LimitConfig(1, 1000, 60, LimitStrategy.FIXED_WINDOW, lease=True),
            '"a";q=1000;w=60',
        ),
    ],
)
def test_middleware__any_strategy__sends_quota_and_window(
    limiter: type[BaseLimiter], limit: LimitConfig | str, policy: str
) -> None:
    if isinstance(limit, LimitConfig) and limiter is SlidingWindowLimiter:
        limit = LimitConfig(
            limit.rate, limit.capacity, limit.window, LimitStrategy.SLIDING_WINDOW, lease=True
        )
    [reply] = replies(RateLimitMiddleware(hello, limiter(limit, MemoryStore(ManualClock()), "a")), 1)
    assert reply.headers["ratelimit-policy"] == policy


def test_middleware__override_set__sends_the_limit_in_force(store: Store) -> None:
    limiter = TokenBucketLimiter("10/s", store, "a")
    app = RateLimitMiddleware(hello, limiter)

    async def use() -> tuple[Reply, Reply]:
        before = await request(app)
        await limiter.set_limit("5/s burst 20")
        after = await request(app)
        await close_connections(store)
        return before, after

    before, after = asyncio.run(use())
    assert before.headers["ratelimit-policy"] == '"a";q=10;w=1'
    quota, _, window = after.headers["ratelimit-policy"].removeprefix('"a";').partition(";")
    assert quota == "q=20"
    assert window in {"w=4", "w=2"}  # on a server this process may not have read the override yet


def test_middleware__limit_paused__retry_after_reaches_its_end(store: Store) -> None:
    limiter = TokenBucketLimiter("10/s", store, "paused")
    app = RateLimitMiddleware(hello, limiter)
    limiter.sync.pause(20)
    [refused] = replies(app, 1, store)
    assert (refused.status, refused.headers["retry-after"]) == (429, "20")
    assert refused.headers["ratelimit"] == '"paused";r=0;t=20'


def test_middleware__override_on_a_server__sends_the_limit_in_force(valkey: Server) -> None:
    flush_server(valkey.url)
    limiter = TokenBucketLimiter("10/s", f"{valkey.url}?timeout=5", "override")
    app = RateLimitMiddleware(hello, limiter)

    async def sends_override() -> bool:
        reply = await request(app, scope_of(("192.0.2.1", 1)))
        return reply.headers["ratelimit-policy"] == '"override";q=20;w=4'

    async def use() -> None:
        await limiter.set_limit("5/s burst 20")
        try:
            await wait_until_async(sends_override)
        finally:
            await limiter.aclose()

    asyncio.run(use())


def test_middleware__cost_and_name__are_used() -> None:
    limiter = TokenBucketLimiter("10/minute", MemoryStore(ManualClock()), "internal")
    app = RateLimitMiddleware(hello, limiter, cost=4, name="search requests")
    *admitted, refused = replies(app, 3)
    assert [reply.status for reply in admitted] == [200, 200]
    assert refused.headers["ratelimit"] == '"search requests";r=2;t=48'
    assert refused.headers["retry-after"] == "12"


def test_middleware__key_function__selects_the_limit() -> None:
    def by_path(scope: Any) -> str | None:
        return None if scope["path"] == "/free" else scope["path"]

    app = RateLimitMiddleware(hello, FixedWindowLimiter("1/hour"), key=by_path)
    assert [reply.status for reply in replies(app, 2, path="/a")] == [200, 429]
    assert [reply.status for reply in replies(app, 2, path="/b")] == [200, 429]
    free = replies(app, 2, path="/free")
    assert [reply.status for reply in free] == [200, 200]
    assert "ratelimit" not in free[0].headers


def test_middleware__async_key_function__is_awaited() -> None:
    async def by_path(scope: Any) -> LimitKey:
        await asyncio.sleep(0)
        return LimitKey("path", scope["path"])

    app = RateLimitMiddleware(hello, FixedWindowLimiter("1/hour"), key=by_path)
    assert [reply.status for reply in replies(app, 2)] == [200, 429]


def test_middleware__empty_key__is_limited_like_any_other() -> None:
    app = RateLimitMiddleware(hello, FixedWindowLimiter("2/hour"), key=lambda _: "")
    assert [reply.status for reply in replies(app, 3)] == [200, 200, 429]


def test_middleware__exempt_request__is_not_counted() -> None:
    limiter = FixedWindowLimiter("1/hour")
    app = RateLimitMiddleware(hello, limiter, exempt=lambda scope: scope["path"] == "/health")
    assert [reply.status for reply in replies(app, 3, path="/health")] == [200, 200, 200]
    assert [reply.status for reply in replies(app, 2, path="/search")] == [200, 429]


def test_middleware__async_exempt_function__is_awaited() -> None:
    async def exempt(scope: Any) -> bool:
        await asyncio.sleep(0)
        return bool(scope["path"] == "/health")

    app = RateLimitMiddleware(hello, FixedWindowLimiter("1/hour", name="awaited"), exempt=exempt)
    assert [reply.status for reply in replies(app, 2, path="/health")] == [200, 200]
    assert [reply.status for reply in replies(app, 2)] == [200, 429]


def test_middleware__several_limits__sends_all_policies_and_the_binding_status(store: Store) -> None:
    total = FixedWindowLimiter("3/hour", store, "total")
    per_client = SlidingWindowLimiter("2/minute", store, "per-client")
    address = ClientAddress()
    app = RateLimitMiddleware(hello, [total, per_client], key=lambda scope: [None, address(scope)])
    first, second, third = replies(app, 3, store)
    assert first.headers["ratelimit-policy"] == '"total";q=3;w=3600, "per-client";q=2;w=60'
    assert first.headers["ratelimit"] == '"per-client";r=1;t=60'
    assert (second.status, third.status) == (200, 429)
    assert third.headers["ratelimit"] == '"per-client";r=0;t=60'
    assert third.headers["retry-after"] == "60"
    last, refused = replies(app, 2, store, client=("192.0.2.2", 1))
    assert last.headers["ratelimit"] == '"total";r=0;t=3600', "refusals are charged to no limit"
    assert refused.status == 429
    assert refused.problem["detail"] == "The limit 'total' is used up, try again in 3600 s."


def test_middleware__ratelimit_headers_of_the_application__are_kept() -> None:
    inner = RateLimitMiddleware(hello, FixedWindowLimiter("5/hour", name="inner"))
    app = RateLimitMiddleware(inner, FixedWindowLimiter("9/hour", name="outer"))
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope_of(), None, send))  # type: ignore[arg-type]  # nothing is received
    values = [value for name, value in sent[0]["headers"] if name == b"ratelimit"]
    assert values == [b'"inner";r=4;t=3600', b'"outer";r=8;t=3600']


def test_middleware__response_without_headers__gets_ratelimit_headers() -> None:
    async def bare(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204})

    [reply] = replies(RateLimitMiddleware(bare, FixedWindowLimiter("5/hour")), 1)
    assert "ratelimit" in reply.headers


@pytest.mark.parametrize("kind", ["websocket", "lifespan"])
@pytest.mark.parametrize(
    "wrap", [lambda app: RateLimitMiddleware(app, FixedWindowLimiter("1/h")), RefusalMiddleware]
)
def test_middleware__not_http__passes_through(kind: str, wrap: Callable[[App], App]) -> None:
    seen = []

    async def app(*arguments: Any) -> None:
        seen.append(arguments)

    async def nothing(*_: Any) -> Any: ...

    scope = {"type": kind}
    for _ in range(3):
        asyncio.run(_call(wrap(app), scope, nothing, nothing))
    assert seen == [(scope, nothing, nothing)] * 3


async def _call(app: App, *arguments: Any) -> None:
    await app(*arguments)


class TestUnusableStore:
    """A table without room for another key: an error that failover does not handle."""

    @pytest.fixture
    def full(self, clock: ManualClock) -> TokenBucketLimiter:
        limiter = TokenBucketLimiter("5/hour", MemoryStore(clock, 1), "api")
        limiter.sync.acquire("known")
        with pytest.raises(StateError):
            limiter.sync.acquire("another")
        return limiter

    def test_on_error__open__passes_and_publishes_one_event_a_minute(
        self, full: TokenBucketLimiter, clock: ManualClock, received_events: list[Event]
    ) -> None:
        app = RateLimitMiddleware(hello, full)
        for expected in (1, 2):
            for reply in replies(app, 20):
                assert (reply.status, reply.headers) == (200, {"content-type": "text/plain"})
            assert len(received_events) == expected
            clock.advance(60)
        assert (received_events[0].kind, received_events[0].source) == ("inbound_undecided", "api")
        assert "requests that cannot be counted pass without a limit: " in received_events[0].text

    def test_on_error__closed__answers_503_with_a_problem(
        self, full: TokenBucketLimiter, received_events: list[Event]
    ) -> None:
        [reply] = replies(RateLimitMiddleware(hello, full, on_error="closed"), 1)
        assert (reply.status, reply.headers["retry-after"]) == (503, "5")
        assert reply.problem["title"] == "Service Unavailable"
        assert reply.problem["retry_after"] == 5
        assert "api" not in reply.problem["detail"]
        assert "requests that cannot be counted are refused" in received_events[0].text

    def test_on_error__closed_and_known_client__is_still_counted(self, full: TokenBucketLimiter) -> None:
        app = RateLimitMiddleware(hello, full, key=lambda scope: scope["path"][1:], on_error="closed")
        assert [reply.status for reply in replies(app, 5, path="/known")] == [200] * 4 + [429]
        assert [reply.status for reply in replies(app, 1, path="/stranger")] == [503]


def test_on_error__password_rejected_at_startup__passes_and_hides_the_password(
    received_events: list[Event],
) -> None:
    with Server(password=WRONG[::-1]) as locked:
        url = f"redis://:{WRONG}@127.0.0.1:{locked.port}/0?timeout=5"
        limiter = TokenBucketLimiter("1/hour", url, "locked")
        app = RateLimitMiddleware(hello, limiter)
        assert [reply.status for reply in replies(app, 3, limiter.store)] == [200, 200, 200]
    events = [event for event in received_events if event.kind == "inbound_undecided"]
    assert len(events) == 1
    assert WRONG not in events[0].text


def test_middleware__server_killed__keeps_the_limit() -> None:
    with Server() as server:
        limiter = FixedWindowLimiter("5/hour", f"{server.url}?timeout=5", "mortal")
        app = RateLimitMiddleware(hello, limiter)

        async def use() -> list[Reply]:
            before = [await request(app) for _ in range(2)]
            server.kill()
            after = [await request(app) for _ in range(20)]
            await limiter.aclose()
            return [*before, *after]

        all_replies = asyncio.run(use())
    assert {reply.status for reply in all_replies} == {200, 429}
    assert [reply.status for reply in all_replies].count(200) <= 2 + 5
    assert all("ratelimit" in reply.headers for reply in all_replies)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"limiter": "10/s"}, TypeError, "limiter must be a limiter or a list of limiters, got '10/s'"),
        ({"limiter": [1]}, TypeError, "limiter must be a limiter or a list of limiters"),
        ({"limiter": []}, ValueError, "limiters must be 1 to 16, got 0"),
        ({"key": "x-api-key"}, TypeError, "key must be a function of the request, got 'x-api-key'"),
        ({"key": str, "trusted_proxies": ["::1"]}, ValueError, "trusted_proxies cannot be combined with key"),
        ({"trusted_proxies": ["nowhere"]}, ValueError, "trusted_proxies must be addresses"),
        ({"cost": 0}, ValueError, "cost must be at least 1, got 0"),
        ({"cost": 6}, ValueError, "cost must be at most the smallest capacity, 5, got 6"),
        ({"name": "naïve"}, ValueError, "name must be printable ASCII"),
        ({"name": 5}, TypeError, "name must be a str, got 5"),
        ({"exempt": "/health"}, TypeError, "exempt must be a function of the scope, got '/health'"),
        ({"on_error": "maybe"}, ValueError, "on_error must be one of 'open', 'closed', got 'maybe'"),
    ],
)
def test_middleware__invalid_argument__is_named_with_its_value(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    arguments = {"limiter": FixedWindowLimiter("5/hour"), **options}
    with pytest.raises(error, match=message):
        RateLimitMiddleware(hello, **arguments)


def test_middleware__several_limiters__require_key_and_reject_name() -> None:
    store = MemoryStore(ManualClock())
    several = [FixedWindowLimiter("5/h", store, "a"), FixedWindowLimiter("5/h", store, "b")]
    with pytest.raises(ValueError, match="key is required for several limiters"):
        RateLimitMiddleware(hello, several)
    with pytest.raises(ValueError, match="name cannot be combined with several limiters"):
        RateLimitMiddleware(hello, several, key=lambda _: ["a", "b"], name="c")


@pytest.mark.parametrize("keys", ["ab", ["a"], LimitKey("a", "b")])
def test_middleware__several_limiters_with_wrong_number_of_keys__raises(keys: Any) -> None:
    store = MemoryStore(ManualClock())
    several = [FixedWindowLimiter("5/h", store, "a"), FixedWindowLimiter("5/h", store, "b")]
    with pytest.raises(ValueError, match="key must return a list with a key for each of 2 limiters"):
        replies(RateLimitMiddleware(hello, several, key=lambda _: keys), 1)


@pytest.mark.parametrize(
    ("error", "wait"),
    [
        (CircuitOpenError("pncp", "ConnectError: secret.internal", None, 2.5), 3),
        (LimitReachedError("no room within 5 s", "pncp", 0.0), 1),
        (LimitReachedError("no room", "pncp", float("inf")), 999_999_999_999_999),
    ],
)
def test_refusal_middleware__upstream_refusal__answers_503_without_details(
    error: Exception, wait: int
) -> None:
    async def failing(*_: Any) -> None:
        raise error

    [reply] = replies(RefusalMiddleware(failing), 1)
    assert (reply.status, reply.headers["retry-after"]) == (503, str(wait))
    assert reply.problem["retry_after"] == wait
    assert "secret" not in reply.body.decode()
    assert "pncp" not in reply.body.decode()


def test_refusal_middleware__circuit_held_open_by_an_operator__promises_no_time() -> None:
    async def failing(*_: Any) -> None:
        raise CircuitOpenError("pncp", "maintenance", None, 30.0, forced=True)

    [reply] = replies(RefusalMiddleware(failing), 1)
    assert reply.status == 503
    assert "retry-after" not in reply.headers
    assert "retry_after" not in reply.problem
    assert reply.problem["detail"] == "A service that this one needs is not available."


def test_refusal_middleware__started_response_or_other_error__reaches_the_server() -> None:
    async def late(scope: Any, receive: Any, send: Any) -> None:
        await hello(scope, receive, send)
        raise LimitReachedError("too late", "pncp", 1.0)

    async def other(*_: Any) -> None:
        raise LookupError("other")

    with pytest.raises(LimitReachedError):
        replies(RefusalMiddleware(late), 1)
    with pytest.raises(LookupError):
        replies(RefusalMiddleware(other), 1)
    assert replies(RefusalMiddleware(hello), 1)[0].body == b"hello"


def get(
    url: str, count: int, headers: Callable[[int], dict[str, str]] = lambda _: {}
) -> Sequence[httpx2.Response]:
    with httpx2.Client(base_url=url, trust_env=False, verify=False, timeout=60) as client:
        return [client.get("/", headers=headers(number)) for number in range(count)]


def test_served__100_spoofed_addresses__five_are_admitted() -> None:
    with serve(RateLimitMiddleware(hello, FixedWindowLimiter("5/hour", name="api"))) as url:
        served = get(url, 100, lambda number: {"X-Forwarded-For": f"198.51.100.{number}"})
    assert [response.status_code for response in served] == [200] * 5 + [429] * 95
    assert served[0].text == "hello"
    assert served[0].headers["RateLimit"] == '"api";r=4;t=3600'
    assert served[5].headers["Content-Type"] == "application/problem+json"
    assert 3500 < int(served[5].headers["Retry-After"]) <= 3600
    assert served[5].json()["status"] == 429


def test_served__100_spoofed_addresses_behind_a_trusted_proxy__five_are_admitted() -> None:
    app = RateLimitMiddleware(hello, FixedWindowLimiter("5/hour"), trusted_proxies=["127.0.0.1"])
    with serve(app) as url:
        served = get(url, 100, lambda number: {"X-Forwarded-For": f"198.51.100.{number}, 192.0.2.9"})
        other = get(url, 1, lambda _: {"X-Forwarded-For": "192.0.2.10"})
    assert [response.status_code for response in served] == [200] * 5 + [429] * 95
    assert other[0].status_code == 200, "another client has a limit of its own"


def test_served__streaming_response__arrives_in_parts() -> None:
    read = asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def streaming(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await hello(scope, receive, send)
            return
        loops.append(asyncio.get_running_loop())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first ", "more_body": True})
        await asyncio.wait_for(read.wait(), 60)
        await send({"type": "http.response.body", "body": b"second"})

    app = RefusalMiddleware(RateLimitMiddleware(streaming, FixedWindowLimiter("5/hour")))
    with serve(app) as url, httpx2.stream("GET", url, trust_env=False, verify=False, timeout=60) as response:
        pieces = response.iter_bytes()
        assert next(pieces) == b"first "
        loops[0].call_soon_threadsafe(read.set)
        assert b"".join(pieces) == b"second"
        assert "RateLimit" in response.headers


def test_served__lifespan__reaches_the_application() -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await hello(scope, receive, send)
        seen.extend(scope.get("app_saw", []))

    with serve(RateLimitMiddleware(app, FixedWindowLimiter("5/hour"))) as url:
        assert get(url, 1)[0].status_code == 200
    assert seen == ["startup", "shutdown"]


def test_served__two_processes__share_one_limit(state: str) -> None:
    with serve_in_process(state, "20/hour") as one, serve_in_process(state, "20/hour") as other:
        served = [response for _ in range(15) for url in (one, other) for response in get(url, 1)]
    assert [response.status_code for response in served] == [200] * 20 + [429] * 10
    assert [response.headers["RateLimit"].split(";")[1] for response in served[:20]] == [
        f"r={left}" for left in range(19, -1, -1)
    ]
