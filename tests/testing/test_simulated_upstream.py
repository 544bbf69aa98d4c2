"""The simulated upstream: its rate limit, and the switches for its responses."""

from __future__ import annotations

import gc
import json
import socket
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.error import HTTPError

import pytest
from tests.support import wait_until

from comporta.testing import SimulatedUpstream


@pytest.fixture
def upstream() -> Iterator[SimulatedUpstream]:
    with SimulatedUpstream() as started:
        yield started


def fetch(upstream: SimulatedUpstream, data: bytes | None = None) -> tuple[int, dict[str, str]]:
    """Send one request on a new connection and return the status and headers of the response."""
    try:
        with urllib.request.urlopen(upstream.url, data, timeout=5) as response:  # noqa: S310 - loopback
            assert json.loads(response.read()) == {"status": response.status}
            return response.status, {name.lower(): value for name, value in response.headers.items()}
    except HTTPError as error:
        with error:
            return error.code, {name.lower(): value for name, value in error.headers.items()}


def test_request__no_rate__is_always_accepted(upstream: SimulatedUpstream) -> None:
    assert [fetch(upstream)[0] for _ in range(5)] == [200] * 5
    assert (upstream.accepted, upstream.refused, upstream.max_in_flight, upstream.in_flight) == (5, 0, 1, 0)


def test_request__more_than_the_burst__is_refused_with_retry_after() -> None:
    with SimulatedUpstream(rate=0.1, burst=2) as upstream:
        assert [fetch(upstream)[0] for _ in range(2)] == [200, 200]
        status, headers = fetch(upstream)
        assert status == 429
        assert 1 <= int(headers["retry-after"]) <= 10
        upstream.retry_after = False
        status, headers = fetch(upstream)
        assert status == 429
        assert "retry-after" not in headers
        assert (upstream.accepted, upstream.refused) == (2, 2)


def test_quota__refilled__accepts_again() -> None:
    with SimulatedUpstream(rate=1000, burst=1) as upstream:
        statuses = [fetch(upstream)[0] for _ in range(50)]
        assert statuses.count(200) == upstream.accepted > 1


@pytest.mark.parametrize(("status", "retry_after"), [(500, None), (503, "1")])
def test_status__set__applies_to_later_responses(
    upstream: SimulatedUpstream, status: int, retry_after: str | None
) -> None:
    upstream.status = status
    responses = [fetch(upstream) for _ in range(2)]
    assert [(code, headers.get("retry-after")) for code, headers in responses] == [(status, retry_after)] * 2


def test_next_statuses__set__are_used_first(upstream: SimulatedUpstream) -> None:
    upstream.next_statuses = [500, 404]
    assert [fetch(upstream)[0] for _ in range(3)] == [500, 404, 200]


def test_headers__set__are_sent_and_take_precedence(upstream: SimulatedUpstream) -> None:
    upstream.status = 503
    upstream.headers = {"Retry-After": "77", "RateLimit": '"day";r=0;t=5'}
    _, headers = fetch(upstream)
    assert (headers["retry-after"], headers["ratelimit"]) == ("77", '"day";r=0;t=5')


@pytest.mark.parametrize(
    "body",
    [
        b"Content-Length: 4\r\n\r\nbody",
        b"Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n2\r\n\r\n\r\n0\r\n\r\n",
    ],
)
def test_body__fixed_or_chunked__is_read_and_the_connection_stays_open(
    upstream: SimulatedUpstream, body: bytes
) -> None:
    request = b"POST / HTTP/1.1\r\nHost: here\r\n" + body
    with socket.create_connection(("127.0.0.1", upstream.port), timeout=5) as connection:
        responses = connection.makefile("rb")
        for _ in range(2):
            connection.sendall(request)
            assert responses.readline().startswith(b"HTTP/1.1 200")
            while responses.readline() != b"\r\n":
                pass
            assert responses.read(15) == b'{"status": 200}'
        responses.close()


def test_delay__concurrent_requests__are_counted(upstream: SimulatedUpstream) -> None:
    upstream.delay = None
    with ExitStack() as ends:
        for _ in range(4):
            connection = socket.create_connection(("127.0.0.1", upstream.port), timeout=5)
            ends.enter_context(connection).sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
        wait_until(lambda: upstream.in_flight == 4)
    assert upstream.max_in_flight == 4


def test_delay__set__precedes_the_response(upstream: SimulatedUpstream) -> None:
    upstream.delay = 0.001
    assert fetch(upstream)[0] == 200


def test_close__request_in_progress__ends_it() -> None:
    upstream = SimulatedUpstream().start()
    upstream.delay = None
    with socket.create_connection(("127.0.0.1", upstream.port), timeout=5) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
        wait_until(lambda: upstream.in_flight)
        upstream.close()
        upstream.close()
        assert connection.recv(100) == b""


def test_close__never_started__does_nothing() -> None:
    SimulatedUpstream().close()


def test_close__clients_have_just_connected__leaves_no_socket_open(monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda raised: warnings.append(str(raised.exc_value)))
    for _ in range(20):
        with SimulatedUpstream() as upstream:
            socket.create_connection(("127.0.0.1", upstream.port)).close()
    gc.collect()
    assert warnings == []
