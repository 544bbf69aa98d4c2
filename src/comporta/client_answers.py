"""Extracts an upstream's answer from the responses and exceptions of client libraries.

Knows httpx, httpx2, requests, aiohttp, urllib, urllib3, botocore, grpc, and SDKs whose objects have the same
attributes. It recognizes them by their attributes and class names, and imports none of them. ``outcome``
decides what an answer means for the breaker, the limit and retries. No clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any, Final, NamedTuple, Protocol

LOCAL_ERRORS: Final = frozenset(
    {
        # The client has no free connection.
        *("httpcore.PoolTimeout", "httpcore2.PoolTimeout", "httpx.PoolTimeout", "httpx2.PoolTimeout"),
        *("psycopg_pool.PoolTimeout", "psycopg_pool.TooManyRequests", "redis.MaxConnectionsError"),
        *("sqlalchemy.TimeoutError", "urllib3.EmptyPoolError"),
        # The client cannot send such a request.
        *("aiohttp.InvalidURL", "aiohttp.NonHttpUrlClientError", "http.InvalidURL"),
        *("botocore.CredentialRetrievalError", "botocore.NoCredentialsError", "botocore.NoRegionError"),
        *("botocore.ParamValidationError", "botocore.PartialCredentialsError"),
        *("httpx.InvalidURL", "httpx.LocalProtocolError", "httpx.UnsupportedProtocol"),
        *("httpx2.InvalidURL", "httpx2.LocalProtocolError", "httpx2.UnsupportedProtocol"),
        *("requests.InvalidHeader", "requests.InvalidSchema", "requests.InvalidURL"),
        *("requests.MissingSchema", "requests.URLRequired", "urllib3.LocationValueError"),
    }
)
"""Errors of a call that did not reach the upstream, as ``package.Class``; subclasses are included."""

CAUSES_MAX: Final = 5
"""How many exceptions of a chain of ``raise ... from ...`` are examined."""

_name_of = itemgetter(0)

_STATUS_NAMES = ("status_code", "status", "http_status", "code")
"""The attributes under which clients have a status, in the order in which they are tried.

``code`` is last, because aiohttp's is deprecated and other libraries store their own numbers there.
"""


class HeaderFields(Protocol):
    """Headers as client libraries have them: a mapping, or a multi-dict whose ``items`` repeat names."""

    def __iter__(self) -> Iterator[str]: ...

    def items(self) -> Iterable[tuple[str, str]]:
        """Return the names and values."""


class Answer(NamedTuple):
    """What the upstream answered: an HTTP status, the headers if they are known, and AWS's error code."""

    status: int
    headers: HeaderFields | None = None
    code: str = ""


def response_of(result: Any) -> Answer | None:
    """Return the answer if the result is a response, else ``None``.

    A response has a status and headers, or is a boto3 dict with ``ResponseMetadata``.
    """
    if type(result) is dict:
        return _aws_answer(result) if "ResponseMetadata" in result else None  # the dicts of boto3
    try:
        headers = getattr(result, "headers", None)
        if headers is None or not hasattr(headers, "items"):
            return None
        status = _status_of(result, headers)
    except Exception:  # a property of another library may raise
        return None
    return None if status is None else Answer(status, headers)


def answer_of(error: BaseException) -> Answer | None:
    """Return the answer that an exception carries, in its ``response`` or in its own attributes.

    A status below 400 is ignored, because it did not cause the exception (aiohttp's ``ContentTypeError`` has
    200).
    """
    try:
        response: Any = getattr(error, "response", None)
        is_aws = type(response) is dict
        answer = _aws_answer(response) if is_aws else _attributes(response) or _attributes(error)
    except Exception:  # as above
        return None
    return answer if answer is not None and (answer.status >= 400 or answer.code) else None


def has_limit_fields(headers: HeaderFields) -> bool:
    """Whether a header may concern limits. Most responses have none, so this reads only names, once."""
    raw = getattr(headers, "raw", None)
    try:
        if type(raw) is list:  # httpx: converting its names to str costs more than the rest of this function
            found = b",".join(map(_name_of, raw)).lower()
            return b"retry-after" in found or b"ratelimit" in found or b"rate-limit" in found
        names = ",".join(headers).lower()
        return "retry-after" in names or "ratelimit" in names or "rate-limit" in names
    except Exception:  # the mapping belongs to another library: its methods may raise
        return False


def joined_fields(headers: HeaderFields) -> dict[str, str]:
    """Return the headers by lower-case name; the values of a repeated name are joined by commas."""
    fields: dict[str, str] = {}
    try:
        pairs: list[tuple[object, object]] = list(headers.items())
    except Exception:  # as above
        return fields
    for name, value in pairs:
        if isinstance(name, str) and isinstance(value, str):
            lowered = name.lower()
            fields[lowered] = f"{fields[lowered]}, {value}" if lowered in fields else value
    return fields


def grpc_status_of(error: BaseException) -> str | None:
    """Return the status name of a gRPC error, such as ``"UNAVAILABLE"``; ``None`` for other errors."""
    if not any(kind.__name__ == "RpcError" for kind in type(error).__mro__):
        return None
    try:
        name = error.code().name  # type: ignore[attr-defined]  # a method of grpc's errors
    except Exception:  # as above
        return None
    return name if isinstance(name, str) else None


def grpc_pushback_of(error: BaseException) -> str | None:
    """Return the ``grpc-retry-pushback-ms`` that a gRPC server sent with an error."""
    try:
        pairs = error.trailing_metadata() or ()  # type: ignore[attr-defined]  # as above
        return next((value for name, value in pairs if name == "grpc-retry-pushback-ms"), None)
    except Exception:  # as above
        return None


def is_local_error(error: BaseException) -> bool:
    """Whether a client raised the error before the call reached the upstream; see ``LOCAL_ERRORS``."""
    return any(
        f"{kind.__module__.partition('.')[0]}.{kind.__name__}" in LOCAL_ERRORS for kind in type(error).__mro__
    )


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and the exceptions it was raised from, at most ``CAUSES_MAX``."""
    cause: BaseException | None = error
    for _ in range(CAUSES_MAX):
        if cause is None:
            return
        yield cause
        cause = cause.__cause__


def _attributes(thing: Any) -> Answer | None:
    """Return the answer in the attributes of an exception or its response; the headers may be missing."""
    headers = getattr(thing, "headers", None)
    if not hasattr(headers, "items"):
        headers = None
    status = _status_of(thing, headers)
    return None if status is None else Answer(status, headers)


def _status_of(thing: Any, headers: Any) -> int | None:
    """Return the first attribute that is an HTTP status; a ``code`` without headers must be an enum."""
    status = getattr(thing, "status_code", None)
    if type(status) is int and 100 <= status <= 599:
        return status
    for name in _STATUS_NAMES:
        status = getattr(thing, name, None)
        if isinstance(status, int) and 100 <= status <= 599:
            return status if name != "code" or headers is not None or type(status) is not int else None
    return None


def _aws_answer(response: dict[str, Any]) -> Answer:
    """Return the answer in a parsed response of botocore, which is also the ``response`` of its errors.

    An error in an event stream has a code but no status; the status is then 0.
    """
    metadata, error = response.get("ResponseMetadata"), response.get("Error")
    status = metadata.get("HTTPStatusCode") if isinstance(metadata, dict) else None
    headers = metadata.get("HTTPHeaders") if isinstance(metadata, dict) else None
    code = error.get("Code") if isinstance(error, dict) else None
    return Answer(
        status if isinstance(status, int) else 0,
        headers if isinstance(headers, dict) else None,
        code if isinstance(code, str) else "",
    )
