"""A batch writer through either face, and a sink that does as it is told."""

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


class ToldSink:
    """Keeps batches; fails, or makes one wait, as told."""

    def __init__(self) -> None:
        self.batches: list[list[Row]] = []
        self.errors: list[BaseException] = []
        self.asked = threading.Event()
        self.go = threading.Event()
        self.go.set()
        self.opened = self.closed = self.tries = 0
        self.open_error: BaseException | None = None
        self.close_error: BaseException | None = None
        self.most_at_once = self._at_once = 0
        self._lock = threading.Lock()

    @property
    def ids(self) -> list[Any]:
        return [row["id"] for batch in self.batches for row in batch]

    def open(self) -> None:
        self.opened += 1
        assert self.go.wait(PATIENCE_SECONDS)
        if self.open_error is not None:
            raise self.open_error

    def write(self, rows: Sequence[Row]) -> None:
        with self._lock:
            self.tries += 1
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            self.asked.set()
            assert self.go.wait(PATIENCE_SECONDS)
            if self.errors:
                raise self.errors.pop(0)
            self.batches.append(list(rows))
        finally:
            with self._lock:
                self._at_once -= 1

    def close(self) -> None:
        self.closed += 1
        if self.close_error is not None:
            raise self.close_error


class AwaitedSink:
    """The same, awaited."""

    def __init__(self) -> None:
        self.told = ToldSink()

    async def open(self) -> None:
        self.told.open()

    async def write(self, rows: Sequence[Row]) -> None:
        self.told.asked.set()
        while not self.told.go.is_set():  # noqa: ASYNC110 - another thread may say so
            await asyncio.sleep(0.001)
        self.told.write(rows)

    async def close(self) -> None:
        self.told.close()


class Face:
    """The verbs of a writer, through one of its faces; awaiting, all on one loop."""

    def __init__(self, runner: asyncio.Runner | None) -> None:
        self._runner = runner
        self.sink = ToldSink()
        self.writer: BatchWriter | None = None

    def make(self, **options: Any) -> BatchWriter:
        options = {"max_delay": NEVER_SECONDS, "retry": Retry(clock=ManualClock()), **options}
        self.writer = BatchWriter(options.pop("sink", self.sink), **options)
        return self.writer

    def opened(self, **options: Any) -> BatchWriter:
        writer = self.make(**options)
        self.do("open")
        return writer

    def do(self, verb: str, *given: Any) -> Any:
        assert self.writer is not None
        if self._runner is None:
            return getattr(self.writer.sync, verb)(*given)

        async def call() -> Any:
            return await getattr(self.writer, verb)(*given)

        return self._runner.run(call())

    def write(self, *ids: int) -> None:
        for number in ids:
            self.do("write", {"id": number})


def until(is_so: Callable[[], object]) -> None:
    """Wait for something that other threads bring about."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.002)
