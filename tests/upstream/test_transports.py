"""All HTTP clients against an upstream that limits, refuses and fails."""

from __future__ import annotations

import asyncio
import importlib
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from email.utils import formatdate
from typing import Any

import pytest
import requests
from tests.upstream.clients import KINDS, Client

from comporta import BreakerConfig, CircuitOpenError, LimitReachedError, Retry, Upstream, last_call
from comporta.testing import SimulatedUpstream
from comporta.upstream.requests_adapter import UpstreamAdapter

MakeClient = Callable[..., tuple[Client, Upstream]]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    param: str = request.param
    return param


@pytest.fixture
def make_client(kind: str) -> Iterator[MakeClient]:
    """Make a client of an upstream that retries without delay."""
    with ExitStack() as ends:

        def make(
            limit: str = "10000/s", *, connections: int = 10, patience: float = 5.0, **options: Any
        ) -> tuple[Client, Upstream]:
            quick = Retry(base=0.0, jitter=(0, 0), state="memory://")
            given = {"retry": quick, "state": f"memory://{uuid.uuid4().hex}", **options}
            upstream = Upstream("simulated", limit, **given)
            client = Client(kind, upstream, connections=connections, timeout=patience)
            return ends.enter_context(client), upstream

        yield make


def test_request__succeeds__is_sent_once_and_reported(
    make_client: MakeClient, simulated: SimulatedUpstream
) -> None:
    client, _ = make_client()
    answer = client.send(simulated.url)
    assert (answer.status, answer.text) == (200, '{"status": 200}')
    assert (answer.report.source, answer.report.outcome, answer.report.attempts) == ("simulated", "ok", 1)
    assert simulated.accepted == 1


def test_request__limit_used_up__waits_or_raises_with_retry_after(
    make_client: MakeClient, simulated: SimulatedUpstream
) -> None:
    client, upstream = make_client("5/s burst 1")
    reports = [client.send(simulated.url).report for _ in range(3)]
    assert any(report.waited > 0 for report in reports)
    impatient, _ = make_client("1/hour", max_wait=0)
    impatient.send(simulated.url)
    with pytest.raises(LimitReachedError, match="had no capacity") as raised:
        impatient.send(simulated.url)
    assert 3500 < raised.value.retry_after <= 3600
    assert simulated.accepted == 4
    assert upstream.sync.get_state().breaker.phase == "closed"  # type: ignore[union-attr]


@pytest.mark.unmeasured
@pytest.mark.parametrize("as_date", [False, True])
@pytest.mark.parametrize("status", [429, 503])
def test_request__retry_after__pauses_the_upstream(
    make_client: MakeClient, simulated: SimulatedUpstream, status: int, as_date: bool
) -> None:
    client, upstream = make_client()
    retry_after = formatdate(time.time() + 100, usegmt=True) if as_date else "100"
    simulated.headers, simulated.status = {"Retry-After": retry_after}, status
    answer = client.send(simulated.url)
    assert (answer.status, answer.report.attempts) == (status, 1)
    assert 80 < upstream.sync.get_state().limiter.paused <= 100
    with pytest.raises(LimitReachedError, match="paused by the upstream") as raised:
        client.send(simulated.url)
    assert 80 < raised.value.retry_after <= 100
    assert simulated.accepted == 1


def test_request__refused_for_one_second__waits_and_succeeds(
    make_client: MakeClient, simulated: SimulatedUpstream
) -> None:
    client, upstream = make_client()
    simulated.headers, simulated.next_statuses = {"Retry-After": "1"}, [429]
    answer = client.send(simulated.url)
    assert (answer.status, answer.report.attempts) == (200, 2)
    assert answer.report.took >= 0.95
    state = upstream.sync.get_state()
    assert state.limit < state.original


def test_request__ratelimit_used_up__pauses_the_upstream(
    make_client: MakeClient, simulated: SimulatedUpstream
) -> None:
    client, upstream = make_client()
    simulated.headers = {"RateLimit": '"day";r=0;t=50'}
    assert client.send(simulated.url).status == 200
    assert 40 < upstream.sync.get_state().limiter.paused <= 50


@pytest.mark.unmeasured
def test_request__hundred_refusals__never_open_the_breaker(make_client: MakeClient) -> None:
    with SimulatedUpstream(rate=0.0001, burst=1, retry_after=False) as simulated:
        client, upstream = make_client(breaker=BreakerConfig(threshold=1), retry=False)
        statuses = [client.send(simulated.url).status for _ in range(101)]
        assert statuses == [200] + [429] * 100
        state = upstream.sync.get_state()
        assert state.breaker is not None
        assert (state.breaker.phase, state.breaker.failures) == ("closed", 0)


def test_request__upstream_fails__opens_the_breaker(
    make_client: MakeClient, simulated: SimulatedUpstream
) -> None:
    client, _ = make_client(breaker=BreakerConfig(threshold=3), retry=False)
    simulated.status = 500
    for _ in range(3):
        assert client.send(simulated.url).status == 500
    with pytest.raises(CircuitOpenError, match="500"):
        client.send(simulated.url)
    assert simulated.accepted == 3


def test_request__upstream_does_not_answer__counts_as_a_failure(
    make_client: MakeClient, simulated: SimulatedUpstream
) -> None:
    client, upstream = make_client(patience=0.05, retry=False)
    simulated.delay = None
    with pytest.raises(Exception, match=r"(?i)timed out|^$"):
        client.send(simulated.url)
    state = upstream.sync.get_state()
    assert state.breaker is not None
    assert state.breaker.failures == 1


def test_request__connection_refused__is_retried_and_counts_as_a_failure(make_client: MakeClient) -> None:
    closed = SimulatedUpstream()
    client, upstream = make_client()
    with pytest.raises(Exception, match=r"(?i)refused|connect"):
        client.send(closed.url)
    state = upstream.sync.get_state()
    assert state.breaker is not None
    assert (state.breaker.failures, state.retries_last_minute) == (4, 3)


def test_request__discarded_attempts__free_their_connection(
    make_client: MakeClient, simulated: SimulatedUpstream
) -> None:
    client, _ = make_client(connections=1, retry=Retry(5, 0.0, jitter=(0, 0), state="memory://"))
    simulated.next_statuses = [500, 502, 408, 504]
    answer = client.send(simulated.url)
    assert (answer.status, answer.report.attempts) == (200, 5)


@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_request__not_idempotent__is_not_retried(
    make_client: MakeClient, simulated: SimulatedUpstream, method: str
) -> None:
    client, _ = make_client()
    simulated.next_statuses = [500]
    assert client.send(simulated.url, method, content=b"body").status == 500
    assert simulated.accepted == 1


def test_request__not_idempotent_with_repeat__is_retried(
    make_client: MakeClient, simulated: SimulatedUpstream, kind: str
) -> None:
    simulated.next_statuses = [500]
    client, upstream = make_client()
    if kind == "requests":
        with requests.Session() as session:
            session.mount("http://", upstream.sync.adapter(repeat=True))
            assert session.post(simulated.url, data=b"body", timeout=5).status_code == 200
    elif kind == "aiohttp-awaiting":
        always: Any = {"middlewares": [upstream.middleware(repeat=True)]}
        assert client.send(simulated.url, "POST", content=b"body", **always).status == 200
        simulated.next_statuses = [500]
        never: Any = {"middlewares": [upstream.middleware(repeat=False)]}
        assert client.send(simulated.url, "GET", **never).status == 500
    else:
        extensions = {"comporta_repeat": True}
        assert client.send(simulated.url, "POST", content=b"body", extensions=extensions).status == 200
        simulated.next_statuses = [500]
        extensions = {"comporta_repeat": False}
        assert client.send(simulated.url, "GET", extensions=extensions).status == 500


@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_request__not_idempotent_and_refused__is_sent_again(
    make_client: MakeClient, simulated: SimulatedUpstream, method: str
) -> None:
    client, _ = make_client()
    simulated.headers, simulated.next_statuses = {"Retry-After": "0"}, [429, 500]
    answer = client.send(simulated.url, method, content=b"body")
    assert (answer.status, answer.report.attempts) == (500, 2)


def test_request__refused_and_body_is_a_stream__is_not_sent_again(
    make_client: MakeClient, simulated: SimulatedUpstream
) -> None:
    client, _ = make_client()
    simulated.next_statuses = [429]
    assert client.send(simulated.url, "POST", stream=True).status == 429


def test_request__post_with_idempotency_key__is_retried(
    make_client: MakeClient, simulated: SimulatedUpstream
) -> None:
    client, _ = make_client()
    simulated.next_statuses = [500]
    answer = client.send(simulated.url, "POST", content=b"body", headers={"idempotency-key": "1"})
    assert (answer.status, answer.report.attempts) == (200, 2)


def test_request__body_is_a_stream__is_not_retried(
    make_client: MakeClient, simulated: SimulatedUpstream
) -> None:
    client, _ = make_client()
    simulated.next_statuses = [500]
    assert client.send(simulated.url, "PUT", stream=True).status == 500
    assert simulated.accepted == 1
    simulated.next_statuses = [500]
    assert client.send(simulated.url, "PUT", content=b"kept").status == 200


@pytest.mark.parametrize("package", ["httpx2", "httpx"])
def test_transport__client_of_the_other_kind__says_which_transport_to_use(package: str) -> None:
    client: Any = importlib.import_module(package)
    upstream: Any = Upstream("kinds", "100/s", state="memory://kinds")

    async def main(transport: Any) -> None:
        async with client.AsyncClient(transport=transport):
            pass

    with pytest.raises(TypeError, match=rf"is for {package}\.AsyncClient: use upstream\.sync\.transport"):
        client.Client(transport=upstream.transport(client=package)).get("http://upstream.test")
    with pytest.raises(TypeError, match=rf"is for {package}\.Client: use upstream\.transport"):
        asyncio.run(main(upstream.sync.transport(client=package)))


@pytest.mark.parametrize(("package", "other"), [("httpx2", "httpx"), ("httpx", "httpx2")])
def test_transport__client_of_the_other_package__says_which_transport_to_use(
    package: str, other: str
) -> None:
    client: Any = importlib.import_module(package)
    upstream: Any = Upstream("packages", "100/s", state="memory://packages")
    transport = upstream.sync.transport(client=other)
    with (
        client.Client(transport=transport) as wrong,
        pytest.raises(TypeError, match=rf"is for {other}, got a request of {package}: use transport\("),
    ):
        wrong.get("http://upstream.test")


def test_transport__no_inner_transport__creates_one(simulated: SimulatedUpstream) -> None:
    import httpx2  # noqa: PLC0415 - an extra

    upstream = Upstream("own", "100/s", state="memory://own")
    with httpx2.Client(transport=upstream.sync.transport()) as client:
        assert client.get(simulated.url).extensions["comporta"] is last_call()

    async def main() -> None:
        async with httpx2.AsyncClient(transport=upstream.transport()) as client:
            assert (await client.get(simulated.url)).extensions["comporta"] is last_call()
        transport = upstream.transport()
        await transport.aclose()

    import asyncio  # noqa: PLC0415 - the one test here that awaits by hand

    asyncio.run(main())
    upstream.sync.transport().close()
    assert isinstance(upstream.sync.adapter(), UpstreamAdapter)


@pytest.mark.parametrize("package", ["httpx2", "httpx"])
def test_guard__error_with_a_response__is_classified_by_its_status(
    package: str, simulated: SimulatedUpstream
) -> None:
    module: Any = __import__(package)
    quick = Retry(base=0.0, jitter=(0, 0), state="memory://")
    upstream = Upstream("guarded", "1000/s", retry=quick, state=f"memory://{uuid.uuid4().hex}")

    @upstream.guard
    def fetch() -> int:
        response = module.get(simulated.url, trust_env=False)
        response.raise_for_status()
        status: int = response.status_code
        return status

    simulated.next_statuses = [429, 500]
    assert fetch() == 200
    simulated.next_statuses = [404]
    with pytest.raises(module.HTTPStatusError):
        fetch()
    state = upstream.sync.get_state()
    assert state.breaker is not None
    assert state.breaker.failures == 0


@pytest.mark.parametrize("package", ["httpx2", "httpx"])
def test_request__cannot_be_sent__counts_as_neither(simulated: SimulatedUpstream, package: Any) -> None:
    client: Any = importlib.import_module(package)
    breaker = BreakerConfig(threshold=1)
    upstream = Upstream("simulated", "1000/s", breaker=breaker, state=f"memory://{uuid.uuid4().hex}")
    with client.Client(transport=upstream.sync.transport(client=package)) as opened:
        with pytest.raises(client.LocalProtocolError):
            opened.get(simulated.url, headers={"X-One": "a\nb"})
        assert opened.get(simulated.url).status_code == 200
