"""Sheets that are not written at all: the service serves them from the database, which has every result.

All workers of all machines read the same rows, so a sheet needs no file, no lock and no backfill of rows.
``downloads`` reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from comporta.database.command import execute
from comporta.errors import SinkNotFoundError
from comporta.pipeline.sinks.base import Row, Sink
from comporta.pipeline.sinks.spreadsheets import Spreadsheet
from comporta.retry.retry import Retry
from comporta.service.batch.download_queries import is_served
from comporta.service.batch.sheets import sheet_retry

if TYPE_CHECKING:
    from comporta.database.base import Database
    from comporta.pipeline.writer.delivery import WriteLimiter


class DatabaseSheets:
    """Sheets that exist as soon as they are configured for a job."""

    stores_rows = False
    quota: WriteLimiter | None = None

    def __init__(self, database: Database, retry: Retry | None = None) -> None:
        self.retry = retry or sheet_retry(retries=3, base=0.2)
        self._database = database

    def open(self) -> None:
        """Do nothing: there is nothing to prepare."""

    def create(self, name: str, marker: str) -> Spreadsheet:
        """Return the sheet of this marker. It has no URL of its own: the routes serve it."""
        return Spreadsheet(marker, "", name)

    def exists(self, spreadsheet_id: str) -> bool:
        """Return whether the service serves this sheet; it does not serve one in Google Sheets."""
        return execute(self._database, is_served(spreadsheet_id))

    def sink(self, spreadsheet_id: str) -> Sink:
        """Return a sink that does nothing: the rows are in the database already."""
        if not self.exists(spreadsheet_id):
            raise SinkNotFoundError(
                f"no sheet {spreadsheet_id!r:.50} is served from the database: configure it again"
            )
        return StoredRowsSink()

    def close(self) -> None:
        """Do nothing: no resources are held."""


class StoredRowsSink:
    """Accepts rows that are stored already."""

    def open(self) -> None:
        """Do nothing."""

    def write(self, rows: Sequence[Row]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
