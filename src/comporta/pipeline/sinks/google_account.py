"""An account for Google's services, through Google's own client: credentials, connections, errors.

The client is imported when it is first needed. Its HTTP objects serve one thread at a time, so each request
takes one from a pool and returns it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from os import PathLike, fspath
from typing import Any, Final

from comporta.errors import (
    SinkAuthError,
    SinkBusyError,
    SinkError,
    SinkFullError,
    SinkNotFoundError,
    SinkUnavailableError,
)
from comporta.headers import parse_retry_after
from comporta.pipeline.fork_reset import ForkReset
from comporta.runtime import RUNTIME
from comporta.validators import require_number

TIMEOUT_SECONDS: Final = 30.0
TIMEOUT_SECONDS_MAX: Final = 600.0

QUOTA_SECONDS: Final = 15.0
"""How long to wait when a quota is exhausted without a ``Retry-After``; Google counts by the minute."""

IDLE_MAX: Final = 8
"""How many idle connections are kept."""

_FULL_MESSAGE = "above the limit of"
_ERRORS_BY_STATUS: dict[int, type[SinkError]] = {
    401: SinkAuthError,
    403: SinkAuthError,
    404: SinkNotFoundError,
}
SCOPES: Final = (
    "https://www.googleapis.com/auth/spreadsheets",
    "https://www.googleapis.com/auth/drive.file",
)
_QUOTA_REASONS = ("rateLimitExceeded", "userRateLimitExceeded", "RATE_LIMIT_EXCEEDED")
_parent_connections: list[object] = []
"""Connections of a parent process, which a child must neither use nor close."""


class GoogleAccount:
    """An account at Google, for all sinks and threads of a process.

    ``credentials`` is an object of google-auth, or the path of a service account file; by default the
    credentials come from the environment (``google.auth.default``). ``timeout`` is how many seconds the
    service may stay silent. ``endpoint`` is another address for all services, such as the address of a
    :class:`comporta.testing.SheetsServer`, which needs no credentials.
    """

    def __init__(
        self,
        credentials: Any = None,
        *,
        endpoint: str | None = None,
        timeout: float = TIMEOUT_SECONDS,
    ) -> None:
        self.timeout = require_number("timeout", timeout, 0.01, TIMEOUT_SECONDS_MAX, unit="seconds")
        self._endpoint = endpoint.rstrip("/") if endpoint else None
        self._credentials_option = credentials
        self._credentials: Any = None
        self._resources: dict[str, Any] = {}
        self._idle: deque[Any] = deque(maxlen=IDLE_MAX)
        self._fork_reset = ForkReset(self._after_fork)

    @property
    def sheets(self) -> Any:
        """The ``spreadsheets`` resource of Sheets v4 in Google's client."""
        return self._resource("sheets", lambda: self._build_service("sheets", "v4", "").spreadsheets())

    @property
    def values(self) -> Any:
        """The ``spreadsheets.values`` resource of Sheets v4."""
        return self._resource("values", self.sheets.values)

    @property
    def files(self) -> Any:
        """The ``files`` resource of Drive v3."""
        return self._resource("files", lambda: self._build_service("drive", "v3", "/drive/v3/").files())

    def execute(self, request: Any, about: str, *, once: bool = False) -> Any:
        """Execute a request of the client; errors become a ``SinkError`` that starts with ``about``.

        If a connection is dead, the client itself opens a new one and sends the request again. ``once``
        prevents that, for requests that must not be executed twice.
        """
        http = _NoResendHttp(self._new_connection()) if once else self._take_connection()
        try:
            answer = request.execute(http=http)
        except BaseException as error:
            http.close()
            sink_error = _sink_error(error, about)
            if sink_error is None:
                raise
            raise sink_error from error
        self._return_connection(http, once=once)
        return answer

    def close(self) -> None:
        """Close the idle connections; the next request opens a new one."""
        while (http := _pop_idle(self._idle)) is not None:
            http.close()

    def _after_fork(self) -> None:
        """Leave the connections to the parent process."""
        _parent_connections.append(self._idle)
        self._idle = deque(maxlen=IDLE_MAX)

    def _resource(self, name: str, make: Callable[[], Any]) -> Any:
        """Return a resource of the client, built once: building one takes 30 ms."""
        if name not in self._resources:
            self._resources[name] = make()
        return self._resources[name]

    def _build_service(self, name: str, version: str, path: str) -> Any:
        options = {"api_endpoint": f"{self._endpoint}{path}"} if self._endpoint else None
        return _discovery_module().build(
            name,
            version,
            http=self._new_connection(),  # never used: each request gets one
            client_options=options,
            static_discovery=True,
            cache_discovery=False,
        )

    def _take_connection(self) -> Any:
        return _pop_idle(self._idle) or self._new_connection()

    def _return_connection(self, http: Any, *, once: bool) -> None:
        if not once and len(self._idle) < IDLE_MAX:
            self._idle.append(http)
        else:
            http.close()

    def _new_connection(self) -> Any:
        _discovery_module()
        import google_auth_httplib2  # noqa: PLC0415 - see above
        import httplib2  # noqa: PLC0415 - see above

        if self._credentials is None:
            self._credentials = _credentials(self._credentials_option, anonymous=self._endpoint is not None)
        return google_auth_httplib2.AuthorizedHttp(self._credentials, httplib2.Http(timeout=self.timeout))


class _NoResendHttp:
    """Sends a request once; the client's own HTTP object sends it again when a connection ends."""

    def __init__(self, http: Any) -> None:
        self._http = http
        self.close = http.close

    def request(self, uri: str, *args: Any, **kwargs: Any) -> Any:
        import httplib2  # noqa: PLC0415 - see above

        kind = httplib2.SCHEME_TO_CONNECTION[uri.partition(":")[0]]
        return self._http.request(uri, *args, **{**kwargs, "connection_type": _no_resend_connection(kind)})


def _no_resend_connection(kind: Any) -> Any:
    """Return a connection class whose error at the end of a connection does not make the client resend."""
    from http.client import HTTPException  # noqa: PLC0415 - imports TLS

    class NoResendConnection(kind):  # type: ignore[misc] # the base class depends on the address
        def getresponse(self) -> Any:
            try:
                return super().getresponse()
            except HTTPException as error:
                raise ConnectionAbortedError(f"the connection ended without a response: {error}") from error

    return NoResendConnection


def _discovery_module() -> Any:
    try:
        from googleapiclient import discovery  # noqa: PLC0415 - an extra, and slow
    except ModuleNotFoundError as error:
        if error.name != "googleapiclient":
            raise
        text = "Google Sheets needs google-api-python-client: pip install 'comporta[sheets]'"
        raise ImportError(text) from None
    return discovery


def _credentials(given: Any, *, anonymous: bool) -> Any:
    from google.auth import default, exceptions  # noqa: PLC0415 - see above
    from google.auth.credentials import AnonymousCredentials  # noqa: PLC0415 - see above

    try:
        if isinstance(given, str | PathLike):
            return _credentials_from_file(fspath(given))
        if given is not None:
            return given
        if anonymous:
            return AnonymousCredentials()  # type: ignore[no-untyped-call] # google-auth types half of it
        return default(scopes=SCOPES)[0]
    except exceptions.GoogleAuthError as error:
        raise SinkAuthError(f"cannot load the credentials for Google: {error}") from error


def _credentials_from_file(path: str) -> Any:
    from google.oauth2.service_account import Credentials  # noqa: PLC0415 - see above

    try:
        return Credentials.from_service_account_file(path, scopes=SCOPES)  # type: ignore[no-untyped-call] # see above
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "expected a service account file"
        raise SinkAuthError(f"cannot load the credentials {path}: {reason}") from None


def _pop_idle(idle: deque[Any]) -> Any:
    try:
        return idle.pop()
    except IndexError:
        return None


def _sink_error(error: BaseException, about: str) -> SinkError | None:
    """Return the ``SinkError`` for an error of the client or the layers below; ``None`` for other errors."""
    from http.client import HTTPException  # noqa: PLC0415 - imports TLS

    import httplib2  # noqa: PLC0415 - see above
    from google.auth.exceptions import GoogleAuthError, RefreshError  # noqa: PLC0415 - see above
    from googleapiclient.errors import HttpError  # noqa: PLC0415 - see above

    if isinstance(error, HttpError):
        return _http_sink_error(error, about)
    if isinstance(error, TimeoutError):
        return SinkUnavailableError(f"{about}: no response in time; the request may have taken effect")
    if isinstance(error, RefreshError) and not error.retryable:
        return SinkAuthError(f"{about}: {error}")
    if isinstance(error, OSError | HTTPException | httplib2.HttpLib2Error | GoogleAuthError):
        return SinkUnavailableError(f"{about}: {error}; the request may have taken effect")
    return None


def _http_sink_error(error: Any, about: str) -> SinkError:
    status, reason = int(error.resp.status), str(error.reason)
    text = f"{about}: {status} {reason}"
    wait = parse_retry_after(error.resp.get("retry-after"), RUNTIME.unix_time())
    if status == 429 or (status == 403 and any(word in str(error.content) for word in _QUOTA_REASONS)):
        return SinkBusyError(text, QUOTA_SECONDS if wait is None else wait)
    if status >= 500 or status == 408:
        return SinkUnavailableError(text) if wait is None else SinkBusyError(text, wait)
    if _FULL_MESSAGE in reason:
        return SinkFullError(text)
    return _ERRORS_BY_STATUS.get(status, SinkError)(text)
