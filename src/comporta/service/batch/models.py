"""The values that batches work with; no behaviour and no I/O."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

RUNNING, COMPLETED, FAILED, PENDING = "running", "completed", "failed", "pending"
SUCCESS: Final = "success"

COLUMNS: Final = ("account", "message")
"""The header of a sheet. A job has each account once, so the account identifies its row."""

ACCOUNT_CHARS_MAX: Final = 200
MESSAGE_CHARS_MAX: Final = 40_000
"""Google Sheets allows 50,000 characters in a cell."""


CURSOR_PATTERN: Final = r"^([0-9]{1,18})-([0-9]{1,9})$"
_CURSOR = re.compile(CURSOR_PATTERN)


class Cursor(NamedTuple):
    """The position of a result in the order of its job: when it was stored, then its account's position."""

    at_us: int
    position: int

    def __str__(self) -> str:
        return f"{self.at_us}-{self.position}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Parse the text form; raise ``ValueError`` if it is not one."""
        match = _CURSOR.fullmatch(text)
        if match is None:
            raise ValueError(f"cursor must be a next_cursor of this service, got {text!r:.50}")
        return cls(int(match[1]), int(match[2]))


FIRST_CURSOR: Final = Cursor(0, 0)


NO_BOUND: Final = 2**31 - 1


class JobBounds(NamedTuple):
    """How many jobs may run in the fleet, and how many jobs and pending accounts a user or a client may have.

    A client is the address that adds a job; if its user is authenticated, only the bounds of the user apply.
    """

    jobs_max: int
    user_jobs_max: int = NO_BOUND
    user_accounts_max: int = NO_BOUND
    client_jobs_max: int = NO_BOUND
    client_accounts_max: int = NO_BOUND


class Unfinished(NamedTuple):
    """The running jobs of a user or a client, and their pending accounts."""

    jobs: int
    accounts: int


class BatchJob(NamedTuple):
    """A job and its progress."""

    job_id: str
    user_id: str
    digest: str
    status: str
    total: int
    succeeded: int
    failed: int
    created_at_us: int
    finished_at_us: int | None

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form for clients."""
        return {
            "job_id": self.job_id,
            "status": self.status,
            "total": self.total,
            "succeeded": self.succeeded,
            "failed": self.failed,
            "pending": self.total - self.succeeded - self.failed,
            "created_at": iso_timestamp(self.created_at_us),
            "finished_at": iso_timestamp(self.finished_at_us),
        }


class JobOverview(NamedTuple):
    """A job for the dashboard: its progress, the workers that run it, and the state of its backfill.

    ``owner`` is one of these workers, ``workers`` is their number.
    """

    job_id: str
    status: str
    total: int
    succeeded: int
    failed: int
    created_at_us: int
    finished_at_us: int | None
    owner: str | None
    workers: int
    backfill_status: str | None
    backfilled_rows: int | None
    backfill_owner: str

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form for the dashboard."""
        backfill = {
            "status": self.backfill_status,
            "rows": self.backfilled_rows,
            "worker": worker_name(self.backfill_owner),
        }
        return {
            "id": self.job_id,
            "status": self.status,
            "total": self.total,
            "succeeded": self.succeeded,
            "failed": self.failed,
            "pending": self.total - self.succeeded - self.failed,
            "created_at": self.created_at_us / 1e6,
            "finished_at": None if self.finished_at_us is None else self.finished_at_us / 1e6,
            "worker": worker_name(self.owner or ""),
            "workers": self.workers,
            "backfill": None if self.backfill_status is None else backfill,
        }


class PendingAccount(NamedTuple):
    """An account that has no result yet."""

    position: int
    account: str


class AccountResult(NamedTuple):
    """The result of an account, not stored yet."""

    position: int
    account: str
    outcome: str
    message: str


class StoredResult(NamedTuple):
    """The stored result of an account."""

    position: int
    account: str
    outcome: str
    message: str
    processed_at_us: int

    @property
    def cursor(self) -> Cursor:
        """The position of this result in the order of its job."""
        return Cursor(self.processed_at_us, self.position)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form for clients."""
        return {
            "position": self.position,
            "account": self.account,
            "success": self.outcome == SUCCESS,
            "message": self.message,
            "processed_at": iso_timestamp(self.processed_at_us),
        }


class SheetConfig(NamedTuple):
    """The sheet of a job.

    The backfill writes all results before ``boundary_us``; those up to ``done_us`` and ``done_position`` are
    in the sheet. ``spreadsheet_url`` is empty if the service serves the sheet to those who know the
    ``download_id``, which cannot be guessed.
    """

    job_id: str
    spreadsheet_id: str
    spreadsheet_url: str
    spreadsheet_name: str
    created_at_us: int
    boundary_us: int
    done_us: int
    done_position: int
    backfill_status: str
    backfilled_rows: int
    backfill_error: str
    download_id: str

    @property
    def public_id(self) -> str:
        """The id of the spreadsheet for clients."""
        return self.spreadsheet_id if self.spreadsheet_url else self.download_id


class ChunkLease(NamedTuple):
    """This worker's lease on some accounts of a job, from ``first`` to ``last``.

    ``token`` is random, so no two claims have the same. ``attempts`` counts the claims that were neither
    finished nor released, including this one.
    """

    job_id: str
    token: int
    first: int
    last: int
    attempts: int


class ClaimedChunk(NamedTuple):
    """A claimed chunk and its accounts without a result."""

    lease: ChunkLease
    accounts: list[PendingAccount]


class SheetLease(NamedTuple):
    """This worker's lease on the sheet of a job, and how far the sheet is filled."""

    job_id: str
    token: int
    spreadsheet_id: str
    boundary_us: int
    done_us: int
    done_position: int
    backfill_status: str


class StoreReceipt(NamedTuple):
    """When results were stored, whether they finished the job, and how soon its sheet is due."""

    at_us: int
    is_job_finished: bool
    sheet_due_us: int | None


class PendingWork(NamedTuple):
    """The work that no worker has leased.

    ``jobs`` says whether any job has accounts to claim, ``waiting`` how many of these no worker works on.
    ``dead_chunk_job`` has a chunk whose worker died, ``exhausted_job`` an account that was attempted too
    often. ``suspects`` says whether any accounts wait whose worker died once, ``last_attempts`` whether any
    wait that must run alone. ``sheets`` says whether a sheet is due.
    """

    jobs: bool
    waiting: int
    dead_chunk_job: str | None
    suspects: bool
    last_attempts: bool
    exhausted_job: str | None
    sheets: bool


def worker_name(owner: str) -> str | None:
    """Return the worker that owns a lease as ``host:pid``, or ``None`` if there is no owner."""
    host, _, pid = owner.rpartition("-")[0].rpartition("-")
    return f"{host}:{pid}" if host else None


def iso_timestamp(at_us: int | None) -> str | None:
    """Return a timestamp in ISO 8601."""
    if at_us is None:
        return None
    return datetime.fromtimestamp(at_us / 1e6, UTC).isoformat(timespec="microseconds")
