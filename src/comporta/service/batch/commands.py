"""The commands of batch jobs and their sheets: changes and lookups in the database, each as one ``Command``.

The commands for chunks are in ``chunk_commands``.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from comporta.database.base import Rows
from comporta.database.command import Command
from comporta.service.batch import sql
from comporta.service.batch.models import (
    BatchJob,
    Cursor,
    JobBounds,
    JobOverview,
    SheetConfig,
    SheetLease,
    StoredResult,
    Unfinished,
)

T = TypeVar("T")

ATTEMPTS_MAX: Final = 20
"""How often a sheet is claimed without progress before it counts as failed."""

SHEET_ROWS: Final = 50
SHEET_FLUSH_US: Final = 2_000_000
"""A sheet is due at this many unwritten results, or this long after the first of them."""

DOWNLOAD_ID_BYTES: Final = 24
"""How many random bytes the id of a download has: anyone who knows the id may read the sheet."""


# -- jobs


def add_job(
    job_id: str, user_id: str, digest: str, accounts: Sequence[str], bounds: JobBounds, *, client: str = ""
) -> Command[BatchJob | None]:
    """Add a job. Returns the job with this id, or ``None`` if too many are running."""
    params = {
        "job_id": job_id,
        "user_id": user_id,
        "client": client,
        "digest": digest,
        "total": len(accounts),
        "accounts": json.dumps(list(accounts), ensure_ascii=False),
        **bounds._asdict(),
    }
    statements = (sql.ADD_JOB, sql.ADD_ACCOUNTS, sql.READ_JOB)
    return Command(statements, params, from_last(_parse_job))


def count_unfinished(user_id: str, client: str) -> Command[tuple[Unfinished, Unfinished]]:
    """Count the unfinished jobs and accounts of a user, and those of a client."""
    return Command(
        sql.COUNT_UNFINISHED,
        {"user_id": user_id, "client": client},
        lambda results: (Unfinished(*results[0][0]), Unfinished(*results[1][0])),
        writes=False,
    )


def read_job(job_id: str) -> Command[BatchJob | None]:
    """Read a job."""
    return Command((sql.READ_JOB,), {"job_id": job_id}, from_last(_parse_job), writes=False)


def read_results(job_id: str, after: Cursor, count: int) -> Command[list[StoredResult]]:
    """Read results in the order stored; this order never changes."""
    params = {"job_id": job_id, "after_us": after.at_us, "after": after.position, "count": count}
    return Command((sql.READ_RESULTS,), params, all_rows(StoredResult), writes=False)


def list_jobs(count: int) -> Command[list[JobOverview]]:
    """List jobs: the latest running ones, then the latest finished ones."""
    statements = (sql.LIST_RUNNING, sql.LIST_FINISHED)
    return Command(
        statements, {"count": count}, lambda results: _parse_overviews(results, count), writes=False
    )


def count_jobs_by_owner() -> Command[dict[str, int]]:
    """Count the jobs that each owner works on."""
    return Command(
        (sql.JOBS_BY_OWNER,), {}, lambda results: {row[0]: row[1] for row in results[0]}, writes=False
    )


# -- sheets


def configure_sheet(
    job_id: str, user_id: str, spreadsheet_id: str, url: str, name: str, *, stores_rows: bool = True
) -> Command[tuple[bool, SheetConfig | None]]:
    """Give a job a sheet. Returns whether it is new, and the sheet; ``None`` for an unknown job."""
    params = {
        "job_id": job_id,
        "user_id": user_id,
        "spreadsheet_id": spreadsheet_id,
        "spreadsheet_url": url,
        "spreadsheet_name": name,
        "stores_rows": stores_rows,
        "download_id": secrets.token_urlsafe(DOWNLOAD_ID_BYTES),
    }
    return Command(sql.CONFIGURE_SHEET, params, lambda results: (bool(results[1]), _parse_sheet(results[2])))


def reschedule_backfill(job_id: str) -> Command[bool]:
    """Schedule a failed backfill again. Returns false if it has not failed."""
    return Command(sql.RESCHEDULE_BACKFILL, {"job_id": job_id}, any_row)


def replace_sheet(
    removed: SheetConfig, spreadsheet_id: str, url: str, name: str, *, stores_rows: bool = True
) -> Command[bool]:
    """Replace a removed sheet by a new one and schedule a backfill of all rows."""
    params = {
        "job_id": removed.job_id,
        "removed_id": removed.spreadsheet_id,
        "spreadsheet_id": spreadsheet_id,
        "spreadsheet_url": url,
        "spreadsheet_name": name,
        "stores_rows": stores_rows,
    }
    return Command(sql.REPLACE_SHEET, params, any_row)


def read_sheet(job_id: str) -> Command[SheetConfig | None]:
    """Read the sheet of a job."""
    return Command((sql.READ_SHEET,), {"job_id": job_id}, from_last(_parse_sheet), writes=False)


def claim_sheet(owner: str, lease_us: int, ahead_us: int = 0) -> Command[SheetLease | None]:
    """Claim the sheet that has been due the longest, or that will be due within ``ahead_us``."""
    params = {"owner": owner, "lease_us": lease_us, "ahead_us": ahead_us, "attempts_max": ATTEMPTS_MAX}
    return Command((sql.CLAIM_SHEET,), params, from_last(first_row(SheetLease)))


def record_progress(lease: SheetLease, through: Cursor, backfilled_rows: int, lease_us: int) -> Command[bool]:
    """Record how far a sheet is filled. Returns false if another worker holds it."""
    params = {
        **_sheet_params(lease, through),
        "backfilled_rows": backfilled_rows,
        "lease_us": lease_us,
    }
    return Command((sql.RECORD_PROGRESS,), params, any_row)


def end_sheet_turn(lease: SheetLease, through: Cursor) -> Command[tuple[bool, bool, int | None]]:
    """Release a sheet that is filled up to a cursor.

    Returns whether this worker held it, whether its job is now finished, and in how many microseconds it is
    due again.
    """
    params = {**_sheet_params(lease, through), "rows_max": SHEET_ROWS, "flush_us": SHEET_FLUSH_US}
    return Command(sql.END_SHEET_TURN, params, _parse_turn_end)


def fail_sheet(lease: SheetLease, error: str) -> Command[tuple[bool, bool]]:
    """Record that a sheet cannot be filled.

    Returns whether this worker held it, and whether its job is finished now.
    """
    params = {"job_id": lease.job_id, "token": lease.token, "error": error}
    return Command(sql.FAIL_SHEET, params, lambda results: (bool(results[1]), bool(results[-1])))


def release_sheet(lease: SheetLease) -> Command[None]:
    """Release a sheet, so that another worker can claim it immediately."""
    return Command((sql.RELEASE_SHEET,), {"job_id": lease.job_id, "token": lease.token}, no_result)


def fail_hopeless(lease_us: int) -> Command[tuple[list[str], list[str]]]:
    """Mark sheets that were claimed too often as failed.

    Returns the ids of their jobs, and the ids of the jobs that are now finished.
    """
    params = {"lease_us": lease_us, "attempts_max": ATTEMPTS_MAX}
    return Command(
        sql.FAIL_HOPELESS,
        params,
        lambda results: ([row[0] for row in results[0]], [row[0] for row in results[1]]),
    )


def delete_oldest(keep_us: int) -> Command[bool]:
    """Delete the oldest job that finished more than ``keep_us`` ago, with its results and its sheet."""
    return Command(sql.DELETE_OLDEST, {"keep_us": keep_us}, any_row)


def _sheet_params(lease: SheetLease, through: Cursor) -> dict[str, Any]:
    return {
        "job_id": lease.job_id,
        "token": lease.token,
        "done_us": through.at_us,
        "done_position": through.position,
    }


def from_last(read: Callable[[Rows], T]) -> Callable[[list[Rows]], T]:
    """Return a parser of the rows of the last statement."""
    return lambda results: read(results[-1])


def first_row(row_type: Callable[..., T]) -> Callable[[Rows], T | None]:
    """Return a parser of the first row, if there is one."""
    return lambda rows: row_type(*rows[0]) if rows else None


def all_rows(row_type: Callable[..., T]) -> Callable[[list[Rows]], list[T]]:
    """Return a parser of all rows of the only statement."""
    return lambda results: [row_type(*row) for row in results[0]]


def any_row(results: list[Rows]) -> bool:
    """Return whether the last statement returned a row."""
    return bool(results[-1])


def no_result(results: list[Rows]) -> None:
    """Return nothing: the statements return no rows that matter."""


def _parse_turn_end(results: list[Rows]) -> tuple[bool, bool, int | None]:
    _, held, _, due, _, finished = results
    return bool(held), bool(finished), due[0][0] if due else None


def _parse_overviews(results: list[Rows], count: int) -> list[JobOverview]:
    return [JobOverview(*row) for rows in results for row in rows][:count]


_parse_job = first_row(BatchJob)
_parse_sheet = first_row(SheetConfig)
