"""Limits on what comes in, for any ASGI application: asked directly, and over real connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import httpx2
import pytest
from tests.integrations.serving import Reply, ask, asked, closed, hello, process, scope_of, served
from tests.processes.fleet import flushed
from tests.support import MakesStore, memory_store, redis_store, shared_store

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
from comporta.headers import pause_told
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
    """Give an empty state of each kind, on a clock moved by hand."""
    makes: dict[str, MakesStore] = {
        "memory": memory_store,
        "shared": shared_store,
        "redis": lambda clock: redis_store(request.getfixturevalue("valkey"), clock),
    }
    with makes[request.param](clock) as found:
        yield found


@pytest.fixture
def heard() -> Iterator[list[Event]]:
    events: list[Event] = []
    stop = listen(events.append)
    yield events
    stop()


def replies(app: App, count: int, store: Store | None = None, **scope: Any) -> list[Reply]:
    return asked(app, *[scope_of(**scope)] * count, store=store)


def test_middleware__within_the_limit__passes_and_tells_how_the_client_stands(store: Store) -> None:
    app = RateLimitMiddleware(hello, SlidingWindowLimiter("2/minute", store, "api"))
    first, second = replies(app, 2, store)
    assert (first.status, first.body) == (200, b"hello")
    assert first.headers == {
        "content-type": "text/plain",
        "ratelimit-policy": '"api";q=2;w=60',
        "ratelimit": '"api";r=1;t=60',
    }
    assert second.headers["ratelimit"] == '"api";r=0;t=60'


def test_middleware__limit_used_up__refuses_with_a_problem_until_the_moment_it_told(
    store: Store, clock: ManualClock
) -> None:
    app = RateLimitMiddleware(hello, SlidingWindowLimiter("2/minute", store, "api"))
    *_, refused = replies(app, 3, store)
    assert refused.status == 429
    assert refused.headers["retry-after"] == "60"
    assert refused.headers["ratelimit"] == '"api";r=0;t=60'
    assert refused.headers["ratelimit-policy"] == '"api";q=2;w=60'
    assert pause_told(refused.headers, 0) == 60
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
def test_middleware__any_strategy__tells_a_quota_and_the_window_it_is_for(
    limiter: type[BaseLimiter], limit: LimitConfig | str, policy: str
) -> None:
    if isinstance(limit, LimitConfig) and limiter is SlidingWindowLimiter:
        limit = LimitConfig(
            limit.rate, limit.capacity, limit.window, LimitStrategy.SLIDING_WINDOW, lease=True
        )
    [reply] = replies(RateLimitMiddleware(hello, limiter(limit, MemoryStore(ManualClock()), "a")), 1)
    assert reply.headers["ratelimit-policy"] == policy


def test_middleware__limit_changed_by_an_operator__tells_the_changed_one(store: Store) -> None:
    limiter = TokenBucketLimiter("10/s", store, "a")
    app = RateLimitMiddleware(hello, limiter)

    async def use() -> tuple[Reply, Reply]:
        before = await ask(app)
        await limiter.change("5/s burst 20")
        after = await ask(app)
        await closed(store)
        return before, after

    before, after = asyncio.run(use())
    assert before.headers["ratelimit-policy"] == '"a";q=10;w=1'
    quota, _, window = after.headers["ratelimit-policy"].removeprefix('"a";').partition(";")
    assert quota == "q=20"
    assert window in {"w=4", "w=2"}  # on a server this process may not have heard of the rate yet


def test_middleware__limit_paused__sends_nobody_back_before_its_end(store: Store) -> None:
    limiter = TokenBucketLimiter("10/s", store, "paused")
    app = RateLimitMiddleware(hello, limiter)
    limiter.sync.pause(20)
    [refused] = replies(app, 1, store)
    assert (refused.status, refused.headers["retry-after"]) == (429, "20")
    assert refused.headers["ratelimit"] == '"paused";r=0;t=20'


def test_middleware__change_heard_of_from_a_server__is_what_it_tells(valkey: Server) -> None:
    flushed(valkey.url)
    limiter = TokenBucketLimiter("10/s", f"{valkey.url}?timeout=5", "heard")
    app = RateLimitMiddleware(hello, limiter)

    async def use() -> str:
        await limiter.change("5/s burst 20")
        for _ in range(600):
            reply = await ask(app, scope_of(("192.0.2.1", 1)))
            if reply.headers["ratelimit-policy"] == '"heard";q=20;w=4':
                break
            await asyncio.sleep(0.05)
        await limiter.aclose()
        return reply.headers["ratelimit-policy"]

    assert asyncio.run(use()) == '"heard";q=20;w=4'


def test_middleware__cost_and_name__are_what_was_given() -> None:
    limiter = TokenBucketLimiter("10/minute", MemoryStore(ManualClock()), "internal")
    app = RateLimitMiddleware(hello, limiter, cost=4, name="search requests")
    *admitted, refused = replies(app, 3)
    assert [reply.status for reply in admitted] == [200, 200]
    assert refused.headers["ratelimit"] == '"search requests";r=2;t=48'
    assert refused.headers["retry-after"] == "12"


def test_middleware__key_function__says_whose_limit_it_is() -> None:
    def by_path(scope: Any) -> str | None:
        return None if scope["path"] == "/free" else scope["path"]

    app = RateLimitMiddleware(hello, FixedWindowLimiter("1/hour"), key=by_path)
    assert [reply.status for reply in replies(app, 2, path="/a")] == [200, 429]
    assert [reply.status for reply in replies(app, 2, path="/b")] == [200, 429]
    free = replies(app, 2, path="/free")
    assert [reply.status for reply in free] == [200, 200]
    assert "ratelimit" not in free[0].headers


def test_middleware__key_function_that_awaits__is_awaited() -> None:
    async def by_path(scope: Any) -> LimitKey:
        await asyncio.sleep(0)
        return LimitKey("path", scope["path"])

    app = RateLimitMiddleware(hello, FixedWindowLimiter("1/hour"), key=by_path)
    assert [reply.status for reply in replies(app, 2)] == [200, 429]


def test_middleware__empty_key__is_no_error_and_no_way_around() -> None:
    app = RateLimitMiddleware(hello, FixedWindowLimiter("2/hour"), key=lambda _: "")
    assert [reply.status for reply in replies(app, 3)] == [200, 200, 429]


def test_middleware__exempt_request__is_not_counted() -> None:
    limiter = FixedWindowLimiter("1/hour")
    app = RateLimitMiddleware(hello, limiter, exempt=lambda scope: scope["path"] == "/health")
    assert [reply.status for reply in replies(app, 3, path="/health")] == [200, 200, 200]
    assert [reply.status for reply in replies(app, 2, path="/search")] == [200, 429]


def test_middleware__exempt_that_awaits__is_awaited() -> None:
    async def exempt(scope: Any) -> bool:
        await asyncio.sleep(0)
        return bool(scope["path"] == "/health")

    app = RateLimitMiddleware(hello, FixedWindowLimiter("1/hour", name="awaited"), exempt=exempt)
    assert [reply.status for reply in replies(app, 2, path="/health")] == [200, 200]
    assert [reply.status for reply in replies(app, 2)] == [200, 429]


def test_middleware__several_limits__all_are_told_and_the_one_that_binds(store: Store) -> None:
    everybody = FixedWindowLimiter("3/hour", store, "everybody")
    each = SlidingWindowLimiter("2/minute", store, "each")
    address = ClientAddress()
    app = RateLimitMiddleware(hello, [everybody, each], key=lambda scope: [None, address(scope)])
    first, second, third = replies(app, 3, store)
    assert first.headers["ratelimit-policy"] == '"everybody";q=3;w=3600, "each";q=2;w=60'
    assert first.headers["ratelimit"] == '"each";r=1;t=60'
    assert (second.status, third.status) == (200, 429)
    assert third.headers["ratelimit"] == '"each";r=0;t=60'
    assert third.headers["retry-after"] == "60"
    last, refused = replies(app, 2, store, client=("192.0.2.2", 1))
    assert last.headers["ratelimit"] == '"everybody";r=0;t=3600', "refusals are charged to no limit"
    assert refused.status == 429
    assert refused.problem["detail"] == "The limit 'everybody' is used up, try again in 3600 s."


def test_middleware__own_headers_of_the_application__stand_beside_those_of_the_limit() -> None:
    inner = RateLimitMiddleware(hello, FixedWindowLimiter("5/hour", name="inner"))
    app = RateLimitMiddleware(inner, FixedWindowLimiter("9/hour", name="outer"))
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope_of(), None, send))  # type: ignore[arg-type]  # nothing is received
    told = [value for name, value in sent[0]["headers"] if name == b"ratelimit"]
    assert told == [b'"inner";r=4;t=3600', b'"outer";r=8;t=3600']


def test_middleware__start_without_headers__gets_those_of_the_limit() -> None:
    async def bare(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204})

    [reply] = replies(RateLimitMiddleware(bare, FixedWindowLimiter("5/hour")), 1)
    assert "ratelimit" in reply.headers


@pytest.mark.parametrize("kind", ["websocket", "lifespan"])
@pytest.mark.parametrize(
    "wrap", [lambda app: RateLimitMiddleware(app, FixedWindowLimiter("1/h")), RefusalMiddleware]
)
def test_middleware__not_http__passes_untouched(kind: str, wrap: Callable[[App], App]) -> None:
    seen = []

    async def app(*given: Any) -> None:
        seen.append(given)

    async def nothing(*_: Any) -> Any: ...

    scope = {"type": kind}
    for _ in range(3):
        asyncio.run(_called(wrap(app), scope, nothing, nothing))
    assert seen == [(scope, nothing, nothing)] * 3


async def _called(app: App, *given: Any) -> None:
    await app(*given)


class TestStateThatCannotBeUsed:
    """A table without room for another key: a state error that no failover mends."""

    @pytest.fixture
    def full(self, clock: ManualClock) -> TokenBucketLimiter:
        limiter = TokenBucketLimiter("5/hour", MemoryStore(clock, 1), "api")
        limiter.sync.acquire("somebody")
        with pytest.raises(StateError):
            limiter.sync.acquire("another")
        return limiter

    def test_on_error__open__passes_and_says_so_once_a_minute(
        self, full: TokenBucketLimiter, clock: ManualClock, heard: list[Event]
    ) -> None:
        app = RateLimitMiddleware(hello, full)
        for expected in (1, 2):
            for reply in replies(app, 20):
                assert (reply.status, reply.headers) == (200, {"content-type": "text/plain"})
            assert len(heard) == expected
            clock.advance(60)
        assert (heard[0].kind, heard[0].source) == ("inbound_undecided", "api")
        assert "requests that cannot be counted pass without a limit: " in heard[0].text

    def test_on_error__closed__answers_503_with_a_problem(
        self, full: TokenBucketLimiter, heard: list[Event]
    ) -> None:
        [reply] = replies(RateLimitMiddleware(hello, full, on_error="closed"), 1)
        assert (reply.status, reply.headers["retry-after"]) == (503, "5")
        assert reply.problem["title"] == "Service Unavailable"
        assert reply.problem["retry_after"] == 5
        assert "api" not in reply.problem["detail"]
        assert "requests that cannot be counted are refused" in heard[0].text

    def test_on_error__closed__client_that_is_known__goes_on_being_counted(
        self, full: TokenBucketLimiter
    ) -> None:
        app = RateLimitMiddleware(hello, full, key=lambda scope: scope["path"][1:], on_error="closed")
        assert [reply.status for reply in replies(app, 5, path="/somebody")] == [200] * 4 + [429]
        assert [reply.status for reply in replies(app, 1, path="/stranger")] == [503]


def test_on_error__password_refused_at_the_start__passes_and_keeps_the_password_to_itself(
    heard: list[Event],
) -> None:
    with Server(password=WRONG[::-1]) as locked:
        url = f"redis://:{WRONG}@127.0.0.1:{locked.port}/0?timeout=5"
        limiter = TokenBucketLimiter("1/hour", url, "locked")
        app = RateLimitMiddleware(hello, limiter)
        assert [reply.status for reply in replies(app, 3, limiter.store)] == [200, 200, 200]
    told = [event for event in heard if event.kind == "inbound_undecided"]
    assert len(told) == 1
    assert WRONG not in told[0].text


def test_middleware__server_killed__goes_on_within_the_limit() -> None:
    with Server() as server:
        limiter = FixedWindowLimiter("5/hour", f"{server.url}?timeout=5", "mortal")
        app = RateLimitMiddleware(hello, limiter)

        async def use() -> list[Reply]:
            before = [await ask(app) for _ in range(2)]
            server.kill()
            after = [await ask(app) for _ in range(20)]
            await limiter.aclose()
            return [*before, *after]

        found = asyncio.run(use())
    assert {reply.status for reply in found} == {200, 429}
    assert [reply.status for reply in found].count(200) <= 2 + 5
    assert all("ratelimit" in reply.headers for reply in found)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"limiter": "10/s"}, TypeError, "limiter must be a limiter or a list of limiters, got '10/s'"),
        ({"limiter": [1]}, TypeError, "limiter must be a limiter or a list of limiters"),
        ({"limiter": []}, ValueError, "limiters must be 1 to 16, got 0"),
        ({"key": "x-api-key"}, TypeError, "key must be a function of the request, got 'x-api-key'"),
        ({"key": str, "trusted_proxies": ["::1"]}, ValueError, "trusted_proxies must be left out where key"),
        ({"trusted_proxies": ["nowhere"]}, ValueError, "trusted_proxies must be addresses"),
        ({"cost": 0}, ValueError, "cost must be at least 1, got 0"),
        ({"cost": 6}, ValueError, "cost must be at most the smallest capacity, 5, got 6"),
        ({"name": "naïve"}, ValueError, "name must be printable ASCII"),
        ({"name": 5}, TypeError, "name must be a str, got 5"),
        ({"exempt": "/health"}, TypeError, "exempt must be a function of the scope, got '/health'"),
        ({"on_error": "maybe"}, ValueError, "on_error must be one of open, closed, got 'maybe'"),
    ],
)
def test_middleware__bad_input__names_the_field_and_the_value(
    options: dict[str, Any], error: type[Exception], said: str
) -> None:
    given = {"limiter": FixedWindowLimiter("5/hour"), **options}
    with pytest.raises(error, match=said):
        RateLimitMiddleware(hello, **given)


def test_middleware__several_limiters__need_a_key_and_have_their_own_names() -> None:
    store = MemoryStore(ManualClock())
    several = [FixedWindowLimiter("5/h", store, "a"), FixedWindowLimiter("5/h", store, "b")]
    with pytest.raises(ValueError, match="key must be given for several limiters"):
        RateLimitMiddleware(hello, several)
    with pytest.raises(ValueError, match="name must be left out for several limiters"):
        RateLimitMiddleware(hello, several, key=lambda _: ["a", "b"], name="c")


@pytest.mark.parametrize("keys", ["ab", ["a"], LimitKey("a", "b")])
def test_middleware__several_limiters_and_not_a_key_for_each__is_an_error(keys: Any) -> None:
    store = MemoryStore(ManualClock())
    several = [FixedWindowLimiter("5/h", store, "a"), FixedWindowLimiter("5/h", store, "b")]
    with pytest.raises(ValueError, match="key must return a list, one for each of 2 limiters"):
        replies(RateLimitMiddleware(hello, several, key=lambda _: keys), 1)


@pytest.mark.parametrize(
    ("error", "wait"),
    [
        (CircuitOpenError("pncp", "ConnectError: secret.internal", None, 2.5), 3),
        (LimitReachedError("no room within 5 s", "pncp", 0.0), 1),
        (LimitReachedError("no room", "pncp", float("inf")), 999_999_999_999_999),
    ],
)
def test_refusals__of_an_upstream__are_503_and_say_nothing_of_the_inside(error: Exception, wait: int) -> None:
    async def failing(*_: Any) -> None:
        raise error

    [reply] = replies(RefusalMiddleware(failing), 1)
    assert (reply.status, reply.headers["retry-after"]) == (503, str(wait))
    assert reply.problem["retry_after"] == wait
    assert "secret" not in reply.body.decode()
    assert "pncp" not in reply.body.decode()


def test_refusals__after_the_answer_began_or_other_errors__go_on_to_the_server() -> None:
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
    with httpx2.Client(base_url=url, trust_env=False, timeout=60) as client:
        return [client.get("/", headers=headers(number)) for number in range(count)]


def test_served__100_spoofed_addresses_at_a_limit_of_5__five_are_admitted() -> None:
    with served(RateLimitMiddleware(hello, FixedWindowLimiter("5/hour", name="api"))) as url:
        found = get(url, 100, lambda number: {"X-Forwarded-For": f"198.51.100.{number}"})
    assert [response.status_code for response in found] == [200] * 5 + [429] * 95
    assert found[0].text == "hello"
    assert found[0].headers["RateLimit"] == '"api";r=4;t=3600'
    assert found[5].headers["Content-Type"] == "application/problem+json"
    assert 3500 < int(found[5].headers["Retry-After"]) <= 3600
    assert found[5].json()["status"] == 429


def test_served__100_spoofed_addresses_behind_a_trusted_proxy__five_are_admitted() -> None:
    app = RateLimitMiddleware(hello, FixedWindowLimiter("5/hour"), trusted_proxies=["127.0.0.1"])
    with served(app) as url:
        found = get(url, 100, lambda number: {"X-Forwarded-For": f"198.51.100.{number}, 192.0.2.9"})
        other = get(url, 1, lambda _: {"X-Forwarded-For": "192.0.2.10"})
    assert [response.status_code for response in found] == [200] * 5 + [429] * 95
    assert other[0].status_code == 200, "another client has a limit of its own"


def test_served__stream__comes_piece_by_piece_as_it_was_sent() -> None:
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
    with served(app) as url, httpx2.stream("GET", url, trust_env=False, timeout=60) as response:
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

    with served(RateLimitMiddleware(app, FixedWindowLimiter("5/hour"))) as url:
        assert get(url, 1)[0].status_code == 200
    assert seen == ["startup", "shutdown"]


def test_served__by_two_processes__share_one_limit(state: str) -> None:
    with process(state, "20/hour") as one, process(state, "20/hour") as other:
        found = [response for _ in range(15) for url in (one, other) for response in get(url, 1)]
    assert [response.status_code for response in found] == [200] * 20 + [429] * 10
    assert [response.headers["RateLimit"].split(";")[1] for response in found[:20]] == [
        f"r={left}" for left in range(19, -1, -1)
    ]
