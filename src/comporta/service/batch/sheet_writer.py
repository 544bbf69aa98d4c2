"""Writes the results of a running job to its sheet: every 50 rows, or 2 s after the first unwritten row.

A row that cannot be written stays in the database, and the sheet is marked failed. When a client configures
the sheet again, the backfill writes everything up to that moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from comporta import events
from comporta.database.base import Database
from comporta.database.command import Command, execute, execute_async
from comporta.errors import ComportaError, DatabaseError
from comporta.pipeline.sinks.base import Row
from comporta.pipeline.writer.writer import BatchWriter
from comporta.service.batch.commands import record_sheet_failure, record_written
from comporta.service.batch.metrics import count_rows
from comporta.service.batch.models import COLUMNS, SUCCESS, Cursor, JobLease, SheetTarget, StoredResult
from comporta.service.batch.sheets import Sheets
from comporta.thread_pool import ThreadPool

ROWS_MAX: Final = 50
FLUSH_SECONDS: Final = 2.0
ERROR_CHARS_MAX: Final = 500
ABANDON_SECONDS: Final = 0.05


class SheetRow(dict[str, str]):
    """A sheet row with its position in the order of the job."""

    __slots__ = ("cursor",)

    def __init__(self, result: StoredResult) -> None:
        super().__init__(zip(COLUMNS, (result.account, result.message), strict=True))
        self.cursor: Cursor = result.cursor


def sheet_rows(results: Sequence[StoredResult]) -> list[Row]:
    """Return the rows for a sheet: successful results with a message."""
    return [SheetRow(each) for each in results if each.outcome == SUCCESS and each.message]


class SheetWriter:
    """The writer of one run of a job. The sheet may be configured while the job runs, or replaced later."""

    def __init__(self, lease: JobLease, sheets: Sheets, pool: ThreadPool, database: Database) -> None:
        self._lease = lease
        self._sheets = sheets
        self._pool = pool
        self._database = database
        self._target = SheetTarget("", 0)
        self._writer: BatchWriter | None = None

    async def write(self, target: SheetTarget, results: Sequence[StoredResult]) -> None:
        """Add rows; wait while the sheet is more than a few hundred rows behind."""
        rows = sheet_rows(results)
        if not rows:
            return
        try:
            writer = await self._open_writer(target)
            await writer.write_many(rows)
        except (ComportaError, OSError) as error:
            await self._fail(target, error)

    async def close(self, seconds: float | None = None) -> None:
        """Flush the remaining rows; a later ``write`` opens the sheet again."""
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                await writer.close(seconds)
            except (ComportaError, OSError) as error:  # TimeoutError is one
                await self._fail(self._target, error)

    async def abandon(self) -> None:
        """Start no further flush, and end the writer's thread."""
        writer, self._writer = self._writer, None
        if writer is not None:
            with suppress(Exception):
                await writer.close(ABANDON_SECONDS)

    async def _open_writer(self, target: SheetTarget) -> BatchWriter:
        if self._writer is not None and self._target != target:
            await self.close()
        if self._writer is None:
            self._target = target
            sink = await self._pool.run(self._sheets.sink, target.spreadsheet_id)
            writer = BatchWriter(
                sink,
                max_rows=ROWS_MAX,
                max_delay=FLUSH_SECONDS,
                retry=self._sheets.retry,
                limiter=self._sheets.quota,
                on_written=self._progress_callback(target),
                on_error=self._failure_callback(target),
                name="batch_sheet",
            )
            await writer.open()
            self._writer = writer
        return self._writer

    def _progress_callback(self, target: SheetTarget) -> Any:
        """Return a function that records written rows, so that less is repeated after a crash."""

        def record(rows: Sequence[SheetRow]) -> None:
            count_rows(len(rows), "job")
            with suppress(DatabaseError):
                execute(
                    self._database, record_written(self._lease.job_id, target.boundary_us, rows[-1].cursor)
                )

        return record

    def _failure_callback(self, target: SheetTarget) -> Any:
        """Return a function that marks the sheet failed immediately; the next ``write`` may be far off."""

        def record(error: Exception) -> None:
            execute(self._database, self._failure_command(target, error))

        return record

    async def _fail(self, target: SheetTarget, error: Exception) -> None:
        await self.abandon()
        await execute_async(self._database, self._failure_command(target, error))

    def _failure_command(self, target: SheetTarget, error: Exception) -> Command[None]:
        text = f"{type(error).__name__}: {error}"[:ERROR_CHARS_MAX]
        events.publish("batch_sheet_failed", self._lease.job_id, text, "error")
        return record_sheet_failure(self._lease, target.boundary_us, text)
