"""The OpenAPI document: FastAPI's, completed with every status and content type that a route can return.

Errors are problem+json, whichever layer raises them: FastAPI would document its own format for invalid input,
and none of the rejections of the middleware.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from fastapi import FastAPI

from comporta.service.middleware import is_limited
from comporta.service.openapi.operator_schemas import DASHBOARD_EVENT, OPERATOR_SCHEMAS
from comporta.service.openapi.public_schemas import PUBLIC_SCHEMAS, SEARCH_EVENT
from comporta.service.openapi.schema_types import STRING, json_text, reference
from comporta.service.problems import MEDIA_TYPE as PROBLEM
from comporta.service.server_sent_events import MEDIA_TYPE as EVENTS

_Document = dict[str, Any]

_RESULTS: Final = {
    ("get", "/v1/search"): "SearchResponse",
    ("get", "/v1/health"): "Health",
    ("get", "/v1/health/cache"): "CacheHealth",
    ("get", "/livez"): "LivenessStatus",
    ("get", "/readyz"): "LivenessStatus",
    ("post", "/ultra-batch/check-whitelist"): "Authorization",
    ("get", "/ultra-batch/jobs/{job_id}"): "Job",
    ("post", "/ultra-batch/configure-sheets"): "Sheet",
    ("get", "/ultra-batch/sheets-config/{job_id}"): "SheetConfig",
    ("get", "/v1/dashboard"): "Dashboard",
    ("get", "/v1/dashboard/history"): "DashboardHistory",
    ("get", "/v1/admin/upstreams"): "UpstreamList",
    ("post", "/v1/admin/breakers/{name}/open"): "BreakerState",
    ("post", "/v1/admin/breakers/{name}/close"): "BreakerState",
    ("post", "/v1/admin/breakers/{name}/reset"): "BreakerState",
    ("put", "/v1/admin/limits/{name}"): "ChangedUpstream",
    ("delete", "/v1/admin/limits/{name}"): "ChangedUpstream",
    ("post", "/v1/admin/upstreams/{name}/pause"): "ChangedUpstream",
    ("post", "/v1/admin/upstreams/{name}/resume"): "ChangedUpstream",
    ("get", "/v1/admin/cache/keys"): "CacheKeyList",
    ("delete", "/v1/admin/cache/keys"): "RemovedKeys",
    ("get", "/v1/admin/cache/keys/{params_hash}"): "CacheKey",
    ("delete", "/v1/admin/cache/keys/{params_hash}"): "RemovedKeys",
    ("post", "/v1/admin/cache/keys/{params_hash}/refresh"): "MarkedKeys",
    ("post", "/v1/admin/backfills/{job_id}/retry"): "RetriedBackfill",
    ("get", "/v1/admin/jobs"): "JobList",
    ("get", "/v1/admin/audit"): "ActionList",
}
"""The schema of a successful response."""

_DESCRIPTIONS: Final = {
    "400": "The body cannot be read.",
    "401": "The credentials are missing or wrong.",
    "403": "The client may not do this, or not for this user.",
    "404": "There is no such thing, or the client may not see it.",
    "409": "The id belongs to something else.",
    "413": "The body is larger than `body_bytes_max`.",
    "422": "A field is invalid; `field` names it.",
    "429": "The client exceeded its limit; retry after `Retry-After`.",
    "500": "An unexpected error; details are in the log of the service.",
    "502": "The spreadsheet service rejected the credentials of this service.",
    "503": "The service cannot answer now; retry after `Retry-After`.",
}
_USER_ROUTES: Final = ("/v1/search", "/ultra-batch/")
_EVENTS: Final = {"/v1/search/stream": SEARCH_EVENT, "/v1/dashboard/stream": DASHBOARD_EVENT}


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
    schemas.update(PUBLIC_SCHEMAS)
    schemas.update(OPERATOR_SCHEMAS)
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
        responses["200"]["content"] = {"application/json": {"schema": reference(name)}}
    if path == "/v1/health":
        described = {"description": "The database does not respond.", "content": responses["200"]["content"]}
        responses["503"] = described
    if path in _EVENTS:
        responses["200"]["content"] = {EVENTS: {"schema": _EVENTS[path]}}
    if path == "/metrics":
        responses["200"]["content"] = {"text/plain": {"schema": STRING}}
    if (method, path) == ("post", "/ultra-batch/jobs"):
        lines = {**json_text(reference("JobLine")), "description": "Lines, each of them JSON."}
        responses["200"]["content"] = {"application/x-ndjson": {"schema": lines}}
    for status in _error_statuses(method, path, operation, has_users=has_users):
        if status == "503" and path == "/v1/health":
            continue
        response = responses.setdefault(status, {"description": _DESCRIPTIONS[status]})
        if response["description"] == "Validation Error":
            response["description"] = _DESCRIPTIONS[status]
        response["content"] = {PROBLEM: {"schema": reference("Problem")}}


def _error_statuses(method: str, path: str, operation: _Document, *, has_users: bool) -> set[str]:
    """Return the statuses of all errors that an operation can return."""
    statuses = {"500", *(status for status in operation["responses"] if status in _DESCRIPTIONS)}
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
