"""Search routes: one response, or a stream with the progress of the search."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from starlette.routing import Route

from comporta.cache.params import USER_CHARS_MAX
from comporta.service.container import Container, get_container
from comporta.service.identity import resolve_user
from comporta.service.problems import HttpProblem
from comporta.service.search import query as queries
from comporta.service.search.query import QueryError, SearchQuery, parse_query
from comporta.service.search.response import SourceResult, oldest_age
from comporta.service.search.search import SearchUnavailableError
from comporta.service.search.stream import problem_event, search_events
from comporta.service.server_sent_events import MEDIA_TYPE as EVENTS

router = APIRouter(tags=["search"])

JSON: Final = "application/json"
FULL_RETRY_SECONDS: Final = 5.0

_STRING_LIST: dict[str, Any] = {"type": "array", "items": {"type": "string"}}
_TERM: dict[str, Any] = {"type": "string", "minLength": 1, "pattern": queries.NO_CONTROL_CHARS}
_USER: dict[str, Any] = {"type": "string", "pattern": queries.PRINTABLE}
_DATE: dict[str, Any] = {"type": "string", "format": "date"}


def _parameter(
    name: str, schema: dict[str, Any], description: str, *, required: bool = False
) -> dict[str, Any]:
    style = {"style": "form", "explode": False} if schema["type"] == "array" else {}
    parameter = {"name": name, "in": "query", "required": required, "schema": schema, **style}
    return {**parameter, "description": description}


def _integer_schema(bounds: tuple[int, int], default: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": bounds[0], "maximum": bounds[1], "default": default}


_PARAMETERS = [
    _parameter("date_from", _DATE, "First day of publication.", required=True),
    _parameter("date_to", _DATE, "Last day of publication.", required=True),
    _parameter(
        "modality",
        _integer_schema(queries.MODALITY_RANGE, queries.DEFAULT_MODALITY),
        "PNCP's code for the modality.",
    ),
    _parameter(
        "ufs",
        {**_STRING_LIST, "items": {"type": "string", "enum": list(queries.UFS)}, "minItems": 1},
        "States, separated by commas; all of them by default.",
    ),
    _parameter(
        "terms",
        {
            **_STRING_LIST,
            "items": {**_TERM, "maxLength": queries.TERM_CHARS_MAX},
            "maxItems": queries.TERMS_MAX,
        },
        "Terms, separated by commas; at least one must be in the notice's object.",
    ),
    _parameter("user", {**_USER, "minLength": 1, "maxLength": USER_CHARS_MAX}, "The user who searches."),
    _parameter(
        "limit", _integer_schema(queries.LIMIT_RANGE, queries.DEFAULT_LIMIT), "How many notices to return."
    ),
    _parameter("offset", _integer_schema(queries.OFFSET_RANGE, 0), "How many notices to skip."),
]
_PROBLEM = {"content": {"application/problem+json": {"schema": {"type": "object"}}}}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    422: {"description": "A field is invalid; `field` names it.", **_PROBLEM},
    429: {"description": "The client exceeded its limit.", **_PROBLEM},
    503: {
        "description": "No source has anything to serve; retry after `Retry-After`.",
        **_PROBLEM,
    },
}


async def search(request: Request) -> Response:
    """Search all sources; headers and body say whether the results are fresh and complete."""
    request.scope.setdefault("route", FAST_ROUTE)  # the metrics label
    container = get_container(request)
    query = await _parse_request(request, container)
    try:
        rendered = await container.search.answer(query)
    except SearchUnavailableError as error:
        raise _unavailable_problem(error) from None
    return Response(rendered.body, 200, {**rendered.headers, "age": str(oldest_age(rendered.results))}, JSON)


FAST_ROUTE: Final = Route("/v1/search", search, methods=["GET"], include_in_schema=False)
"""The route that serves searches. It is matched first and bypasses FastAPI's dependency injection and nested
routers, which would take longer than a cached search. The FastAPI route below only documents it.
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
    summary="Search all sources and stream the progress",
    response_class=StreamingResponse,
    responses={200: {"content": {EVENTS: {"schema": {"type": "string"}}}}, **_RESPONSES},
    openapi_extra={"parameters": _PARAMETERS},
)
async def stream(request: Request) -> Response:
    """Stream the progress of a search, its response, and a newer one after stale results are refreshed."""
    container = get_container(request)
    query = await _parse_request(request, container)
    if container.search.progress.is_full:
        detail = "too many searches are being streamed"
        raise HttpProblem(503, "Service Unavailable", detail, retry_after=FULL_RETRY_SECONDS)
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(_search_events(container, query), 200, headers, EVENTS)


async def _search_events(container: Container, query: SearchQuery) -> AsyncIterator[bytes]:
    """Yield the events; an error after the response has begun can only be an event."""
    try:
        async for event in search_events(container.search, query, container.shutting_down):
            yield event
    except SearchUnavailableError as error:
        yield problem_event(_unavailable_problem(error).body)


async def _parse_request(request: Request, container: Container) -> SearchQuery:
    identity = await container.authenticator.identify(request)
    try:
        query = parse_query(request.scope["query_string"], container.config.search.days_max)
    except QueryError as error:
        raise HttpProblem(422, "Unprocessable Content", str(error), field=error.field) from None
    if identity is None:
        return query
    resolve_user(identity, None if query.user == queries.ANONYMOUS else query.user, "user")
    return replace(query, user=identity.user)


def _unavailable_problem(error: SearchUnavailableError) -> HttpProblem:
    sources = {result.source: _source_json(result) for result in error.results}
    detail = "no source has anything to serve for this search"
    retry_after = None if error.forced else error.retry_after
    return HttpProblem(503, "Service Unavailable", detail, retry_after=retry_after, sources=sources)


def _source_json(result: SourceResult) -> dict[str, str]:
    return {"status": result.status, "reason": result.reason}
