"""What batches are made of: values only."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

RUNNING, COMPLETED, FAILED, PENDING = "running", "completed", "failed", "pending"
SUCCESS: Final = "success"

COLUMNS: Final = ("account", "message")
"""The header of a sheet; an account is in a job once, and so a row belongs to it."""

ACCOUNT_CHARS_MAX: Final = 200
MESSAGE_CHARS_MAX: Final = 40_000
"""A cell of Google's takes 50,000."""


_PLACE = re.compile(r"([0-9]{1,18})-([0-9]{1,9})")


class Place(NamedTuple):
    """Where a result stands in the order of its job: when it was stored, and its account's position."""

    at_us: int
    position: int

    def __str__(self) -> str:
        return f"{self.at_us}-{self.position}"

    @classmethod
    def read(cls, text: str) -> Place:
        """Read it back; a ``ValueError`` says what is allowed."""
        found = _PLACE.fullmatch(text)
        if found is None:
            raise ValueError(f"cursor must be a next_cursor of this service, got {text!r:.50}")
        return cls(int(found[1]), int(found[2]))


START: Final = Place(0, 0)


class Job(NamedTuple):
    """A job as it stands."""

    job_id: str
    user_id: str
    digest: str
    status: str
    total: int
    succeeded: int
    failed: int
    created_at_us: int
    finished_at_us: int | None

    def told(self) -> dict[str, Any]:
        """Return what clients are told of it."""
        return {
            "job_id": self.job_id,
            "status": self.status,
            "total": self.total,
            "succeeded": self.succeeded,
            "failed": self.failed,
            "pending": self.total - self.succeeded - self.failed,
            "created_at": moment(self.created_at_us),
            "finished_at": moment(self.finished_at_us),
        }


class ShownJob(NamedTuple):
    """A job for people to look at: who works on it now, and how far the backfill of its sheet is, if any."""

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

    def told(self) -> dict[str, Any]:
        """Return what a page shows of it."""
        backfill = {
            "status": self.backfill_status,
            "rows": self.backfilled_rows,
            "worker": worker_of(self.backfill_owner),
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
            "worker": worker_of(self.owner),
            "backfill": None if self.backfill_status is None else backfill,
        }


class Account(NamedTuple):
    """An account that is still to be done."""

    position: int
    account: str


class Done(NamedTuple):
    """What became of one."""

    position: int
    account: str
    outcome: str
    message: str


class Result(NamedTuple):
    """The same, stored."""

    position: int
    account: str
    outcome: str
    message: str
    processed_at_us: int

    @property
    def place(self) -> Place:
        """Where it stands."""
        return Place(self.processed_at_us, self.position)

    def told(self) -> dict[str, Any]:
        """Return what clients are told of it."""
        return {
            "position": self.position,
            "account": self.account,
            "success": self.outcome == SUCCESS,
            "message": self.message,
            "processed_at": moment(self.processed_at_us),
        }


class SheetConfig(NamedTuple):
    """The sheet of a job: everything before ``boundary_us`` is the backfill's, up to ``done`` it is there."""

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


class HeldJob(NamedTuple):
    """A job on which this worker has a lease."""

    job_id: str
    token: int
    total: int


class HeldBackfill(NamedTuple):
    """A backfill on which this worker has a lease, and how far it got."""

    job_id: str
    token: int
    spreadsheet_id: str
    boundary_us: int
    done_us: int
    done_position: int


class Target(NamedTuple):
    """Where the results of a running job go as they come, from ``boundary_us`` on."""

    spreadsheet_id: str
    boundary_us: int


class Stored(NamedTuple):
    """When results were stored, and where else they go."""

    at_us: int
    target: Target | None


def worker_of(owner: str) -> str | None:
    """Return who holds a lease as workers are called everywhere else: ``host:pid``; nobody is ``None``."""
    host, _, rest = owner.rpartition("-")[0].rpartition("-")
    return f"{host}:{rest}" if host else None


def moment(at_us: int | None) -> str | None:
    """Return a moment as people write it."""
    if at_us is None:
        return None
    return datetime.fromtimestamp(at_us / 1e6, UTC).isoformat(timespec="microseconds")
