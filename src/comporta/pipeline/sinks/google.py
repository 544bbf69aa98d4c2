"""Google's services through Google's own client: who asks, how long one waits, and what errors are called.

The client is imported when it is first needed. Its HTTP objects serve one thread at a time: whoever asks
takes one from those at hand and puts it back.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from os import PathLike, fspath
from typing import Any, Final

from comporta import forks
from comporta.errors import (
    SinkBusyError,
    SinkDeniedError,
    SinkError,
    SinkFullError,
    SinkMissingError,
    SinkUnavailableError,
)
from comporta.headers import retry_after_seconds

TIMEOUT_SECONDS: Final = 30.0
TIMEOUT_SECONDS_MAX: Final = 600.0

QUOTA_SECONDS: Final = 15.0
"""How long to stay away when a quota is used up and nobody says until when; it is counted by the minute."""

IDLE_MAX: Final = 8
"""How many connections are kept at hand."""

_FULL = "above the limit of"
_KINDS: dict[int, type[SinkError]] = {
    401: SinkDeniedError,
    403: SinkDeniedError,
    404: SinkMissingError,
}
SCOPES: Final = (
    "https://www.googleapis.com/auth/spreadsheets",
    "https://www.googleapis.com/auth/drive.file",
)
_QUOTA = ("rateLimitExceeded", "userRateLimitExceeded", "RATE_LIMIT_EXCEEDED")
_left_behind: list[object] = []
"""Connections of a parent process: a child must neither use nor close them."""


class GoogleAccount:
    """Somebody Google's services know, for all sinks and threads of a process.

    ``credentials`` are those of google-auth, or the file of a service account; left out, what the environment
    says (``google.auth.default``). ``timeout``: for so many seconds the service may say nothing. ``endpoint``
    is another address for all services, such as a :class:`comporta.testing.SheetsServer`'s; nobody asks for
    credentials there.
    """

    def __init__(
        self,
        credentials: Any = None,
        *,
        endpoint: str | None = None,
        timeout: float = TIMEOUT_SECONDS,
    ) -> None:
        if not 0.01 <= timeout <= TIMEOUT_SECONDS_MAX:
            raise ValueError(f"timeout must be 0.01 to {TIMEOUT_SECONDS_MAX:g} seconds, got {timeout}")
        self.timeout = timeout
        self._endpoint = endpoint.rstrip("/") if endpoint else None
        self._given = credentials
        self._credentials: Any = None
        self._parts: dict[str, Any] = {}
        self._idle: deque[Any] = deque(maxlen=IDLE_MAX)
        forks.register(self)

    @property
    def sheets(self) -> Any:
        """The spreadsheets of Sheets v4, as Google's client offers them."""
        return self._made("sheets", lambda: self._built("sheets", "v4", "").spreadsheets())

    @property
    def values(self) -> Any:
        """Their values."""
        return self._made("values", self.sheets.values)

    @property
    def files(self) -> Any:
        """The files of Drive v3."""
        return self._made("files", lambda: self._built("drive", "v3", "/drive/v3/").files())

    def ask(self, request: Any, about: str, *, once: bool = False) -> Any:
        """Carry out a request of the client's; what goes wrong is a ``SinkError`` that says what about.

        A connection that turns out to be dead is made anew and the request sent again, by the client itself.
        ``once`` prevents that, for what must not be done twice.
        """
        http = _Once(self._connection()) if once else self._at_hand()
        try:
            answer = request.execute(http=http)
        except BaseException as error:
            http.close()
            named = _named(error, about)
            if named is None:
                raise
            raise named from error
        self._put_back(http, once=once)
        return answer

    def close(self) -> None:
        """End the connections at hand; it opens anew if it is used again."""
        while (http := _popped(self._idle)) is not None:
            http.close()

    def after_fork(self) -> None:
        """Leave the parent's connections alone."""
        _left_behind.append(self._idle)
        self._idle = deque(maxlen=IDLE_MAX)

    def _made(self, name: str, make: Callable[[], Any]) -> Any:
        """Return a part of the client, made once: it writes its own manual each time, for 30 ms."""
        if name not in self._parts:
            self._parts[name] = make()
        return self._parts[name]

    def _built(self, name: str, version: str, path: str) -> Any:
        options = {"api_endpoint": f"{self._endpoint}{path}"} if self._endpoint else None
        return _imported().build(
            name,
            version,
            http=self._connection(),  # never used: each request is given one
            client_options=options,
            static_discovery=True,
            cache_discovery=False,
        )

    def _at_hand(self) -> Any:
        return _popped(self._idle) or self._connection()

    def _put_back(self, http: Any, *, once: bool) -> None:
        if not once and len(self._idle) < IDLE_MAX:
            self._idle.append(http)
        else:
            http.close()

    def _connection(self) -> Any:
        _imported()
        import google_auth_httplib2  # noqa: PLC0415 - see above
        import httplib2  # noqa: PLC0415 - see above

        if self._credentials is None:
            self._credentials = _credentials(self._given, anonymous=self._endpoint is not None)
        return google_auth_httplib2.AuthorizedHttp(self._credentials, httplib2.Http(timeout=self.timeout))


class _Once:
    """Sends a request, and never again; the client's own HTTP object does so when a connection ends."""

    def __init__(self, http: Any) -> None:
        self._http = http
        self.close = http.close

    def request(self, uri: str, *given: Any, **named: Any) -> Any:
        import httplib2  # noqa: PLC0415 - see above

        kind = httplib2.SCHEME_TO_CONNECTION[uri.partition(":")[0]]
        return self._http.request(uri, *given, **{**named, "connection_type": _told_of_the_end(kind)})


def _told_of_the_end(kind: Any) -> Any:
    """Return a kind of connection whose end is an error that nobody takes for a stale one."""
    from http.client import HTTPException  # noqa: PLC0415 - brings in TLS

    class Connection(kind):  # type: ignore[misc] # what it derives from is chosen by the address
        def getresponse(self) -> Any:
            try:
                return super().getresponse()
            except HTTPException as error:
                raise ConnectionAbortedError(f"the connection ended without an answer: {error}") from error

    return Connection


def _imported() -> Any:
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
            return _of_file(fspath(given))
        if given is not None:
            return given
        if anonymous:
            return AnonymousCredentials()  # type: ignore[no-untyped-call] # google-auth types half of it
        return default(scopes=SCOPES)[0]
    except exceptions.GoogleAuthError as error:
        raise SinkDeniedError(f"Google's credentials: {error}") from error


def _of_file(path: str) -> Any:
    from google.oauth2.service_account import Credentials  # noqa: PLC0415 - see above

    try:
        return Credentials.from_service_account_file(path, scopes=SCOPES)  # type: ignore[no-untyped-call] # see above
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "is not the file of a service account"
        raise SinkDeniedError(f"{path}: {why}") from None


def _popped(idle: deque[Any]) -> Any:
    try:
        return idle.pop()
    except IndexError:
        return None


def _named(error: BaseException, about: str) -> SinkError | None:
    """Call an error of the client's, or of what is below it, by one of our names."""
    from http.client import HTTPException  # noqa: PLC0415 - see above

    import httplib2  # noqa: PLC0415 - see above
    from google.auth.exceptions import GoogleAuthError, RefreshError  # noqa: PLC0415 - see above
    from googleapiclient.errors import HttpError  # noqa: PLC0415 - see above

    if isinstance(error, HttpError):
        return _refused(error, about)
    if isinstance(error, TimeoutError):
        return SinkUnavailableError(f"{about}: no answer in time; whether it took effect is unknown")
    if isinstance(error, RefreshError) and not error.retryable:
        return SinkDeniedError(f"{about}: {error}")
    if isinstance(error, OSError | HTTPException | httplib2.HttpLib2Error | GoogleAuthError):
        return SinkUnavailableError(f"{about}: {error}; whether it took effect is unknown")
    return None


def _refused(error: Any, about: str) -> SinkError:
    status, why = int(error.resp.status), str(error.reason)
    text = f"{about}: {status} {why}"
    wait = retry_after_seconds(error.resp.get("retry-after"), time.time())
    if status == 429 or (status == 403 and any(word in str(error.content) for word in _QUOTA)):
        return SinkBusyError(text, QUOTA_SECONDS if wait is None else wait)
    if status >= 500 or status == 408:
        return SinkUnavailableError(text) if wait is None else SinkBusyError(text, wait)
    if _FULL in why:
        return SinkFullError(text)
    return _KINDS.get(status, SinkError)(text)
