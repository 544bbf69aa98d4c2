"""What is asked of the database, each verb once, as a value; ``ask`` and ``ask_async`` carry it out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from comporta.database.base import Database, Rows, Statement
from comporta.service.batch import statements
from comporta.service.batch.values import (
    SUCCESS,
    Account,
    Done,
    HeldBackfill,
    HeldJob,
    Job,
    Place,
    Result,
    SheetConfig,
    ShownJob,
    Stored,
    Target,
)

T = TypeVar("T")

ATTEMPTS_MAX: Final = 20
"""How often something is taken up without getting on before it counts as failed."""


@dataclass(frozen=True, slots=True)
class Asked(Generic[T]):
    """Statements of one transaction, and how to read what they return."""

    statements: tuple[Statement, ...]
    parameters: Mapping[str, Any]
    read: Callable[[list[Rows]], T]
    changes: bool = True


def ask(database: Database, asked: Asked[T]) -> T:
    """Ask, blocking."""
    if asked.changes:
        return asked.read(database.write(asked.statements, asked.parameters))
    return asked.read([database.read(each, asked.parameters) for each in asked.statements])


async def ask_async(database: Database, asked: Asked[T]) -> T:
    """Ask on a thread of the database's: nothing here is so small that the loop could wait for it."""
    if asked.changes:
        return asked.read(await database.write_async(asked.statements, asked.parameters))
    found = [await database.read_async(each, asked.parameters) for each in asked.statements]
    return asked.read(found)


# -- jobs


def add_job(
    job_id: str, user_id: str, digest: str, accounts: Sequence[str], jobs_max: int
) -> Asked[Job | None]:
    """Add a job that nobody works on yet; returns the one of this id, ``None`` if there are too many."""
    told = {
        "job_id": job_id,
        "user_id": user_id,
        "digest": digest,
        "total": len(accounts),
        "accounts": json.dumps(list(accounts), ensure_ascii=False),
        "jobs_max": jobs_max,
    }
    asked = (statements.ADD_JOB, statements.ADD_ACCOUNTS, statements.READ_JOB)
    return Asked(asked, told, _last(_job))


def read_job(job_id: str) -> Asked[Job | None]:
    """Look at a job."""
    return Asked((statements.READ_JOB,), {"job_id": job_id}, _last(_job), changes=False)


def unfinished(job_id: str, after: int, count: int) -> Asked[list[Account]]:
    """Return the next accounts that are still to be done."""
    told = {"job_id": job_id, "after": after, "count": count}
    return Asked((statements.UNFINISHED,), told, _all(Account), changes=False)


def store(held: HeldJob, done: Sequence[Done]) -> Asked[Stored | None]:
    """Store what became of accounts; ``None``: somebody else has the job by now, nothing was stored."""
    listed = [f"{each.position:010}{'+' if each.outcome == SUCCESS else '-'}{each.message}" for each in done]
    told = {**_token(held), "done": json.dumps(listed, ensure_ascii=False)}
    return Asked(statements.STORE, told, _stored)


def finish(held: HeldJob, status: str) -> Asked[bool]:
    """End a job; false if it was not ours to end."""
    return Asked((statements.FINISH,), {**_token(held), "status": status}, _some)


def results(job_id: str, after: Place, count: int) -> Asked[list[Result]]:
    """Return results in the order in which they were stored: what is read once never changes."""
    told = {"job_id": job_id, "after_us": after.at_us, "after": after.position, "count": count}
    return Asked((statements.RESULTS,), told, _all(Result), changes=False)


def shown(count: int) -> Asked[list[ShownJob]]:
    """Return jobs to look at: the latest under way, then the latest that ended."""
    asked = (statements.SHOW_RUNNING, statements.SHOW_ENDED)
    return Asked(asked, {"count": count}, lambda found: _shown(found, count), changes=False)


def holders() -> Asked[dict[str, int]]:
    """Return how many jobs each worker has a lease on."""
    return Asked((statements.HOLDERS,), {}, lambda found: {row[0]: row[1] for row in found[0]}, changes=False)


# -- sheets


def configure(
    job_id: str, user_id: str, spreadsheet_id: str, url: str, name: str
) -> Asked[tuple[bool, SheetConfig | None]]:
    """Give a job a sheet; returns whether it is new, and what there is. No job: there is nothing."""
    told = {
        "job_id": job_id,
        "user_id": user_id,
        "spreadsheet_id": spreadsheet_id,
        "spreadsheet_url": url,
        "spreadsheet_name": name,
    }
    return Asked(statements.CONFIGURE, told, lambda found: (bool(found[1]), _sheet(found[2])))


def reschedule(job_id: str) -> Asked[bool]:
    """Let a failed backfill be done again; false if it has not failed."""
    return Asked(statements.RESCHEDULE, {"job_id": job_id}, _some)


def replace_sheet(removed: SheetConfig, spreadsheet_id: str, url: str, name: str) -> Asked[bool]:
    """Put a new sheet in the place of one that is gone, to be filled from the beginning."""
    told = {
        "job_id": removed.job_id,
        "removed_id": removed.spreadsheet_id,
        "spreadsheet_id": spreadsheet_id,
        "spreadsheet_url": url,
        "spreadsheet_name": name,
    }
    return Asked(statements.REPLACE_SHEET, told, _some)


def read_sheet(job_id: str) -> Asked[SheetConfig | None]:
    """Look at the sheet of a job."""
    return Asked((statements.READ_SHEET,), {"job_id": job_id}, _last(_sheet), changes=False)


def to_backfill(held: HeldBackfill, after: Place, count: int) -> Asked[list[Result]]:
    """Return the next rows that are the backfill's."""
    told = {
        "job_id": held.job_id,
        "boundary_us": held.boundary_us,
        "after_us": after.at_us,
        "after": after.position,
        "count": count,
    }
    return Asked((statements.TO_BACKFILL,), told, _all(_success), changes=False)


def backfilled(held: HeldBackfill, through: Place, rows: int, lease_us: int) -> Asked[bool]:
    """Note how far it got; false if it is somebody else's by now."""
    told = {**_token(held), **_through(through), "rows": rows, "lease_us": lease_us}
    return Asked((statements.BACKFILLED,), told, _some)


def backfill_ended(held: HeldBackfill, status: str, error: str = "") -> Asked[bool]:
    """Say what came of it; false if it is somebody else's by now."""
    told = {**_token(held), "status": status, "error": error}
    return Asked((statements.BACKFILL_ENDED,), told, _some)


def written(job_id: str, boundary_us: int, through: Place) -> Asked[None]:
    """Note which rows of a running job are in its sheet."""
    told = {"job_id": job_id, "boundary_us": boundary_us, **_through(through)}
    return Asked((statements.WRITTEN,), told, _nothing)


def given_up(held: HeldJob, boundary_us: int, error: str) -> Asked[None]:
    """Say that rows of a running job are missing in its sheet."""
    told = {**_token(held), "boundary_us": boundary_us, "error": error}
    return Asked((statements.GIVEN_UP,), told, _nothing)


# -- leases


def waiting(lease_us: int) -> Asked[tuple[bool, bool]]:
    """Whether there are jobs, and backfills, that nobody works on."""
    return Asked((statements.WAITING,), {"lease_us": lease_us}, _both, changes=False)


def claim_job(owner: str, lease_us: int) -> Asked[HeldJob | None]:
    """Take a lease on the oldest job that nobody works on."""
    return Asked((statements.CLAIM_JOB,), _lease(owner, lease_us), _last(_first(HeldJob)))


def move_boundary(held: HeldJob) -> Asked[None]:
    """Leave to the backfill what the last one to run a job may not have written."""
    return Asked(statements.MOVE_BOUNDARY, _token(held), _nothing)


def claim_backfill(owner: str, lease_us: int) -> Asked[HeldBackfill | None]:
    """Take a lease on the oldest backfill that nobody works on."""
    return Asked((statements.CLAIM_BACKFILL,), _lease(owner, lease_us), _last(_first(HeldBackfill)))


def renew(
    owner: str, lease_us: int, jobs: Iterable[HeldJob], backfills: Iterable[HeldBackfill]
) -> Asked[tuple[dict[str, int], dict[str, int]]]:
    """Keep the leases of this worker; returns the tokens of those it still has."""
    told = {
        "owner": owner,
        "lease_us": lease_us,
        "jobs": _tokens(jobs),
        "backfills": _tokens(backfills),
    }
    return Asked(statements.RENEW, told, lambda found: (dict(found[0]), dict(found[1])))


def give_back_job(held: HeldJob) -> Asked[None]:
    """Let another worker have it at once."""
    return Asked((statements.GIVE_BACK_JOB,), _token(held), _nothing)


def give_back_backfill(held: HeldBackfill) -> Asked[None]:
    """Let another worker have it at once."""
    return Asked((statements.GIVE_BACK_BACKFILL,), _token(held), _nothing)


def hopeless(lease_us: int) -> Asked[tuple[list[str], list[str]]]:
    """Give up what was taken up too often; returns the jobs, and the jobs of the backfills."""
    told = {"lease_us": lease_us, "attempts_max": ATTEMPTS_MAX}
    return Asked(
        statements.HOPELESS, told, lambda found: ([row[0] for row in found[0]], [row[0] for row in found[1]])
    )


def forget(keep_us: int) -> Asked[bool]:
    """Remove the oldest job that ended longer ago than this, and all that belongs to it."""
    return Asked(statements.FORGET, {"keep_us": keep_us}, _some)


def _token(held: HeldJob | HeldBackfill) -> dict[str, Any]:
    return {"job_id": held.job_id, "token": held.token}


def _tokens(several: Iterable[HeldJob | HeldBackfill]) -> str:
    return json.dumps([f"{held.job_id}:{held.token}" for held in several])


def _through(place: Place) -> dict[str, Any]:
    return {"done_us": place.at_us, "done_position": place.position}


def _lease(owner: str, lease_us: int) -> dict[str, Any]:
    return {"owner": owner, "lease_us": lease_us, "attempts_max": ATTEMPTS_MAX}


def _last(read: Callable[[Rows], T]) -> Callable[[list[Rows]], T]:
    return lambda found: read(found[-1])


def _first(kind: Callable[..., T]) -> Callable[[Rows], T | None]:
    return lambda rows: kind(*rows[0]) if rows else None


def _all(kind: Callable[..., T]) -> Callable[[list[Rows]], list[T]]:
    return lambda found: [kind(*row) for row in found[0]]


def _some(found: list[Rows]) -> bool:
    return bool(found[-1])


def _nothing(found: list[Rows]) -> None:
    """Read nothing: what was asked returns nothing."""


def _both(found: list[Rows]) -> tuple[bool, bool]:
    jobs, backfills = found[0][0]
    return bool(jobs), bool(backfills)


def _stored(found: list[Rows]) -> Stored | None:
    moments, _, _, targets = found
    if not moments:
        return None
    return Stored(moments[0][0], Target(*targets[0]) if targets else None)


def _shown(found: list[Rows], count: int) -> list[ShownJob]:
    return [ShownJob(*row) for rows in found for row in rows][:count]


def _success(position: int, account: str, message: str, processed_at_us: int) -> Result:
    return Result(position, account, SUCCESS, message, processed_at_us)


_job = _first(Job)
_sheet = _first(SheetConfig)
