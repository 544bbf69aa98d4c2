"""Worker processes for tests: started on their own, told when to begin, asked for what they saw.

A worker is ``worker.py`` in an interpreter of its own. It says that it is ready, waits for the word, does its
job and answers with one line of JSON. Nothing here sleeps for luck: every step waits for an event.
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

from comporta.clock import MONOTONIC, Clock
from comporta.stores.folder import path_of
from comporta.stores.redis import RedisStore
from comporta.stores.shared import SharedStore

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "tests.processes.worker"
START_AFTER_SECONDS = 0.05
"""How far ahead the moment lies at which several workers begin together."""

UNMEASURED = {"batch_work", "hammer", "hammer_awaiting", "interrupted", "mortal", "steady", "steady_load"}
"""Jobs whose coverage is not taken: they are killed before they could tell, or timed."""

PATIENCE_SECONDS = 120.0
"""A worker that says nothing for so long hangs, and is killed: that fails the test."""


class Worker:
    """One process. As a context manager it is killed at the end, whatever became of it."""

    def __init__(self, job: str, *, prefix: Sequence[str] = (), **told: Any) -> None:
        command = [*prefix, sys.executable, "-W", "error", "-m", PROGRAM, job, json.dumps(told)]
        self.job = job
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={
                name: value
                for name, value in os.environ.items()
                if job not in UNMEASURED or "COV" not in name
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
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

    def ready(self) -> Worker:
        """Wait until it has opened its state and waits for the word."""
        assert self._heard() == "ready"
        return self

    def go(self, at_ns: int | None = None) -> Worker:
        """Give the word; it begins at this moment of the monotonic clock."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{at_ns or time.monotonic_ns()}\n")
        self.process.stdin.flush()
        return self

    def answer(self) -> Any:
        """Wait for what it has to say."""
        return self._heard()

    def stopped(self) -> Worker:
        """Wait until it has been stopped by a signal."""
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), f"{self.job} ended with status {status}"
        return self

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill it with SIGKILL and see it gone."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):  # a word it did not live to hear
                pipe.close()

    def _heard(self) -> Any:
        assert self.process.stdout is not None
        patience = threading.Timer(PATIENCE_SECONDS, self.process.kill)
        patience.start()
        try:
            line = self.process.stdout.readline()
        finally:
            patience.cancel()
        assert line, f"{self.job} ended with status {self.process.wait()}"
        return json.loads(line)


@contextmanager
def started(count: int, job: str, **told: Any) -> Iterator[list[Worker]]:
    """Start some workers of one job; each is told its ``number``; all are ready."""
    with ExitStack() as ends:
        workers = [ends.enter_context(Worker(job, number=number, **told)) for number in range(count)]
        for worker in workers:
            worker.ready()
        yield workers


def together(workers: Sequence[Worker]) -> list[Any]:
    """Let workers begin at one moment and return what each answers."""
    at_ns = time.monotonic_ns() + round(START_AFTER_SECONDS * 1e9)
    for worker in workers:
        worker.go(at_ns)
    return [worker.answer() for worker in workers]


def patient(url: str) -> str:
    """Return a URL for those who are not to be tried for how a busy machine looks to a worker."""
    return url if url.startswith("shared:") else f"{url}?timeout=5"


def new_name() -> str:
    """Return a name of a shared state that nobody else uses."""
    return f"t-{os.getpid()}-{uuid.uuid4().hex[:12]}"


def remove(name: str) -> None:
    """Remove what a shared state leaves behind."""
    path = Path(path_of(name))
    if path.is_symlink():
        path.unlink()
    shutil.rmtree(path, ignore_errors=True)


@contextmanager
def opened(url: str, clock: Clock | None = None) -> Iterator[SharedStore | RedisStore]:
    """Open the state of a URL in this process, apart from what ``open_store`` remembers."""
    store: SharedStore | RedisStore
    if url.startswith("shared://"):
        name = url.removeprefix("shared://").partition("?")[0]
        store = SharedStore(name, clock or MONOTONIC, keys=KEYS, lock_timeout=5)
    else:
        store = RedisStore(url, timeout=5, clock=clock)
    try:
        yield store
    finally:
        store.close()


KEYS = 1024
"""How many keys the shared states of these tests have room for."""


def shared_url(name: str, lock_timeout: float = 5) -> str:
    """Return a URL for workers on a machine that may be busy with other things."""
    return f"shared://{name}?keys={KEYS}&lock_timeout={lock_timeout}"


def flushed(url: str) -> None:
    """Empty a server."""
    with redis.Redis.from_url(url) as client:
        client.flushall()
