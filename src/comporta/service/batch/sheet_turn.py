"""Fills the sheet of a job from its stored results, in the order in which they were stored.

A sheet is due when its job has unwritten results: at 50, 2 s after the first, at the end of the job, and from
the moment at which it is configured. A worker then leases it, writes the results that are there and releases
it. The results from before the configuration are the backfill. Storing a result never writes to a sheet.

The code blocks, and runs on a thread pool of its own. If a worker dies between writing a page and recording
it, the next worker writes the page again to the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Final

from comporta import events
from comporta.database.command import execute
from comporta.errors import ComportaError, DatabaseError, LimitReachedError
from comporta.service.batch.commands import (
    SHEET_ROWS,
    end_sheet_turn,
    fail_sheet,
    read_results,
    record_progress,
)
from comporta.service.batch.metrics import count_backfill, count_job, count_rows
from comporta.service.batch.models import (
    COLUMNS,
    COMPLETED,
    FAILED,
    PENDING,
    SUCCESS,
    Cursor,
    SheetLease,
    StoredResult,
)

if TYPE_CHECKING:
    from comporta.database.base import Database
    from comporta.pipeline.sinks.base import Row, Sink
    from comporta.service.batch.sheets import Sheets

PAGE_RESULTS: Final = 1000
ERROR_CHARS_MAX: Final = 500
QUOTA_TIMEOUT_SECONDS: Final = 300.0
"""How long a page waits for the quota of its account, which other workers use too."""

SINKS_MAX: Final = 8
"""How many sheets stay open between two turns."""


def sheet_rows(results: Sequence[StoredResult]) -> list[Row]:
    """Return the rows for a sheet: successful results with a message."""
    return [
        dict(zip(COLUMNS, (each.account, each.message), strict=True))
        for each in results
        if each.outcome == SUCCESS and each.message
    ]


class OpenSheets:
    """Keeps sheets open between turns; a turn takes its sheet out, so that no two turns share one."""

    def __init__(self, sheets: Sheets) -> None:
        self._sheets = sheets
        self._lock = Lock()
        self._sinks: dict[str, Sink] = {}

    def take(self, spreadsheet_id: str) -> Sink:
        """Return an open sink; open one, with retries, if there is none."""
        with self._lock:
            kept = self._sinks.pop(spreadsheet_id, None)
        if kept is not None:
            return kept
        sink = self._sheets.sink(spreadsheet_id)
        self._sheets.retry.sync.call(sink.open)
        return sink

    def give_back(self, spreadsheet_id: str, sink: Sink) -> None:
        """Keep a sink for the next turn; close the one that was kept longest if there are too many."""
        with self._lock:
            evicted = [self._sinks.pop(spreadsheet_id, None)]
            if len(self._sinks) >= SINKS_MAX:
                evicted.append(self._sinks.pop(next(iter(self._sinks))))
            self._sinks[spreadsheet_id] = sink
        for each in evicted:
            if each is not None:
                each.close()

    def close(self) -> None:
        """Close all sinks that no turn has."""
        with self._lock:
            sinks, self._sinks = list(self._sinks.values()), {}
        for sink in sinks:
            sink.close()


class SheetTurn:
    """A turn of one sheet that this worker has leased.

    It calls ``should_stop`` after each page, and ``before_end`` before it releases the lease. After
    :meth:`run`, ``is_job_finished`` says whether the turn finished the job, and ``due_us`` in how many
    microseconds the sheet is due again.
    """

    def __init__(
        self,
        lease: SheetLease,
        database: Database,
        sheets: Sheets,
        open_sheets: OpenSheets,
        lease_us: int,
        *,
        should_stop: Callable[[], bool],
        before_end: Callable[[], None],
    ) -> None:
        self.lease = lease
        self.is_job_finished = False
        self.due_us: int | None = None
        self._database = database
        self._sheets = sheets
        self._open_sheets = open_sheets
        self._lease_us = lease_us
        self._should_stop = should_stop
        self._before_end = before_end
        self._is_backfill = lease.backfill_status == PENDING
        self._done = Cursor(lease.done_us, lease.done_position)

    def run(self) -> bool:
        """Write what is due; return whether the turn ended, successfully or not."""
        try:
            sink = self._open_sheets.take(self.lease.spreadsheet_id)
            try:
                is_held = self._write_pages(sink)
            except BaseException:
                sink.close()
                raise
            self._open_sheets.give_back(self.lease.spreadsheet_id, sink)
            return is_held and self._end()
        except DatabaseError as error:  # the sheet is fine: a worker continues once the lease expires
            events.publish("batch_backfill_interrupted", self.lease.job_id, str(error), label="batch")
            return False
        except (ComportaError, OSError) as error:
            return self._fail(error)

    def _write_pages(self, sink: Sink) -> bool:
        """Write all pages that are due; return false if this worker lost the lease or is stopping."""
        page = self._next_page()
        while page:
            rows = sheet_rows(page)
            if rows:
                self._sheets.retry.sync.call(self._write_page, sink, rows)
            if not self._record(page, len(rows)) or self._should_stop():
                return False
            page = self._next_page()
            if len(page) < SHEET_ROWS and not self._has_backfill(page):
                break  # they have just been stored; the next turn writes them, with what follows
        return True

    def _has_backfill(self, page: Sequence[StoredResult]) -> bool:
        return bool(page) and page[0].processed_at_us < self.lease.boundary_us

    def _next_page(self) -> list[StoredResult]:
        return execute(self._database, read_results(self.lease.job_id, self._done, PAGE_RESULTS))

    def _write_page(self, sink: Sink, rows: Sequence[Row]) -> None:
        quota = self._sheets.quota
        if quota is not None and not quota.sync.acquire(timeout=QUOTA_TIMEOUT_SECONDS):
            raise LimitReachedError(
                f"the sheet quota had no room within {QUOTA_TIMEOUT_SECONDS:g} s",
                "sheets",
                QUOTA_TIMEOUT_SECONDS,
            )
        sink.write(rows)

    def _record(self, page: Sequence[StoredResult], rows: int) -> bool:
        """Record a written page; return whether this worker still has the lease."""
        earlier = [each for each in page if each.processed_at_us < self.lease.boundary_us]
        backfilled = len(sheet_rows(earlier)) if self._is_backfill else 0
        self._done = page[-1].cursor
        command = record_progress(self.lease, self._done, backfilled, self._lease_us)
        is_held = execute(self._database, command)
        if is_held:
            count_rows(backfilled, "backfill")
            count_rows(rows - backfilled, "job")
            if self._done.at_us >= self.lease.boundary_us:
                self._count_backfilled()
        return is_held

    def _count_backfilled(self) -> None:
        if self._is_backfill:
            self._is_backfill = False
            count_backfill(COMPLETED)

    def _end(self) -> bool:
        self._before_end()
        is_held, is_finished, self.due_us = execute(self._database, end_sheet_turn(self.lease, self._done))
        if is_held:
            self._count_backfilled()
        self._count_finished(is_finished)
        return is_held

    def _count_finished(self, is_finished: bool) -> None:
        if is_finished:
            self.is_job_finished = True
            count_job(COMPLETED)

    def _fail(self, error: Exception) -> bool:
        text = f"{type(error).__name__}: {error}"[:ERROR_CHARS_MAX]
        kind = "batch_backfill_failed" if self._is_backfill else "batch_sheet_failed"
        events.publish(kind, self.lease.job_id, text, "error", label="batch")
        try:
            is_held, is_finished = execute(self._database, fail_sheet(self.lease, text))
        except DatabaseError:
            return False  # the lease expires, and the next worker finds the same failure
        if is_held and self._is_backfill:
            count_backfill(FAILED)
        self._count_finished(is_finished)
        return is_held
