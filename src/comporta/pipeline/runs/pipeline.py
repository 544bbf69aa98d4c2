"""A source, a step for every item, a sink: ``Pipeline(source, step, sink).sync.run()``.

::

    source ─► reading ─► channel ─► N workers: step, retries ─► batch writer ─► sink
                ▲ waits when full       │ given up                    │ written
                │                       ▼                             ▼
              checkpoint ◄──────── dead letters ────────────────► confirmed

This is what users see, checked once; how a run goes is in ``running.py``, brought in when there is one.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, Awaitable, Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any

from comporta.callables import is_awaited
from comporta.names import checked_name
from comporta.retry.retry import Retry

if TYPE_CHECKING:
    from comporta.pipeline.letters import DeadLetters
    from comporta.pipeline.runs.progress import Progress
    from comporta.pipeline.runs.report import Report
    from comporta.pipeline.runs.running import Run
    from comporta.pipeline.runs.sources import Source
    from comporta.pipeline.sinks.base import AsyncSink, Row, Sink

WORKERS_MAX = 10_000
CAPACITY_MAX = 1_000_000
WINDOW_MIN = 1000
WINDOW_MAX = 1_000_000


class Pipeline:
    """Does one step for every item of a source, and writes what comes out of it, losing nothing.

    ``source`` is anything to iterate over (``async for`` too), a ``Path`` (a file of lines, CSV or JSON
    lines, by its name), a :class:`Channel` that others fill, or a ``FileSource``. ``step`` is a function of
    an item, plain (it gets threads of its own) or awaited, that returns a row, or ``None`` if there is
    nothing to write. ``sink`` keeps the rows, ``max_rows`` at a time or after ``max_delay`` seconds, under
    a ``limiter`` if there is one, tried again by ``sink_retry`` (``False``: not at all); left out, an item
    is done with its step.

    So many ``workers`` do steps at the same time. With ``key``, a function of an item, those of one key go
    one after another, in order. ``number`` is a column for what an item is called in its source: its line,
    or its place from 0 on. ``retry`` tries steps again. What fails for good goes to ``dead_letters``
    (a path, or a :class:`DeadLetters`); without them it ends the run.

    ``checkpoint`` is the path of a file that says what is done: a run that was killed goes on after it.
    ``capacity`` bounds what is read ahead, ``window`` how far ahead of the slowest item others may be.
    ``progress`` is ``True`` (a terminal, if there is one) or a :class:`Progress`.
    """

    def __init__(
        self,
        source: Iterable[Any] | AsyncIterable[Any] | os.PathLike[str] | Source,
        step: Callable[[Any], Row | Awaitable[Row | None] | None],
        sink: Sink | AsyncSink | None = None,
        *,
        workers: int = 10,
        key: Callable[[Any], Hashable] | None = None,
        number: str | None = None,
        retry: Retry | None = None,
        dead_letters: DeadLetters | str | os.PathLike[str] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        max_rows: int = 50,
        max_delay: float = 2.0,
        limiter: Any = None,
        sink_retry: Retry | bool = True,
        capacity: int = 100,
        window: int = 10_000,
        progress: Progress | bool | None = None,
        name: str = "pipeline",
    ) -> None:
        _check_count("workers", workers, 1, WORKERS_MAX)
        _check_count("capacity", capacity, 1, CAPACITY_MAX)
        _check_count("window", window, WINDOW_MIN, WINDOW_MAX)
        if not callable(step):
            raise TypeError(f"step must be a function of an item, got {step!r:.100}")
        if checkpoint is not None and not isinstance(checkpoint, str | os.PathLike):
            raise TypeError(f"checkpoint must be a path or None, got {checkpoint!r:.100}")
        if key is not None and not callable(key):
            raise TypeError(f"key must be a function of an item or None, got {key!r:.100}")
        if retry is not None and not isinstance(retry, Retry):
            raise TypeError(f"retry must be a Retry or None, got {retry!r:.50}")
        if not isinstance(sink_retry, Retry | bool):
            raise TypeError(f"sink_retry must be a Retry or a bool, got {sink_retry!r:.50}")
        self.awaited = is_awaited(step)
        self.source = source
        self.step = step
        self.sink = sink
        self.workers = workers
        self.key = key
        self.number = number
        self.retry = retry
        self.dead_letters = dead_letters
        self.checkpoint = checkpoint
        self.max_rows = max_rows
        self.max_delay = max_delay
        self.limiter = limiter
        self.sink_retry = sink_retry
        self.capacity = capacity
        self.window = window
        self.progress = progress
        self.name = checked_name(name)
        self.sync = SyncPipeline(self)
        self._run: Run | None = None

    def __repr__(self) -> str:
        return f"<Pipeline {self.name!r}, {self.workers} workers>"

    async def run(self, *, signals: bool = False) -> Report:
        """Do it all; returns how it went. What could not go on is raised, after what was done is noted.

        With ``signals``, the first SIGINT (Ctrl-C) or SIGTERM drains, a second one stops. Cancelling stops.
        """
        from comporta.pipeline.runs.running import Run  # noqa: PLC0415 - brings in asyncio

        if self._run is not None:
            raise RuntimeError(f"{self.name} is running already")
        self._run = Run(self)
        try:
            return await self._run.made(signals=signals)
        finally:
            self._run = None

    def drain(self) -> None:
        """Begin no more items; the run ends when those under way are done and written."""
        if self._run is not None:
            self._run.drain()

    def stop(self) -> None:
        """End the run now: steps under way are cancelled, and not done. What is done is written and noted."""
        if self._run is not None:
            self._run.stop()


class SyncPipeline:
    """The same for a program that does nothing else: ``pipeline.sync.run()``."""

    __slots__ = ("_pipeline",)

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def run(self, *, signals: bool = True) -> Report:
        """Do it all, blocking; Ctrl-C drains, a second one stops."""
        from asyncio import run  # noqa: PLC0415 - whoever awaits has it already

        return run(self._pipeline.run(signals=signals))


def _check_count(name: str, value: int, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {value!r:.50}")
    if not least <= value <= most:
        raise ValueError(f"{name} must be {least} to {most}, got {value}")
