"""The rows of a running job on their way into its sheet: at fifty, or two seconds after the first.

What cannot be written is not lost: it is in the database, and the sheet is said to have failed; once somebody
asks for it again, all of it up to that moment is the backfill's.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from comporta import events
from comporta.database.base import Database
from comporta.errors import ComportaError, DatabaseError
from comporta.pipeline.sinks.base import Row
from comporta.pipeline.writing.writer import BatchWriter
from comporta.service.batch.counting import count_rows
from comporta.service.batch.requests import Asked, ask, ask_async, given_up, written
from comporta.service.batch.roles import Role
from comporta.service.batch.sheets import Sheets
from comporta.service.batch.values import COLUMNS, SUCCESS, HeldJob, Place, Result, Target

ROWS_MAX: Final = 50
DELAY_SECONDS: Final = 2.0
ERROR_CHARS_MAX: Final = 500
ABANDON_SECONDS: Final = 0.05


class SheetRow(dict[str, str]):
    """A row that knows its place in the order of the job."""

    __slots__ = ("place",)

    def __init__(self, result: Result) -> None:
        super().__init__(zip(COLUMNS, (result.account, result.message), strict=True))
        self.place: Place = result.place


def rows_of(results: Sequence[Result]) -> list[Row]:
    """Return what goes into a sheet: successes that have something to say."""
    return [SheetRow(each) for each in results if each.outcome == SUCCESS and each.message]


class Filling:
    """Of one run of a job. The sheet may be configured while it runs, and again after it failed."""

    def __init__(self, held: HeldJob, sheets: Sheets, role: Role, database: Database) -> None:
        self._held = held
        self._sheets = sheets
        self._role = role
        self._database = database
        self._target = Target("", 0)
        self._writer: BatchWriter | None = None

    async def put(self, target: Target, results: Sequence[Result]) -> None:
        """Take rows; waits while a sheet is behind by more than a few hundred."""
        rows = rows_of(results)
        if not rows:
            return
        try:
            writer = await self._writer_for(target)
            await writer.write_many(rows)
        except (ComportaError, OSError) as error:
            await self._give_up(target, error)

    async def close(self, seconds: float | None = None) -> None:
        """Write what is left; afterwards a sheet may be begun anew."""
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                await writer.close(seconds)
            except (ComportaError, OSError) as error:  # TimeoutError is one
                await self._give_up(self._target, error)

    async def abandon(self) -> None:
        """Begin no other batch; the thread of a writer ends."""
        writer, self._writer = self._writer, None
        if writer is not None:
            with suppress(Exception):
                await writer.close(ABANDON_SECONDS)

    async def _writer_for(self, target: Target) -> BatchWriter:
        if self._writer is not None and self._target != target:
            await self.close()
        if self._writer is None:
            self._target = target
            sink = await self._role.run(self._sheets.sink, target.spreadsheet_id)
            writer = BatchWriter(
                sink,
                max_rows=ROWS_MAX,
                max_delay=DELAY_SECONDS,
                retry=self._sheets.retry,
                limiter=self._sheets.quota,
                on_written=self._written(target),
                on_error=self._stopped(target),
                name="batch_sheet",
            )
            await writer.open()
            self._writer = writer
        return self._writer

    def _written(self, target: Target) -> Any:
        """Return what notes how far the sheet is, on the writer's thread: so much less to do after a kill."""

        def note(rows: Sequence[SheetRow]) -> None:
            count_rows(len(rows), "job")
            with suppress(DatabaseError):
                ask(self._database, written(self._held.job_id, target.boundary_us, rows[-1].place))

        return note

    def _stopped(self, target: Target) -> Any:
        """Return what says that rows are missing, on the writer's thread: the next may be long in coming."""

        def note(error: Exception) -> None:
            ask(self._database, self._given_up(target, error))

        return note

    async def _give_up(self, target: Target, error: Exception) -> None:
        await self.abandon()
        await ask_async(self._database, self._given_up(target, error))

    def _given_up(self, target: Target, error: Exception) -> Asked[None]:
        text = f"{type(error).__name__}: {error}"[:ERROR_CHARS_MAX]
        events.publish("batch_sheet_failed", self._held.job_id, text, "error")
        return given_up(self._held, target.boundary_us, text)
