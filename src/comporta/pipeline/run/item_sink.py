"""Sinks that take the rows of items: the rows of one item are written in one batch, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from comporta.errors import SinkRowError
from comporta.pipeline.run.sources import SourceEntry
from comporta.pipeline.sinks.base import AsyncSink, ResumableSink, ResumePoint, Row, Sink


class ItemRows(NamedTuple):
    """The rows of one item, and the entry they came from."""

    entry: SourceEntry
    rows: Sequence[Row]


class BlockingItemSink:
    """A sink that takes the rows of items, and opens where the run left off if it can."""

    def __init__(self, sink: Any, point: ResumePoint | None) -> None:
        self._sink: Sink = sink
        self._resumable = sink if isinstance(sink, ResumableSink) and point is not None else None
        self._point = point

    @property
    def end(self) -> int | None:
        """How far the file of the sink is written, if the run can resume there."""
        return None if self._resumable is None else self._resumable.end

    def open(self) -> None:
        """Open the sink."""
        if self._resumable is None or self._point is None:
            self._sink.open()
        else:
            self._resumable.open_run(self._point)

    def write(self, items: Sequence[Any]) -> None:
        """Write the rows of all items, or raise an error with the index of the item at fault."""
        try:
            self._sink.write(_rows_of(items))
        except SinkRowError as error:
            raise error_of_item(error, items) from error

    def close(self) -> None:
        """Close the sink."""
        self._sink.close()


class AsyncItemSink:
    """An asynchronous sink that takes the rows of items."""

    end = None

    def __init__(self, sink: Any) -> None:
        self._sink: AsyncSink = sink

    async def open(self) -> None:
        """Open the sink."""
        await self._sink.open()

    async def write(self, items: Sequence[Any]) -> None:
        """Write the rows of all items, or raise an error with the index of the item at fault."""
        try:
            await self._sink.write(_rows_of(items))
        except SinkRowError as error:
            raise error_of_item(error, items) from error

    async def close(self) -> None:
        """Close the sink."""
        await self._sink.close()


def _rows_of(items: Sequence[ItemRows]) -> list[Row]:
    return [row for _, rows in items for row in rows]


def error_of_item(error: SinkRowError, items: Sequence[ItemRows]) -> SinkRowError:
    """Return the error with the index of the item that the row at fault came from."""
    rows_before = 0
    for index, (_, rows) in enumerate(items):
        rows_before += len(rows)
        if error.index < rows_before:
            return type(error)(str(error), index)
    return error
