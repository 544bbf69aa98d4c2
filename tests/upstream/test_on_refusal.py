"""Calls that breaker or limit refuse, answered by ``on_refusal``: blocking, async and through clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import httpx2
import pytest
import requests
from tests.upstream.conftest import Make
from tests.upstream.drivers import Scripted

from comporta import CircuitBreaker, CircuitOpenError, LimitReachedError, RefusedError, Retry, Upstream
from comporta.metrics import InMemoryMetrics
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock, SimulatedUpstream


@pytest.mark.parametrize("answer", [None, "cached", 0, [], {"page": 1}])
def test_on_refusal__value_and_open_circuit__returns_it_and_reports_open(
    make: Make, metrics: InMemoryMetrics, answer: Any
) -> None:
    driver = make(on_refusal=answer)
    assert driver.upstream.breaker is not None
    driver.upstream.breaker.sync.force("open", "maintenance")
    assert driver.call(lambda: "made") is answer
    assert driver.guarded(lambda: "made") is answer
    assert driver.report is not None
    assert (driver.report.outcome, driver.report.attempts) == ("open", 0)
    assert metrics.value("upstream_calls", upstream="pncp", outcome="open") == 2


def test_on_refusal__function_and_limit__gets_the_refusal_and_reports_limited(make: Make) -> None:
    refusals: list[RefusedError] = []

    def answer(refusal: RefusedError) -> str:
        refusals.append(refusal)
        return "later"

    driver = make("1/hour", max_wait=0, on_refusal=answer)
    assert [driver.call(lambda: "made") for _ in range(2)] == ["made", "later"]
    [refusal] = refusals
    assert isinstance(refusal, LimitReachedError)
    assert refusal.retry_after == pytest.approx(3600)
    assert driver.report is not None
    assert driver.report.outcome == "limited"


def test_on_refusal__permits_in_use__is_called_when_everything_is_released(make: Make) -> None:
    driver = make(max_concurrent=1, max_wait=0, on_refusal=lambda refusal: type(refusal).__name__)
    assert driver.upstream.permits is not None
    held = driver.upstream.permits.sync.acquire()
    assert held is not None
    assert driver.call(lambda: "made") == "LimitReachedError"
    driver.upstream.permits.sync.release(held)
    assert driver.call(lambda: "made") == "made"


def test_on_refusal__retry_is_refused__has_the_earlier_error_as_cause(make: Make, clock: ManualClock) -> None:
    error = OSError("no route")
    refusals: list[RefusedError] = []
    driver = make("1/hour", max_wait=0, on_refusal=refusals.append)
    assert driver.call(Scripted(clock, error)) is None
    assert refusals[0].__cause__ is error


def test_on_refusal__error_of_the_call__passes(make: Make, clock: ManualClock) -> None:
    driver = make(on_refusal="cached", retry=False)
    inner = LimitReachedError("full", "inner", 1.0)
    for error in (OSError("no route"), inner):
        with pytest.raises(type(error)) as raised:
            driver.call(Scripted(clock, error))
        assert raised.value is error


def test_on_refusal__function_raises__replaces_the_refusal(make: Make) -> None:
    def fail(refusal: RefusedError) -> None:
        raise KeyError("nothing in the cache")

    driver = make("1/hour", max_wait=0, on_refusal=fail)
    driver.call(lambda: "made")
    with pytest.raises(KeyError, match="nothing in the cache") as raised:
        driver.call(lambda: "made")
    assert isinstance(raised.value.__context__, LimitReachedError)


def test_on_refusal__coroutine_function__is_awaited_or_refused_by_blocking_calls(
    make: Make, runner: asyncio.Runner | None
) -> None:
    async def answer(refusal: RefusedError) -> str:
        await asyncio.sleep(0)
        return f"{refusal.name} is busy"

    driver = make("1/hour", max_wait=0, on_refusal=answer)
    driver.call(lambda: "made")
    if runner is not None:
        assert driver.call(lambda: "made") == "pncp is busy"
        return
    with pytest.raises(TypeError, match="on_refusal must be a plain function, got a coroutine function"):
        driver.call(lambda: "made")


def test_on_refusal__of_the_breaker_alone__answers_for_an_open_circuit_only(
    make: Make, store: MemoryStore
) -> None:
    breaker = CircuitBreaker("pncp", state=store, on_refusal="stale")
    driver = make("1/hour", max_wait=0, breaker=breaker)
    driver.call(lambda: "made")
    with pytest.raises(LimitReachedError):
        driver.call(lambda: "made")
    breaker.sync.force("open", "maintenance")
    assert driver.call(lambda: "made") == "stale"
    own = Upstream("own", "1/s", breaker=breaker, state=store, on_refusal="fresh")
    assert own.sync.call(lambda: "made") == "fresh"


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (ValueError("x"), "on_refusal must be a value or a function of the refusal, got ValueError"),
        (RefusedError, "to raise another error, pass a function that raises it"),
        (lambda: "cached", "on_refusal must be a function of one argument, the refusal, got <function"),
        (lambda one, two: one, "on_refusal must be a function of one argument, the refusal, got <function"),
    ],
)
def test_on_refusal__invalid__raises(option: Any, message: str) -> None:
    for make in (
        lambda: Upstream("pncp", "1/s", state="memory://", on_refusal=option),
        lambda: CircuitBreaker("pncp", state="memory://", on_refusal=option),
    ):
        with pytest.raises(TypeError) as raised:
            make()
        assert message in str(raised.value)


def test_on_refusal__built_in_without_a_signature__is_accepted() -> None:
    upstream = Upstream("pncp", "1/hour", max_wait=0, state="memory://", on_refusal=type)
    assert [upstream.sync.call(lambda: "made") for _ in range(2)] == ["made", LimitReachedError]


def busy_upstream(answer: Any) -> Upstream:
    """Make an upstream whose limit is used up."""
    upstream = Upstream(
        "pncp", "1/hour", max_wait=0, retry=Retry(retries=0), state=MemoryStore(), on_refusal=answer
    )
    upstream.sync.call(lambda: "made")
    return upstream


def via_httpx2(upstream: Upstream, url: str) -> Any:
    with httpx2.Client(transport=upstream.sync.transport()) as client:
        return client.get(url)


def via_httpx(upstream: Upstream, url: str) -> Any:
    with httpx.Client(transport=upstream.sync.transport(client="httpx")) as client:
        return client.get(url)


def via_async_httpx2(upstream: Upstream, url: str) -> Any:
    async def main() -> Any:
        async with httpx2.AsyncClient(transport=upstream.transport()) as client:
            return await client.get(url)

    return asyncio.run(main())


def via_requests(upstream: Upstream, url: str) -> Any:
    with requests.Session() as session:
        session.mount("http://", upstream.sync.adapter())
        return session.get(url)


def requests_response() -> requests.Response:
    response = requests.Response()
    response.status_code = 203
    return response


CLIENTS = [
    pytest.param(via_httpx2, lambda: httpx2.Response(203), id="httpx2"),
    pytest.param(via_httpx, lambda: httpx.Response(203), id="httpx"),
    pytest.param(via_async_httpx2, lambda: httpx2.Response(203), id="httpx2-async"),
    pytest.param(via_requests, requests_response, id="requests"),
]


@pytest.mark.parametrize(("get", "make_response"), CLIENTS)
def test_transport__on_refusal_returns_a_response__is_what_the_client_gets(
    get: Callable[[Upstream, str], Any], make_response: Callable[[], Any], simulated: SimulatedUpstream
) -> None:
    response = get(busy_upstream(lambda refusal: make_response()), f"{simulated.url}/pages/1")
    assert response.status_code == 203
    report = getattr(response, "comporta", None) or response.extensions["comporta"]
    assert report.outcome == "limited"


@pytest.mark.parametrize(("get", "make_response"), CLIENTS)
@pytest.mark.parametrize("answer", [None, "cached", lambda refusal: {"page": 1}])
def test_transport__on_refusal_returns_something_else__raises_the_refusal(
    get: Callable[[Upstream, str], Any],
    make_response: Callable[[], Any],
    answer: Any,
    simulated: SimulatedUpstream,
) -> None:
    with pytest.raises(LimitReachedError):
        get(busy_upstream(answer), f"{simulated.url}/pages/1")


def test_on_refusal__not_given__raises(make: Make) -> None:
    driver = make()
    assert driver.upstream.breaker is not None
    driver.upstream.breaker.sync.force("open", "maintenance")
    with pytest.raises(CircuitOpenError):
        driver.call(lambda: "made")
