"""The statements and commands that read sheets from the database, for clients that download them."""

from __future__ import annotations

from typing import NamedTuple

from comporta.database.base import Rows, Statement
from comporta.database.command import Command


class DownloadableSheet(NamedTuple):
    """A sheet that clients may download; ``total`` is the number of accounts of its job."""

    download_id: str
    job_id: str
    name: str
    total: int
    user_id: str


class SheetLine(NamedTuple):
    """A row of a sheet; ``position`` is the position of its account in the job."""

    position: int
    account: str
    message: str


_FIND_SHEET = Statement(
    """
    SELECT download_id, batch_sheets.job_id, spreadsheet_name, total, batch_jobs.user_id
    FROM batch_sheets JOIN batch_jobs ON batch_jobs.job_id = batch_sheets.job_id
    WHERE download_id = :download_id
    """
)

# An index serves this query: the primary key is (job_id, position).
_READ_LINES = Statement(
    """
    SELECT position, account, message FROM batch_results
    WHERE job_id = :job_id AND position > CAST(:after AS INTEGER) AND outcome = 'success' AND message <> ''
    ORDER BY position LIMIT :count
    """
)

# Sheets elsewhere have a URL.
_IS_SERVED = Statement(
    "SELECT 1 FROM batch_sheets WHERE spreadsheet_id = :spreadsheet_id AND spreadsheet_url = '' LIMIT 1"
)


def find_sheet(download_id: str) -> Command[DownloadableSheet | None]:
    """Find the sheet with a download id."""
    return Command((_FIND_SHEET,), {"download_id": download_id}, _parse_sheet, writes=False)


def read_lines(job_id: str, after: int, count: int) -> Command[list[SheetLine]]:
    """Read the rows of a sheet after the position ``after``, in the order of their accounts."""
    params = {"job_id": job_id, "after": after, "count": count}
    return Command((_READ_LINES,), params, _parse_lines, writes=False)


def is_served(spreadsheet_id: str) -> Command[bool]:
    """Return whether the service, and not Google, serves a sheet."""
    return Command((_IS_SERVED,), {"spreadsheet_id": spreadsheet_id}, _parse_flag, writes=False)


def _parse_sheet(results: list[Rows]) -> DownloadableSheet | None:
    return DownloadableSheet(*results[0][0]) if results[0] else None


def _parse_lines(results: list[Rows]) -> list[SheetLine]:
    return [SheetLine(*row) for row in results[0]]


def _parse_flag(results: list[Rows]) -> bool:
    return bool(results[0])
