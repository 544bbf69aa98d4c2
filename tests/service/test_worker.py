"""A worker process and what it exchanges with its supervisor, in this process."""

from __future__ import annotations

import gc
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from fastapi import FastAPI
from tests.service.harness import CLIENT, PATIENCE_SECONDS, environment, service_config, wait_until

from comporta.service import server, worker
from comporta.service.app import create_app
from comporta.service.listener import bind_listener, ignore_new_clients, listener_url, open_listener
from comporta.service.server import ServiceServer, uvicorn_config
from comporta.service.worker import WorkerServer, create_worker_app


class Running(NamedTuple):
    server: WorkerServer
    control: socket.socket
    reports: list[str]
    address: str
    exits: list[int]
    thread: threading.Thread


def _collect(control: socket.socket, reports: list[str]) -> None:
    with control.makefile("r") as lines:
        reports.extend(line.strip() for line in lines)


@contextmanager
def run_worker(app: FastAPI) -> Iterator[Running]:
    """Run a worker on a thread until the block ends."""
    listener = bind_listener("127.0.0.1", 0)
    ours, theirs = socket.socketpair()
    exits: list[int] = []
    server = WorkerServer(uvicorn_config(app.state.config, app), theirs, exits.append)
    thread = threading.Thread(target=server.run, args=([listener],))
    reports: list[str] = []
    threading.Thread(target=_collect, args=(ours, reports), daemon=True).start()
    thread.start()
    try:
        wait_until(lambda: "ready" in reports)
        yield Running(server, ours, reports, listener_url(listener), exits, thread)
    finally:
        ours.close()
        server.should_exit = True
        thread.join(PATIENCE_SECONDS)
        theirs.close()
    assert not thread.is_alive()


def test_worker__drain_then_close__reports_unready_then_ends(tmp_path: Path) -> None:
    with run_worker(create_app(service_config(tmp_path))) as running:
        wait_until(lambda: "alive" in running.reports)
        assert CLIENT.get(f"{running.address}/readyz").status_code == 200
        running.control.sendall(b"drain\n")
        wait_until(lambda: CLIENT.get(f"{running.address}/readyz").status_code == 503)
        draining = CLIENT.get(f"{running.address}/livez")
        assert (draining.status_code, draining.headers["connection"]) == (200, "close")
        running.server._term()
        running.control.sendall(b"close\n")
        running.thread.join(PATIENCE_SECONDS)
        wait_until(lambda: "term" in running.reports)
    assert running.exits == []


def test_worker__supervisor_gone__ends_by_itself(tmp_path: Path) -> None:
    with run_worker(create_app(service_config(tmp_path))) as running:
        running.control.shutdown(socket.SHUT_RDWR)
        running.thread.join(PATIENCE_SECONDS)
        assert not running.thread.is_alive()


def test_worker__supervisor_gone_and_closing_takes_long__exits_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "ORPHAN_SECONDS", 0.05)
    with run_worker(create_app(service_config(tmp_path))) as running:
        running.control.shutdown(socket.SHUT_RDWR)
        wait_until(lambda: running.exits == [1])


def test_worker__port_in_use__reports_the_error_number(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    app = create_app(service_config(tmp_path))
    with bind_listener("127.0.0.1", 0) as listener, socket.socket() as other, ours, theirs:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(listener.getsockname())
        other.listen()
        server = WorkerServer(uvicorn_config(app.state.config, app), theirs)
        with pytest.raises(SystemExit):
            server.run([listener])
        assert ours.recv(100) == b"busy 98\n"
        with pytest.raises(OSError, match="in use"):
            open_listener("127.0.0.1", listener.getsockname()[1])


def test_worker__in_the_main_thread__leaves_signals_to_the_supervisor(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    app = create_app(service_config(tmp_path))
    before = signal.getsignal(signal.SIGTERM)
    with ours, theirs:
        server = WorkerServer(uvicorn_config(app.state.config, app), theirs)
        with server.capture_signals():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGTERM)
        assert ours.recv(100) == b"term\n"
    assert signal.getsignal(signal.SIGTERM) == before


def test_client__connected_when_the_worker_closes__is_served_first(tmp_path: Path) -> None:
    with run_worker(create_app(service_config(tmp_path))) as running:
        port = int(running.address.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS) as client:
            wait_until(lambda: len(running.server.server_state.connections) == 1)
            running.control.sendall(b"close\n")
            wait_until(lambda: not running.server.servers[0].sockets)
            client.sendall(b"GET /livez HTTP/1.1\r\nHost: service\r\n\r\n")
            with client.makefile("rb") as reply:
                text = reply.read()
    assert text.startswith(b"HTTP/1.1 200")
    assert b"connection: close" in text


def test_client__that_sends_nothing_when_the_worker_closes__is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "FIRST_REQUEST_SECONDS", 0.05)
    with run_worker(create_app(service_config(tmp_path, close_seconds="60"))) as running:
        port = int(running.address.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS) as client:
            wait_until(lambda: len(running.server.server_state.connections) == 1)
            running.control.sendall(b"close\n")
            assert client.recv(10) == b""


def test_worker__started_as_a_process_would_be__ends_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(worker, "log_config", lambda _: None)
    monkeypatch.setattr("sys.path", [])
    ours, theirs = socket.socketpair()
    listener = bind_listener("127.0.0.1", 0)
    with ours:
        ours.sendall(b"close\n")
        try:
            worker.main(listener.detach(), theirs.detach())
        finally:
            gc.unfreeze()
        assert b"ready\n" in ours.recv(1000)


def test_worker_app__created__is_frozen_for_the_garbage_collector(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    gc.unfreeze()
    try:
        app = create_worker_app()
        assert not any(each is app for each in gc.get_objects())
    finally:
        gc.unfreeze()


def test_listener__new_clients_ignored__serves_those_connected_and_refuses_others_once_closed() -> None:
    with open_listener("127.0.0.1", 0) as listener:
        address = listener.getsockname()
        with socket.create_connection(address, PATIENCE_SECONDS) as early:
            ignore_new_clients(listener)
            late = socket.socket()
            late.setblocking(False)
            late.connect_ex(address)
            accepted, _ = listener.accept()
            with accepted:
                early.sendall(b"x")
                assert accepted.recv(1) == b"x"
            listener.setblocking(False)
            with pytest.raises(BlockingIOError):
                listener.accept()
    late.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, PATIENCE_SECONDS)


def test_listener__ipv6_address__is_printed_in_brackets() -> None:
    with socket.socket(socket.AF_INET6) as listener:
        try:
            listener.bind(("::1", 0))
        except OSError:
            assert listener_url(listener).startswith("http://[")
            return
        assert listener_url(listener) == f"http://[::1]:{listener.getsockname()[1]}"


def test_drain__server_that_has_not_started__changes_nothing(tmp_path: Path) -> None:
    app = create_app(service_config(tmp_path))
    server = ServiceServer(uvicorn_config(app.state.config, app))
    server.drain()
    assert (server.started, server.should_exit) == (False, False)
