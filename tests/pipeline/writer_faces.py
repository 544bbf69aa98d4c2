"""A batch writer through either of its faces, and a sink whose failures and delays a test scripts."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from comporta import BatchWriter, Retry
from comporta.pipeline.sinks import Row
from comporta.testing import ManualClock

PATIENCE_SECONDS = 120.0
NEVER_SECONDS = 3600.0


class ScriptedSink:
    """Stores batches; raises ``errors`` in order, and waits while ``gate`` is not set."""

    def __init__(self) -> None:
        self.batches: list[list[Row]] = []
        self.errors: list[BaseException] = []
        self.write_called = threading.Event()
        self.gate = threading.Event()
        self.gate.set()
        self.opened = self.closed = self.tries = 0
        self.open_error: BaseException | None = None
        self.close_error: BaseException | None = None
        self.concurrent_max = self._concurrent = 0
        self._lock = threading.Lock()

    @property
    def ids(self) -> list[Any]:
        return [row["id"] for batch in self.batches for row in batch]

    def open(self) -> None:
        self.opened += 1
        assert self.gate.wait(PATIENCE_SECONDS)
        if self.open_error is not None:
            raise self.open_error

    def write(self, rows: Sequence[Row]) -> None:
        with self._lock:
            self.tries += 1
            self._concurrent += 1
            self.concurrent_max = max(self.concurrent_max, self._concurrent)
        try:
            self.write_called.set()
            assert self.gate.wait(PATIENCE_SECONDS)
            if self.errors:
                raise self.errors.pop(0)
            self.batches.append(list(rows))
        finally:
            with self._lock:
                self._concurrent -= 1

    def close(self) -> None:
        self.closed += 1
        if self.close_error is not None:
            raise self.close_error


class AsyncScriptedSink:
    """The same as an asynchronous sink."""

    def __init__(self) -> None:
        self.inner = ScriptedSink()

    async def open(self) -> None:
        self.inner.open()

    async def write(self, rows: Sequence[Row]) -> None:
        self.inner.write_called.set()
        while not self.inner.gate.is_set():  # noqa: ASYNC110 - another thread may set it
            await asyncio.sleep(0.001)  # sleeps: the sink holds the batch until the gate opens
        self.inner.write(rows)

    async def close(self) -> None:
        self.inner.close()


class Face:
    """Calls a writer through one of its faces; the awaiting one uses a single event loop."""

    def __init__(self, runner: asyncio.Runner | None) -> None:
        self._runner = runner
        self.sink = ScriptedSink()
        self.writer: BatchWriter | None = None

    def make(self, **options: Any) -> BatchWriter:
        options = {"max_delay": NEVER_SECONDS, "retry": Retry(clock=ManualClock()), **options}
        self.writer = BatchWriter(options.pop("sink", self.sink), **options)
        return self.writer

    def open_writer(self, **options: Any) -> BatchWriter:
        writer = self.make(**options)
        self.do("open")
        return writer

    def do(self, method: str, *args: Any) -> Any:
        assert self.writer is not None
        if self._runner is None:
            return getattr(self.writer.sync, method)(*args)

        async def call() -> Any:
            return await getattr(self.writer, method)(*args)

        return self._runner.run(call())

    def write(self, *ids: int) -> None:
        for number in ids:
            self.do("write", {"id": number})


def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds that other threads bring about."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)
