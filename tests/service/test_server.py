"""Serving over real connections: slow clients, several workers, and shutdown."""

from __future__ import annotations

import asyncio
import shutil
import socket
import threading
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
from fastapi.responses import Response, StreamingResponse
from tests.service.harness import (
    CLIENT,
    PATIENCE_SECONDS,
    async_test,
    get_health,
    serve_on_thread,
    serve_process,
    service_config,
    wait_until,
)
from tests.support import assert_within

from comporta.database.urls import open_database
from comporta.service.app import create_app
from comporta.service.server import JOINED_BYTES_MAX, DeadlineProtocol, JoinedWrites
from comporta.stores.failover.store import FailoverStore
from comporta.stores.failover.worker_registry import ListWorkers
from comporta.stores.registry import open_store
from comporta.stores.shared.directory import directory_path
from comporta.testing import Server

INCOMPLETE_REQUESTS = [
    b"",
    b"GET /v1/health HTTP/1.1\r\nHost: service\r\n",
    b"POST /v1/health HTTP/1.1\r\nHost: service\r\nContent-Length: 100\r\n\r\nhalf",
    b"GET /livez HTTP/1.1\r\nHost: service\r\n\r\nGET /livez HTTP/1.1\r\nHo",
]


@pytest.fixture
def state() -> Iterator[str]:
    name = f"test-{uuid.uuid4().hex}"
    yield f"shared://{name}"
    shutil.rmtree(directory_path(name), ignore_errors=True)


def connect(address: str) -> socket.socket:
    parts = urlsplit(address)
    assert parts.hostname is not None
    assert parts.port is not None
    return socket.create_connection((parts.hostname, parts.port), PATIENCE_SECONDS)


def seconds_until_closed(client: socket.socket, began: float) -> float:
    """Return how many seconds after ``began`` the server closed a connection."""
    client.settimeout(PATIENCE_SECONDS)
    try:
        while client.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return time.monotonic() - began


def test_request__half_sent_by_two_hundred_clients__is_closed_and_health_answers(tmp_path: Path) -> None:
    app = create_app(service_config(tmp_path, request_seconds="2"))
    with serve_on_thread(app) as (address, _):
        began = time.monotonic()
        clients = [connect(address) for _ in range(200)]
        for number, client in enumerate(clients):
            client.sendall(INCOMPLETE_REQUESTS[number % len(INCOMPLETE_REQUESTS)])
        answered = [get_health(address)["status"] for _ in range(5)]
        with ThreadPoolExecutor(50) as pool:
            seconds = list(pool.map(lambda client: seconds_until_closed(client, began), clients))
        for client in clients:
            client.close()
        answered.append(get_health(address)["status"])
    assert answered == ["ok"] * 6
    assert_within(max(seconds), 10, "closing")


def test_shutdown__request_and_stream_in_progress__finishes_one_and_ends_the_other(tmp_path: Path) -> None:
    app = create_app(service_config(tmp_path, close_seconds="30"))
    in_progress = threading.Event()

    async def slow() -> str:
        in_progress.set()
        await app.state.container.shutting_down.wait()
        await asyncio.sleep(0.2)  # sleeps: the request takes this long after the shutdown began
        return "finished"

    async def stream() -> StreamingResponse:
        async def lines() -> AsyncIterator[bytes]:
            yield b"data: begun\n\n"
            await app.state.container.shutting_down.wait()
            yield b"data: bye\n\n"

        return StreamingResponse(lines(), media_type="text/event-stream")

    app.add_api_route("/slow", slow)
    app.add_api_route("/stream", stream)
    with serve_on_thread(app) as (address, server), ThreadPoolExecutor(2) as pool:
        requested = pool.submit(CLIENT.get, f"{address}/slow")
        streamed = pool.submit(CLIENT.get, f"{address}/stream")
        assert in_progress.wait(PATIENCE_SECONDS)
        wait_until(lambda: len(server.server_state.tasks) == 2)
        server.should_exit = True
        assert requested.result(PATIENCE_SECONDS).json() == "finished"
        assert streamed.result(PATIENCE_SECONDS).text == "data: begun\n\ndata: bye\n\n"


def test_serve__sigterm_with_half_a_request_open__ends_in_time_and_deregisters(
    tmp_path: Path, state: str
) -> None:
    with serve_process(tmp_path, COMPORTA_STATE=state) as one:
        assert get_health(one.address)["workers"]["alive"] == 1
        assert len(_registered_pids(state)) == 1
        half = connect(one.address)
        half.sendall(INCOMPLETE_REQUESTS[2])
        began = time.monotonic()
        status = one.end()
        seconds = time.monotonic() - began
        half.close()
    assert (status, "Traceback" in one.errors.read_text()) == (0, False)
    assert_within(seconds, 10, "shutdown")
    assert _registered_pids(state) == []


def _registered_pids(state: str) -> list[int]:
    store = open_store(state)
    assert isinstance(store, FailoverStore)
    return [sign.worker.pid for sign in store.primary.apply(ListWorkers())]


def test_serve__two_workers__share_one_metrics_page(tmp_path: Path, state: str) -> None:
    with serve_process(tmp_path, "--workers", "2", COMPORTA_STATE=state) as one:
        wait_until(lambda: get_health(one.address)["workers"]["alive"] == 2)
        requests = 20
        for _ in range(requests):
            assert CLIENT.get(f"{one.address}/livez").status_code == 200
        page = CLIENT.get(f"{one.address}/metrics").text
        counted = f'http_requests_total{{method="GET",route="/livez",status="200"}} {requests}.0'
        before = _registered_pids(state)
        assert one.end() == 0
    assert counted in page
    assert (len(before), _registered_pids(state)) == (2, [])


def test_serve__redis_killed_under_load__returns_no_5xx(tmp_path: Path) -> None:
    with (
        Server() as server,
        serve_process(tmp_path, COMPORTA_STATE=server.url, client_limit="1000000/s") as one,
    ):
        paths = ("/v1/health", "/v1/health/cache", "/livez", "/nothing")
        killed = threading.Event()

        def ask(number: int) -> list[int]:
            with httpx2.Client(base_url=one.address, timeout=PATIENCE_SECONDS, verify=False) as client:
                statuses = []
                for n in range(60):
                    if number == 0 and n == 20:
                        server.kill()
                        killed.set()
                    statuses.append(client.get(paths[(n + number) % len(paths)]).status_code)
                return statuses

        with ThreadPoolExecutor(8) as pool:
            statuses = [status for each in pool.map(ask, range(8)) for status in each]
        wait_until(lambda: get_health(one.address)["status"] == "warn")
        after = get_health(one.address)
    assert killed.is_set()
    assert set(statuses) == {200, 404}
    assert after["state"]["fallback"] is not None


def test_database__without_tables__has_them_once_served(tmp_path: Path) -> None:
    app = create_app(service_config(tmp_path))
    with serve_on_thread(app) as (address, _):
        assert httpx2.get(f"{address}/v1/health/cache", timeout=PATIENCE_SECONDS).json()["entries"] == 0
    database = open_database(f"sqlite:///{tmp_path}/service.db")
    with database.transaction(5) as execute:
        assert (100,) in execute("SELECT number FROM comporta_migrations")
    database.close()


def test_client__slow_to_read__gets_the_whole_response(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused = threading.Event()
    pause = DeadlineProtocol.pause_writing

    def pausing(protocol: DeadlineProtocol) -> None:
        pause(protocol)
        paused.set()

    monkeypatch.setattr(DeadlineProtocol, "pause_writing", pausing)
    app = create_app(service_config(tmp_path))
    body = b"x" * 30_000_000
    app.add_api_route("/large", lambda: Response(body))
    with serve_on_thread(app) as (address, _), connect(address) as client:
        client.sendall(b"GET /large HTTP/1.1\r\nhost: service\r\nconnection: close\r\n\r\n")
        assert paused.wait(PATIENCE_SECONDS)
        with client.makefile("rb") as answer:
            assert answer.read().endswith(b"\r\n\r\n" + body)


class RecordingTransport(asyncio.Transport):
    """Records what is written to it, one item for each system call."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:  # type: ignore[override]
        self.sent.append(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


@async_test
async def test_joined_writes__head_and_body__are_sent_together_and_much_at_once() -> None:
    transport = RecordingTransport()
    joined = JoinedWrites(transport, asyncio.get_running_loop())
    joined.write(b"head ")
    joined.write(b"body")
    assert transport.sent == []
    await asyncio.sleep(0)
    assert transport.sent == [b"head body"]
    joined.write(bytes(JOINED_BYTES_MAX))
    assert len(transport.sent) == 2, "the transport must learn at once that its client is slow"
    joined.write(b"rest")
    joined.close()
    assert (transport.sent[2:], transport.closed, joined.is_closing()) == ([b"rest"], True, True)
    joined.write(b"too late")
    await asyncio.sleep(0)
    assert len(transport.sent) == 3
