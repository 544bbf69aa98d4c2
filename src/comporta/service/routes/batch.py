"""Jobs over many accounts, and the sheets they fill. Whatever blocks is done on threads of its own role."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Path, Query
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field, StringConstraints, TypeAdapter, ValidationError, WithJsonSchema

from comporta import events
from comporta.errors import DatabaseError
from comporta.pipeline.sinks.spreadsheets import NAME_CHARS_MAX
from comporta.service.batch.batches import Batches
from comporta.service.batch.values import (
    ACCOUNT_CHARS_MAX,
    FAILED,
    PENDING,
    START,
    Job,
    Place,
    SheetConfig,
    moment,
)
from comporta.service.parts import Parts, parts_of
from comporta.service.problems import Problem

MEDIA_TYPE: Final = "application/x-ndjson"
PAGE_MAX: Final = 1000
ACCOUNTS_MAX: Final = 100_000
RETRY_SECONDS: Final = 5

CHECKED_AT_ONCE: Final = 500
"""How many accounts are looked at in one go, which nothing else of the process can interrupt."""

_NO_NUL = r"^[^\x00]*$"
_JOB_ID = r"^[A-Za-z0-9_-]{1,64}$"

router = APIRouter(prefix="/ultra-batch", tags=["batch"])

OfApp = Annotated[Parts, Depends(parts_of)]
UserId = Annotated[str, Field(min_length=1, max_length=200, pattern=_NO_NUL)]
OneAccount = Annotated[
    str,
    StringConstraints(strip_whitespace=True, min_length=1, max_length=ACCOUNT_CHARS_MAX, pattern=_NO_NUL),
]
_ACCOUNTS = TypeAdapter(list[OneAccount])
JobId = Annotated[str, Field(pattern=_JOB_ID)]
JobIdInPath = Annotated[str, Path(pattern=_JOB_ID)]


class Who(BaseModel):
    """A user."""

    user_id: UserId


class NewJob(BaseModel):
    """Accounts, each of which is done once; a ``job_id`` of the client's makes it safe to send it again."""

    # What they are is looked at on a thread, some at a time: all at once would stop the loop for 50 ms.
    accounts: Annotated[
        list[Any],
        Field(min_length=1, max_length=ACCOUNTS_MAX),
        WithJsonSchema({**_ACCOUNTS.json_schema(), "minItems": 1, "maxItems": ACCOUNTS_MAX}),
    ]
    user_id: UserId = "anonymous"
    job_id: JobId | None = None


class WantedSheet(BaseModel):
    """A sheet for a job."""

    job_id: JobId
    user_id: UserId
    custom_name: (
        Annotated[str, Field(min_length=1, max_length=min(200, NAME_CHARS_MAX), pattern=_NO_NUL)] | None
    ) = None


@router.post("/check-whitelist")
async def check_whitelist(parts: OfApp, body: Who) -> dict[str, bool]:
    """Whether a user may have sheets."""
    return {"authorized": await parts.batches.may_have_sheets(body.user_id)}


@router.post(
    "/jobs",
    response_class=StreamingResponse,
    responses={
        200: {"content": {MEDIA_TYPE: {}}, "description": "Lines of JSON: the job, results, the end."}
    },
)
async def add_job(parts: OfApp, body: NewJob) -> StreamingResponse:
    """Add a job, and give its results while they are made; it goes on whether anybody listens or not."""
    batches = parts.batches
    accounts = await batches.aside(_checked, body.accounts)
    _check_room(batches, len(accounts))
    job = await batches.add(body.user_id, accounts, body.job_id)
    if job is None:
        detail = f"{batches.settings.running_max} jobs are under way already"
        raise Problem(503, "Service Unavailable", detail, retry_after=RETRY_SECONDS)
    if body.job_id is not None and job.digest != await batches.digest(accounts):
        raise Problem(409, "Conflict", f"there is a job {job.job_id} about other accounts", "job_id")
    lines = _lines(parts, job)
    return StreamingResponse(lines, media_type=MEDIA_TYPE, headers={"x-job-id": job.job_id})


@router.get("/jobs/{job_id}")
async def show_job(
    parts: OfApp,
    job_id: JobIdInPath,
    cursor: Annotated[str | None, Query(max_length=50)] = None,
    limit: Annotated[int, Query(ge=0, le=PAGE_MAX)] = 100,
) -> dict[str, Any]:
    """How a job stands, and a page of its results in the order in which they came."""
    after = _place(cursor)
    job = await _job(parts.batches, job_id)
    page = await parts.batches.results(job_id, after, limit) if limit else []
    last = page[-1].place if page else after
    told = [result.told() for result in page]
    return {**job.told(), "results": told, "next_cursor": str(last) if last != START else None}


@router.post("/configure-sheets")
async def configure_sheets(parts: OfApp, body: WantedSheet) -> dict[str, Any]:
    """Give a job a sheet, at once; what there is already is written in the background."""
    batches = parts.batches
    if not await batches.may_have_sheets(body.user_id):
        raise Problem(403, "Forbidden", "this user may not have sheets", "user_id")
    configured = await batches.configure(body.job_id, body.user_id, body.custom_name)
    if configured is None:
        raise _no_job(body.job_id)
    told = {"success": True, **_sheet(configured.config)}
    if configured.backfill_status is not None:
        told["backfill_status"] = configured.backfill_status
    return told


@router.get("/sheets-config/{job_id}")
async def sheets_config(parts: OfApp, job_id: JobIdInPath) -> dict[str, Any]:
    """The sheet of a job, and how far its backfill is."""
    config = await parts.batches.sheet(job_id)
    if config is None:
        await _job(parts.batches, job_id)
        raise Problem(404, "Not Found", f"the job {job_id} has no sheet", "job_id")
    told: dict[str, Any] = {
        "job_id": job_id,
        "enabled": True,
        **_sheet(config),
        "created_at": moment(config.created_at_us),
        "backfill_status": config.backfill_status,
    }
    if config.backfill_status != PENDING:
        told["backfilled_rows"] = config.backfilled_rows
    if config.backfill_status == FAILED:
        told["backfill_error"] = config.backfill_error
    return told


def _sheet(config: SheetConfig) -> dict[str, Any]:
    return {
        "spreadsheet_id": config.spreadsheet_id,
        "spreadsheet_url": config.spreadsheet_url,
        "spreadsheet_name": config.spreadsheet_name,
    }


def _check_room(batches: Batches, accounts: int) -> None:
    most = batches.settings.accounts_max
    if accounts > most:
        raise Problem(
            422, "Unprocessable Content", f"accounts must be 1 to {most}, got {accounts}", "accounts"
        )
    if not batches.can_process:
        detail = "nobody said what is to be done for an account: batch.processor or batch.address must be set"
        raise Problem(503, "Service Unavailable", detail)
    if not batches.can_be_followed:
        detail = "too many follow their jobs already"
        raise Problem(503, "Service Unavailable", detail, retry_after=RETRY_SECONDS)


def _checked(accounts: Sequence[Any]) -> list[str]:
    """Return what accounts are without the spaces around them; the first that are wrong are an error."""
    found: list[str] = []
    for first in range(0, len(accounts), CHECKED_AT_ONCE):
        try:
            found += _ACCOUNTS.validate_python(accounts[first : first + CHECKED_AT_ONCE])
        except ValidationError as error:
            wrong = error.errors(include_url=False)
            raise RequestValidationError([_placed(dict(each), first) for each in wrong]) from None
    return found


def _placed(wrong: dict[str, Any], first: int) -> dict[str, Any]:
    return {**wrong, "loc": ("body", "accounts", first + wrong["loc"][0])}


async def _job(batches: Batches, job_id: str) -> Job:
    job = await batches.job(job_id)
    if job is None:
        raise _no_job(job_id)
    return job


def _no_job(job_id: str) -> Problem:
    return Problem(404, "Not Found", f"there is no job {job_id}", "job_id")


def _place(cursor: str | None) -> Place:
    try:
        return START if cursor is None else Place.read(cursor)
    except ValueError as error:
        raise Problem(422, "Unprocessable Content", str(error), "cursor") from None


async def _lines(parts: Parts, job: Job) -> AsyncIterator[bytes]:
    """Give a job line by line: what it is, what becomes of its accounts, how it ended."""
    yield _line({"event": "job", **job.told()})
    last: Place = START
    try:
        async with aclosing(parts.batches.follow(job.job_id, parts.leaving)) as follows:
            async for told in follows:
                if isinstance(told, Job):
                    yield _line({"event": "end", **told.told()})
                    return
                last = told[-1].place
                yield b"".join(_line({"event": "result", **each.told()}) for each in told)
    except DatabaseError as error:  # the job goes on when it is back, and can be read from here
        events.publish("batch_stream_interrupted", job.job_id, str(error))
    yield _line({"event": "interrupted", "job_id": job.job_id, "next_cursor": str(last)})


def _line(told: dict[str, Any]) -> bytes:
    """Return a line in ASCII: many clients see the end of one in U+2028 and its like."""
    return json.dumps(told).encode() + b"\n"
