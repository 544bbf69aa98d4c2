"""The interface for creating and writing sheets, and its implementation for Google Sheets."""

from __future__ import annotations

import gc
from typing import Any, Final, Protocol

from comporta.database.base import Database
from comporta.errors import SinkUnavailableError
from comporta.pipeline.sinks.base import Sink
from comporta.pipeline.sinks.formula_escaping import Cell, csv_cell
from comporta.pipeline.sinks.google_account import GoogleAccount
from comporta.pipeline.sinks.google_sheets import SheetsSink
from comporta.pipeline.sinks.spreadsheets import Spreadsheet, Spreadsheets
from comporta.pipeline.writer.delivery import WriteLimiter
from comporta.retry.retry import Retry
from comporta.service.batch.models import COLUMNS

GOOGLE_QUOTA: Final = "60/minute burst 10"
"""Google's quota for one account; each write of rows is one request."""


class Sheets(Protocol):
    """Creates spreadsheets, one for each marker, and writes to them. All methods block.

    A row is identified by its account, so a row that is written twice appears once. A spreadsheet without a
    URL is one that the service serves itself.
    """

    @property
    def stores_rows(self) -> bool:
        """Whether rows have to be written; if not, clients read them from the database."""

    @property
    def quota(self) -> WriteLimiter | None:
        """The limiter that each write acquires from, if any."""

    @property
    def retry(self) -> Retry:
        """The retry policy for failed writes."""

    def open(self) -> None:
        """Prepare what would otherwise delay the first client. Optional; it may fail."""

    def create(self, name: str, marker: str) -> Spreadsheet:
        """Return the spreadsheet with this marker, creating it if necessary."""

    def exists(self, spreadsheet_id: str) -> bool:
        """Return whether the spreadsheet still exists; people delete them."""

    def sink(self, spreadsheet_id: str) -> Sink:
        """Return a sink that writes to the spreadsheet."""

    def close(self) -> None:
        """Release all resources."""


class GoogleSheets:
    """Google Sheets through one account; the database stores the address of each row."""

    stores_rows = True

    def __init__(
        self,
        account: GoogleAccount,
        database: Database,
        quota: WriteLimiter | None,
        retry: Retry | None = None,
    ) -> None:
        self.quota = quota
        self.retry = retry or sheet_retry(retries=5)
        self._account = account
        self._database = database
        self._spreadsheets = Spreadsheets(account)

    def open(self) -> None:
        """Load the API descriptions of Google's client, which takes about 250 ms.

        They stay in memory and consist of more objects than everything else, so they are frozen: repeated
        garbage collection over them would block the event loop for 100 ms each time.
        """
        _ = self._account.files, self._account.values
        gc.freeze()

    def create(self, name: str, marker: str) -> Spreadsheet:
        """Create the spreadsheet or find the one with this marker."""
        return self._spreadsheets.create(name, marker)

    def exists(self, spreadsheet_id: str) -> bool:
        """Look it up in Google Drive."""
        return self._spreadsheets.has(spreadsheet_id)

    def sink(self, spreadsheet_id: str) -> Sink:
        """Return a sink that writes to its first tab."""
        return SheetsSink(
            spreadsheet_id,
            self._account,
            key=COLUMNS[0],
            columns=COLUMNS,
            database=self._database,
            migrate=False,
        )

    def close(self) -> None:
        """Close the connections."""
        self._account.close()


def csv_record(account: str, message: str) -> tuple[Cell, Cell]:
    """Return a row for a CSV file; accounts that differ also differ there."""
    return csv_cell(_unambiguous(account)), csv_cell(message)


def _unambiguous(account: str) -> str:
    """Return an account that formula escaping cannot make equal to another: ``'=1`` differs from ``=1``."""
    bare = account.lstrip("'")
    return account if bare == account or csv_cell(bare) == bare else f"'{account}"


def sheet_retry(**options: Any) -> Retry:
    """Return a retry policy for outages; errors that will not go away are not retried."""
    return Retry(**{"on": SinkUnavailableError, "budget": None, "max_delay": 120.0, **options})
