"""The face of a batch writer: ``await writer.write(row)``, or ``writer.sync.write(row)`` from threads.

A row that finds room is taken at once; everything else is a flow (``gathering.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from comporta.callables import is_awaited
from comporta.flow import Flow, run, run_async
from comporta.limits.verbs import check_timeout
from comporta.names import checked_name
from comporta.pipeline.writing.delivery import Delivery, Quota
from comporta.pipeline.writing.exits import close_at_exit
from comporta.pipeline.writing.gathering import Dead, Gathering, Stopped, Written
from comporta.pipeline.writing.lanes import Batching, Key
from comporta.pipeline.writing.statistics import WriterStatistics
from comporta.retry.retry import Retry
from comporta.threads import Run

if TYPE_CHECKING:
    import os
    from types import TracebackType

    from comporta.pipeline.letters import DeadLetters
    from comporta.pipeline.sinks.base import AsyncSink, Row, Sink

_DEFAULT: Any = object()


class BatchWriter:
    """Gathers rows into batches for a sink: at ``max_rows``, or ``max_delay`` seconds after the first.

    ::

        async with BatchWriter(SqliteSink("results.db")) as writer:
            await writer.write({"id": 1, "name": "Ana"})

    ``key(row)`` lets batches of different keys be written at the same time, by so many ``threads``; rows of
    one key stay in order and are never in two batches at once. Without it there is one order and one batch at
    a time. ``write`` waits while ``capacity`` rows wait: a slow sink pushes back.

    A batch that fails is tried again under ``retry`` (``None``: not at all), each try after taking one from
    ``limiter``, which all writers of one credential may share. What fails for good goes to ``dead_letters``
    (a path, or :class:`DeadLetters`) with the reason; without one the error is raised by the next ``write``,
    ``flush`` or ``close``, and the rows stay and are tried again.

    ``on_written(rows)`` and ``on_dead(rows, error)`` are called when a batch is settled, ``on_error(error)``
    when one failed and its rows stay: at once, where the next ``write`` may be long in coming. All are called
    on the thread that wrote (for an :class:`AsyncSink`, on the event loop), and must be quick. What they
    raise is raised by the next ``write``, ``flush`` or ``close``.
    """

    def __init__(
        self,
        sink: Sink | AsyncSink,
        *,
        max_rows: int = 50,
        max_delay: float = 2.0,
        key: Key | None = None,
        capacity: int | None = None,
        threads: int | None = None,
        retry: Retry | None = _DEFAULT,
        limiter: Quota | None = None,
        dead_letters: DeadLetters | str | os.PathLike[str] | None = None,
        on_written: Written | None = None,
        on_dead: Dead | None = None,
        on_error: Stopped | None = None,
        name: str = "writer",
    ) -> None:
        if key is not None and not callable(key):
            raise TypeError(f"key must be a function of a row or None, got {key!r:.50}")
        retry = Retry(budget=None) if retry is _DEFAULT else retry
        if retry is not None and not isinstance(retry, Retry):
            raise TypeError(f"retry must be a Retry or None, got {retry!r:.50}")
        batching = Batching.of(max_rows, max_delay, capacity, threads, keyed=key is not None)
        self.name = checked_name(name)
        self.sink = sink
        self.dead_letters = _letters(dead_letters)
        self._gathering = Gathering(
            self.name,
            batching,
            Delivery(sink, retry=retry, limiter=limiter, letters=self.dead_letters, key=key),
            key,
            awaited=_is_awaited(sink),
            on_written=on_written,
            on_dead=on_dead,
            on_error=on_error,
        )
        self._tasks: list[object] = []
        self.sync = SyncBatchWriter(self._gathering)

    async def open(self) -> None:
        """Open the sink; ``async with writer:`` does."""
        import asyncio  # noqa: PLC0415 - blocking programs never need it

        if not self._gathering.awaited:
            await run_async(self._gathering.opening(_thread))
        else:
            loop = asyncio.get_running_loop()

            def task(flow: Flow[None]) -> None:
                self._tasks.append(loop.create_task(run_async(flow)))  # a loop keeps no task alive

            await run_async(self._gathering.opening(task, loop.is_closed))
        close_at_exit(self._gathering)

    async def write(self, row: Row) -> None:
        """Take a row; waits while there is no room. Cancelled while it waits, it has taken nothing."""
        if not self._gathering.put_one(_checked(row)):
            await run_async(self._gathering.writing((row,)))

    async def write_many(self, rows: Sequence[Row]) -> None:
        """Take all of these rows at once, or, cancelled while it waits for room, none of them."""
        rows = [_checked(row) for row in rows]
        if rows and not self._gathering.put_first(rows):
            await run_async(self._gathering.writing(rows))

    async def flush(self) -> None:
        """Wait until all rows taken so far are written or in dead letters; raises why they are not."""
        await run_async(self._gathering.flushing())

    async def close(self, timeout: float | None = None) -> None:
        """Write what is left and close the sink; raises why that failed. The rest is ``unwritten()``.

        After ``timeout`` seconds it is given up: no batch is begun any more.
        """
        check_timeout(timeout)
        await run_async(self._gathering.closing(timeout))

    def unwritten(self) -> list[Row]:
        """Return the rows that are neither written nor in dead letters, in order for each key."""
        return self._gathering.unwritten()

    def statistics(self) -> WriterStatistics:
        """Return how the writer stands."""
        return self._gathering.statistics()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class SyncBatchWriter:
    """The verbs of a writer, blocking: ``writer.sync``; also for threads beside an event loop."""

    __slots__ = ("_gathering",)

    def __init__(self, gathering: Gathering) -> None:
        self._gathering = gathering

    def open(self) -> None:
        """Open the sink; ``with writer.sync:`` does."""
        if self._gathering.awaited:
            raise TypeError(
                "sink must be a blocking one where there is no event loop, got one that is awaited"
            )
        run(self._gathering.opening(_thread))
        close_at_exit(self._gathering)

    def write(self, row: Row) -> None:
        """Take a row; waits while there is no room."""
        if not self._gathering.put_one(_checked(row)):
            run(self._gathering.writing((row,)))

    def write_many(self, rows: Sequence[Row]) -> None:
        """Take all of these rows at once."""
        rows = [_checked(row) for row in rows]
        if rows and not self._gathering.put_first(rows):
            run(self._gathering.writing(rows))

    def flush(self) -> None:
        """Wait until all rows taken so far are written or in dead letters; raises why they are not."""
        run(self._gathering.flushing())

    def close(self, timeout: float | None = None) -> None:
        """Write what is left and close the sink; raises why that failed."""
        check_timeout(timeout)
        run(self._gathering.closing(timeout))

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _thread(flow: Flow[None]) -> None:
    if not Run().start(run, flow, name="comporta-writer"):
        raise RuntimeError("no thread can be had to write batches on")


def _checked(row: Row) -> Row:
    if type(row) is not dict and not isinstance(row, Mapping):
        raise TypeError(f"row must be a mapping of columns to values, got {row!r:.50}")
    return row


def _is_awaited(sink: Any) -> bool:
    for verb in ("open", "write", "close"):
        if not callable(getattr(sink, verb, None)):
            raise TypeError(f"sink must have open, write and close, got {sink!r:.50}")
    awaited = is_awaited(sink.write)
    if not awaited == is_awaited(sink.open) == is_awaited(sink.close):
        raise TypeError(f"sink must have open, write and close all blocking or all awaited, got {sink!r:.50}")
    return awaited


def _letters(given: DeadLetters | str | os.PathLike[str] | None) -> DeadLetters | None:
    if given is None:
        return None
    from comporta.pipeline.letters import DeadLetters  # noqa: PLC0415 - brings in json and files

    return given if isinstance(given, DeadLetters) else DeadLetters(given)
