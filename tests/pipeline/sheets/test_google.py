"""Who asks Google, through which connections, and what errors are called."""

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

from comporta.errors import SinkBusyError, SinkDeniedError, SinkUnavailableError
from comporta.pipeline.sinks import GoogleAccount, SheetsSink, Spreadsheets
from comporta.pipeline.sinks.google import IDLE_MAX
from comporta.testing import SheetsServer
from comporta.testing.programs import free_port


class Refusing(AnonymousCredentials):
    """Credentials that cannot be used, for a reason."""

    def __init__(self, error: Exception) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._error = error

    def before_request(self, *_: Any) -> None:
        raise self._error


@pytest.mark.parametrize("timeout", [0, -1, 601, float("nan")])
def test_account__time_out_that_is_none__is_refused(timeout: float) -> None:
    with pytest.raises(ValueError, match=r"timeout must be 0\.01 to 600 seconds, got"):
        GoogleAccount(timeout=timeout)


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("googleapiclient", r"pip install 'comporta\[sheets\]'"),
        ("uritemplate", "No module named 'uritemplate'"),
    ],
)
def test_account__client_not_installed_or_broken__is_said(
    monkeypatch: pytest.MonkeyPatch, missing: str, said: str
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **named: Any) -> Any:
        if name == "googleapiclient":
            raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=said):
        Spreadsheets(GoogleAccount(endpoint="http://127.0.0.1:1")).create("x", "y")


@pytest.mark.parametrize(
    ("content", "said"), [(None, "No such file"), ("{}", "is not the file of a service")]
)
def test_account__file_that_is_none__is_named(tmp_path: Path, content: str | None, said: str) -> None:
    path = tmp_path / "account.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SinkDeniedError, match=f"account.json: {said}"):
        Spreadsheets(GoogleAccount(path)).create("x", "y")


def test_account__nobody_says_who__names_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, database: str
) -> None:
    def default(**_: Any) -> Any:
        raise DefaultCredentialsError("there are none")  # type: ignore[no-untyped-call]

    monkeypatch.setattr("google.auth.default", default)
    sink = SheetsSink("s", database=database)
    with pytest.raises(SinkDeniedError, match="Google's credentials: there are none"):
        sink.open()
    sink.close()


def test_account__environment_says_who__is_them(
    monkeypatch: pytest.MonkeyPatch, server: SheetsServer
) -> None:
    monkeypatch.setattr("google.auth.default", lambda **_: (AnonymousCredentials(), None))  # type: ignore[no-untyped-call]
    account = GoogleAccount()
    assert isinstance(account._connection().credentials, AnonymousCredentials)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RefreshError("revoked"), SinkDeniedError),  # type: ignore[no-untyped-call]
        (RefreshError("later", retryable=True), SinkUnavailableError),  # type: ignore[no-untyped-call]
        (TransportError("no way"), SinkUnavailableError),  # type: ignore[no-untyped-call]
    ],
)
def test_ask__credentials_cannot_be_used__is_an_error_with_a_name(
    server: SheetsServer, error: Exception, kind: type[Exception]
) -> None:
    with pytest.raises(kind, match="looking for the spreadsheet"):
        Spreadsheets(GoogleAccount(Refusing(error), endpoint=server.url)).create("x", "y")


def test_ask__something_else_goes_wrong__is_that(server: SheetsServer) -> None:
    with pytest.raises(ZeroDivisionError):
        Spreadsheets(GoogleAccount(Refusing(ZeroDivisionError()), endpoint=server.url)).create("x", "y")


def test_ask__nobody_there__is_unavailable() -> None:
    account = GoogleAccount(endpoint=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(SinkUnavailableError, match="Connection refused"):
        Spreadsheets(account).create("x", "y")


def test_ask__quota_of_drive_used_up__is_busy(account: GoogleAccount, server: SheetsServer) -> None:
    server.fail(403, 1, reason="userRateLimitExceeded")
    with pytest.raises(SinkBusyError) as caught:
        Spreadsheets(account).create("x", "y")
    assert caught.value.retry_after == 15


def test_connections__put_back__are_bounded_and_used_again(
    account: GoogleAccount, server: SheetsServer
) -> None:
    account.close()
    taken = [account._connection() for _ in range(IDLE_MAX + 2)]
    for http in taken:
        account._put_back(http, once=False)
    assert list(account._idle) == taken[:IDLE_MAX]
    assert account._at_hand() is taken[IDLE_MAX - 1]
    account.close()
    assert not account._idle


def test_fork__connection_in_its_hands__child_makes_its_own(
    account: GoogleAccount, server: SheetsServer, spreadsheet: str
) -> None:
    account.ask(account.sheets.get(spreadsheetId=spreadsheet), "before")
    assert account._idle
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the threads are the point
        child = os.fork()
    if not child:
        try:
            told = account.ask(account.sheets.get(spreadsheetId=spreadsheet), "child")
            os.write(writer, json.dumps(told["spreadsheetId"]).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        assert json.loads(answer.read()) == spreadsheet
    os.waitpid(child, 0)
    assert (
        account.ask(account.sheets.get(spreadsheetId=spreadsheet), "parent")["spreadsheetId"] == spreadsheet
    )


def test_after_fork__idle_connections__are_left_behind(account: GoogleAccount, spreadsheet: str) -> None:
    account.ask(account.sheets.get(spreadsheetId=spreadsheet), "before")
    held = account._idle
    account.after_fork()
    assert not account._idle
    for http in held:
        http.close()
