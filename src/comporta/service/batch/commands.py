"""The commands of batch jobs: every change and lookup in the database, each as one ``Command``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from comporta.database.base import Rows
from comporta.database.command import Command
from comporta.service.batch import sql
from comporta.service.batch.models import (
    SUCCESS,
    AccountResult,
    BackfillLease,
    BatchJob,
    Cursor,
    JobLease,
    JobOverview,
    PendingAccount,
    SheetConfig,
    SheetTarget,
    StoredResult,
    StoreReceipt,
)

T = TypeVar("T")

ATTEMPTS_MAX: Final = 20
"""How often a job or backfill is claimed without progress before it counts as failed."""


# -- jobs


def add_job(
    job_id: str, user_id: str, digest: str, accounts: Sequence[str], jobs_max: int
) -> Command[BatchJob | None]:
    """Add a job. Returns the job with this id, or ``None`` if too many are running."""
    params = {
        "job_id": job_id,
        "user_id": user_id,
        "digest": digest,
        "total": len(accounts),
        "accounts": json.dumps(list(accounts), ensure_ascii=False),
        "jobs_max": jobs_max,
    }
    statements = (sql.ADD_JOB, sql.ADD_ACCOUNTS, sql.READ_JOB)
    return Command(statements, params, _from_last(_parse_job))


def read_job(job_id: str) -> Command[BatchJob | None]:
    """Read a job."""
    return Command((sql.READ_JOB,), {"job_id": job_id}, _from_last(_parse_job), writes=False)


def read_unfinished(job_id: str, after: int, count: int) -> Command[list[PendingAccount]]:
    """Read the next accounts without a result."""
    params = {"job_id": job_id, "after": after, "count": count}
    return Command((sql.UNFINISHED,), params, _all_rows(PendingAccount), writes=False)


def store_results(lease: JobLease, done: Sequence[AccountResult]) -> Command[StoreReceipt | None]:
    """Store results. Returns ``None``, and stores nothing, if another worker holds the job."""
    listed = [f"{each.position:010}{'+' if each.outcome == SUCCESS else '-'}{each.message}" for each in done]
    params = {**_lease_params(lease), "done": json.dumps(listed, ensure_ascii=False)}
    return Command(sql.STORE_RESULTS, params, _parse_receipt)


def finish_job(lease: JobLease, status: str) -> Command[bool]:
    """Finish a job. Returns false if this worker does not hold it."""
    return Command((sql.FINISH_JOB,), {**_lease_params(lease), "status": status}, _any_row)


def read_results(job_id: str, after: Cursor, count: int) -> Command[list[StoredResult]]:
    """Read results in the order stored; this order never changes."""
    params = {"job_id": job_id, "after_us": after.at_us, "after": after.position, "count": count}
    return Command((sql.READ_RESULTS,), params, _all_rows(StoredResult), writes=False)


def list_jobs(count: int) -> Command[list[JobOverview]]:
    """List jobs: the latest running ones, then the latest finished ones."""
    statements = (sql.LIST_RUNNING, sql.LIST_FINISHED)
    return Command(
        statements, {"count": count}, lambda results: _parse_overviews(results, count), writes=False
    )


def count_jobs_by_owner() -> Command[dict[str, int]]:
    """Count the jobs that each owner has leased."""
    return Command(
        (sql.JOBS_BY_OWNER,), {}, lambda results: {row[0]: row[1] for row in results[0]}, writes=False
    )


# -- sheets


def configure_sheet(
    job_id: str, user_id: str, spreadsheet_id: str, url: str, name: str
) -> Command[tuple[bool, SheetConfig | None]]:
    """Give a job a sheet. Returns whether it is new, and the sheet; ``None`` for an unknown job."""
    params = {
        "job_id": job_id,
        "user_id": user_id,
        "spreadsheet_id": spreadsheet_id,
        "spreadsheet_url": url,
        "spreadsheet_name": name,
    }
    return Command(sql.CONFIGURE_SHEET, params, lambda results: (bool(results[1]), _parse_sheet(results[2])))


def reschedule_backfill(job_id: str) -> Command[bool]:
    """Schedule a failed backfill again. Returns false if it has not failed."""
    return Command(sql.RESCHEDULE_BACKFILL, {"job_id": job_id}, _any_row)


def replace_sheet(removed: SheetConfig, spreadsheet_id: str, url: str, name: str) -> Command[bool]:
    """Replace a removed sheet by a new one and schedule a backfill of all rows."""
    params = {
        "job_id": removed.job_id,
        "removed_id": removed.spreadsheet_id,
        "spreadsheet_id": spreadsheet_id,
        "spreadsheet_url": url,
        "spreadsheet_name": name,
    }
    return Command(sql.REPLACE_SHEET, params, _any_row)


def read_sheet(job_id: str) -> Command[SheetConfig | None]:
    """Read the sheet of a job."""
    return Command((sql.READ_SHEET,), {"job_id": job_id}, _from_last(_parse_sheet), writes=False)


def read_backfill_page(lease: BackfillLease, after: Cursor, count: int) -> Command[list[StoredResult]]:
    """Read the next rows of a backfill."""
    params = {
        "job_id": lease.job_id,
        "boundary_us": lease.boundary_us,
        "after_us": after.at_us,
        "after": after.position,
        "count": count,
    }
    return Command((sql.READ_BACKFILL_PAGE,), params, _all_rows(_success_result), writes=False)


def record_backfill_progress(
    lease: BackfillLease, through: Cursor, rows: int, lease_us: int
) -> Command[bool]:
    """Record the progress of a backfill. Returns false if another worker holds it."""
    params = {**_lease_params(lease), **_progress_params(through), "rows": rows, "lease_us": lease_us}
    return Command((sql.RECORD_BACKFILL_PROGRESS,), params, _any_row)


def finish_backfill(lease: BackfillLease, status: str, error: str = "") -> Command[bool]:
    """Record the outcome of a backfill. Returns false if another worker holds it."""
    params = {**_lease_params(lease), "status": status, "error": error}
    return Command((sql.FINISH_BACKFILL,), params, _any_row)


def record_written(job_id: str, boundary_us: int, through: Cursor) -> Command[None]:
    """Record which rows of a running job are in its sheet."""
    params = {"job_id": job_id, "boundary_us": boundary_us, **_progress_params(through)}
    return Command((sql.RECORD_WRITTEN,), params, _no_result)


def record_sheet_failure(lease: JobLease, boundary_us: int, error: str) -> Command[None]:
    """Record that rows of a running job are missing in its sheet."""
    params = {**_lease_params(lease), "boundary_us": boundary_us, "error": error}
    return Command((sql.RECORD_SHEET_FAILURE,), params, _no_result)


# -- leases


def has_unleased_work(lease_us: int) -> Command[tuple[bool, bool]]:
    """Return whether there are jobs, and backfills, without a lease."""
    return Command((sql.HAS_UNLEASED_WORK,), {"lease_us": lease_us}, _two_flags, writes=False)


def claim_job(owner: str, lease_us: int) -> Command[JobLease | None]:
    """Claim the oldest job without a lease."""
    return Command((sql.CLAIM_JOB,), _claim_params(owner, lease_us), _from_last(_first_row(JobLease)))


def move_boundary(lease: JobLease) -> Command[None]:
    """Leave to the backfill what the previous worker of a job may not have written."""
    return Command(sql.MOVE_BOUNDARY, _lease_params(lease), _no_result)


def claim_backfill(owner: str, lease_us: int) -> Command[BackfillLease | None]:
    """Claim the oldest backfill without a lease."""
    return Command(
        (sql.CLAIM_BACKFILL,), _claim_params(owner, lease_us), _from_last(_first_row(BackfillLease))
    )


def renew_leases(
    owner: str, lease_us: int, jobs: Iterable[JobLease], backfills: Iterable[BackfillLease]
) -> Command[tuple[dict[str, int], dict[str, int]]]:
    """Renew leases of this worker. Returns the tokens of those that it still holds."""
    params = {
        "owner": owner,
        "lease_us": lease_us,
        "jobs": _lease_ids(jobs),
        "backfills": _lease_ids(backfills),
    }
    return Command(sql.RENEW_LEASES, params, lambda results: (dict(results[0]), dict(results[1])))


def release_job(lease: JobLease) -> Command[None]:
    """Release a job, so that another worker can claim it immediately."""
    return Command((sql.RELEASE_JOB,), _lease_params(lease), _no_result)


def release_backfill(lease: BackfillLease) -> Command[None]:
    """Release a backfill, so that another worker can claim it immediately."""
    return Command((sql.RELEASE_BACKFILL,), _lease_params(lease), _no_result)


def fail_hopeless(lease_us: int) -> Command[tuple[list[str], list[str]]]:
    """Mark as failed what was claimed too often. Returns the ids of the jobs, and those of the backfills."""
    params = {"lease_us": lease_us, "attempts_max": ATTEMPTS_MAX}
    return Command(
        sql.FAIL_HOPELESS,
        params,
        lambda results: ([row[0] for row in results[0]], [row[0] for row in results[1]]),
    )


def delete_oldest(keep_us: int) -> Command[bool]:
    """Delete the oldest job that finished longer ago than this, with its results and its sheet."""
    return Command(sql.DELETE_OLDEST, {"keep_us": keep_us}, _any_row)


def _lease_params(lease: JobLease | BackfillLease) -> dict[str, Any]:
    return {"job_id": lease.job_id, "token": lease.token}


def _lease_ids(leases: Iterable[JobLease | BackfillLease]) -> str:
    return json.dumps([f"{lease.job_id}:{lease.token}" for lease in leases])


def _progress_params(cursor: Cursor) -> dict[str, Any]:
    return {"done_us": cursor.at_us, "done_position": cursor.position}


def _claim_params(owner: str, lease_us: int) -> dict[str, Any]:
    return {"owner": owner, "lease_us": lease_us, "attempts_max": ATTEMPTS_MAX}


def _from_last(read: Callable[[Rows], T]) -> Callable[[list[Rows]], T]:
    return lambda results: read(results[-1])


def _first_row(row_type: Callable[..., T]) -> Callable[[Rows], T | None]:
    return lambda rows: row_type(*rows[0]) if rows else None


def _all_rows(row_type: Callable[..., T]) -> Callable[[list[Rows]], list[T]]:
    return lambda results: [row_type(*row) for row in results[0]]


def _any_row(results: list[Rows]) -> bool:
    return bool(results[-1])


def _no_result(results: list[Rows]) -> None:
    """Return nothing: the statements return no rows."""


def _two_flags(results: list[Rows]) -> tuple[bool, bool]:
    jobs, backfills = results[0][0]
    return bool(jobs), bool(backfills)


def _parse_receipt(results: list[Rows]) -> StoreReceipt | None:
    timestamps, _, _, targets = results
    if not timestamps:
        return None
    return StoreReceipt(timestamps[0][0], SheetTarget(*targets[0]) if targets else None)


def _parse_overviews(results: list[Rows], count: int) -> list[JobOverview]:
    return [JobOverview(*row) for rows in results for row in rows][:count]


def _success_result(position: int, account: str, message: str, processed_at_us: int) -> StoredResult:
    return StoredResult(position, account, SUCCESS, message, processed_at_us)


_parse_job = _first_row(BatchJob)
_parse_sheet = _first_row(SheetConfig)
