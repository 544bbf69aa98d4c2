"""The commands for chunks: find, claim and store accounts, and recover those that dead workers left."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

from comporta.database.base import Rows
from comporta.database.command import Command
from comporta.service.batch import chunk_sql as sql
from comporta.service.batch.commands import SHEET_FLUSH_US, SHEET_ROWS, first_row, from_last, no_result
from comporta.service.batch.models import (
    SUCCESS,
    AccountResult,
    ChunkLease,
    ClaimedChunk,
    PendingAccount,
    PendingWork,
    SheetLease,
    StoreReceipt,
)

LeaseT = TypeVar("LeaseT", bound=ChunkLease | SheetLease)

ACCOUNT_ATTEMPTS_MAX: Final = 3
"""How often an account is attempted if its worker dies each time."""

EXHAUSTED_MESSAGE: Final = "the worker died each time it processed this account, {} times"

_SHEET_SCHEDULE: Final = {"rows_max": SHEET_ROWS, "flush_us": SHEET_FLUSH_US}


def read_pending_work(lease_us: int, held_jobs: Iterable[str]) -> Command[PendingWork]:
    """Read the work that no worker has leased, except for the jobs that this worker already works on."""
    params = {
        "lease_us": lease_us,
        "held": json.dumps(list(held_jobs)),
        "attempts_max": ACCOUNT_ATTEMPTS_MAX,
    }
    return Command((sql.PENDING_WORK,), params, lambda results: PendingWork(*results[0][0]), writes=False)


def find_job(lease_us: int, held_jobs: Iterable[str], *, is_new: bool) -> Command[str | None]:
    """Find the job whose turn it is; with ``is_new``, only among jobs that have never had a turn."""
    params = {"lease_us": lease_us, "held": json.dumps(list(held_jobs)), "is_new": int(is_new)}
    return Command((sql.NEXT_JOB,), params, from_last(first_row(str)), writes=False)


def claim_chunk(job_id: str, owner: str, lease_us: int, count: int) -> Command[ClaimedChunk | None]:
    """Claim the next ``count`` accounts of a job, or a chunk that was released."""
    params = {**_claim_params(owner, lease_us), "job_id": job_id, "count": count}
    return Command(sql.CLAIM_CHUNK, params, _parse_chunk)


def claim_suspect(owner: str, lease_us: int) -> Command[ClaimedChunk | None]:
    """Claim an account whose worker died once."""
    return Command(sql.CLAIM_SUSPECT, _claim_params(owner, lease_us), _parse_chunk)


def claim_last_attempt(owner: str, lease_us: int) -> Command[ClaimedChunk | None]:
    """Claim an account whose workers died more than once, for a worker that does nothing else."""
    params = {**_claim_params(owner, lease_us), "attempts_max": ACCOUNT_ATTEMPTS_MAX}
    return Command(sql.CLAIM_LAST_ATTEMPT, params, _parse_chunk)


def store_results(
    lease: ChunkLease, done: Sequence[AccountResult], lease_us: int, *, is_last: bool
) -> Command[StoreReceipt | None]:
    """Store results of a chunk. Returns ``None``, and stores nothing, if another worker holds it.

    ``is_last`` says that every account of the chunk then has a result, which ends the chunk.
    """
    listed = [f"{each.position:010}{'+' if each.outcome == SUCCESS else '-'}{each.message}" for each in done]
    params = {
        **_lease_params(lease),
        **_SHEET_SCHEDULE,
        "lease_us": lease_us,
        "done": json.dumps(listed, ensure_ascii=False),
        "count": len(done),
        "is_last": int(is_last),
    }
    return Command(sql.STORE_RESULTS, params, _parse_receipt)


def release_chunk(lease: ChunkLease) -> Command[None]:
    """Release a chunk, so that another worker can claim its remaining accounts immediately."""
    return Command((sql.RELEASE_CHUNK,), _lease_params(lease), no_result)


def split_dead(job_id: str, lease_us: int) -> Command[None]:
    """Split the chunks of a job whose workers died, so that each of their accounts is claimed separately."""
    return Command(sql.SPLIT_DEAD, {"job_id": job_id, "lease_us": lease_us}, no_result)


def fail_exhausted(job_id: str, lease_us: int) -> Command[tuple[int, bool]]:
    """Store a failure for each account of a job that was attempted too often.

    Returns the number of these accounts, and whether the job is now finished.
    """
    params = {
        **_SHEET_SCHEDULE,
        "job_id": job_id,
        "lease_us": lease_us,
        "attempts_max": ACCOUNT_ATTEMPTS_MAX,
        "message": EXHAUSTED_MESSAGE.format(ACCOUNT_ATTEMPTS_MAX),
        "count": 1,
    }
    return Command(sql.FAIL_EXHAUSTED, params, lambda results: (len(results[2]), bool(results[-1])))


def renew_leases(
    owner: str, lease_us: int, chunks: Iterable[ChunkLease], sheets: Iterable[SheetLease]
) -> Command[tuple[set[tuple[str, int]], set[tuple[str, int]]]]:
    """Renew leases of this worker. Returns the job and token of each lease that it still holds."""
    params = {
        "owner": owner,
        "lease_us": lease_us,
        "chunks": _lease_ids(chunks),
        "sheets": _lease_ids(sheets),
    }
    return Command(sql.RENEW_LEASES, params, lambda results: (_pairs(results[0]), _pairs(results[1])))


def _claim_params(owner: str, lease_us: int) -> dict[str, Any]:
    return {"owner": owner, "lease_us": lease_us, "token": secrets.randbits(62)}


def _lease_params(lease: ChunkLease) -> dict[str, Any]:
    return {"job_id": lease.job_id, "token": lease.token}


def _lease_ids(leases: Iterable[LeaseT]) -> str:
    return json.dumps([f"{lease.job_id}:{lease.token}" for lease in leases])


def _pairs(rows: Rows) -> set[tuple[str, int]]:
    return {(job_id, token) for job_id, token in rows}


def _parse_chunk(results: list[Rows]) -> ClaimedChunk | None:
    chunks, accounts = results[-2:]
    if not chunks:
        return None
    return ClaimedChunk(ChunkLease(*chunks[0]), [PendingAccount(*row) for row in accounts])


def _parse_receipt(results: list[Rows]) -> StoreReceipt | None:
    timestamps, held, *_, due, _, finished = results
    if not held:
        return None
    return StoreReceipt(timestamps[0][0], bool(finished), due[0][0] if due else None)
