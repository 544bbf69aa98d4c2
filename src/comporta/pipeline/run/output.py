"""Rows on their way from a pipeline to its sink, with the items they came from.

The batch writer knows rows only. The run confirms items, and dead letters hold items so that they can be
processed again. So each row refers to its entry, and dead letters about rows become dead letters about items.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from comporta.pipeline.dead_letters import DeadLetter, DeadLetters
from comporta.pipeline.run.progress_log import ProgressLog
from comporta.pipeline.run.sources import SourceEntry
from comporta.pipeline.sinks.base import AsyncSink, Row, Sink
from comporta.pipeline.writer.buffers import BATCHES_WAITING_DEFAULT
from comporta.pipeline.writer.writer import BatchWriter
from comporta.retry.retry import Retry

if TYPE_CHECKING:
    from comporta.pipeline.run.pipeline import Pipeline


ROWS_WAITING_MIN = 2000
"""At least this many rows may wait for the sink; with less, steps and sink wait for each other."""


class SourcedRow(dict[str, Any]):
    """A row that refers to the entry it came from."""

    __slots__ = ("entry",)

    entry: SourceEntry


class PipelineOutput:
    """The batch writer of a run, which confirms items when their rows are written."""

    def __init__(self, pipeline: Pipeline, sink: Sink | AsyncSink, progress_log: ProgressLog) -> None:
        self._loop = asyncio.get_running_loop()
        self._progress_log = progress_log
        self._number_column = pipeline.number
        self._entries: dict[int, SourceEntry] = {}
        self._settled_batches: deque[tuple[Sequence[Row], Exception | None]] = deque()
        self._wakeup_scheduled = False
        letters = (
            None
            if progress_log.dead_letters is None
            else ItemDeadLetters(progress_log.dead_letters, self._entries)
        )
        self._writer = BatchWriter(
            sink,
            max_rows=pipeline.max_rows,
            max_delay=pipeline.max_delay,
            key=_row_position,
            threads=1,
            capacity=max(ROWS_WAITING_MIN, BATCHES_WAITING_DEFAULT * pipeline.max_rows),
            retry=_retry_of(pipeline.sink_retry),
            limiter=pipeline.limiter,
            dead_letters=letters,
            on_written=self._on_written,
            on_dead=self._on_dead,
        )

    async def open(self) -> None:
        """Open the sink."""
        await self._writer.open()

    async def write(self, entry: SourceEntry, row: Row) -> None:
        """Write a row, waiting while the sink is behind."""
        placed = SourcedRow(
            row if self._number_column is None else {self._number_column: entry.number, **row}
        )
        placed.entry = entry
        self._entries[entry.position] = entry
        await self._writer.write(placed)

    async def close(self, timeout: float | None) -> None:
        """Write the remaining rows and close the sink; after ``timeout`` seconds the rest stays unwritten."""
        await self._writer.close(timeout)
        self._confirm_all()

    def _on_written(self, rows: Sequence[Row]) -> None:
        self._settle(rows, None)

    def _on_dead(self, rows: Sequence[Row], error: Exception) -> None:
        self._settle(rows, error)

    def _settle(self, rows: Sequence[Row], error: Exception | None) -> None:
        """Schedule the confirmation on the event loop, once for all batches until it runs.

        This runs on the thread that wrote. Waking the loop makes that thread wait for the interpreter; for
        each batch that would cost more than writing it.
        """
        self._settled_batches.append((rows, error))
        if not self._wakeup_scheduled:
            self._wakeup_scheduled = True
            self._loop.call_soon_threadsafe(self._confirm_all)

    def _confirm_all(self) -> None:
        self._wakeup_scheduled = False
        while self._settled_batches:
            self._confirm(*self._settled_batches.popleft())

    def _confirm(self, rows: Sequence[Row], error: Exception | None) -> None:
        entries = [cast(SourcedRow, row).entry for row in rows]
        for entry in entries:
            self._entries.pop(entry.position, None)
        positions = [entry.position for entry in entries]
        if error is None:
            self._progress_log.confirm(positions, written=len(positions))
        else:
            self._progress_log.confirm(positions, dead=len(positions))
            self._progress_log.publish_dead_letter(entries[0].number, str(error))


class ItemDeadLetters(DeadLetters):
    """Dead letters that replace each row by the item it came from; the key of a row is its position."""

    def __init__(self, letters: DeadLetters, entries: dict[int, SourceEntry]) -> None:
        super().__init__(letters.path, max_bytes=letters.max_bytes)
        self._entries = entries

    def extend(self, letters: Iterable[DeadLetter]) -> None:
        """Append several, all or none."""
        super().extend([self._for_item(letter) for letter in letters])

    def _for_item(self, letter: DeadLetter) -> DeadLetter:
        entry = self._entries[letter.key]
        return replace(letter, item=entry.item, key=None, position=entry.number)


def _retry_of(given: Retry | bool) -> Retry | None:
    if isinstance(given, Retry):
        return given
    return Retry(budget=None) if given else None  # a budget protects from many callers; this is one


def _row_position(row: Row) -> int:
    return cast(SourcedRow, row).entry.position
