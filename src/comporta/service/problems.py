"""What the service answers when something is wrong: problem+json (RFC 9457), for every error there is.

Nothing that a client sent is given back in full, and nothing of what went wrong inside is told: that is in
the log.
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

from comporta.errors import DatabaseError, RefusedError, SinkDeniedError, SinkError, StateError
from comporta.headers import whole_seconds

MEDIA_TYPE: Final = "application/problem+json"
VALUE_CHARS_MAX: Final = 100
ERRORS_MAX: Final = 10
RETRY_SECONDS: Final = 5
"""When to come back after an outage of something that the service itself needs."""

_TITLES = {413: "Content Too Large", 422: "Unprocessable Content"}
"""What Python calls otherwise, or in another way from version to version."""

_SECRETS = ("token", "authorization", "password", "secret")


class Problem(HTTPException):
    """An answer that says what is wrong; raise it anywhere in a route.

    ``field`` is the name of what is wrong in the request, ``retry_after`` in seconds; ``more`` becomes
    members of the document.
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
        **more: Any,
    ) -> None:
        told = dict(headers or {})
        if retry_after is not None:
            told["retry-after"] = str(max(1, whole_seconds(retry_after)))
            more["retry_after"] = max(1, whole_seconds(retry_after))
        if field is not None:
            more = {"field": field, **more}
        super().__init__(status, detail, told)
        self.title = title
        self.more = more

    @property
    def body(self) -> dict[str, Any]:
        """The members of the document."""
        return {
            "type": "about:blank",
            "title": self.title,
            "status": self.status_code,
            "detail": self.detail,
            **self.more,
        }

    def response(self) -> Response:
        """Return the answer."""
        content = json.dumps(self.body, ensure_ascii=False).encode("utf-8", "replace")
        return Response(content, self.status_code, self.headers, MEDIA_TYPE)


def errors_as_problems(app: FastAPI) -> None:
    """Let an application answer with problem+json whatever goes wrong."""
    app.add_exception_handler(HTTPException, _told)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(RefusedError, _refused)
    app.add_exception_handler(StateError, _unavailable)
    app.add_exception_handler(DatabaseError, _unavailable)
    app.add_exception_handler(SinkError, _no_sheets)
    app.add_exception_handler(Exception, _failed)


async def _told(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - it was registered for no other
    if isinstance(error, Problem):
        return error.response()
    return Problem(
        error.status_code, _phrase(error.status_code), error.detail, headers=error.headers
    ).response()


async def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - it was registered for no other
    found = [_one(each) for each in error.errors()[:ERRORS_MAX]]
    first = found[0]
    return Problem(422, _phrase(422), first["detail"], field=first["field"], errors=found).response()


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedError)  # noqa: S101 - it was registered for no other
    detail = f"{error.name} is not available now"
    return Problem(503, _phrase(503), detail, retry_after=error.retry_after).response()


async def _unavailable(request: Request, error: Exception) -> Response:
    _log(request, error)
    what = "database" if isinstance(error, DatabaseError) else "state"
    detail = f"the service's own {what} is not available now"
    return Problem(503, _phrase(503), detail, retry_after=RETRY_SECONDS).response()


async def _no_sheets(request: Request, error: Exception) -> Response:
    _log(request, error)
    if isinstance(error, SinkDeniedError):
        return Problem(502, _phrase(502), "the sheets' service does not let us in").response()
    detail = "the sheets' service is not available now"
    return Problem(503, _phrase(503), detail, retry_after=RETRY_SECONDS).response()


async def _failed(request: Request, error: Exception) -> Response:
    _log(request, error)
    return Problem(500, _phrase(500), "something went wrong here; it is in the log").response()


def _one(error: Mapping[str, Any]) -> dict[str, str]:
    """Return a mistake as its field and a sentence with what is allowed and what was sent."""
    where = [str(part) for part in error.get("loc", ())] or ["request"]
    if error.get("type") == "json_invalid":
        at = f"at character {where[-1]}"
        return {"in": "body", "field": "body", "detail": f"body: must be JSON, got something else {at}"}
    if error.get("type") == "model_attributes_type" and where == ["body"]:
        what = "must be a JSON object, sent with Content-Type: application/json"
        return {"in": "body", "field": "body", "detail": f"body: {what}"}
    field = ".".join(where[1:] or where)[:VALUE_CHARS_MAX]
    said = str(error.get("msg", "is not valid"))
    detail = f"{field}: {said[:1].lower()}{said[1:]}{_got(where, error)}"
    return {"in": where[0], "field": field, "detail": detail}


def _got(where: Sequence[str], error: Mapping[str, Any]) -> str:
    value = error.get("input")
    secret = any(word in part.lower() for part in where for word in _SECRETS)
    if secret or value is None or isinstance(value, dict | list | bytes):
        return ""
    return f", got {value!r:.{VALUE_CHARS_MAX}}"


def _phrase(status: int) -> str:
    try:
        return _TITLES.get(status) or HTTPStatus(status).phrase
    except ValueError:
        return "Error"


def _log(request: Request, error: Exception) -> None:
    logging.getLogger("comporta.service").error(
        "%s %.200r failed", request.method, request.url.path, exc_info=error
    )
