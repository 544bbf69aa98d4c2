"""Refusals and time-outs that transports raise are exceptions of their client too."""

from __future__ import annotations

import pickle
import subprocess
import sys
import uuid
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import aiohttp
import pytest
import requests
from tests.upstream.clients import KINDS, Client

from comporta import BreakerConfig, CircuitOpenError, LimitReachedError, Retry, Upstream
from comporta.testing import SimulatedUpstream
from comporta.upstream.client_errors import client_error


@pytest.fixture(params=KINDS)
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    """Give a client whose next request is refused by an open circuit."""
    upstream = Upstream(
        "refusing", "1000/s", breaker=BreakerConfig(threshold=1), state=f"memory://{uuid.uuid4().hex}"
    )
    assert upstream.breaker is not None
    upstream.breaker.sync.record_failure("down")
    with Client(request.param, upstream) as client:
        yield client


def refusal(client: Client) -> CircuitOpenError:
    with pytest.raises(client.error) as raised:
        client.send("http://127.0.0.1:9/page", "POST", content=b"body")
    error = raised.value
    assert isinstance(error, CircuitOpenError)
    return error


def test_refusal__by_the_breaker__is_an_error_of_the_client_with_its_request(client: Client) -> None:
    error: Any = refusal(client)
    assert (error.name, error.reason) == ("refusing", "down")
    assert error.retry_after > 0
    assert "the circuit is open" in str(error)
    if client.package != "aiohttp":
        assert str(error.request.url) == "http://127.0.0.1:9/page"


def test_refusal__by_the_limit__is_an_error_of_the_client(simulated: SimulatedUpstream) -> None:
    for kind in KINDS:
        upstream = Upstream("limited", "1/hour", max_wait=0, state=f"memory://{uuid.uuid4().hex}")
        with Client(kind, upstream) as client:
            client.send(simulated.url)
            with pytest.raises(client.error) as raised:
                client.send(simulated.url)
        assert isinstance(raised.value, LimitReachedError)
        assert raised.value.retry_after > 3000


def test_refusal__pickled__is_the_same_in_a_process_that_has_not_made_the_class(client: Client) -> None:
    error = refusal(client)
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    assert type(copy) is type(error)
    assert (copy.args, copy.retry_after, str(copy)) == (error.args, error.retry_after, str(error))
    base = client.error
    program = (
        "import pickle, sys, comporta\n"
        f"from {base.__module__} import {base.__name__}\n"
        "error = pickle.load(sys.stdin.buffer)\n"
        f"assert isinstance(error, {base.__name__})\n"
        "assert isinstance(error, comporta.CircuitOpenError)\n"
        "print(error.retry_after)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], input=pickle.dumps(error), capture_output=True, check=True
    )
    assert float(shown.stdout) == error.retry_after


def test_refusal__pickled__leaves_the_request_behind() -> None:
    request = requests.Request("GET", "http://127.0.0.1/", hooks={"response": lambda *_, **__: None})
    error = client_error(
        LimitReachedError("full", "pncp", 2.5),
        requests.RequestException,
        request=request.prepare(),
        response=None,
    )
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    assert (copy.retry_after, copy.request, copy.response) == (2.5, None, None)


def test_refusal__inside_another_upstream_and_breaker__is_not_counted_or_retried(client: Client) -> None:
    quick = Retry(base=0.0, jitter=(0, 0), state="memory://")
    outer = Upstream("outer", "1000/s", retry=quick, state=f"memory://{uuid.uuid4().hex}")
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1
        raise refusal(client)

    with pytest.raises(client.error):
        outer.sync.call(call)
    state = outer.sync.get_state()
    assert state.breaker is not None
    assert (calls, state.breaker.failures) == (1, 0)


@pytest.mark.parametrize("package", ["httpx2", "httpx"])
def test_refusal__of_an_inner_transport__stays_as_it_is(package: Any) -> None:
    module: Any = import_module(package)
    state = f"memory://{uuid.uuid4().hex}"
    inner = Upstream("inner", "1/hour", max_wait=0, state=state)
    outer = Upstream("outer", "1000/s", state=state)
    sends = inner.sync.transport(module.MockTransport(lambda _: module.Response(200)), client=package)
    client = module.Client(transport=outer.sync.transport(sends, client=package))
    assert client.get("http://127.0.0.1/").status_code == 200
    with pytest.raises(module.TransportError) as raised:
        client.get("http://127.0.0.1/")
    assert raised.value.name == "inner"
    pickle.loads(pickle.dumps(raised.value))  # noqa: S301 - our own


def test_timeout__of_an_awaited_attempt__is_the_clients_and_a_timeout_error(
    simulated: SimulatedUpstream,
) -> None:
    simulated.delay = None
    upstream = Upstream("late", "1000/s", timeout=0.1, retry=False, state=f"memory://{uuid.uuid4().hex}")
    expected: dict[str, Any] = {
        "httpx2": import_module("httpx2").ReadTimeout,
        "httpx": import_module("httpx").ReadTimeout,
        "aiohttp": aiohttp.ServerTimeoutError,
    }
    for package, kind in expected.items():
        with Client(f"{package}-awaiting", upstream) as client, pytest.raises(kind) as raised:
            client.send(simulated.url)
        assert isinstance(raised.value, TimeoutError)
