"""Pipelines as users use them: ``Pipeline(source, step, sink).sync.run()``.

::

    source ─► reader ─► channel ─► tasks: step, retries ─► batch writer ─► sink
                ▲ waits when full      │ failed for good          │ written
                │                      ▼                          ▼
              checkpoint ◄──────── dead letters ───────────► confirmed

This module validates the options, once. ``runner.py`` executes a run; it is imported when one starts.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, Awaitable, Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from comporta.names import validate_name
from comporta.retry.retry import Retry
from comporta.signatures import is_async_callable
from comporta.validators import require_integer

if TYPE_CHECKING:
    from comporta.pipeline.dead_letters import DeadLetters
    from comporta.pipeline.run.progress import Progress
    from comporta.pipeline.run.report import Report
    from comporta.pipeline.run.runner import PipelineRun
    from comporta.pipeline.run.sources import EntrySource
    from comporta.pipeline.shared_run.source import TableSource
    from comporta.pipeline.sinks.base import AsyncSink, Row, Sink

    Rows = Row | Sequence[Row] | None
    """What a step returns: one row, several or none."""

WORKERS_MAX = 10_000
CAPACITY_MAX = 1_000_000
WINDOW_MIN = 1000
WINDOW_MAX = 1_000_000


class Pipeline:
    """Executes a step for every item of a source and writes the rows it returns, losing none.

    - ``source``: anything to iterate over, also with ``async for``; a ``Path`` (a file of lines, CSV or JSON
      lines, by its name); a :class:`Channel` that others send to; a ``FileSource``; or a ``TableSource``
      whose lines are shared with other processes and machines.
    - ``step``: a function of an item that returns a row, a list of rows, or ``None`` for no row. A plain
      function runs on threads, a coroutine function on the event loop.
    - ``sink``: receives the rows, ``max_rows`` at a time or after ``max_delay`` seconds, under a ``limiter``
      if there is one, retried according to ``sink_retry`` (``False``: never). Without a sink an item is
      done when its step is.
    - ``workers``: how many steps run at the same time.
    - ``key``: a function of an item; items of one key are processed one after another, in order.
    - ``number``: the name of a column for the number of the item: its line, or its position counted from 0.
    - ``retry``: retries steps.
    - ``dead_letters``: a path, or a :class:`DeadLetters`, for items that fail for good; without it such an
      item ends the run.
    - ``checkpoint``: the path of a file that records which items are done; a killed run resumes from it.
    - ``capacity``: how many items are read ahead. ``window``: how far items may be ahead of the slowest one.
    - ``progress``: ``True`` (a bar, if standard error is a terminal) or a function of a report.
    - ``name``: the name in events and metrics.

    ``pipeline.sync`` is the blocking interface.
    """

    def __init__(
        self,
        source: Iterable[Any] | AsyncIterable[Any] | os.PathLike[str] | EntrySource | TableSource,
        step: Callable[[Any], Rows | Awaitable[Rows]],
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
        require_integer("workers", workers, 1, WORKERS_MAX)
        require_integer("capacity", capacity, 1, CAPACITY_MAX)
        require_integer("window", window, WINDOW_MIN, WINDOW_MAX)
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
        is_async_callable(step)  # raises for a generator function
        if sink is not None:
            from comporta.pipeline.writer.writer import is_async_sink  # noqa: PLC0415 - a run needs it, too

            is_async_sink(sink)  # raises for what is not a sink
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
        self.name = validate_name(name)
        self.sync = SyncPipeline(self)
        self._run: PipelineRun | None = None

    def __repr__(self) -> str:
        return f"<Pipeline {self.name!r}, {self.workers} workers>"

    async def run(self, *, signals: bool = False) -> Report:
        """Process all items and return the report; raises the error that ended the run, if one did.

        With ``signals``, the first SIGINT (Ctrl-C) or SIGTERM drains, the second stops. Cancelling stops.
        """
        from comporta.pipeline.run.runner import PipelineRun  # noqa: PLC0415 - imports asyncio

        if self._run is not None:
            raise RuntimeError(f"{self.name} is running already; wait for its end, or make another Pipeline")
        self._run = PipelineRun(self)
        try:
            return await self._run.execute(signals=signals)
        finally:
            self._run = None

    def drain(self) -> None:
        """Start no more items; the run ends when the items in progress are done and written."""
        if self._run is not None:
            self._run.drain()

    def stop(self) -> None:
        """End the run now: cancel the steps in progress, and write and save what is done."""
        if self._run is not None:
            self._run.stop()


class SyncPipeline:
    """The blocking interface of a pipeline: ``pipeline.sync.run()``."""

    __slots__ = ("_pipeline",)

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def run(self, *, signals: bool = True) -> Report:
        """Process all items and return the report; Ctrl-C drains, a second one stops."""
        from asyncio import _get_running_loop, run  # noqa: PLC0415 - imported only by programs that run one

        if _get_running_loop() is not None:  # the public function raises where no loop runs
            raise RuntimeError("sync.run() would block the running event loop; use `await pipeline.run()`")
        return run(self._pipeline.run(signals=signals))
