"""Batch writers as users call them: ``await writer.write(row)``, or ``writer.sync.write(row)`` from threads.

A row that finds room is accepted without a flow; everything else is a flow of ``core.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, Self

from comporta.flow import Flow, run, run_async, running_loop
from comporta.limits.arguments import check_timeout
from comporta.names import validate_name
from comporta.pipeline.writer.at_exit import close_at_exit
from comporta.pipeline.writer.buffers import BatchOptions, RowKey
from comporta.pipeline.writer.core import WriterCore
from comporta.pipeline.writer.delivery import Delivery, WriteLimiter
from comporta.pipeline.writer.ledger import OnDead, OnError, OnWritten, WriterHooks
from comporta.pipeline.writer.stats import WriterStatistics
from comporta.retry.retry import Retry
from comporta.signatures import is_async_callable
from comporta.threads import BackgroundThread

if TYPE_CHECKING:
    from types import TracebackType

    from comporta.pipeline.dead_letters import DeadLetter, DeadLetters
    from comporta.pipeline.sinks.base import AsyncSink, Row, Sink

_DEFAULT: Any = object()


class BatchWriter:
    """Collects rows and writes them to a sink in batches.

    A batch is written when it has ``max_rows`` rows, or ``max_delay`` seconds after its first row.

    ::

        async with BatchWriter(SqliteSink("results.db")) as writer:
            await writer.write({"id": 1, "name": "Ana"})

    Without ``key``, rows are written in one order, one batch at a time. With ``key(row)``, up to ``threads``
    batches of different keys are written at the same time; rows of one key stay in order. ``write`` waits
    while ``capacity`` rows wait, so a slow sink slows its callers down.

    The writer retries a failed batch according to ``retry`` (``None``: never). Each attempt acquires one unit
    from ``limiter``, which all writers of one credential may share. Rows that fail for good go to
    ``dead_letters`` (a path, or :class:`DeadLetters`) with the reason. Without dead letters the next
    ``write``, ``flush`` or ``close`` raises the error; the rows stay, and the writer tries them again.

    The writer calls ``on_written(rows)`` and ``on_dead(rows, error)`` when a batch is settled, and
    ``on_error(error)`` as soon as a batch fails whose rows stay. It calls them on the thread that wrote (for
    an :class:`AsyncSink`, on the event loop), so they must return quickly. If one of them raises an error,
    the next ``write``, ``flush`` or ``close`` raises it.

    ``name`` appears in events and metrics. ``writer.sync`` has the same methods for threads.
    """

    def __init__(
        self,
        sink: Sink | AsyncSink,
        *,
        max_rows: int = 50,
        max_delay: float = 2.0,
        key: RowKey | None = None,
        capacity: int | None = None,
        threads: int | None = None,
        retry: Retry | None = _DEFAULT,
        limiter: WriteLimiter | None = None,
        dead_letters: DeadLetters | str | PathLike[str] | None = None,
        on_written: OnWritten | None = None,
        on_dead: OnDead | None = None,
        on_error: OnError | None = None,
        name: str = "writer",
    ) -> None:
        if key is not None and not callable(key):
            raise TypeError(f"key must be a function of a row or None, got {key!r:.50}")
        retry = Retry(budget=None) if retry is _DEFAULT else retry
        if retry is not None and not isinstance(retry, Retry):
            raise TypeError(f"retry must be a Retry or None, got {retry!r:.50}")
        options = BatchOptions.resolve(max_rows, max_delay, capacity, threads, keyed=key is not None)
        self.name = validate_name(name)
        self.sink = sink
        self.dead_letters = _dead_letters_of(dead_letters)
        self._core = WriterCore(
            self.name,
            options,
            Delivery(
                sink,
                retry=retry,
                limiter=limiter,
                dead_letters=self.dead_letters,
                dead_letter_of=partial(_row_dead_letter, key),
            ),
            key,
            is_async=is_async_sink(sink),
            hooks=WriterHooks(on_written, on_dead, on_error),
        )
        self._tasks: list[object] = []
        self.sync = SyncBatchWriter(self._core)

    async def open(self) -> None:
        """Open the sink; ``async with writer:`` does this for you."""
        await open_core(self._core, self._tasks)

    async def write(self, row: Row) -> None:
        """Accept a row, waiting while there is no room; a call cancelled while it waits wrote nothing."""
        if not self._core.try_put_one(_require_mapping(row)):
            await run_async(self._core.write_flow((row,)))

    async def write_many(self, rows: Sequence[Row]) -> None:
        """Accept all of these rows at once; a call cancelled while it waits wrote none of them."""
        rows = [_require_mapping(row) for row in rows]
        if rows and not self._core.try_put(rows):
            await run_async(self._core.write_flow(rows))

    async def flush(self) -> None:
        """Wait until all rows accepted so far are written or dead letters; raises why they are not."""
        await run_async(self._core.flush_flow())

    async def close(self, timeout: float | None = None) -> None:
        """Write the remaining rows and close the sink; raises why that failed. The rest is ``unwritten()``.

        After ``timeout`` seconds the writer gives up and starts no further batch.
        """
        check_timeout(timeout)
        await run_async(self._core.close_flow(timeout))

    def unwritten(self) -> list[Row]:
        """Return the rows that are neither written nor dead letters, in order for each key."""
        return self._core.unwritten()

    def statistics(self) -> WriterStatistics:
        """Return how many rows wait, are in flight, are written and are dead letters."""
        return self._core.statistics()

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
    """The blocking interface of a writer, ``writer.sync``; it also serves threads beside an event loop."""

    __slots__ = ("_core",)

    def __init__(self, core: WriterCore) -> None:
        self._core = core

    def open(self) -> None:
        """Open the sink; ``with writer.sync:`` does this for you."""
        if self._core.is_async:
            raise TypeError(
                "sink must be blocking for writer.sync, got an asynchronous one; use `async with writer`"
            )
        run(self._core.open_flow(_start_thread))
        close_at_exit(self._core)

    def write(self, row: Row) -> None:
        """Accept a row, waiting while there is no room."""
        if not self._core.try_put_one(_require_mapping(row)):
            run(self._core.write_flow((row,)))

    def write_many(self, rows: Sequence[Row]) -> None:
        """Accept all of these rows at once."""
        rows = [_require_mapping(row) for row in rows]
        if rows and not self._core.try_put(rows):
            run(self._core.write_flow(rows))

    def flush(self) -> None:
        """Wait until all rows accepted so far are written or dead letters; raises why they are not."""
        run(self._core.flush_flow())

    def close(self, timeout: float | None = None) -> None:
        """Write the remaining rows and close the sink; raises why that failed."""
        check_timeout(timeout)
        run(self._core.close_flow(timeout))

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


async def open_core(core: WriterCore, tasks: list[object]) -> None:
    """Open a writer from a coroutine; ``tasks`` keeps its tasks alive, which an event loop does not."""
    if not core.is_async:
        await run_async(core.open_flow(_start_thread))
    else:
        loop = running_loop()

        def start_task(flow: Flow[None]) -> None:
            tasks.append(loop.create_task(run_async(flow)))

        await run_async(core.open_flow(start_task, loop.is_closed))
    close_at_exit(core)


def _start_thread(flow: Flow[None]) -> None:
    if not BackgroundThread().start(run, flow, name="comporta-writer"):
        raise RuntimeError(
            "cannot start a thread to write batches: the interpreter is shutting down, or the system's "
            "limit on threads is reached"
        )


def _require_mapping(row: Row) -> Row:
    if type(row) is not dict and not isinstance(row, Mapping):
        raise TypeError(f"row must be a mapping of columns to values, got {row!r:.50}")
    return row


def is_async_sink(sink: Any) -> bool:
    """Return whether a sink is asynchronous; raises for an object that is not a sink."""
    if isinstance(sink, str | bytes | PathLike):
        raise TypeError(
            "sink must be a sink for a file, such as CsvSink(path), not a "
            f"{type(sink).__name__}, got {sink!r:.100}"
        )
    for method in ("open", "write", "close"):
        if not callable(getattr(sink, method, None)):
            raise TypeError(f"sink must have the methods open, write and close, got {sink!r:.50}")
    is_async = is_async_callable(sink.write)
    if not is_async == is_async_callable(sink.open) == is_async_callable(sink.close):
        raise TypeError(
            f"sink must have open, write and close all blocking or all asynchronous, got {sink!r:.50}"
        )
    return is_async


def _row_dead_letter(key: RowKey | None, row: Row, reason: str, attempts: int) -> DeadLetter:
    from comporta.pipeline.dead_letters import DeadLetter  # noqa: PLC0415 - imports json and files

    return DeadLetter(dict(row), reason, attempts, None if key is None else key(row))


def _dead_letters_of(given: DeadLetters | str | PathLike[str] | None) -> DeadLetters | None:
    if given is None:
        return None
    from comporta.pipeline.dead_letters import DeadLetters  # noqa: PLC0415 - imports json and files

    return given if isinstance(given, DeadLetters) else DeadLetters(given)
