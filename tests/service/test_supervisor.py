"""``comporta serve``: workers that end, die and are replaced while clients connect."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import signal
import socket
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.service.harness import CLIENT, PATIENCE_SECONDS, environment, serve_process, wait_until
from tests.support import assert_within

from comporta.service import supervisor
from comporta.service.config import ServiceConfig
from comporta.service.listener import bind_listener
from comporta.service.supervisor import serve
from comporta.stores.shared.directory import directory_path
from comporta.testing import Server

CLIENTS = 6
REQUEST = b"GET /readyz HTTP/1.1\r\nHost: service\r\nConnection: close\r\n\r\n"


@pytest.fixture
def state() -> Iterator[str]:
    name = f"test-{uuid.uuid4().hex}"
    yield f"shared://{name}"
    shutil.rmtree(directory_path(name), ignore_errors=True)


@pytest.fixture(autouse=True)
def _restore_process_state() -> Iterator[None]:
    """Restore the loggers and signal handlers that serving in the main thread changes."""
    loggers = [logging.getLogger(name) for name in ("comporta", "uvicorn", "comporta.access")]
    logs = [(logger.handlers[:], logger.level, logger.propagate) for logger in loggers]
    handlers = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for logger, (log_handlers, level, propagate) in zip(loggers, logs, strict=True):
        logger.handlers[:], logger.propagate = log_handlers, propagate
        logger.setLevel(level)
    for number, handler in handlers.items():
        signal.signal(number, handler)


class Clients:
    """Clients that send one request after the other, each on a new connection, with pauses between them."""

    def __init__(self, address: str, pause: float = 0) -> None:
        parts = urlsplit(address)
        self._address = (parts.hostname, parts.port)
        self._pause = pause
        self._ended = threading.Event()
        self.outcomes: Counter[str] = Counter()
        self._threads = [threading.Thread(target=self._run) for _ in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)

    def _run(self) -> None:
        while not self._ended.wait(self._pause):
            try:
                outcome = self._request()
            except OSError as error:
                outcome = type(error).__name__
            self.outcomes[outcome] += 1
            if outcome == "ConnectionRefusedError":
                return

    def _request(self) -> str:
        with socket.create_connection(self._address, PATIENCE_SECONDS) as client:
            client.sendall(REQUEST)
            with client.makefile("rb") as reply:
                return reply.read()[9:12].decode() or "closed"


def serve_here(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], drive: Callable[[str], None]
) -> None:
    """Serve in the main thread while a thread runs ``drive`` with the address; end with SIGTERM."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    failures: list[BaseException] = []

    def run(address: str) -> None:
        try:
            drive(address)
        except BaseException as error:
            failures.append(error)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    threads: list[threading.Thread] = []

    def on_listening(address: str) -> None:
        threads.append(threading.Thread(target=run, args=(address,)))
        threads[0].start()

    serve(ServiceConfig.load(), on_listening)
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    if failures:
        raise failures[0]


def worker_pids() -> list[int]:
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    return [int(pid) for pid in path.read_text().split() if b"comporta.service.worker" in _command_line(pid)]


def _command_line(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        return b""


def test_sigterm__clients_on_new_connections__are_served_or_refused_but_never_reset(
    tmp_path: Path, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = environment(tmp_path, COMPORTA_STATE=state, port="0", workers="2", drain_seconds="0.5")
    clients: list[Clients] = []

    def drive(address: str) -> None:
        clients.append(Clients(address))
        wait_until(lambda: clients[0].outcomes["200"] > 50)

    serve_here(monkeypatch, environ, drive)
    clients[0].end()
    outcomes = clients[0].outcomes
    assert outcomes.keys() - {"503"} == {"200", "ConnectionRefusedError"}
    assert outcomes["ConnectionRefusedError"] == CLIENTS


def test_sighup__settings_changed_then_wrong__are_applied_then_kept(
    tmp_path: Path, state: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "service.toml"
    file.write_text("[service]\nport = 0\n[service.search]\ndays_max = 5\n")
    environ = environment(tmp_path, COMPORTA_STATE=state, COMPORTA_CONFIG=str(file), client_limit="false")
    monkeypatch.setattr(supervisor, "dictConfig", lambda _: None)  # the log goes to caplog
    caplog.set_level(logging.INFO, "comporta")

    def days_max(address: str) -> str:
        days = {"date_from": "2026-01-01", "date_to": "2026-12-31"}
        detail: str = CLIENT.get(f"{address}/v1/search", params=days).json()["detail"]
        return detail.partition("must be 0 to ")[2].split()[0]

    def is_settled() -> bool:
        text = caplog.text
        return text.count("SIGHUP: reading") == text.count("the settings are in force")

    def drive(address: str) -> None:
        assert days_max(address) == "4"
        clients = Clients(address, pause=0.05)
        file.write_text("[service]\nport = 1\nworkers = 2\n[service.search]\ndays_max = 6\n")
        os.kill(os.getpid(), signal.SIGHUP)
        wait_until(lambda: len(worker_pids()) == 2)
        file.write_text("[service]\nport = 1\nworkers = 2\n[service.search]\ndays_max = 7\n")
        wait_until(lambda: "already being replaced" in caplog.text or _hang_up())
        wait_until(lambda: "the settings are in force; workers: 2" in caplog.text)
        wait_until(lambda: days_max(address) == "6" and is_settled())
        clients.end()
        assert clients.outcomes.keys() == {"200"}
        file.write_text("[service.search]\ndays_max = 'many'\n")
        os.kill(os.getpid(), signal.SIGHUP)
        wait_until(lambda: "the old ones stay in force" in caplog.text)
        file.write_text("[service.batch]\nprocessor = 'no.such:thing'\n")
        os.kill(os.getpid(), signal.SIGHUP)
        wait_until(lambda: "a worker could not start" in caplog.text)
        first, second = worker_pids()
        os.kill(first, signal.SIGKILL)
        os.kill(second, signal.SIGTERM)
        wait_until(lambda: len(worker_pids()) == 2 and not {first, second} & set(worker_pids()))
        assert days_max(address) == "6"
        file.unlink()
        os.kill(os.getpid(), signal.SIGHUP)
        wait_until(lambda: f"{file}: No such file or directory" in caplog.text)
        file.write_text("")
        os.kill(os.getpid(), signal.SIGHUP)  # SIGTERM follows while the first worker starts
        wait_until(lambda: len(worker_pids()) == 3)

    serve_here(monkeypatch, environ, drive)
    assert f"{file}:2: [service.search]: days_max must be a whole number, got 'many'" in caplog.text
    assert "host and port do not change" in caplog.text
    assert "ended unexpectedly (signal 9)" in caplog.text
    assert "got SIGTERM and is replaced" in caplog.text


def _hang_up() -> bool:
    os.kill(os.getpid(), signal.SIGHUP)
    return False


def test_worker__without_a_sign_of_life__is_killed_and_replaced(
    tmp_path: Path, state: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "dictConfig", lambda _: None)
    monkeypatch.setattr(supervisor, "WORKER_SILENCE_SECONDS", 5)
    monkeypatch.setattr(supervisor, "KILL_MARGIN_SECONDS", 0)

    def drive(address: str) -> None:
        [pid] = worker_pids()
        os.kill(pid, signal.SIGSTOP)
        assert CLIENT.get(f"{address}/livez").status_code == 200  # the client waits for the replacement
        wait_until(lambda: len(worker_pids()) == 1)
        os.kill(worker_pids()[0], signal.SIGSTOP)  # this one cannot end by itself

    serve_here(monkeypatch, environment(tmp_path, COMPORTA_STATE=state, port="0", close_seconds="0.1"), drive)
    assert "gave no sign of life" in caplog.text
    assert "did not end within 0.1 s and was killed" in caplog.text


def test_supervisor__killed__ends_its_workers_within_two_seconds(tmp_path: Path, state: str) -> None:
    with serve_process(tmp_path, "--workers", "2", COMPORTA_STATE=state) as one:
        pids = one.worker_pids()
        one.process.kill()
        began = time.monotonic()
        wait_until(lambda: not any(_is_running(pid) for pid in pids))
        seconds = time.monotonic() - began
    assert len(pids) == 2
    assert_within(seconds, 2, "the end of the workers")


def _is_running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_serve__workers_cannot_start__exits_with_the_startup_failure_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Server(password="secret") as server:  # noqa: S106 - of this test only
        url = f"redis://:wrong@127.0.0.1:{server.port}/0?timeout=5"
        with pytest.raises(SystemExit) as ended:
            serve_here(
                monkeypatch,
                environment(tmp_path, COMPORTA_STATE=url, port="0", workers="2"),
                lambda _: None,
            )
    assert ended.value.code == 3


def test_serve__port_in_use__raises_the_error_of_the_worker(
    tmp_path: Path, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))  # does not listen before the service has bound the port as well
        port = str(other.getsockname()[1])

        def bind_then_listen(host: str, number: int) -> socket.socket:
            listener = bind_listener(host, number)
            other.listen()
            return listener

        monkeypatch.setattr(supervisor, "bind_listener", bind_then_listen)
        with pytest.raises(OSError, match="in use") as failed:
            serve_here(monkeypatch, environment(tmp_path, COMPORTA_STATE=state, port=port), lambda _: None)
    assert failed.value.errno == errno.EADDRINUSE


def test_serve__signal_before_the_first_worker_is_ready__ends_without_an_error(
    tmp_path: Path, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = supervisor.WorkerProcess.start

    async def start_then_signal(*args: object) -> supervisor.WorkerProcess:
        worker = await start(*args)  # type: ignore[arg-type]
        os.kill(os.getpid(), signal.SIGTERM)
        return worker

    monkeypatch.setattr(supervisor.WorkerProcess, "start", start_then_signal)
    served: list[str] = []
    for name, value in environment(tmp_path, COMPORTA_STATE=state, port="0").items():
        monkeypatch.setenv(name, value)
    serve(ServiceConfig.load(), served.append)
    assert served == []
