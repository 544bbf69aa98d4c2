"""The sheets of batch jobs as files: CSV and XLSX, read from the database while they are sent.

Without authentication, anyone who knows the id of a sheet may read it, as with a link to a shared document;
ids cannot be guessed. With authentication, only the user of its job may.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from typing import Annotated, Any, Final
from urllib.parse import quote

from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import StreamingResponse

from comporta.integrations.asgi import Receive, Scope, Send
from comporta.pipeline.sinks.xlsx import ROWS_MAX
from comporta.service.batch.download_queries import DownloadableSheet
from comporta.service.batch.downloads import CSV, XLSX
from comporta.service.batch.models import SheetConfig
from comporta.service.container import Container, ContainerDep, IdentityDep
from comporta.service.identity import Identity
from comporta.service.problems import MEDIA_TYPE as PROBLEM
from comporta.service.problems import HttpProblem

MEDIA_TYPES: Final = {
    CSV: "text/csv; charset=utf-8; header=present",
    XLSX: "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
}
RETRY_SECONDS: Final = 5

_DOWNLOAD_ID = re.compile(r"[A-Za-z0-9_-]{20,64}")
_UNSAFE_CHARS = re.compile(r'[\x00-\x1f\x7f"\\/:*?<>|%]+')
_BINARY = {"type": "string", "format": "binary"}

router = APIRouter(prefix="/ultra-batch/sheets", tags=["batch"])

SheetId = Annotated[str, Path(description="The `spreadsheet_id` of `configure-sheets`.", max_length=200)]


def sheet_json(request: Request, config: SheetConfig) -> dict[str, Any]:
    """Return the JSON form of a sheet for clients; one that the service serves has the URL of its CSV."""
    return {
        "spreadsheet_id": config.public_id,
        "spreadsheet_url": config.spreadsheet_url or _download_url(request, config.download_id),
        "spreadsheet_name": config.spreadsheet_name,
    }


def _download_url(request: Request, download_id: str) -> str:
    container: Container = request.app.state.container
    base = container.config.public_url or str(request.base_url).rstrip("/")
    return f"{base}{router.prefix}/{download_id}.{CSV}"


def _responses(kind: str, description: str) -> dict[int | str, dict[str, Any]]:
    media_type = MEDIA_TYPES[kind].partition(";")[0]
    problem = {"content": {PROBLEM: {"schema": {"type": "object"}}}}
    return {
        200: {"content": {media_type: {"schema": _BINARY}}, "description": description},
        404: {**problem, "description": "No sheet has this id, or its job was deleted."},
        503: {**problem, "description": "Too many downloads are in progress, or the database is away."},
    }


@router.head("/{sheet_id}.csv", include_in_schema=False)
@router.get(
    "/{sheet_id}.csv",
    response_class=StreamingResponse,
    responses=_responses(CSV, "The rows: `account` and `message` of each successful account, in order."),
)
async def download_csv(
    request: Request, container: ContainerDep, identity: IdentityDep, sheet_id: SheetId
) -> Response:
    """Download a sheet as a CSV file; while its job runs, with the rows so far."""
    sheet = await _find_sheet(container, identity, sheet_id)
    return await _respond(request, container, sheet, CSV)


@router.head("/{sheet_id}.xlsx", include_in_schema=False)
@router.get(
    "/{sheet_id}.xlsx",
    response_class=StreamingResponse,
    responses=_responses(XLSX, "A workbook with the same rows. A cell has at most 32767 characters.")
    | {422: {"content": {PROBLEM: {}}, "description": "The job has more accounts than a workbook has rows."}},
)
async def download_xlsx(
    request: Request, container: ContainerDep, identity: IdentityDep, sheet_id: SheetId
) -> Response:
    """Download a sheet as an XLSX workbook; while its job runs, with the rows so far."""
    sheet = await _find_sheet(container, identity, sheet_id)
    if sheet.total > ROWS_MAX:
        detail = f"a workbook has at most {ROWS_MAX} rows, the job has {sheet.total} accounts: use the .csv"
        raise HttpProblem(422, "Unprocessable Content", detail, "sheet_id")
    return await _respond(request, container, sheet, XLSX)


class SheetResponse(StreamingResponse):
    """A response that closes its download when it ends, even if the client disconnects."""

    def __init__(self, chunks: AsyncGenerator[bytes, None], kind: str, headers: dict[str, str]) -> None:
        super().__init__(chunks, media_type=MEDIA_TYPES[kind], headers=headers)
        self._chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._chunks.aclose()


async def _find_sheet(container: Container, identity: Identity | None, sheet_id: str) -> DownloadableSheet:
    sheet = await container.downloads.find(sheet_id) if _DOWNLOAD_ID.fullmatch(sheet_id) else None
    if sheet is None or (identity is not None and not identity.may_see(sheet.user_id)):
        raise HttpProblem(404, "Not Found", "no sheet has this id", "sheet_id")
    return sheet


async def _respond(request: Request, container: Container, sheet: DownloadableSheet, kind: str) -> Response:
    headers = {"content-disposition": _disposition(sheet.name, kind), "cache-control": "no-store"}
    if request.method == "HEAD":
        response = Response(media_type=MEDIA_TYPES[kind], headers=headers)
        del response.headers["content-length"]  # the length of the file is not known
        return response
    downloads = container.downloads
    if not downloads.has_room(kind):
        detail = "too many clients are downloading sheets"
        raise HttpProblem(503, "Service Unavailable", detail, retry_after=RETRY_SECONDS)
    chunks = downloads.chunks(sheet, kind)
    await anext(chunks)  # an error up to here gets a response of its own
    return SheetResponse(chunks, kind, headers)


def _disposition(name: str, kind: str) -> str:
    """Return the header with the file name, in ASCII for old clients and in UTF-8 for all others."""
    stem = " ".join(_UNSAFE_CHARS.sub(" ", name).split()).strip(" .") or "sheet"
    plain = stem.encode("ascii", "replace").decode().replace("?", "_")
    encoded = quote(f"{stem}.{kind}", safe="", errors="replace")
    return f"attachment; filename=\"{plain}.{kind}\"; filename*=UTF-8''{encoded}"
