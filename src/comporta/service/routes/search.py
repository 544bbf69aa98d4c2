"""Searches over all sources: one answer, or a stream that tells how it comes about."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from starlette.routing import Route

from comporta.service.parts import Parts, parts_of
from comporta.service.problems import Problem
from comporta.service.search import query as queries
from comporta.service.search.answers import Part, age_of
from comporta.service.search.query import QueryError, SearchQuery, read_query
from comporta.service.search.searching import Nothing
from comporta.service.search.streaming import problem_event, streamed

router = APIRouter(tags=["search"])

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
FULL_RETRY_SECONDS: Final = 5.0

_NAMES: dict[str, Any] = {"type": "array", "items": {"type": "string"}}
_DAY: dict[str, Any] = {"type": "string", "format": "date"}


def _parameter(
    name: str, schema: dict[str, Any], description: str, *, required: bool = False
) -> dict[str, Any]:
    listed = {"style": "form", "explode": False} if schema["type"] == "array" else {}
    told = {"name": name, "in": "query", "required": required, "schema": schema, **listed}
    return {**told, "description": description}


def _between(bounds: tuple[int, int], default: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": bounds[0], "maximum": bounds[1], "default": default}


_PARAMETERS = [
    _parameter("date_from", _DAY, "The first day of publication.", required=True),
    _parameter("date_to", _DAY, "The last day of publication.", required=True),
    _parameter("modality", _between(queries.MODALITIES, queries.MODALITY), "PNCP's code of the modality."),
    _parameter(
        "ufs",
        {**_NAMES, "items": {"type": "string", "enum": list(queries.UFS)}, "minItems": 1},
        "States, separated by commas; left out, all of them.",
    ),
    _parameter(
        "terms",
        {
            **_NAMES,
            "items": {
                "type": "string",
                "minLength": queries.TERM_CHARS[0],
                "maxLength": queries.TERM_CHARS[1],
            },
            "maxItems": queries.TERMS_MAX,
        },
        "Words of which one at the least is in the object, separated by commas.",
    ),
    _parameter("user", {"type": "string", "minLength": 1, "maxLength": 200}, "Whose search it is."),
    _parameter("limit", _between(queries.LIMITS, queries.LIMIT), "How many notices to return."),
    _parameter("offset", _between(queries.OFFSETS, 0), "How many to leave out before."),
]
_PROBLEM = {"content": {"application/problem+json": {"schema": {"type": "object"}}}}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    422: {"description": "A field is wrong; `field` names it.", **_PROBLEM},
    429: {"description": "The client's limit is used up.", **_PROBLEM},
    503: {
        "description": "No source has anything to serve; `Retry-After` says when to come back.",
        **_PROBLEM,
    },
}


async def search(request: Request) -> Response:
    """Return what the sources have: fresh, stale or in part; the headers and the body say which."""
    request.scope.setdefault("route", PLAIN)  # by which it is counted
    parts = parts_of(request)
    query = _asked(request, parts)
    try:
        made = await parts.search.answer(query)
    except Nothing as nothing:
        raise _nothing(nothing) from None
    return Response(made.body, 200, {**made.headers, "age": str(age_of(made.parts))}, JSON)


PLAIN: Final = Route("/v1/search", search, methods=["GET"], include_in_schema=False)
"""Tried first, and without what the framework does for handlers that have it fill in their arguments, and to
find them in routers: that would take longer than the search itself. The other one is there to be described.
"""

router.get(
    "/v1/search",
    summary="Search all sources",
    response_class=Response,
    responses={200: {"content": {JSON: {"schema": {"type": "object"}}}}, **_RESPONSES},
    openapi_extra={"parameters": _PARAMETERS},
)(search)


@router.get(
    "/v1/search/stream",
    summary="Search all sources, and watch",
    response_class=StreamingResponse,
    responses={200: {"content": {EVENTS: {"schema": {"type": "string"}}}}, **_RESPONSES},
    openapi_extra={"parameters": _PARAMETERS},
)
async def stream(request: Request) -> Response:
    """Tell how a search comes about, its answer, and when a stale one has been fetched anew."""
    parts = parts_of(request)
    query = _asked(request, parts)
    if parts.search.board.full:
        detail = "too many searches are being watched"
        raise Problem(503, "Service Unavailable", detail, retry_after=FULL_RETRY_SECONDS)
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(_events(parts, query), 200, headers, EVENTS)


async def _events(parts: Parts, query: SearchQuery) -> AsyncIterator[bytes]:
    """Give the events; what goes wrong after the answer has begun can only be one of them."""
    try:
        async for text in streamed(parts.search, query, parts.leaving):
            yield text
    except Nothing as nothing:
        yield problem_event(_nothing(nothing).body)


def _asked(request: Request, parts: Parts) -> SearchQuery:
    try:
        return read_query(request.scope["query_string"], parts.config.search.days_max)
    except QueryError as error:
        raise Problem(422, "Unprocessable Content", str(error), field=error.field) from None


def _nothing(nothing: Nothing) -> Problem:
    told = {part.source: _why(part) for part in nothing.parts}
    detail = "no source has anything to serve for this search"
    return Problem(503, "Service Unavailable", detail, retry_after=nothing.retry_after, sources=told)


def _why(part: Part) -> dict[str, str]:
    return {"status": part.status, "why": part.why}
