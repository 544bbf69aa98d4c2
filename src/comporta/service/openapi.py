"""The OpenAPI document: FastAPI's, completed with every status and content type that a route can return.

Errors are problem+json, whichever layer raises them: FastAPI would document its own format for invalid input
and nothing of what the middleware rejects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from fastapi import FastAPI

from comporta.service.middleware import is_limited
from comporta.service.problems import MEDIA_TYPE as PROBLEM

_Document = dict[str, Any]

_STRING: Final[_Document] = {"type": "string"}
_INTEGER: Final[_Document] = {"type": "integer"}
_NULLABLE_STRING: Final[_Document] = {"type": ["string", "null"]}
_STRINGS: Final[_Document] = {"type": "array", "items": _STRING}


def _object(required: _Document, optional: _Document | None = None) -> _Document:
    """Return the schema of an object that may have further fields, so that clients accept later versions."""
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": True,
    }


_STATUS = {"type": "string", "enum": ["ok", "warn", "fail"]}
_COUNTS = dict.fromkeys(("total", "succeeded", "failed", "pending"), _INTEGER)
_JOB = {
    "job_id": _STRING,
    "status": _STRING,
    **_COUNTS,
    "created_at": _STRING,
    "finished_at": _NULLABLE_STRING,
}
_SHEET = {"spreadsheet_id": _STRING, "spreadsheet_url": _STRING, "spreadsheet_name": _STRING}

SCHEMAS: Final[_Document] = {
    "Problem": _object(
        {"type": _STRING, "title": _STRING, "status": _INTEGER, "detail": _STRING},
        {"field": _STRING, "retry_after": _INTEGER, "errors": {"type": "array", "items": {"type": "object"}}},
    ),
    "SearchResponse": _object(
        {
            "freshness": _STRING,
            "complete": {"type": "boolean"},
            "coverage": {"type": "object"},
            "missing_sources": _STRINGS,
            "pending": {
                "type": "object",
                "additionalProperties": _object(
                    {"ufs": _STRINGS, "days": _STRINGS, "estimated_ready_at": _NULLABLE_STRING}
                ),
            },
            "estimated_ready_at": _NULLABLE_STRING,
            "sources": {"type": "object", "additionalProperties": {"type": "object"}},
            "warnings": _STRINGS,
            "total": _INTEGER,
            "offset": _INTEGER,
            "limit": _INTEGER,
            "notices": {"type": "array", "items": {"type": "object"}},
        }
    ),
    "Health": _object(
        {
            "status": _STATUS,
            "reasons": _STRINGS,
            "rate_limiter": {"type": "object"},
            "sources": {"type": "object"},
            "workers": _object({"alive": _INTEGER}),
            "state": _object({"status": _STATUS, "engine": _STRING}),
            "database": _object({"status": _STATUS, "engine": _STRING}),
            "disk": _object({"status": _STATUS, "reasons": _STRINGS}),
            "version": _STRING,
        }
    ),
    "CacheHealth": _object(
        {"entries": _INTEGER, "degraded_keys_count": _INTEGER, "top_keys": {"type": "array"}}
    ),
    "Job": _object({**_JOB, "results": {"type": "array"}, "next_cursor": _NULLABLE_STRING}),
    "JobLine": _object({"event": {"type": "string", "enum": ["job", "result", "end", "interrupted"]}}),
    "Sheet": _object({"success": {"type": "boolean"}, **_SHEET}, {"backfill_status": _STRING}),
    "SheetConfig": _object(
        {"job_id": _STRING, "enabled": {"type": "boolean"}, **_SHEET, "backfill_status": _STRING},
        {"backfilled_rows": _INTEGER, "backfill_error": _NULLABLE_STRING},
    ),
}

_RESULTS: Final = {
    ("get", "/v1/search"): "SearchResponse",
    ("get", "/v1/health"): "Health",
    ("get", "/v1/health/cache"): "CacheHealth",
    ("get", "/ultra-batch/jobs/{job_id}"): "Job",
    ("post", "/ultra-batch/configure-sheets"): "Sheet",
    ("get", "/ultra-batch/sheets-config/{job_id}"): "SheetConfig",
}
"""The schema of a successful response, where FastAPI knows only that it is an object."""

_DESCRIPTIONS: Final = {
    "400": "The body cannot be read.",
    "401": "The credentials are missing or wrong.",
    "403": "The client may not do this, or not for this user.",
    "404": "There is no such thing, or the client may not see it.",
    "409": "The id belongs to something else.",
    "413": "The body is larger than `body_bytes_max`.",
    "422": "A field is invalid; `field` names it.",
    "429": "The client exceeded its limit; retry after `Retry-After`.",
    "502": "The spreadsheet service rejected the credentials of this service.",
    "503": "The service cannot answer now; retry after `Retry-After`.",
}
_USER_ROUTES: Final = ("/v1/search", "/ultra-batch/")
_EVENT = _object({"data": _STRING}, {"event": _STRING, "id": _STRING, "retry": _INTEGER})
_TEXT = {"schema": _STRING}


def install_openapi(app: FastAPI, *, has_users: bool) -> None:
    """Make an application return the complete document; ``has_users`` says that clients authenticate."""
    generate: Callable[[], _Document] = app.openapi

    def openapi() -> _Document:
        if app.openapi_schema is None:
            document = generate()
            _complete(document, has_users=has_users)
        return app.openapi_schema or {}

    app.openapi = openapi  # type: ignore[method-assign]


def _complete(document: _Document, *, has_users: bool) -> None:
    schemas = document["components"]["schemas"]
    schemas.update(SCHEMAS)
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for name in ("UserRequest", "SheetRequest"):
        if not has_users:  # without authentication a request must name its user
            schemas[name].setdefault("required", []).append("user_id")
            schemas[name]["properties"]["user_id"] = schemas[name]["properties"]["user_id"]["anyOf"][0]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            _complete_operation(method, path, operation, has_users=has_users)


def _complete_operation(method: str, path: str, operation: _Document, *, has_users: bool) -> None:
    responses = operation["responses"]
    name = _RESULTS.get((method, path))
    if name is not None:
        responses["200"]["content"] = {"application/json": {"schema": _reference(name)}}
    if path == "/v1/health":
        described = {"description": "The database does not respond.", "content": responses["200"]["content"]}
        responses["503"] = described
    if "text/event-stream" in responses["200" if "200" in responses else "204"].get("content", {}):
        responses["200"]["content"]["text/event-stream"] = {"schema": _EVENT}
    if path == "/metrics":
        responses["200"]["content"] = {"text/plain": _TEXT}
    if (method, path) == ("post", "/ultra-batch/jobs"):
        responses["200"]["content"] = {"application/x-ndjson": {"schema": _STRING}}
    for status in _error_statuses(method, path, operation, has_users=has_users):
        if status == "503" and path == "/v1/health":
            continue
        response = responses.setdefault(status, {"description": _DESCRIPTIONS[status]})
        if response["description"] == "Validation Error":
            response["description"] = _DESCRIPTIONS[status]
        response["content"] = {PROBLEM: {"schema": _reference("Problem")}}


def _error_statuses(method: str, path: str, operation: _Document, *, has_users: bool) -> set[str]:
    """Return the statuses of all errors that an operation can return."""
    statuses = {status for status in operation["responses"] if status in _DESCRIPTIONS}
    if path not in {"/livez", "/metrics"}:
        statuses.add("503")
    if is_limited(path):
        statuses.add("429")
    if method != "get":
        statuses |= {"400", "413", "422"}
    if "{" in path:
        statuses |= {"404", "422"}
    if path.startswith("/v1/admin/"):
        statuses |= {"401", "403", "429"}
    if has_users and path.startswith(_USER_ROUTES):
        statuses |= {"401", "403"}
    if path == "/metrics":
        statuses.add("401")
    if path == "/ultra-batch/configure-sheets":
        statuses |= {"403", "404", "502"}
    if path == "/ultra-batch/jobs":
        statuses.add("409")
    return statuses


def _reference(name: str) -> _Document:
    return {"$ref": f"#/components/schemas/{name}"}
