"""Where sheets are made and written: Google's, when there are credentials; otherwise files in a folder."""

from __future__ import annotations

import gc
from typing import Any, Final, Protocol

from comporta.database.base import Database
from comporta.errors import SinkUnavailableError
from comporta.pipeline.sinks.base import Sink
from comporta.pipeline.sinks.google import GoogleAccount
from comporta.pipeline.sinks.sheets import SheetsSink
from comporta.pipeline.sinks.spreadsheets import Spreadsheet, Spreadsheets
from comporta.pipeline.writing.delivery import Quota
from comporta.retry.retry import Retry
from comporta.service.batch.values import COLUMNS

GOOGLE_QUOTA: Final = "60/minute burst 10"
"""What Google allows an account; each batch of rows is one request."""


class Sheets(Protocol):
    """Makes spreadsheets, each once for a mark, and writes to them. It blocks.

    Rows are written by account: a row that is written twice is there once, whoever wrote it.
    """

    @property
    def quota(self) -> Quota | None:
        """What each write takes one of."""

    @property
    def retry(self) -> Retry:
        """How often a write that failed is tried again."""

    def open(self) -> None:
        """Do now what would otherwise hold up the first client; it may be left out, and may fail."""

    def create(self, name: str, marker: str) -> Spreadsheet:
        """Return the spreadsheet with this mark, made if there is none yet."""

    def has(self, spreadsheet_id: str) -> bool:
        """Whether it is still there: people remove them."""

    def sink(self, spreadsheet_id: str) -> Sink:
        """Return what writes to a spreadsheet."""

    def close(self) -> None:
        """Give back what is held."""


class GoogleSheets:
    """Google's, through one account; the rows' addresses are in the database."""

    def __init__(
        self, account: GoogleAccount, database: Database, quota: Quota | None, retry: Retry | None = None
    ) -> None:
        self.quota = quota
        self.retry = retry or patient(retries=5)
        self._account = account
        self._database = database
        self._spreadsheets = Spreadsheets(account)

    def open(self) -> None:
        """Have Google's client read its manuals, for a quarter of a second.

        They are there for good, in more objects than all the rest: were the garbage collector to look through
        them again and again, the event loop would stand still for a tenth of a second each time.
        """
        _ = self._account.files, self._account.values
        gc.freeze()

    def create(self, name: str, marker: str) -> Spreadsheet:
        """Make it, or find it."""
        return self._spreadsheets.create(name, marker)

    def has(self, spreadsheet_id: str) -> bool:
        """Ask Drive."""
        return self._spreadsheets.has(spreadsheet_id)

    def sink(self, spreadsheet_id: str) -> Sink:
        """Write to its first tab."""
        return SheetsSink(
            spreadsheet_id,
            self._account,
            key=COLUMNS[0],
            columns=COLUMNS,
            database=self._database,
            migrate=False,
        )

    def close(self) -> None:
        """End the connections."""
        self._account.close()


def patient(**options: Any) -> Retry:
    """Return how writes are tried again: what is only out of reach, and not what is refused for good."""
    return Retry(**{"on": SinkUnavailableError, "budget": None, "max_delay": 120.0, **options})
