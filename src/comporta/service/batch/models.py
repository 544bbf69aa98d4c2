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


_CURSOR = re.compile(r"([0-9]{1,18})-([0-9]{1,9})")


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
    """A job for the dashboard: its progress, the worker that runs it, and the state of its backfill."""

    job_id: str
    status: str
    total: int
    succeeded: int
    failed: int
    created_at_us: int
    finished_at_us: int | None
    owner: str
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
            "worker": worker_name(self.owner),
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
    in the sheet.
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


class JobLease(NamedTuple):
    """This worker's lease on a job; ``token`` grows with each claim."""

    job_id: str
    token: int
    total: int


class BackfillLease(NamedTuple):
    """This worker's lease on a backfill, and its progress."""

    job_id: str
    token: int
    spreadsheet_id: str
    boundary_us: int
    done_us: int
    done_position: int


class SheetTarget(NamedTuple):
    """The sheet that a running job writes its results to, from ``boundary_us`` on."""

    spreadsheet_id: str
    boundary_us: int


class StoreReceipt(NamedTuple):
    """When results were stored, and the sheet to write them to."""

    at_us: int
    target: SheetTarget | None


def worker_name(owner: str) -> str | None:
    """Return the worker that owns a lease as ``host:pid``, or ``None`` if there is no owner."""
    host, _, pid = owner.rpartition("-")[0].rpartition("-")
    return f"{host}:{pid}" if host else None


def iso_timestamp(at_us: int | None) -> str | None:
    """Return a timestamp in ISO 8601."""
    if at_us is None:
        return None
    return datetime.fromtimestamp(at_us / 1e6, UTC).isoformat(timespec="microseconds")
