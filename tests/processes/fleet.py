"""Worker processes for tests: each runs one job and reports its result.

A worker runs a job of ``worker.py`` in a process of its own; ``template.py`` starts it. It reports that it is
ready, waits for the start signal, does its job and prints the result as one line of JSON. Every step waits
for an event.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import redis
from tests.processes.template import ForkedProcess

from comporta.clock import MONOTONIC, Clock
from comporta.stores.redis.store import RedisStore
from comporta.stores.shared.directory import directory_path
from comporta.stores.shared.store import SharedStore

ROOT = Path(__file__).resolve().parents[2]
START_AFTER_SECONDS = 0.05
"""Workers that start together do so this long after the last of them is ready."""

WAIT_SECONDS_MAX = 120.0
"""A worker without output for this long is killed, which fails the test."""


class Worker:
    """One process. As a context manager, it is always killed at the end."""

    def __init__(self, job: str, *, prefix: Sequence[str] = (), **arguments: Any) -> None:
        self.job = job
        self.process = _start(job, prefix, arguments)
        self.pid = self.process.pid

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def wait_ready(self) -> Worker:
        """Wait until the worker has opened its store and waits for the start signal."""
        assert self._read_result() == "ready"
        return self

    def go(self, at_ns: int | None = None) -> Worker:
        """Send the start signal: the worker begins at this moment of the monotonic clock."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{at_ns or time.monotonic_ns()}\n")
        self.process.stdin.flush()
        return self

    def result(self) -> Any:
        """Wait for the next result and return it."""
        return self._read_result()

    def wait_stopped(self) -> Worker:
        """Wait until a signal has stopped the worker."""
        while "T" not in Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2]:
            assert self.process.poll() is None, f"{self.job} ended"
            time.sleep(0.001)  # sleeps: the kernel notifies only its parent
        return self

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill the worker with SIGKILL and wait for its end."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):  # it ended before it read the signal
                pipe.close()

    def _read_result(self) -> Any:
        assert self.process.stdout is not None
        watchdog = threading.Timer(WAIT_SECONDS_MAX, self.process.kill)
        watchdog.start()
        try:
            line = self.process.stdout.readline()
        finally:
            watchdog.cancel()
        assert line, f"{self.job} ended with status {self.process.wait()}"
        return json.loads(line)


def _start(
    job: str, prefix: Sequence[str], arguments: dict[str, Any]
) -> subprocess.Popen[str] | ForkedProcess:
    """Fork the template, unless something must happen before the first import."""
    if not prefix and "wall" not in arguments:
        return ForkedProcess(job, arguments)
    program = [sys.executable, "-W", "error", "-m", "tests.processes.worker"]
    command = [*prefix, *program, job, json.dumps(arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@contextmanager
def start_workers(count: int, job: str, **arguments: Any) -> Iterator[list[Worker]]:
    """Start workers with the same job, each with its ``number``, and wait until all are ready."""
    with ExitStack() as ends:
        workers = [ends.enter_context(Worker(job, number=number, **arguments)) for number in range(count)]
        for worker in workers:
            worker.wait_ready()
        yield workers


def run_together(workers: Sequence[Worker]) -> list[Any]:
    """Start all workers at the same moment and return their results."""
    at_ns = time.monotonic_ns() + round(START_AFTER_SECONDS * 1e9)
    for worker in workers:
        worker.go(at_ns)
    return [worker.result() for worker in workers]


def with_long_timeout(url: str) -> str:
    """Return a URL with a timeout that a busy machine does not exceed."""
    return url if url.startswith("shared:") else f"{url}?timeout=5"


def new_state_name() -> str:
    """Return an unused name for a shared store."""
    return f"t-{os.getpid()}-{uuid.uuid4().hex[:12]}"


def remove_shared_state(name: str) -> None:
    """Remove the files of a shared store."""
    path = Path(directory_path(name))
    if path.is_symlink():
        path.unlink()
    shutil.rmtree(path, ignore_errors=True)


@contextmanager
def open_state(url: str, clock: Clock | None = None) -> Iterator[SharedStore | RedisStore]:
    """Open the store of a URL in this process, without the cache of ``open_store``."""
    store: SharedStore | RedisStore
    if url.startswith("shared://"):
        name = url.removeprefix("shared://").partition("?")[0]
        store = SharedStore(name, clock or MONOTONIC, memory=8, lock_timeout=5)
    else:
        store = RedisStore(url, timeout=5, clock=clock)
    try:
        yield store
    finally:
        store.close()


MEMORY_MB = 8
"""The capacity of the shared stores of these tests, in keys."""


def shared_url(name: str, lock_timeout: float = 5) -> str:
    """Return a URL with a lock timeout that a busy machine does not exceed."""
    return f"shared://{name}?memory={MEMORY_MB}&lock_timeout={lock_timeout}"


def flush_server(url: str) -> None:
    """Empty a server."""
    with redis.Redis.from_url(url) as client:
        client.flushall()
