"""The rows from before there was a sheet: read from the database page by page, written, and noted as done.

It blocks, on a thread of its role. A page that was written and not noted is written again by whoever takes
over, to the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from comporta import events
from comporta.database.base import Database
from comporta.errors import ComportaError, DatabaseError, LimitReachedError
from comporta.pipeline.sinks.base import Row, Sink
from comporta.service.batch.counting import count_backfill, count_rows
from comporta.service.batch.filling import ERROR_CHARS_MAX, rows_of
from comporta.service.batch.requests import ask, backfill_ended, backfilled, to_backfill
from comporta.service.batch.sheets import Sheets
from comporta.service.batch.values import COMPLETED, FAILED, HeldBackfill, Place

PAGE: Final = 1000
QUOTA_SECONDS: Final = 300.0
"""How long a page waits for the quota of its account, which others use as well."""


class Backfill:
    """Of one job that this worker holds; ``over`` is asked before each page."""

    def __init__(
        self, held: HeldBackfill, database: Database, sheets: Sheets, lease_us: int, over: Callable[[], bool]
    ) -> None:
        self.held = held
        self._database = database
        self._sheets = sheets
        self._lease_us = lease_us
        self._over = over

    def run(self) -> bool:
        """Do it; true if it is over, well or not."""
        try:
            sink = self._sheets.sink(self.held.spreadsheet_id)
            try:
                if not self._written_to(sink):
                    return False
            finally:
                sink.close()
            return self._ended(COMPLETED)
        except DatabaseError as error:  # nothing is wrong with the sheet: it goes on when the lease has ended
            events.publish("batch_backfill_interrupted", self.held.job_id, str(error))
            return False
        except (ComportaError, OSError) as error:
            return self._failed(error)

    def _written_to(self, sink: Sink) -> bool:
        """Write all pages; false if it is not ours to write any more."""
        again = self._sheets.retry.sync
        again.call(sink.open)
        after = Place(self.held.done_us, self.held.done_position)
        while page := ask(self._database, to_backfill(self.held, after, PAGE)):
            if self._over():
                return False
            again.call(self._put, sink, rows_of(page))
            after = page[-1].place
            if not ask(self._database, backfilled(self.held, after, len(page), self._lease_us)):
                return False
            count_rows(len(page), "backfill")
        return True

    def _put(self, sink: Sink, rows: Sequence[Row]) -> None:
        quota = self._sheets.quota
        if quota is not None and not quota.sync.acquire(timeout=QUOTA_SECONDS):
            raise LimitReachedError("the quota of the sheets left no room in time", "sheets", QUOTA_SECONDS)
        sink.write(rows)

    def _ended(self, status: str, error: str = "") -> bool:
        ours = ask(self._database, backfill_ended(self.held, status, error))
        if ours:
            count_backfill(status)
        return ours

    def _failed(self, error: Exception) -> bool:
        text = f"{type(error).__name__}: {error}"[:ERROR_CHARS_MAX]
        events.publish("batch_backfill_failed", self.held.job_id, text, "error")
        try:
            return self._ended(FAILED, text)
        except DatabaseError:
            return False  # whoever takes it up next finds out again
