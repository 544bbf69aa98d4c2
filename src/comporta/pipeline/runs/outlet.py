"""Rows on their way out of a pipeline, with the items that they came from.

The batch writer knows rows only. What is confirmed, and what is fed in again if it could not be written, is
the item: so every row carries its entry, and letters about rows become letters about items.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from comporta.pipeline.letters import DeadLetters, Letter
from comporta.pipeline.runs.books import Books
from comporta.pipeline.runs.sources import Entry
from comporta.pipeline.sinks.base import AsyncSink, Row, Sink
from comporta.pipeline.writing.lanes import BATCHES_WAITING
from comporta.pipeline.writing.writer import BatchWriter
from comporta.retry.retry import Retry

if TYPE_CHECKING:
    from comporta.pipeline.runs.pipeline import Pipeline


ROWS_WAITING = 2000
"""How many rows may wait for the sink, if that is more than ten batches: in small ones workers and sink would
stop for each other at every batch."""


class Placed(dict[str, Any]):
    """A row that knows which item it is of."""

    __slots__ = ("entry",)

    entry: Entry


class Outlet:
    """The batch writer of a run."""

    def __init__(self, pipeline: Pipeline, sink: Sink | AsyncSink, books: Books) -> None:
        self._loop = asyncio.get_running_loop()
        self._books = books
        self._number = pipeline.number
        self._entries: dict[int, Entry] = {}
        self._settled: deque[tuple[Sequence[Row], Exception | None]] = deque()
        self._told = False
        letters = None if books.letters is None else ItemLetters(books.letters, self._entries)
        self._writer = BatchWriter(
            sink,
            max_rows=pipeline.max_rows,
            max_delay=pipeline.max_delay,
            key=_position,
            threads=1,
            capacity=max(ROWS_WAITING, BATCHES_WAITING * pipeline.max_rows),
            retry=_retry_of(pipeline.sink_retry),
            limiter=pipeline.limiter,
            dead_letters=letters,
            on_written=self._written,
            on_dead=self._dead,
        )

    async def open(self) -> None:
        """Open the sink."""
        await self._writer.open()

    async def write(self, entry: Entry, row: Row) -> None:
        """Hand in a row, waiting while the sink is behind."""
        placed = Placed(row if self._number is None else {self._number: entry.number, **row})
        placed.entry = entry
        self._entries[entry.position] = entry
        await self._writer.write(placed)

    async def close(self, timeout: float | None) -> None:
        """Write what is there, and close the sink; after ``timeout`` seconds the rest is left undone."""
        await self._writer.close(timeout)
        self._confirm_all()

    def _written(self, rows: Sequence[Row]) -> None:
        self._settle(rows, None)

    def _dead(self, rows: Sequence[Row], error: Exception) -> None:
        self._settle(rows, error)

    def _settle(self, rows: Sequence[Row], error: Exception | None) -> None:
        """Tell the loop, from the thread that wrote; once for all batches until it looks.

        Waking it makes this thread wait for its turn again: for each batch that would cost more than writing.
        """
        self._settled.append((rows, error))
        if not self._told:
            self._told = True
            self._loop.call_soon_threadsafe(self._confirm_all)

    def _confirm_all(self) -> None:
        self._told = False
        while self._settled:
            self._confirm(*self._settled.popleft())

    def _confirm(self, rows: Sequence[Row], error: Exception | None) -> None:
        entries = [cast(Placed, row).entry for row in rows]
        for entry in entries:
            self._entries.pop(entry.position, None)
        positions = [entry.position for entry in entries]
        if error is None:
            self._books.confirm(positions, written=len(positions))
        else:
            self._books.confirm(positions, dead=len(positions))
            self._books.say_dead(entries[0].number, str(error))


class ItemLetters(DeadLetters):
    """Dead letters about rows, turned into such about their items; a row is known by its position."""

    def __init__(self, letters: DeadLetters, entries: dict[int, Entry]) -> None:
        super().__init__(letters.path, max_bytes=letters.max_bytes)
        self._entries = entries

    def extend(self, letters: Iterable[Letter]) -> None:
        """Keep several, all or none."""
        super().extend([self._about_its_item(letter) for letter in letters])

    def _about_its_item(self, letter: Letter) -> Letter:
        entry = self._entries[letter.key]
        return replace(letter, item=entry.item, key=None, position=entry.number)


def _retry_of(given: Retry | bool) -> Retry | None:
    if isinstance(given, Retry):
        return given
    return Retry(budget=None) if given else None  # the one who calls is one, and has nobody to spare


def _position(row: Row) -> int:
    return cast(Placed, row).entry.position
