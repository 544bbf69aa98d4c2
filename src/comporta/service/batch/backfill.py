"""Writes the results from before a sheet was configured: read page by page, written, and recorded as done.

It blocks, on a thread pool of its own. If a worker dies between writing a page and recording it, the next
worker writes the page again to the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from comporta import events
from comporta.database.base import Database
from comporta.database.command import execute
from comporta.errors import ComportaError, DatabaseError, LimitReachedError
from comporta.pipeline.sinks.base import Row, Sink
from comporta.service.batch.commands import finish_backfill, read_backfill_page, record_backfill_progress
from comporta.service.batch.metrics import count_backfill, count_rows
from comporta.service.batch.models import COMPLETED, FAILED, BackfillLease, Cursor
from comporta.service.batch.sheet_writer import ERROR_CHARS_MAX, sheet_rows
from comporta.service.batch.sheets import Sheets

PAGE_ROWS: Final = 1000
QUOTA_TIMEOUT_SECONDS: Final = 300.0
"""How long a page waits for the quota of its account, which other workers use too."""


class Backfill:
    """The backfill of one job that this worker has leased; ``should_stop`` is called before each page."""

    def __init__(
        self,
        lease: BackfillLease,
        database: Database,
        sheets: Sheets,
        lease_us: int,
        should_stop: Callable[[], bool],
    ) -> None:
        self.lease = lease
        self._database = database
        self._sheets = sheets
        self._lease_us = lease_us
        self._should_stop = should_stop

    def run(self) -> bool:
        """Run it; return whether it ended, successfully or not."""
        try:
            sink = self._sheets.sink(self.lease.spreadsheet_id)
            try:
                if not self._write_pages(sink):
                    return False
            finally:
                sink.close()
            return self._finish(COMPLETED)
        except DatabaseError as error:  # the sheet is fine: a worker continues once the lease expires
            events.publish("batch_backfill_interrupted", self.lease.job_id, str(error))
            return False
        except (ComportaError, OSError) as error:
            return self._fail(error)

    def _write_pages(self, sink: Sink) -> bool:
        """Write all pages; return false if this worker lost the lease or is stopping."""
        retry = self._sheets.retry.sync
        retry.call(sink.open)
        after = Cursor(self.lease.done_us, self.lease.done_position)
        while page := execute(self._database, read_backfill_page(self.lease, after, PAGE_ROWS)):
            if self._should_stop():
                return False
            retry.call(self._write_page, sink, sheet_rows(page))
            after = page[-1].cursor
            if not execute(
                self._database, record_backfill_progress(self.lease, after, len(page), self._lease_us)
            ):
                return False
            count_rows(len(page), "backfill")
        return True

    def _write_page(self, sink: Sink, rows: Sequence[Row]) -> None:
        quota = self._sheets.quota
        if quota is not None and not quota.sync.acquire(timeout=QUOTA_TIMEOUT_SECONDS):
            raise LimitReachedError(
                f"the sheet quota had no room within {QUOTA_TIMEOUT_SECONDS:g} s",
                "sheets",
                QUOTA_TIMEOUT_SECONDS,
            )
        sink.write(rows)

    def _finish(self, status: str, error: str = "") -> bool:
        is_ours = execute(self._database, finish_backfill(self.lease, status, error))
        if is_ours:
            count_backfill(status)
        return is_ours

    def _fail(self, error: Exception) -> bool:
        text = f"{type(error).__name__}: {error}"[:ERROR_CHARS_MAX]
        events.publish("batch_backfill_failed", self.lease.job_id, text, "error")
        try:
            return self._finish(FAILED, text)
        except DatabaseError:
            return False  # the lease expires, and the next worker finds the same failure
