"""What the breaker, hooks and forked processes make of a body that is still open."""

from __future__ import annotations

import gzip
import io
import os
import shutil
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
import requests
from tests.processes.fleet import new_state_name, remove_shared_state, shared_url
from tests.support import wait_until
from tests.upstream.body_server import WHOLE, BodyServer

from comporta import BreakerConfig, Retry, RetryAttempt, Upstream, last_call
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock
from comporta.testing.http_server import HttpRequest, HttpServer
from comporta.upstream import body


@pytest.fixture
def server() -> Iterator[BodyServer]:
    with BodyServer() as started:
        yield started


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def make_upstream(clock: ManualClock, **options: Any) -> Upstream:
    options.setdefault("breaker", BreakerConfig(threshold=1, cooldown_seconds=10))
    options.setdefault("retry", False)
    return Upstream("bodies", "1000/s", state=MemoryStore(clock), **options)


def open_circuit(upstream: Upstream, clock: ManualClock) -> None:
    assert upstream.breaker is not None
    upstream.breaker.sync.record_failure("broken")
    clock.advance(11)
    assert upstream.breaker.phase == "half_open"


def test_stream__no_timeout_and_half_open__closes_the_circuit_at_its_headers(
    server: BodyServer, clock: ManualClock
) -> None:
    upstream = make_upstream(clock)
    assert upstream.breaker is not None
    open_circuit(upstream, clock)
    transport = upstream.options(timeout=None).sync.transport()
    with httpx2.Client(transport=transport, trust_env=False) as client, client.stream("GET", server.url):
        assert upstream.breaker.phase == "closed"


def test_stream__no_timeout_and_body_breaks_off__counts_as_a_failure(
    server: BodyServer, clock: ManualClock
) -> None:
    upstream = make_upstream(clock)
    assert upstream.breaker is not None
    server.bodies = ["reset"]
    transport = upstream.options(timeout=None).sync.transport()
    with httpx2.Client(transport=transport, trust_env=False) as client, pytest.raises(httpx2.TransportError):
        client.get(server.url)
    assert upstream.breaker.phase == "open"


def test_stream__slow_caller__is_not_a_slow_call(
    server: BodyServer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body, "RUNTIME", SimpleNamespace(monotonic=lambda: clock.now_ns() / 1e9))
    rule = BreakerConfig(threshold=None, slow_seconds=5, slow_ratio=0.5, minimum_calls=2)
    upstream = make_upstream(clock, breaker=rule)
    assert upstream.breaker is not None
    with httpx2.Client(transport=upstream.sync.transport(), trust_env=False) as client:
        for _ in range(2):
            with client.stream("GET", server.url) as response:
                clock.advance(10)
                assert response.read() == WHOLE
    state = upstream.breaker.sync.get_state()
    assert state.window is not None
    assert (state.window.calls, state.window.slow) == (2, 0)


def test_retry_if__no_retries_left__the_end_of_the_body_counts(
    server: BodyServer, clock: ManualClock
) -> None:
    retry = Retry(retries=0, retry_if=lambda response: response.status_code == 200, budget=None)
    upstream = make_upstream(clock, retry=retry)
    assert upstream.breaker is not None
    open_circuit(upstream, clock)
    server.bodies = ["reset"]
    transport = upstream.sync.transport()
    with httpx2.Client(transport=transport, trust_env=False) as client, pytest.raises(httpx2.TransportError):
        client.get(server.url)
    assert upstream.breaker.phase == "open"


def test_hook__body_breaks_off__gets_the_failure_when_the_attempt_ends(
    server: BodyServer, clock: ManualClock
) -> None:
    attempts: list[RetryAttempt] = []
    upstream = make_upstream(clock, retry=Retry(retries=0, after_attempt=attempts.append))
    server.bodies = ["whole", "reset"]
    with httpx2.Client(transport=upstream.sync.transport(), trust_env=False) as client:
        assert client.get(server.url).content == WHOLE
        with pytest.raises(httpx2.TransportError):
            client.get(server.url)
    assert [attempt.outcome for attempt in attempts] == ["ok", "failure"]
    assert isinstance(attempts[1].error, httpx2.TransportError)
    report = last_call()
    assert report is not None
    assert report.outcome == "failure"


def test_retry_if__buffered_body__can_read_it(server: BodyServer, clock: ManualClock) -> None:
    seen: list[bytes] = []

    def note(response: httpx2.Response) -> bool:
        seen.append(response.content)
        return False

    upstream = make_upstream(clock, retry=Retry(retry_if=note))
    transport = upstream.sync.transport(buffer_body=len(WHOLE))
    with httpx2.Client(transport=transport, trust_env=False) as client:
        assert client.get(server.url).content == WHOLE
        with client.stream("GET", server.url) as response:
            assert b"".join(response.iter_raw()) == WHOLE
    assert seen == [WHOLE, WHOLE]


def test_open_body__closed_by_a_forked_child__stays_with_the_parent(server: BodyServer) -> None:
    name = new_state_name()
    upstream = Upstream("forked", "1000/s", max_concurrent=1, max_wait=0, state=shared_url(name))
    assert upstream.permits is not None
    with requests.Session() as session:
        session.trust_env = False
        session.mount("http://", upstream.sync.adapter())
        response = session.get(server.url, stream=True)
        assert upstream.permits.sync.in_use() == 1
        child = os.fork()
        if child == 0:
            response.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert upstream.permits.sync.in_use() == 1
        assert response.content == WHOLE
        wait_until(lambda: upstream.permits is not None and upstream.permits.sync.in_use() == 0)
    upstream.sync.close()
    remove_shared_state(name)


def test_requests__decode_content_set__decompresses_what_is_copied(clock: ManualClock) -> None:
    """``shutil.copyfileobj(response.raw, file)`` is how programs download files."""

    class GzipServer(HttpServer):
        async def _respond(self, request: HttpRequest) -> bytes:
            content = gzip.compress(WHOLE)
            head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(content)}\r\n\r\n"
            return head.encode() + content

    upstream = make_upstream(clock)
    with GzipServer() as server, requests.Session() as session:
        session.trust_env = False
        session.mount("http://", upstream.sync.adapter())
        response = session.get(server.url, stream=True)
        response.raw.decode_content = True
        assert response.raw.decode_content
        copied = io.BytesIO()
        shutil.copyfileobj(response.raw, copied)
        assert copied.getvalue() == WHOLE
        assert session.get(server.url, stream=True).raw.data == gzip.compress(WHOLE)
