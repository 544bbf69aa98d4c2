"""Google accounts: credentials, connections and the errors of the service."""

from __future__ import annotations

import builtins
import json
import os
import warnings
from pathlib import Path
from typing import Any

import pytest
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import DefaultCredentialsError, RefreshError, TransportError

from comporta.errors import SinkAuthError, SinkBusyError, SinkUnavailableError
from comporta.pipeline.sinks import GoogleAccount, SheetsSink, Spreadsheets
from comporta.pipeline.sinks.google_account import IDLE_MAX
from comporta.testing import SheetsServer
from comporta.testing.programs import free_port


class Refusing(AnonymousCredentials):
    """Credentials that raise when they are used."""

    def __init__(self, error: Exception) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._error = error

    def before_request(self, *_: Any) -> None:
        raise self._error


@pytest.mark.parametrize("timeout", [0, -1, 601, float("nan")])
def test_account__invalid_timeout__is_refused(timeout: float) -> None:
    with pytest.raises(ValueError, match=r"timeout must be 0\.01 to 600 seconds, got"):
        GoogleAccount(timeout=timeout)


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("googleapiclient", r"pip install 'comporta\[sheets\]'"),
        ("uritemplate", "No module named 'uritemplate'"),
    ],
)
def test_account__client_missing_or_broken__raises_import_error(
    monkeypatch: pytest.MonkeyPatch, missing: str, message: str
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **named: Any) -> Any:
        if name == "googleapiclient":
            raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=message):
        Spreadsheets(GoogleAccount(endpoint="http://127.0.0.1:1")).create("x", "y")


@pytest.mark.parametrize(
    ("content", "message"), [(None, "No such file"), ("{}", "expected a service account file")]
)
def test_account__invalid_credentials_file__is_named_in_the_error(
    tmp_path: Path, content: str | None, message: str
) -> None:
    path = tmp_path / "account.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SinkAuthError, match=f"account.json: {message}"):
        Spreadsheets(GoogleAccount(path)).create("x", "y")


def test_account__no_credentials__names_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, database: str
) -> None:
    def default(**_: Any) -> Any:
        raise DefaultCredentialsError("there are none")  # type: ignore[no-untyped-call]

    monkeypatch.setattr("google.auth.default", default)
    sink = SheetsSink("s", database=database)
    with pytest.raises(SinkAuthError, match="cannot load the credentials for Google: there are none"):
        sink.open()
    assert sink._sheet_rows.database._writer is None, "a sink that is refused closes its database"  # type: ignore[attr-defined]


def test_account__credentials_of_the_environment__are_used(
    monkeypatch: pytest.MonkeyPatch, server: SheetsServer
) -> None:
    monkeypatch.setattr("google.auth.default", lambda **_: (AnonymousCredentials(), None))  # type: ignore[no-untyped-call]
    account = GoogleAccount()
    assert isinstance(account._new_connection().credentials, AnonymousCredentials)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RefreshError("revoked"), SinkAuthError),  # type: ignore[no-untyped-call]
        (RefreshError("later", retryable=True), SinkUnavailableError),  # type: ignore[no-untyped-call]
        (TransportError("no way"), SinkUnavailableError),  # type: ignore[no-untyped-call]
    ],
)
def test_execute__credentials_rejected__is_an_auth_error(
    server: SheetsServer, error: Exception, kind: type[Exception]
) -> None:
    with pytest.raises(kind, match="looking for the spreadsheet"):
        Spreadsheets(GoogleAccount(Refusing(error), endpoint=server.url)).create("x", "y")


def test_execute__other_error__is_raised_unchanged(server: SheetsServer) -> None:
    with pytest.raises(ZeroDivisionError):
        Spreadsheets(GoogleAccount(Refusing(ZeroDivisionError()), endpoint=server.url)).create("x", "y")


def test_execute__no_server__is_unavailable() -> None:
    account = GoogleAccount(endpoint=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(SinkUnavailableError, match="Connection refused"):
        Spreadsheets(account).create("x", "y")


def test_execute__drive_quota_exhausted__is_busy(account: GoogleAccount, server: SheetsServer) -> None:
    server.fail(403, 1, reason="userRateLimitExceeded")
    with pytest.raises(SinkBusyError) as caught:
        Spreadsheets(account).create("x", "y")
    assert caught.value.retry_after == 15


def test_connections__returned__are_bounded_and_reused(account: GoogleAccount, server: SheetsServer) -> None:
    account.close()
    taken = [account._new_connection() for _ in range(IDLE_MAX + 2)]
    for http in taken:
        account._return_connection(http, once=False)
    assert list(account._idle) == taken[:IDLE_MAX]
    assert account._take_connection() is taken[IDLE_MAX - 1]
    account.close()
    assert not account._idle


def test_fork__connection_in_use__child_opens_its_own(
    account: GoogleAccount, server: SheetsServer, spreadsheet: str
) -> None:
    account.execute(account.sheets.get(spreadsheetId=spreadsheet), "before")
    assert account._idle
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the threads are the point
        child = os.fork()
    if not child:
        try:
            reply = account.execute(account.sheets.get(spreadsheetId=spreadsheet), "child")
            os.write(writer, json.dumps(reply["spreadsheetId"]).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        assert json.loads(answer.read()) == spreadsheet
    os.waitpid(child, 0)
    assert (
        account.execute(account.sheets.get(spreadsheetId=spreadsheet), "parent")["spreadsheetId"]
        == spreadsheet
    )


def test_after_fork__idle_connections__are_left_to_the_parent(
    account: GoogleAccount, spreadsheet: str
) -> None:
    account.execute(account.sheets.get(spreadsheetId=spreadsheet), "before")
    held = account._idle
    account._after_fork()
    assert not account._idle
    for http in held:
        http.close()
