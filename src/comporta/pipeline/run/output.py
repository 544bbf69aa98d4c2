"""Rows on their way from a pipeline to its sink, with the items they came from.

The batch writer of a run counts items: the rows of one item are written in one batch, or not at all, and an
item whose rows fail for good becomes a dead letter.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from comporta.flow import run_async
from comporta.pipeline.dead_letters import DeadLetter
from comporta.pipeline.run.item_log import ItemLog
from comporta.pipeline.run.item_sink import ItemRows
from comporta.pipeline.run.sources import SourceEntry
from comporta.pipeline.sinks.base import AsyncSink, Row, Sink
from comporta.pipeline.writer.buffers import BATCHES_WAITING_DEFAULT, BatchOptions
from comporta.pipeline.writer.core import WriterCore
from comporta.pipeline.writer.delivery import Delivery
from comporta.pipeline.writer.ledger import WriterHooks
from comporta.pipeline.writer.writer import is_async_sink, open_core
from comporta.retry.retry import Retry

if TYPE_CHECKING:
    from comporta.pipeline.run.pipeline import Pipeline


ITEMS_WAITING_MIN = 2000
"""At least the rows of this many items may wait for the sink; with fewer, steps and sink block each other."""


class PipelineOutput:
    """The batch writer of a run, which confirms items when their rows are written."""

    def __init__(self, pipeline: Pipeline, sink: Sink | AsyncSink, progress_log: ItemLog) -> None:
        self._loop = asyncio.get_running_loop()
        self._progress_log = progress_log
        self._number_column = pipeline.number
        self._key = pipeline.key
        self._settled_batches: deque[tuple[Sequence[Any], Exception | None, int | None]] = deque()
        self._wakeup_scheduled = False
        self._tasks: list[object] = []
        is_async = is_async_sink(sink)
        self._sink = progress_log.item_sink(sink, is_async=is_async)
        self._core = WriterCore(
            "writer",
            BatchOptions.resolve(
                pipeline.max_rows,
                pipeline.max_delay,
                max(ITEMS_WAITING_MIN, BATCHES_WAITING_DEFAULT * pipeline.max_rows),
                None,
                keyed=False,
            ),
            Delivery(
                self._sink,
                retry=_retry_of(pipeline.sink_retry),
                limiter=pipeline.limiter,
                dead_letters=progress_log.dead_letters,
                dead_letter_of=self._dead_letter_of,
            ),
            None,
            is_async=is_async,
            hooks=WriterHooks(self._on_written, self._on_dead),
        )

    async def open(self) -> None:
        """Open the sink; the checkpoint then says where the rows of this run begin."""
        await open_core(self._core, self._tasks)
        await self._progress_log.save_output_end(self._sink.end)

    def try_write(self, entry: SourceEntry, rows: Sequence[Row]) -> bool:
        """Write the rows of an item if the sink is not behind."""
        return self._core.try_put_one(self._item_rows(entry, rows))

    async def write(self, entry: SourceEntry, rows: Sequence[Row]) -> None:
        """Write the rows of an item, waiting while the sink is behind."""
        await run_async(self._core.write_flow((self._item_rows(entry, rows),)))

    async def close(self, timeout: float | None) -> None:
        """Write the remaining rows and close the sink; after ``timeout`` seconds the rest stays unwritten."""
        await run_async(self._core.close_flow(timeout))
        self._confirm_all()

    def _item_rows(self, entry: SourceEntry, rows: Sequence[Row]) -> Any:
        if self._number_column is not None:
            rows = [{self._number_column: entry.number, **row} for row in rows]
        return ItemRows(entry, rows)

    def _dead_letter_of(self, item: Any, reason: str, attempts: int) -> DeadLetter:
        entry: SourceEntry = item.entry
        return self._progress_log.dead_letter_of(entry, reason, attempts)

    def _on_written(self, items: Sequence[Any]) -> None:
        self._settle(items, None)

    def _on_dead(self, items: Sequence[Any], error: Exception) -> None:
        self._settle(items, error)

    def _settle(self, items: Sequence[Any], error: Exception | None) -> None:
        """Schedule the confirmation on the event loop, once for all batches until it runs.

        This runs on the thread that wrote. Waking the loop makes that thread wait for the interpreter; for
        each batch that would cost more than writing it.
        """
        self._settled_batches.append((items, error, self._sink.end))
        if not self._wakeup_scheduled:
            self._wakeup_scheduled = True
            self._loop.call_soon_threadsafe(self._confirm_all)

    def _confirm_all(self) -> None:
        self._wakeup_scheduled = False
        while self._settled_batches:
            self._confirm(*self._settled_batches.popleft())

    def _confirm(self, items: Sequence[Any], error: Exception | None, end: int | None) -> None:
        positions = [entry.position for entry, _ in items]
        if error is None:
            self._progress_log.confirm(positions, written=len(positions), output_end=end)
        else:
            self._progress_log.confirm(positions, dead=len(positions), output_end=end)
            entry: SourceEntry = items[0].entry
            key = None if self._key is None else self._key(entry.item)
            self._progress_log.publish_dead_letter(entry.name(key), str(error))


def _retry_of(given: Retry | bool) -> Retry | None:
    if isinstance(given, Retry):
        return given
    return Retry(budget=None) if given else None  # a budget protects against many callers; this is one
