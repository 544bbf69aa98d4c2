"""An upstream as strangers run them: what it enforces, and how it can be made to answer."""

from __future__ import annotations

import json
import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.error import HTTPError

import pytest

from comporta.testing import SimulatedUpstream


@pytest.fixture
def upstream() -> Iterator[SimulatedUpstream]:
    with SimulatedUpstream() as started:
        yield started


def asked(upstream: SimulatedUpstream, data: bytes | None = None) -> tuple[int, dict[str, str]]:
    """Return status and headers of one request on a connection of its own."""
    try:
        with urllib.request.urlopen(upstream.url, data, timeout=5) as response:  # noqa: S310 - loopback
            assert json.loads(response.read()) == {"status": response.status}
            return response.status, {name.lower(): value for name, value in response.headers.items()}
    except HTTPError as error:
        with error:
            return error.code, {name.lower(): value for name, value in error.headers.items()}


def test_request__no_rate__is_always_answered(upstream: SimulatedUpstream) -> None:
    assert [asked(upstream)[0] for _ in range(5)] == [200] * 5
    assert (upstream.accepted, upstream.refused, upstream.most, upstream.present) == (5, 0, 1, 0)


def test_request__more_than_the_burst__is_refused_with_the_time_to_come_back() -> None:
    with SimulatedUpstream(rate=0.1, burst=2) as upstream:
        assert [asked(upstream)[0] for _ in range(2)] == [200, 200]
        status, headers = asked(upstream)
        assert status == 429
        assert 1 <= int(headers["retry-after"]) <= 10
        upstream.retry_after = False
        status, headers = asked(upstream)
        assert status == 429
        assert "retry-after" not in headers
        assert (upstream.accepted, upstream.refused) == (2, 2)


def test_bucket__refilled__answers_again() -> None:
    with SimulatedUpstream(rate=1000, burst=1) as upstream:
        statuses = [asked(upstream)[0] for _ in range(50)]
        assert statuses.count(200) == upstream.accepted > 1


@pytest.mark.parametrize(("status", "told"), [(500, None), (503, "1")])
def test_status__set__is_how_it_answers_from_then_on(
    upstream: SimulatedUpstream, status: int, told: str | None
) -> None:
    upstream.status = status
    answers = [asked(upstream) for _ in range(2)]
    assert [(code, headers.get("retry-after")) for code, headers in answers] == [(status, told)] * 2


def test_upcoming__statuses__are_used_up_first(upstream: SimulatedUpstream) -> None:
    upstream.upcoming = [500, 404]
    assert [asked(upstream)[0] for _ in range(3)] == [500, 404, 200]


def test_headers__set__go_with_every_answer_and_win(upstream: SimulatedUpstream) -> None:
    upstream.status = 503
    upstream.headers = {"Retry-After": "77", "RateLimit": '"day";r=0;t=5'}
    _, headers = asked(upstream)
    assert (headers["retry-after"], headers["ratelimit"]) == ("77", '"day";r=0;t=5')


@pytest.mark.parametrize(
    "body",
    [
        b"Content-Length: 4\r\n\r\nbody",
        b"Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n2\r\n\r\n\r\n0\r\n\r\n",
    ],
)
def test_body__of_either_form__is_read_and_the_connection_goes_on(
    upstream: SimulatedUpstream, body: bytes
) -> None:
    request = b"POST / HTTP/1.1\r\nHost: here\r\n" + body
    with socket.create_connection(("127.0.0.1", upstream.port), timeout=5) as connection:
        answers = connection.makefile("rb")
        for _ in range(2):
            connection.sendall(request)
            assert answers.readline().startswith(b"HTTP/1.1 200")
            while answers.readline() != b"\r\n":
                pass
            assert answers.read(15) == b'{"status": 200}'
        answers.close()


def test_delay__several_at_once__are_counted(upstream: SimulatedUpstream) -> None:
    upstream.delay = None
    with ExitStack() as ends:
        for _ in range(4):
            connection = socket.create_connection(("127.0.0.1", upstream.port), timeout=5)
            ends.enter_context(connection).sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
        while upstream.present < 4:
            threading.Event().wait(0.001)
    assert upstream.most == 4


def test_delay__some__comes_before_the_answer(upstream: SimulatedUpstream) -> None:
    upstream.delay = 0.001
    assert asked(upstream)[0] == 200


def test_close__somebody_still_waits_for_an_answer__ends_all_the_same() -> None:
    upstream = SimulatedUpstream().start()
    upstream.delay = None
    with socket.create_connection(("127.0.0.1", upstream.port), timeout=5) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
        while not upstream.present:
            threading.Event().wait(0.001)
        upstream.close()
        upstream.close()
        assert connection.recv(100) == b""


def test_never_started__leaves_nothing_behind() -> None:
    SimulatedUpstream().close()
