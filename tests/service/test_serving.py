"""Serving over real connections: slow clients, several workers, and the end."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import shutil
import signal
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
from tests.service.running import (
    CLIENT,
    PATIENCE_SECONDS,
    config,
    environment,
    health,
    on_a_thread,
    served,
    wait_for,
)
from tests.support import hold_to
from uvicorn.supervisors.multiprocess import SIGNALS

from comporta.database.urls import open_database
from comporta.service.app import create_app
from comporta.service.config import ServiceConfig
from comporta.service.serving import (
    PatientProtocol,
    _address,
    _figures_together,
    create_settled_app,
    serve,
)
from comporta.stores.failover import FailoverStore
from comporta.stores.folder import path_of
from comporta.stores.urls import open_store
from comporta.stores.workers import Roll
from comporta.testing import Server

HALVES = [
    b"",
    b"GET /v1/health HTTP/1.1\r\nHost: service\r\n",
    b"POST /v1/health HTTP/1.1\r\nHost: service\r\nContent-Length: 100\r\n\r\nhalf",
    b"GET /livez HTTP/1.1\r\nHost: service\r\n\r\nGET /livez HTTP/1.1\r\nHo",
]


@pytest.fixture
def state() -> Iterator[str]:
    name = f"test-{uuid.uuid4().hex}"
    yield f"shared://{name}"
    shutil.rmtree(path_of(name), ignore_errors=True)


def test_worker__application__is_nothing_that_garbage_is_looked_for_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, state: str
) -> None:
    for name, value in {"COMPORTA_STATE": state, "DATABASE_URL": f"sqlite:///{tmp_path}/test.db"}.items():
        monkeypatch.setenv(name, value)
    gc.unfreeze()
    try:
        app = create_settled_app()
        assert not any(found is app for found in gc.get_objects())
    finally:
        gc.unfreeze()


def connected(address: str) -> socket.socket:
    parts = urlsplit(address)
    assert parts.hostname is not None
    assert parts.port is not None
    return socket.create_connection((parts.hostname, parts.port), PATIENCE_SECONDS)


def closed_after(client: socket.socket, began: float) -> float:
    """Return how many seconds after the beginning the server closed a connection."""
    client.settimeout(PATIENCE_SECONDS)
    try:
        while client.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return time.monotonic() - began


def test_request__half_sent_by_two_hundred__is_closed_while_health_answers(tmp_path: Path) -> None:
    app = create_app(config(tmp_path, request_seconds="2"))
    with on_a_thread(app) as (address, _):
        began = time.monotonic()
        clients = [connected(address) for _ in range(200)]
        for number, client in enumerate(clients):
            client.sendall(HALVES[number % len(HALVES)])
        answered = [health(address)["status"] for _ in range(5)]
        with ThreadPoolExecutor(50) as pool:
            seconds = list(pool.map(lambda client: closed_after(client, began), clients))
        for client in clients:
            client.close()
        answered.append(health(address)["status"])
    assert answered == ["ok"] * 6
    hold_to(max(seconds), 10, "closing")


def test_end__request_and_stream_under_way__one_finishes_the_other_is_ended(tmp_path: Path) -> None:
    app = create_app(config(tmp_path, close_seconds="30"))
    under_way = threading.Event()

    async def slow() -> str:
        under_way.set()
        await app.state.parts.leaving.wait()
        await asyncio.sleep(0.2)
        return "finished"

    async def stream() -> StreamingResponse:
        async def lines() -> AsyncIterator[bytes]:
            yield b"data: begun\n\n"
            await app.state.parts.leaving.wait()
            yield b"data: bye\n\n"

        return StreamingResponse(lines(), media_type="text/event-stream")

    app.add_api_route("/slow", slow)
    app.add_api_route("/stream", stream)
    with on_a_thread(app) as (address, server), ThreadPoolExecutor(2) as pool:
        asked = pool.submit(CLIENT.get, f"{address}/slow")
        streamed = pool.submit(CLIENT.get, f"{address}/stream")
        assert under_way.wait(PATIENCE_SECONDS)
        wait_for(lambda: len(server.server_state.tasks) == 2)
        server.should_exit = True
        assert asked.result(PATIENCE_SECONDS).json() == "finished"
        assert streamed.result(PATIENCE_SECONDS).text == "data: begun\n\ndata: bye\n\n"


def test_serve__sigterm_with_half_a_request_open__ends_in_time_and_takes_leave(
    tmp_path: Path, state: str
) -> None:
    with served(tmp_path, COMPORTA_STATE=state) as one:
        assert health(one.address)["workers"]["alive"] == 1
        assert _workers(state) == [one.process.pid]
        half = connected(one.address)
        half.sendall(HALVES[2])
        began = time.monotonic()
        status = one.end()
        seconds = time.monotonic() - began
        half.close()
    assert (status, "Traceback" in one.errors.read_text()) == (0, False)
    hold_to(seconds, 10, "the end")
    assert _workers(state) == []


def _workers(state: str) -> list[int]:
    store = open_store(state)
    assert isinstance(store, FailoverStore)
    return [sign.worker.pid for sign in store.primary.apply(Roll())]


def test_serve__two_workers__count_together(tmp_path: Path, state: str) -> None:
    with served(tmp_path, "--workers", "2", COMPORTA_STATE=state) as one:
        wait_for(lambda: health(one.address)["workers"]["alive"] == 2)
        asked = 20
        for _ in range(asked):
            assert CLIENT.get(f"{one.address}/livez").status_code == 200
        page = CLIENT.get(f"{one.address}/metrics").text
        counted = f'http_requests_total{{method="GET",route="/livez",status="200"}} {asked}.0'
        before = _workers(state)
        assert one.end() == 0
    assert counted in page
    assert (len(before), _workers(state)) == (2, [])


def test_serve__redis_killed_under_load__answers_no_5xx(tmp_path: Path) -> None:
    with Server() as server, served(tmp_path, COMPORTA_STATE=server.url, client_limit="1000000/s") as one:
        paths = ("/v1/health", "/v1/health/cache", "/livez", "/nothing")
        killed = threading.Event()

        def ask(number: int) -> list[int]:
            with httpx2.Client(base_url=one.address, timeout=PATIENCE_SECONDS, verify=False) as client:
                found = []
                for n in range(60):
                    if number == 0 and n == 20:
                        server.kill()
                        killed.set()
                    found.append(client.get(paths[(n + number) % len(paths)]).status_code)
                return found

        with ThreadPoolExecutor(8) as pool:
            statuses = [status for found in pool.map(ask, range(8)) for status in found]
        after = health(one.address)
    assert killed.is_set()
    assert set(statuses) == {200, 404}
    assert after["status"] == "warn"
    assert after["state"]["fallback"] is not None


def test_figures_together__folder_named_by_somebody__is_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    with _figures_together():
        ours = Path(os.environ["PROMETHEUS_MULTIPROC_DIR"])
        assert ours.is_dir()
    assert not ours.exists()
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    with _figures_together():
        assert os.environ["PROMETHEUS_MULTIPROC_DIR"] == str(tmp_path)
    assert tmp_path.exists()


def test_database__without_tables__has_them_once_it_is_served(tmp_path: Path) -> None:
    app = create_app(config(tmp_path))
    with on_a_thread(app) as (address, _):
        assert httpx2.get(f"{address}/v1/health/cache", timeout=PATIENCE_SECONDS).json()["entries"] == 0
    database = open_database(f"sqlite:///{tmp_path}/service.db")
    with database.transaction(5) as execute:
        assert (100,) in execute("SELECT number FROM comporta_migrations")
    database.close()


@pytest.mark.usefixtures("_as_before")
def test_serve__workers_cannot_start__ends_with_a_status_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Server(password="secret") as server:  # noqa: S106 - of this test only
        url = f"redis://:wrong@127.0.0.1:{server.port}/0?timeout=5"
        for name, value in environment(tmp_path, COMPORTA_STATE=url, port="0", workers="2").items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as ended:
            serve(ServiceConfig.load(), lambda _: None)
    assert ended.value.code == 3


@pytest.fixture
def _as_before() -> Iterator[None]:
    """Put back what serving in the main thread changes for the whole process."""
    names = ("comporta", "uvicorn", "uvicorn.error", "uvicorn.access")
    loggers = [logging.getLogger(name) for name in names]
    logs = [(one.handlers[:], one.level, one.propagate) for one in loggers]
    handlers = {one: signal.getsignal(one) for one in SIGNALS}
    yield
    for one, (of_logger, level, propagate) in zip(loggers, logs, strict=True):
        one.handlers[:], one.propagate = of_logger, propagate
        one.setLevel(level)
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_as_before")
@pytest.mark.parametrize("workers", ["1", "2"])
def test_serve__in_the_main_thread__ends_by_sigterm(
    workers: str, tmp_path: Path, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment(tmp_path, COMPORTA_STATE=state, port="0", workers=workers).items():
        monkeypatch.setenv(name, value)
    answers: list[int] = []

    def ask(address: str) -> None:
        try:
            answers.append(CLIENT.get(f"{address}/v1/health").status_code)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    serve(ServiceConfig.load(), lambda address: threading.Thread(target=ask, args=(address,)).start())
    assert answers == [200]


def test_serve__address_of_ipv6__is_in_brackets() -> None:
    with socket.socket(socket.AF_INET6) as listener:
        try:
            listener.bind(("::1", 0))
        except OSError:
            assert _address(listener).startswith("http://[")
            return
        assert _address(listener) == f"http://[::1]:{listener.getsockname()[1]}"


def test_client__slow_to_read__gets_all_of_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paused = threading.Event()
    pause = PatientProtocol.pause_writing

    def pausing(protocol: PatientProtocol) -> None:
        pause(protocol)
        paused.set()

    monkeypatch.setattr(PatientProtocol, "pause_writing", pausing)
    app = create_app(config(tmp_path))
    body = b"x" * 30_000_000
    app.add_api_route("/large", lambda: Response(body))
    with on_a_thread(app) as (address, _), connected(address) as client:
        client.sendall(b"GET /large HTTP/1.1\r\nhost: service\r\nconnection: close\r\n\r\n")
        assert paused.wait(PATIENCE_SECONDS)
        with client.makefile("rb") as answer:
            assert answer.read().endswith(b"\r\n\r\n" + body)
