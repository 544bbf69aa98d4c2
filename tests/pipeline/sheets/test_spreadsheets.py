"""Creating spreadsheets: one for each marker, despite lost responses."""

from __future__ import annotations

import pytest
from tests.pipeline.sheets.conftest import short_timeout
from tests.processes.fleet import run_together, start_workers

from comporta.errors import SinkAuthError, SinkError, SinkUnavailableError
from comporta.pipeline.sinks import GoogleAccount, Spreadsheets
from comporta.testing import SheetsServer

CREATES = "POST /drive/v3/files"


def test_create__new_marker__creates_a_spreadsheet(account: GoogleAccount, server: SheetsServer) -> None:
    made = Spreadsheets(account).create("Results of job 7", "job-7")
    assert server.spreadsheets() == {made.id: "Results of job 7"}
    assert made.url == f"https://docs.google.com/spreadsheets/d/{made.id}/edit"
    assert made.name == "Results of job 7"


def test_create__folder_given__creates_it_there(account: GoogleAccount, server: SheetsServer) -> None:
    made = Spreadsheets(account).create("Results", "job-7", folder="shared-drive")
    other = Spreadsheets(account).create("Results", "job-8")
    assert server.folders(made.id) == ["shared-drive"]
    assert server.folders(other.id) == []


@pytest.mark.parametrize("marker", ["job-7", "it's", "back\\slash'", "ação"])
def test_create__again__returns_the_same(account: GoogleAccount, server: SheetsServer, marker: str) -> None:
    spreadsheets = Spreadsheets(account)
    first = spreadsheets.create("Results", marker)
    assert spreadsheets.create("Results", marker) == first
    other = spreadsheets.create("Results", "other")
    assert set(server.spreadsheets()) == {first.id, other.id}


@pytest.mark.parametrize("reset", [False, True])
def test_create__response_lost_and_retried__there_is_one(
    account: GoogleAccount, server: SheetsServer, *, reset: bool
) -> None:
    server.lose_responses(1, reset=reset, matching=CREATES)
    with pytest.raises(SinkUnavailableError, match="creating the spreadsheet 'Results'"):
        Spreadsheets(account).create("Results", "job-7")
    made = Spreadsheets(account).create("Results", "job-7")
    assert list(server.spreadsheets()) == [made.id]
    assert list(server.requests).count(CREATES) == 1


def test_create__timed_out_and_retried__there_is_one(account: GoogleAccount, server: SheetsServer) -> None:
    server.hang(1, execute=True, matching=CREATES)
    with short_timeout(account), pytest.raises(SinkUnavailableError, match="no response in time"):
        Spreadsheets(account).create("Results", "job-7")
    server.heal()
    made = Spreadsheets(account).create("Results", "job-7")
    assert list(server.spreadsheets()) == [made.id]


@pytest.mark.parametrize("lost", [0, 1])
def test_create__another_created_at_the_same_moment__the_older_one_stays(
    account: GoogleAccount, server: SheetsServer, lost: int
) -> None:
    spreadsheets = Spreadsheets(account)
    first = spreadsheets.create("Results", "job-7")
    server.miss_searches(1)
    server.lose_responses(lost, matching="DELETE")
    assert spreadsheets.create("Results", "job-7") == first
    assert list(server.spreadsheets()) == [first.id]


def test_create__search_does_not_find_it_yet__returns_the_created_one(
    account: GoogleAccount, server: SheetsServer
) -> None:
    server.miss_searches(2)
    made = Spreadsheets(account).create("Results", "job-7")
    assert list(server.spreadsheets()) == [made.id]


def test_create__two_processes_at_once__return_the_same(server: SheetsServer) -> None:
    server.latency = 0.05
    with start_workers(2, "sheet_creates", endpoint=server.url, marker="job-7") as workers:
        first, second = run_together(workers)
    assert first == second
    assert list(server.spreadsheets()) == [first]


def test_create__refused__is_a_sink_error(account: GoogleAccount, server: SheetsServer) -> None:
    server.fail(403, 1, matching=CREATES)
    with pytest.raises(SinkAuthError, match="creating the spreadsheet 'Results': 403 on purpose"):
        Spreadsheets(account).create("Results", "job-7")
    assert issubclass(SinkAuthError, SinkError)


@pytest.mark.parametrize(
    ("name", "marker", "message"),
    [
        ("", "m", "name must be 1 to 1000 characters, got 0"),
        ("x" * 1001, "m", "name must be 1 to 1000 characters, got 1001"),
        ("x", "", "marker must be 1 to 100 bytes, got 0"),
        ("x", "ç" * 51, "marker must be 1 to 100 bytes, got 102"),
    ],
)
def test_create__invalid_argument__is_refused(
    account: GoogleAccount, name: str, marker: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Spreadsheets(account).create(name, marker)
