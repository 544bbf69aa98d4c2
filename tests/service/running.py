"""The service for tests: asked directly in this process, or served by processes of its own."""

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
import uvicorn
from fastapi import FastAPI

from comporta.service.app import create_app
from comporta.service.config import ServiceConfig
from comporta.service.listening import listening
from comporta.service.parts import Parts
from comporta.service.serving import settings_of

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 120.0
TOKEN = "an-admin-token-for-tests"  # noqa: S105 - of tests only
OPERATOR = {"authorization": f"Bearer {TOKEN}"}
OURS = ("COMPORTA_", "REDIS_URL", "DATABASE_URL", "USE_REDIS_CIRCUIT_BREAKER", "PROMETHEUS_")

CLIENT = httpx2.Client(
    timeout=PATIENCE_SECONDS,
    verify=False,
    limits=httpx2.Limits(max_keepalive_connections=0),  # one that was kept may be ended just then
)


class Asked(NamedTuple):
    """An application that runs in this process, and a client for it."""

    app: FastAPI
    client: httpx2.AsyncClient

    @property
    def parts(self) -> Parts:
        found: Parts = self.app.state.parts
        return found


def config(folder: Path, **variables: str) -> ServiceConfig:
    """Return what variables make: ``admin_token``, ``search_fresh``, or their whole names in capitals."""
    return ServiceConfig.load(environ=environment(folder, **variables))


def environment(folder: Path, **variables: str) -> dict[str, str]:
    """Return such variables; state and database are this test's own where nothing else is said."""
    found = {"COMPORTA_STATE": f"memory://{folder.name}", "DATABASE_URL": f"sqlite:///{folder}/service.db"}
    for name, value in variables.items():
        found[name if name.isupper() else f"COMPORTA_SERVICE_{name.upper()}"] = value
    return found


@asynccontextmanager
async def running(folder: Path, **variables: str) -> AsyncIterator[Asked]:
    """Run the application in this process."""
    app = create_app(config(folder, **variables))
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url="http://service") as client,
    ):
        yield Asked(app, client)


class Served(NamedTuple):
    """``comporta serve`` in a process of its own."""

    address: str
    process: subprocess.Popen[str]
    errors: Path

    def end(self, sent: int = signal.SIGTERM) -> int:
        """Tell it to end, and return its exit status."""
        self.process.send_signal(sent)
        return self.process.wait(PATIENCE_SECONDS)


@contextmanager
def served(folder: Path, *options: str, **variables: str) -> Iterator[Served]:
    """Serve until the block ends."""
    with several_served(1, folder, *options, **variables) as [one]:
        yield one


@contextmanager
def several_served(count: int, folder: Path, *options: str, **variables: str) -> Iterator[list[Served]]:
    """Serve so many times until the block ends; they start together, which takes a while."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
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
            stack.callback(_ended, process)
            started.append((process, errors))
        yield [_ready(process, errors) for process, errors in started]


def _ready(process: subprocess.Popen[str], errors: Path) -> Served:
    assert process.stdout is not None
    said = process.stdout.readline()
    assert said.startswith("Serving at "), errors.read_text()
    address = said.removeprefix("Serving at ").strip()
    assert CLIENT.get(f"{address}/readyz").status_code == 200
    return Served(address, process, errors)


def _ended(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        raise


def wait_for(condition: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to be in time"
        time.sleep(0.02)


def health(address: str) -> dict[str, Any]:
    """Return what a served application says of its health."""
    reply = CLIENT.get(f"{address}/v1/health")
    assert reply.status_code in {200, 503}
    found: dict[str, Any] = reply.json()
    return found


def awaited(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Let a test be a coroutine."""

    @wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run


def lose_database(asked: Asked, folder: Path) -> None:
    """Put something in the place of the database that is none."""
    for file in folder.glob("service.db*"):
        file.unlink()
    (folder / "service.db").mkdir()
    asked.parts.database.close()


@contextmanager
def on_a_thread(app: FastAPI) -> Iterator[tuple[str, uvicorn.Server]]:
    """Serve as ``comporta serve`` does, but in this process; gives the address."""
    listener = listening("127.0.0.1", 0)
    server = uvicorn.Server(settings_of(app.state.config, app))
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        wait_for(lambda: server.started)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", server
    finally:
        server.should_exit = True
        thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive(), "the server did not end"
