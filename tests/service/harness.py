"""Runs the service for tests: in this process, on a thread, or as separate processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
from fastapi import FastAPI

from comporta.service.app import create_app
from comporta.service.config import ServiceConfig
from comporta.service.container import Container
from comporta.service.health import CachedHealth
from comporta.service.listener import open_listener
from comporta.service.server import ServiceServer, uvicorn_config

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 120.0
TOKEN = "an-admin-token-for-tests"  # noqa: S105 - of tests only
OPERATOR = {"authorization": f"Bearer {TOKEN}"}
OUR_VARIABLES = ("COMPORTA_", "REDIS_URL", "DATABASE_URL", "USE_REDIS_CIRCUIT_BREAKER", "PROMETHEUS_")

CLIENT = httpx2.Client(
    timeout=PATIENCE_SECONDS,
    verify=False,
    limits=httpx2.Limits(
        max_keepalive_connections=0
    ),  # the server may close an idle connection at any moment
)


class RunningService(NamedTuple):
    """An application that runs in this process, and a client for it."""

    app: FastAPI
    client: httpx2.AsyncClient

    @property
    def container(self) -> Container:
        container: Container = self.app.state.container
        return container


def service_config(folder: Path, **variables: str) -> ServiceConfig:
    """Load a configuration from variables: ``admin_token``, ``search_fresh``, or full names in capitals."""
    return ServiceConfig.load(environ=environment(folder, **variables))


def environment(folder: Path, **variables: str) -> dict[str, str]:
    """Return the environment for such variables, by default with a store and a database for this test."""
    environ = {
        "COMPORTA_STATE": f"memory://{folder.name}",
        "DATABASE_URL": f"sqlite:///{folder}/service.db",
        "COMPORTA_SERVICE_DRAIN_SECONDS": "0",
    }
    for name, value in variables.items():
        environ[name if name.isupper() else f"COMPORTA_SERVICE_{name.upper()}"] = value
    return environ


@asynccontextmanager
async def run_service(folder: Path, **variables: str) -> AsyncIterator[RunningService]:
    """Run the application in this process."""
    app = create_app(service_config(folder, **variables))
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url="http://service") as client,
    ):
        app.state.container.health = CachedHealth(0)  # tests do not wait a second for a change
        yield RunningService(app, client)


class ServedProcess(NamedTuple):
    """``comporta serve`` in a separate process."""

    address: str
    process: subprocess.Popen[str]
    errors: Path

    def worker_pids(self) -> set[int]:
        """Return the process ids of its workers."""
        pid = self.process.pid
        return {int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}

    def end(self, sent: int = signal.SIGTERM) -> int:
        """Send it a signal and return its exit status."""
        self.process.send_signal(sent)
        return self.process.wait(PATIENCE_SECONDS)


@contextmanager
def serve_process(folder: Path, *options: str, **variables: str) -> Iterator[ServedProcess]:
    """Serve until the block ends."""
    with serve_processes(1, folder, *options, **variables) as [one]:
        yield one


@contextmanager
def serve_processes(
    count: int, folder: Path, *options: str, **variables: str
) -> Iterator[list[ServedProcess]]:
    """Start ``count`` processes together and serve until the block ends."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(OUR_VARIABLES)}
    environ |= environment(folder, **variables)
    command = [sys.executable, "-m", "comporta.cli", "serve", "--port", "0", *options]
    with ExitStack() as stack:
        started = []
        for number in range(count):
            errors = folder / f"errors-{number}"
            file = stack.enter_context(errors.open("w"))
            process = stack.enter_context(
                subprocess.Popen(
                    command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=file, text=True
                )
            )
            stack.callback(_terminate, process)
            started.append((process, errors))
        yield [_wait_ready(process, errors) for process, errors in started]


def _wait_ready(process: subprocess.Popen[str], errors: Path) -> ServedProcess:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("Serving at "), errors.read_text()
    address = line.removeprefix("Serving at ").strip()
    assert CLIENT.get(f"{address}/readyz").status_code == 200
    return ServedProcess(address, process, errors)


def _terminate(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        raise


def wait_until(condition: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"the condition did not hold within {seconds:g} s"
        time.sleep(0.02)


def get_health(address: str) -> dict[str, Any]:
    """Return the health document of a served application."""
    reply = CLIENT.get(f"{address}/v1/health")
    assert reply.status_code in {200, 503}
    health: dict[str, Any] = reply.json()
    return health


def async_test(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a coroutine function as a test."""

    @wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run


def lose_database(service: RunningService, folder: Path) -> None:
    """Replace the database file with a directory."""
    for file in folder.glob("service.db*"):
        file.unlink()
    (folder / "service.db").mkdir()
    service.container.database.close()


@contextmanager
def serve_on_thread(app: FastAPI) -> Iterator[tuple[str, ServiceServer]]:
    """Serve like ``comporta serve``, but on a thread of this process; yields the address."""
    listener = open_listener("127.0.0.1", 0)
    server = ServiceServer(uvicorn_config(app.state.config, app))
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", server
    finally:
        server.should_exit = True
        thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive(), "the server did not end"
