"""Error responses of the service as problem+json (RFC 9457), for every error.

A response never repeats a client's input in full and never reveals internal details; those go to the log.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match

from comporta.errors import (
    DatabaseError,
    DatabaseUnavailableError,
    RefusedError,
    SinkAuthError,
    SinkError,
    StateError,
)
from comporta.headers import retry_after_header

MEDIA_TYPE: Final = "application/problem+json"
VALUE_CHARS_MAX: Final = 100
ERRORS_MAX: Final = 10
RETRY_SECONDS: Final = 5
"""``Retry-After`` for an outage of the service's own store, database or sheets."""

_TITLES = {413: "Content Too Large", 422: "Unprocessable Content"}
"""Titles that Python's ``HTTPStatus`` lacks or spells differently between versions."""

_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
_METHOD_NOT_ALLOWED = 405
_SECRET_WORDS = ("token", "authorization", "password", "secret")


class HttpProblem(HTTPException):
    """An error response; raise it anywhere in a route.

    ``field`` names the wrong field of the request, ``retry_after`` is in seconds, and ``extensions`` become
    members of the JSON document.
    """

    def __init__(
        self,
        status: int,
        title: str,
        detail: str,
        field: str | None = None,
        retry_after: float | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        **extensions: Any,
    ) -> None:
        all_headers = dict(headers or {})
        if retry_after is not None:
            all_headers["retry-after"] = str(max(1, retry_after_header(retry_after)))
            extensions["retry_after"] = max(1, retry_after_header(retry_after))
        if field is not None:
            extensions = {"field": field, **extensions}
        super().__init__(status, detail, all_headers)
        self.title = title
        self.extensions = extensions

    @property
    def body(self) -> dict[str, Any]:
        """The JSON document."""
        return {
            "type": "about:blank",
            "title": self.title,
            "status": self.status_code,
            "detail": self.detail,
            **self.extensions,
        }

    def response(self) -> Response:
        """Return the HTTP response."""
        content = json.dumps(self.body, ensure_ascii=False).encode("utf-8", "replace")
        return Response(content, self.status_code, self.headers, MEDIA_TYPE)


def install_error_handlers(app: FastAPI) -> None:
    """Make an application answer every error with problem+json."""
    app.add_exception_handler(HTTPException, _handle_http_exception)
    app.add_exception_handler(RequestValidationError, _handle_validation_error)
    app.add_exception_handler(RefusedError, _handle_refusal)
    app.add_exception_handler(StateError, _handle_outage)
    app.add_exception_handler(DatabaseError, _handle_outage)
    app.add_exception_handler(SinkError, _handle_sink_error)
    app.add_exception_handler(Exception, _handle_unexpected)


async def _handle_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for this type only
    if isinstance(error, HttpProblem):
        return error.response()
    headers = {name.lower(): value for name, value in (error.headers or {}).items()}
    if error.status_code == _METHOD_NOT_ALLOWED:
        headers["allow"] = ", ".join(_allowed_methods(request))
    return HttpProblem(error.status_code, _title(error.status_code), error.detail, headers=headers).response()


def _allowed_methods(request: Request) -> list[str]:
    """Return the methods of a path: the framework names only those of the first route with this path."""
    routes = request.app.router.routes
    scopes = {method: {**request.scope, "method": method} for method in _METHODS}
    return [
        method
        for method, scope in scopes.items()
        if any(route.matches(scope)[0] is Match.FULL for route in routes)
    ]


async def _handle_validation_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for this type only
    errors = [_validation_detail(each) for each in error.errors()[:ERRORS_MAX]]
    first = errors[0]
    return HttpProblem(422, _title(422), first["detail"], field=first["field"], errors=errors).response()


async def _handle_refusal(_: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedError)  # noqa: S101 - registered for this type only
    detail = f"{error.name} is currently not available"
    retry_after = None if error.forced else error.retry_after
    return HttpProblem(503, _title(503), detail, retry_after=retry_after).response()


async def _handle_outage(request: Request, error: Exception) -> Response:
    if isinstance(error, DatabaseUnavailableError):
        request.app.state.container.database_outage.record(error)  # logs it once
    else:
        _log_error(request, error)
    what = "database" if isinstance(error, DatabaseError) else "state store"
    detail = f"the service's own {what} is currently not available"
    return HttpProblem(503, _title(503), detail, retry_after=RETRY_SECONDS).response()


async def _handle_sink_error(request: Request, error: Exception) -> Response:
    _log_error(request, error)
    if isinstance(error, SinkAuthError):
        return HttpProblem(502, _title(502), "the spreadsheet service rejected our credentials").response()
    detail = "the spreadsheet service is currently not available"
    return HttpProblem(503, _title(503), detail, retry_after=RETRY_SECONDS).response()


async def _handle_unexpected(request: Request, error: Exception) -> Response:
    _log_error(request, error)
    return HttpProblem(500, _title(500), "internal error; details are in the service's log").response()


def _validation_detail(error: Mapping[str, Any]) -> dict[str, str]:
    """Return the field of a validation error and a sentence with the allowed and the received value."""
    location = [str(part) for part in error.get("loc", ())] or ["request"]
    if error.get("type") == "json_invalid":
        detail = f"body: must be valid JSON, got invalid input at character {location[-1]}"
        return {"in": "body", "field": "body", "detail": detail}
    if error.get("type") == "model_attributes_type" and location == ["body"]:
        detail = "body: must be a JSON object, sent with Content-Type: application/json"
        return {"in": "body", "field": "body", "detail": detail}
    field = ".".join(location[1:] or location)[:VALUE_CHARS_MAX]
    message = str(error.get("msg", "is not valid"))
    detail = f"{field}: {message[:1].lower()}{message[1:]}{_received_text(location, error)}"
    return {"in": location[0], "field": field, "detail": detail}


def _received_text(location: Sequence[str], error: Mapping[str, Any]) -> str:
    value = error.get("input")
    is_secret = any(word in part.lower() for part in location for word in _SECRET_WORDS)
    if is_secret or value is None or isinstance(value, dict | list | bytes):
        return ""
    return f", got {value!r:.{VALUE_CHARS_MAX}}"


def _title(status: int) -> str:
    try:
        return _TITLES.get(status) or HTTPStatus(status).phrase
    except ValueError:
        return "Error"


def _log_error(request: Request, error: Exception) -> None:
    logging.getLogger("comporta.service").error(
        "%s %.200r failed", request.method, request.url.path, exc_info=error
    )
