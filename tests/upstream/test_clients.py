"""Outcomes with the clients people use, against a real server, through upstreams and breakers."""

from __future__ import annotations

import asyncio
import inspect
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import aiohttp
import httpx
import httpx2
import openai
import pytest
import requests
import urllib3
from tests.support import shared_store, wait_until
from tests.upstream.answering_server import CLIENTS, TIMEOUT_SECONDS, AnsweringServer, Call, aws_client

from comporta import CircuitBreaker, CircuitOpenError, LimitReachedError, Upstream
from comporta.clock import MONOTONIC
from comporta.stores.base import Store
from comporta.stores.memory import MemoryStore
from comporta.stores.shared.store import SharedStore
from comporta.testing import ManualClock, SimulatedUpstream

pytestmark = pytest.mark.unmeasured  # hundreds of combinations; test_outcome and others cover what they run

WAYS = ("upstream", "breaker", "block")
"""How a call goes through the policies: ``Upstream.guard``, a decorating breaker, a breaker's block."""


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def server() -> Iterator[AnsweringServer]:
    with AnsweringServer() as started:
        yield started


@pytest.fixture(params=CLIENTS)
def call(request: pytest.FixtureRequest, server: AnsweringServer) -> Iterator[Call]:
    with CLIENTS[request.param](server.url) as made:
        yield made


class Guarded:
    """A call through an upstream or a breaker with a threshold of 2, blocking or not, as the call is."""

    def __init__(self, way: str, call: Call, store: Store | None = None, **options: Any) -> None:
        store = MemoryStore() if store is None else store
        self.breaker = CircuitBreaker("s3", 2, 10, state=store, **({} if way == "upstream" else options))
        if way == "upstream":
            upstream = Upstream("s3", "1000/s", breaker=self.breaker, retry=False, state=store, **options)
            self._call: Any = upstream.guard(call)
        else:
            self._call = self.breaker(call) if way == "breaker" else self._in_block(call)

    def _in_block(self, call: Call) -> Call:
        def block() -> Any:
            with self.breaker.sync.admit():
                return call()

        async def block_async() -> Any:
            async with self.breaker.admit():
                return await call()

        return block_async if inspect.iscoroutinefunction(call) else block

    def __call__(self) -> Any:
        return run(self._call)

    def fails(self, *, times: int = 1) -> Exception:
        """Make calls that raise; return the last error."""
        for _ in range(times):
            with pytest.raises(Exception) as raised:  # noqa: PT011 - of the client
                self()
            assert not isinstance(raised.value, CircuitOpenError)
        return raised.value

    @property
    def failures(self) -> int:
        return self.breaker.consecutive_failures


def run(call: Call) -> Any:
    return asyncio.run(call()) if inspect.iscoroutinefunction(call) else call()


@pytest.mark.unmeasured
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 422])
def test_client__answered_4xx__the_circuit_stays_closed(
    server: AnsweringServer, call: Call, way: str, status: int
) -> None:
    server.answer(status)
    guarded = Guarded(way, call)
    guarded.fails(times=3)
    assert (guarded.breaker.phase, guarded.failures, server.requests) == ("closed", 0, 3)


@pytest.mark.unmeasured
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("status", [408, 500, 503])
def test_client__answered_408_or_5xx__opens_the_circuit(
    server: AnsweringServer, call: Call, way: str, status: int
) -> None:
    server.answer(status)
    guarded = Guarded(way, call)
    guarded.fails(times=2)
    with pytest.raises(CircuitOpenError):
        guarded()
    assert server.requests == 2


@pytest.mark.unmeasured
@pytest.mark.parametrize("way", WAYS)
def test_client__answered_429__counts_for_nothing(server: AnsweringServer, call: Call, way: str) -> None:
    guarded = Guarded(way, call)
    server.answer(500)
    guarded.fails()
    server.answer(429)
    guarded.fails(times=2)
    assert (guarded.breaker.phase, guarded.failures) == ("closed", 1)


@pytest.mark.parametrize("way", WAYS)
def test_client__no_connection__opens_the_circuit(server: AnsweringServer, call: Call, way: str) -> None:
    server.close()
    guarded = Guarded(way, call)
    guarded.fails(times=2)
    assert guarded.breaker.phase == "open"


@pytest.mark.unmeasured
@pytest.mark.parametrize(
    "header",
    [
        ("retry-after", "30"),
        ("retry-after-ms", "30000"),
        ("ratelimit", '"minute";r=0;t=30'),
    ],
    ids=lambda header: header[0],
)
def test_client__raised_429__pauses_all_workers_and_lowers_the_limit_once(
    server: AnsweringServer, call: Call, header: tuple[str, str]
) -> None:
    server.answer(429, header, header)
    with two_workers("s3", "10/s") as (one, other):
        assert one.sync.get_state().limit == 10
        with pytest.raises(Exception) as raised:  # noqa: PT011 - of the client
            run(one.guard(call))
        assert not isinstance(raised.value, LimitReachedError)
        for worker in (one, other):
            with pytest.raises(LimitReachedError, match="paused by the upstream") as refused:
                run(worker.guard(call))
            assert 25 < refused.value.retry_after <= 30
        state = other.sync.get_state()
        assert server.requests == 1
        assert (state.limit, state.original) == (8, 10)
        assert state.breaker is not None
        assert state.breaker.failures == 0


@contextmanager
def two_workers(name: str, limit: str) -> Iterator[tuple[Upstream, Upstream]]:
    """Make the same upstream in two workers, each with a store object of its own."""
    with ExitStack() as ends:
        store = ends.enter_context(shared_store())
        named = re.search("test-[0-9a-f]{32}", store.path)
        assert named is not None
        other = SharedStore(named[0], MONOTONIC, 1024)
        ends.callback(other.close)
        one, two = (Upstream(name, limit, max_wait=0, retry=False, state=each) for each in (store, other))
        yield one, two


@pytest.mark.parametrize(
    "headers",
    [
        [("x-ratelimit-remaining-tokens", "0"), ("x-ratelimit-reset-tokens", "6m0s")],
        [
            ("anthropic-ratelimit-input-tokens-remaining", "0"),
            ("anthropic-ratelimit-input-tokens-reset", "2027-01-15T08:06:00Z"),
            ("date", "Fri, 15 Jan 2027 08:00:00 GMT"),
        ],
    ],
    ids=["openai", "anthropic"],
)
def test_transport__success_with_nothing_left__pauses(
    server: AnsweringServer, headers: list[tuple[str, str]]
) -> None:
    server.answer(200, *headers)
    upstream = Upstream("s3", "10/s", max_wait=0, pause_max=1000, state=MemoryStore())
    with httpx2.Client(transport=upstream.sync.transport(), trust_env=False) as client:
        assert client.get(server.url).status_code == 200
        with pytest.raises(LimitReachedError) as refused:
            client.get(server.url)
    assert 300 < refused.value.retry_after <= 360


@pytest.mark.parametrize("way", WAYS)
def test_boto3__two_missing_keys__the_circuit_stays_closed(server: AnsweringServer, way: str) -> None:
    with CLIENTS["boto3"](server.url) as call:
        server.answer_as_s3(404, "NoSuchKey")
        guarded = Guarded(way, call)
        error: Any = guarded.fails(times=2)
    assert type(error).__name__ == "NoSuchKey"
    assert (guarded.breaker.phase, guarded.failures) == ("closed", 0)


@pytest.mark.parametrize("way", WAYS)
def test_boto3__slow_down__counts_for_nothing(server: AnsweringServer, way: str) -> None:
    with CLIENTS["boto3"](server.url) as call:
        server.answer_as_s3(503, "SlowDown")
        guarded = Guarded(way, call)
        guarded.fails(times=3)
    assert (guarded.breaker.phase, guarded.failures) == ("closed", 0)


def test_boto3__throttled_with_status_400__pauses_and_lowers_the_limit(server: AnsweringServer) -> None:
    server.answer(400, ("retry-after", "30"))
    server.body = b'{"__type": "com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException"}'
    upstream = Upstream("table", "10/s", max_wait=0, retry=False, state=MemoryStore())
    client = aws_client("dynamodb", server.url)
    with pytest.raises(client.exceptions.ProvisionedThroughputExceededException):
        upstream.sync.call(client.get_item, TableName="table", Key={"id": {"S": "1"}})
    with pytest.raises(LimitReachedError):
        upstream.sync.call(client.get_item, TableName="table", Key={"id": {"S": "1"}})
    assert upstream.sync.get_state().limit == 8
    client.close()


@pytest.mark.parametrize("package", [httpx, httpx2])
def test_pool_timeout__no_free_connection__counts_for_nothing(package: Any) -> None:
    with SimulatedUpstream() as slow:
        slow.delay = None
        limits, timeout = package.Limits(max_connections=1), package.Timeout(TIMEOUT_SECONDS, pool=0.01)
        client = package.Client(limits=limits, timeout=timeout, trust_env=False)
        guarded = Guarded("breaker", lambda: client.get(slow.url))
        with busy(slow, lambda: client.get(slow.url, timeout=package.Timeout(60.0))):
            error = guarded.fails()
            assert isinstance(error, package.PoolTimeout)
        assert guarded.failures == 0
        client.close()


def test_pool_timeout__inside_an_sdk__counts_for_nothing() -> None:
    with SimulatedUpstream() as slow:
        slow.delay = None
        inner = openai.DefaultHttpxClient(limits=httpx2.Limits(max_connections=1), trust_env=False)
        client = openai.OpenAI(base_url=slow.url, api_key="key", max_retries=0, http_client=inner)
        timeout = httpx2.Timeout(TIMEOUT_SECONDS, pool=0.01)
        guarded = Guarded("upstream", lambda: client.models.retrieve("model", timeout=timeout))
        with busy(slow, lambda: client.models.retrieve("model", timeout=60)):
            assert isinstance(guarded.fails(), openai.APITimeoutError)
        assert guarded.failures == 0
        client.close()


def test_empty_pool__no_free_connection__counts_for_nothing() -> None:
    with SimulatedUpstream() as slow:
        slow.delay = None
        pool = urllib3.HTTPConnectionPool("127.0.0.1", slow.port, maxsize=1, block=True, retries=False)
        guarded = Guarded("breaker", lambda: pool.urlopen("GET", "/", pool_timeout=0.01))  # type: ignore[arg-type]  # any number
        with busy(slow, lambda: pool.urlopen("GET", "/", timeout=60)):
            assert isinstance(guarded.fails(), urllib3.exceptions.EmptyPoolError)
        assert guarded.failures == 0
        pool.close()


@contextmanager
def busy(server: SimulatedUpstream, call: Callable[[], Any]) -> Iterator[None]:
    """Make a call in another thread that takes the only connection until the server closes it."""
    errors: list[Exception] = []

    def occupy() -> None:
        try:
            call()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=occupy)
    thread.start()
    wait_until(lambda: server.in_flight)
    try:
        yield
    finally:
        server.close()
        thread.join(TIMEOUT_SECONDS)
    assert len(errors) == 1


def _aiohttp_get(url: str) -> Call:
    async def get() -> None:
        async with aiohttp.ClientSession() as session, session.get(url):
            pass

    return get


UNSENT: dict[str, Call] = {
    "httpx": lambda: httpx.get("ftp://127.0.0.1/", trust_env=False),
    "httpx2": lambda: httpx2.get("ftp://127.0.0.1/", trust_env=False),
    "requests": lambda: requests.get("127.0.0.1", timeout=5),
    "requests-scheme": lambda: requests.get("foo://127.0.0.1", timeout=5),
    "aiohttp": _aiohttp_get("http:///nothing"),
    "aiohttp-scheme": _aiohttp_get("foo://127.0.0.1/"),
    "boto3": lambda: aws_client("s3", "http://127.0.0.1:1").get_object(Bucket="bucket"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", UNSENT)
def test_request_not_sent__half_open__gives_the_probe_back(clock: ManualClock, name: str, way: str) -> None:
    assert_counts_for_nothing(way, UNSENT[name], clock)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("package", [httpx, httpx2])
def test_illegal_header__half_open__gives_the_probe_back(
    server: AnsweringServer, clock: ManualClock, package: Any, way: str
) -> None:
    headers = {"a": "b\r\nc"}
    assert_counts_for_nothing(way, lambda: package.get(server.url, headers=headers, trust_env=False), clock)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("awaited", [False, True])
def test_mistake_of_the_program__half_open__gives_the_probe_back(
    clock: ManualClock, way: str, awaited: bool
) -> None:
    page: dict[str, int] = {}

    def mistake() -> int:
        return page["items"]

    async def mistake_async() -> Any:
        return mistake()

    assert_counts_for_nothing(way, mistake_async if awaited else mistake, clock)


def assert_counts_for_nothing(way: str, call: Call, clock: ManualClock) -> None:
    guarded = Guarded(way, call, MemoryStore(clock))
    guarded.breaker.sync.record_failure()
    guarded.fails()
    assert guarded.failures == 1
    guarded.breaker.sync.record_failure()
    clock.advance(10)
    guarded.fails()
    state = guarded.breaker.sync.get_state()
    assert (state.phase, state.probes) == ("half_open", ())


@pytest.mark.parametrize("way", WAYS)
def test_undecodable_body__status_200__is_a_failure(server: AnsweringServer, way: str) -> None:
    server.answer(200)
    server.body = b"<html>"

    async def with_aiohttp() -> Any:
        async with aiohttp.ClientSession() as session, session.get(server.url) as response:
            return await response.json()

    def with_requests() -> Any:
        return requests.get(server.url, timeout=5, proxies={"http": ""}).json()

    def with_httpx() -> Any:
        return httpx.get(server.url, trust_env=False).json()

    for call in (with_aiohttp, with_requests, with_httpx):
        guarded = Guarded(way, call)
        guarded.fails()
        assert guarded.failures == 1
    server.answer(200, ("content-type", "text/html"))
    server.headers = [("content-type", "text/html")]
    guarded = Guarded(way, with_aiohttp)
    assert isinstance(guarded.fails(), aiohttp.ContentTypeError)
    assert guarded.failures == 1


def test_breaker__returned_response__counts_by_its_status(server: AnsweringServer) -> None:
    breaker = CircuitBreaker("s3", 2, state=MemoryStore())

    @breaker
    def get() -> httpx2.Response:
        return httpx2.get(server.url, trust_env=False)

    server.answer(404)
    for _ in range(3):
        assert get().status_code == 404
    server.answer(503)
    get()
    server.answer(429)
    get()
    assert breaker.consecutive_failures == 1
    server.answer(503)
    get()
    assert breaker.sync.get_state().reason == "503"
    with pytest.raises(CircuitOpenError):
        get()


def test_aiohttp__returned_response__counts_by_its_status(server: AnsweringServer) -> None:
    server.answer(503)
    breaker = CircuitBreaker("s3", 2, state=MemoryStore())

    @breaker
    async def get() -> aiohttp.ClientResponse:
        async with aiohttp.ClientSession() as session, session.get(server.url) as response:
            return response

    assert asyncio.run(get()).status == 503
    assert breaker.consecutive_failures == 1
    server.answer(404)
    assert asyncio.run(get()).status == 404
    assert breaker.consecutive_failures == 0


class _Business(Exception):  # noqa: N818 - a name as users have it
    pass


def _raise(error: Exception) -> Call:
    def call() -> None:
        raise error

    return call


@pytest.mark.parametrize("way", WAYS)
def test_ignore__matching_error__counts_for_nothing(clock: ManualClock, way: str) -> None:
    guarded = Guarded(way, _raise(_Business()), MemoryStore(clock), ignore=_Business)
    guarded.breaker.sync.record_failure()
    guarded.fails(times=2)
    assert guarded.failures == 1


@pytest.mark.parametrize("way", WAYS)
def test_failures__matching_error__counts_as_a_failure(server: AnsweringServer, way: str) -> None:
    server.answer(404)
    with CLIENTS["requests"](server.url) as call:
        guarded = Guarded(way, call, failures=lambda error: error.response.status_code == 404)
        guarded.fails(times=2)
    assert guarded.breaker.phase == "open"
    guarded = Guarded(way, _raise(KeyError("page")), failures=(KeyError, IndexError))
    guarded.fails(times=2)
    assert guarded.breaker.sync.get_state().reason == "KeyError: 'page'"


@pytest.mark.parametrize("way", WAYS)
def test_failures__refusal_by_comporta__is_never_counted(way: str) -> None:
    guarded = Guarded(way, _raise(LimitReachedError("full", "inner", 1.0)), failures=Exception)
    guarded.fails(times=3)
    assert guarded.failures == 0


@pytest.mark.parametrize(
    ("rules", "error", "failures"),
    [
        ({"counts_error": lambda error: not isinstance(error, _Business)}, _Business(), 0),
        ({"counts_error": lambda error: True}, KeyError(), 1),
        ({"ignore": OSError}, OSError(), 0),
        ({"failures": _Business}, _Business(), 1),
        ({}, OSError(), 1),
    ],
)
def test_upstream__breaker_with_rules__honours_them(
    rules: dict[str, Any], error: Exception, failures: int
) -> None:
    store = MemoryStore()
    breaker = CircuitBreaker("s3", 5, state=store, **rules)
    upstream = Upstream("s3", "10/s", breaker=breaker, retry=False, state=store)
    with pytest.raises(type(error)):
        upstream.sync.call(_raise(error))
    assert breaker.consecutive_failures == failures


def test_upstream__breaker_with_counts_result__honours_it() -> None:
    store = MemoryStore()
    breaker = CircuitBreaker("s3", 5, state=store, counts_result=lambda rows: rows == [])
    upstream = Upstream("s3", "10/s", breaker=breaker, state=store)
    assert upstream.sync.call(list) == []
    assert breaker.consecutive_failures == 1
    assert upstream.sync.call(lambda: [1]) == [1]
    assert breaker.consecutive_failures == 0


def test_upstream__own_rules_and_those_of_its_breaker__its_own_come_first() -> None:
    store = MemoryStore()
    breaker = CircuitBreaker("s3", 5, state=store, failures=OSError)
    upstream = Upstream("s3", "10/s", breaker=breaker, ignore=OSError, retry=False, state=store)
    with pytest.raises(OSError, match="text"):
        upstream.sync.call(_raise(OSError("text")))
    assert breaker.consecutive_failures == 0


def test_guard__answered_404__is_not_retried_and_not_reported_as_a_failure(server: AnsweringServer) -> None:
    server.answer(404)
    upstream = Upstream("s3", "10/s", state=MemoryStore())
    with CLIENTS["requests"](server.url) as call, pytest.raises(requests.HTTPError):
        upstream.guard(call)()
    assert server.requests == 1
