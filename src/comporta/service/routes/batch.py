"""Batch routes: jobs and their sheets. Blocking work runs on thread pools, never on the event loop."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field, StringConstraints, TypeAdapter, ValidationError, WithJsonSchema

from comporta import events
from comporta.errors import DatabaseError
from comporta.pipeline.sinks.spreadsheets import NAME_CHARS_MAX
from comporta.service.batch.batches import Batches
from comporta.service.batch.models import (
    ACCOUNT_CHARS_MAX,
    CURSOR_PATTERN,
    FAILED,
    FIRST_CURSOR,
    PENDING,
    BatchJob,
    Cursor,
    iso_timestamp,
)
from comporta.service.container import Container, ContainerDep, IdentityDep
from comporta.service.identity import Identity, resolve_user
from comporta.service.problems import HttpProblem
from comporta.service.routes.sheets import sheet_json

MEDIA_TYPE: Final = "application/x-ndjson"
PAGE_RESULTS_MAX: Final = 1000
ACCOUNTS_MAX: Final = 100_000
RETRY_SECONDS: Final = 5
ANONYMOUS: Final = "anonymous"

VALIDATION_CHUNK: Final = 500
"""How many accounts are validated in one call, which blocks all other threads."""

_NO_NUL = r"^[^\x00]*$"
_JOB_ID = r"^[A-Za-z0-9_-]{1,64}$"

router = APIRouter(prefix="/ultra-batch", tags=["batch"])

UserId = Annotated[str, Field(min_length=1, max_length=200, pattern=_NO_NUL)]
AccountText = Annotated[
    str,
    StringConstraints(strip_whitespace=True, min_length=1, max_length=ACCOUNT_CHARS_MAX, pattern=_NO_NUL),
]
_ACCOUNTS = TypeAdapter(list[AccountText])
JobId = Annotated[str, Field(pattern=_JOB_ID)]
JobIdInPath = Annotated[str, Path(pattern=_JOB_ID)]


class UserRequest(BaseModel):
    """A user whose access is checked."""

    user_id: UserId | None = None


class JobRequest(BaseModel):
    """A job over accounts, each processed once; with a ``job_id`` it is safe to send it again."""

    # A thread validates them in chunks: validating all of them on the event loop would block it for 50 ms.
    accounts: Annotated[
        list[Any],
        Field(min_length=1, max_length=ACCOUNTS_MAX),
        WithJsonSchema({**_ACCOUNTS.json_schema(), "minItems": 1, "maxItems": ACCOUNTS_MAX}),
    ]
    user_id: UserId | None = None
    job_id: JobId | None = None


class SheetRequest(BaseModel):
    """A request for a job's sheet."""

    job_id: JobId
    user_id: UserId | None = None
    custom_name: (
        Annotated[str, Field(min_length=1, max_length=min(200, NAME_CHARS_MAX), pattern=_NO_NUL)] | None
    ) = None


@router.post("/check-whitelist")
async def check_whitelist(
    container: ContainerDep, identity: IdentityDep, body: UserRequest
) -> dict[str, bool]:
    """Check whether a user may have sheets."""
    return {"authorized": await container.batches.may_have_sheets(_require_user(identity, body.user_id))}


@router.post(
    "/jobs",
    response_class=StreamingResponse,
    responses={
        200: {"content": {MEDIA_TYPE: {}}, "description": "JSON lines: the job, its results, the end."}
    },
)
async def add_job(
    request: Request, container: ContainerDep, identity: IdentityDep, body: JobRequest
) -> StreamingResponse:
    """Add a job and stream its results; the job continues if the client disconnects."""
    batches = container.batches
    user_id = resolve_user(identity, body.user_id) or ANONYMOUS
    accounts = await batches.run_intake(_validate_accounts, body.accounts)
    _check_capacity(batches, len(accounts))
    # A user who is not authenticated can use any name, so the bounds apply to the client's address.
    client = container.admin_throttle.client_address(request) if identity is None else ""
    job = await batches.add_job(user_id, accounts, body.job_id, client)
    if job is None:
        raise await _refusal(batches, user_id, client)
    if identity is not None and job.user_id != user_id:
        raise HttpProblem(409, "Conflict", f"job {job.job_id} exists already", "job_id")
    if body.job_id is not None and job.digest != await batches.accounts_digest(accounts):
        raise HttpProblem(409, "Conflict", f"job {job.job_id} exists with other accounts", "job_id")
    lines = _job_lines(container, job)
    return StreamingResponse(lines, media_type=MEDIA_TYPE, headers={"x-job-id": job.job_id})


@router.get("/jobs/{job_id}")
async def show_job(
    container: ContainerDep,
    identity: IdentityDep,
    job_id: JobIdInPath,
    cursor: Annotated[str | None, Query(max_length=50, json_schema_extra={"pattern": CURSOR_PATTERN})] = None,
    limit: Annotated[int, Query(ge=0, le=PAGE_RESULTS_MAX)] = 100,
) -> dict[str, Any]:
    """Show a job and a page of its results in the order stored."""
    after = _parse_cursor(cursor)
    job = await _find_job(container.batches, job_id, identity)
    page = await container.batches.read_results(job_id, after, limit) if limit else []
    last = page[-1].cursor if page else after
    results = [result.as_dict() for result in page]
    return {**job.as_dict(), "results": results, "next_cursor": str(last) if last != FIRST_CURSOR else None}


@router.post("/configure-sheets")
async def configure_sheets(
    request: Request, container: ContainerDep, identity: IdentityDep, body: SheetRequest
) -> dict[str, Any]:
    """Give a job a sheet immediately; a background backfill writes earlier results."""
    batches = container.batches
    user_id = _require_user(identity, body.user_id)
    if not await batches.may_have_sheets(user_id):
        raise HttpProblem(403, "Forbidden", "this user may not have sheets", "user_id")
    if identity is not None:
        await _find_job(batches, body.job_id, identity)
    configured = await batches.configure_sheet(body.job_id, user_id, body.custom_name)
    if configured is None:
        raise _job_not_found(body.job_id)
    document = {"success": True, **sheet_json(request, configured.config)}
    if configured.backfill_status is not None:
        document["backfill_status"] = configured.backfill_status
    return document


@router.get("/sheets-config/{job_id}")
async def sheets_config(
    request: Request, container: ContainerDep, identity: IdentityDep, job_id: JobIdInPath
) -> dict[str, Any]:
    """Show the sheet of a job and the state of its backfill."""
    if identity is not None:
        await _find_job(container.batches, job_id, identity)
    config = await container.batches.read_sheet(job_id)
    if config is None:
        await _find_job(container.batches, job_id, identity)
        raise HttpProblem(404, "Not Found", f"job {job_id} has no sheet", "job_id")
    document: dict[str, Any] = {
        "job_id": job_id,
        "enabled": True,
        **sheet_json(request, config),
        "created_at": iso_timestamp(config.created_at_us),
        "backfill_status": config.backfill_status,
    }
    if config.backfill_status != PENDING:
        document["backfilled_rows"] = config.backfilled_rows
    if config.backfill_status == FAILED:
        document["backfill_error"] = config.backfill_error
    return document


def _check_capacity(batches: Batches, accounts: int) -> None:
    accounts_max = batches.settings.accounts_max
    if accounts > accounts_max:
        raise HttpProblem(
            422, "Unprocessable Content", f"accounts must be 1 to {accounts_max}, got {accounts}", "accounts"
        )
    if not batches.can_process:
        detail = "no processor is configured: set batch.processor or batch.address"
        raise HttpProblem(503, "Service Unavailable", detail)
    if not batches.has_follower_room:
        detail = "too many clients are streaming jobs"
        raise HttpProblem(503, "Service Unavailable", detail, retry_after=RETRY_SECONDS)


def _validate_accounts(accounts: Sequence[Any]) -> list[str]:
    """Return accounts without surrounding spaces; report the errors of the first chunk that has any."""
    valid: list[str] = []
    for first in range(0, len(accounts), VALIDATION_CHUNK):
        try:
            valid += _ACCOUNTS.validate_python(accounts[first : first + VALIDATION_CHUNK])
        except ValidationError as error:
            errors = error.errors(include_url=False)
            raise RequestValidationError([_with_location(dict(each), first) for each in errors]) from None
    return valid


def _with_location(error: dict[str, Any], first: int) -> dict[str, Any]:
    return {**error, "loc": ("body", "accounts", first + error["loc"][0])}


def _require_user(identity: Identity | None, given: str | None) -> str:
    """Return the user of a request; without authentication the request must name one."""
    user_id = resolve_user(identity, given)
    if user_id is None:
        location = ("body", "user_id")
        raise RequestValidationError([{"type": "missing", "loc": location, "msg": "Field required"}])
    return user_id


async def _refusal(batches: Batches, user_id: str, client: str) -> HttpProblem:
    """Return why a job was not added."""
    settings = batches.settings
    of_user, of_client = await batches.count_unfinished(user_id, client)
    for whose, unfinished, jobs_max, accounts_max in (
        ("user", of_user, settings.running_per_user_max, settings.accounts_per_user_max),
        ("client", of_client, settings.running_per_client_max, settings.accounts_per_client_max),
    ):
        if unfinished.jobs >= jobs_max:
            detail = f"{unfinished.jobs} jobs of this {whose} are running, at most {jobs_max} are allowed"
            return HttpProblem(429, "Too Many Requests", detail, retry_after=RETRY_SECONDS)
        if unfinished.accounts >= accounts_max:
            count = unfinished.accounts
            detail = f"{count} accounts of this {whose} are pending, at most {accounts_max} are allowed"
            return HttpProblem(429, "Too Many Requests", detail, retry_after=RETRY_SECONDS)
    detail = f"{settings.running_max} jobs are already running"
    return HttpProblem(503, "Service Unavailable", detail, retry_after=RETRY_SECONDS)


async def _find_job(batches: Batches, job_id: str, identity: Identity | None) -> BatchJob:
    """Return a job that the user may see; for others it does not exist."""
    job = await batches.read_job(job_id)
    if job is None or (identity is not None and not identity.may_see(job.user_id)):
        raise _job_not_found(job_id)
    return job


def _job_not_found(job_id: str) -> HttpProblem:
    return HttpProblem(404, "Not Found", f"no job {job_id}", "job_id")


def _parse_cursor(cursor: str | None) -> Cursor:
    try:
        return FIRST_CURSOR if cursor is None else Cursor.parse(cursor)
    except ValueError as error:
        raise HttpProblem(422, "Unprocessable Content", str(error), "cursor") from None


async def _job_lines(container: Container, job: BatchJob) -> AsyncIterator[bytes]:
    """Yield the lines of a job: the job, its results, and how it ended."""
    yield _encode_line({"event": "job", **job.as_dict()})
    last: Cursor = FIRST_CURSOR
    try:
        async with aclosing(container.batches.follow(job.job_id, container.shutting_down)) as items:
            async for item in items:
                if isinstance(item, BatchJob):
                    yield _encode_line({"event": "end", **item.as_dict()})
                    return
                last = item[-1].cursor
                yield b"".join(_encode_line({"event": "result", **each.as_dict()}) for each in item)
    except DatabaseError as error:  # the job continues, and the client can continue from here
        events.publish("batch_stream_interrupted", job.job_id, str(error), label="batch")
    yield _encode_line({"event": "interrupted", "job_id": job.job_id, "next_cursor": str(last)})


def _encode_line(document: dict[str, Any]) -> bytes:
    """Return a line in ASCII: many clients treat U+2028 and similar characters as line breaks."""
    return json.dumps(document).encode() + b"\n"
