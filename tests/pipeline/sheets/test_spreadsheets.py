"""Making spreadsheets: there is one for each mark, whatever became of the answers."""

from __future__ import annotations

import pytest
from tests.pipeline.sheets.conftest import hurried
from tests.processes.fleet import started, together

from comporta.errors import SinkDeniedError, SinkError, SinkUnavailableError
from comporta.pipeline.sinks import GoogleAccount, Spreadsheets
from comporta.testing import SheetsServer

CREATES = "POST /drive/v3/files"


def test_create__mark_is_new__makes_a_spreadsheet(account: GoogleAccount, server: SheetsServer) -> None:
    made = Spreadsheets(account).create("Results of job 7", "job-7")
    assert server.spreadsheets() == {made.id: "Results of job 7"}
    assert made.url == f"https://docs.google.com/spreadsheets/d/{made.id}/edit"
    assert made.name == "Results of job 7"


def test_create__in_a_folder__is_made_there(account: GoogleAccount, server: SheetsServer) -> None:
    made = Spreadsheets(account).create("Results", "job-7", folder="shared-drive")
    other = Spreadsheets(account).create("Results", "job-8")
    assert server.folders(made.id) == ["shared-drive"]
    assert server.folders(other.id) == []


@pytest.mark.parametrize("marker", ["job-7", "it's", "back\\slash'", "ação"])
def test_create__again__finds_it(account: GoogleAccount, server: SheetsServer, marker: str) -> None:
    spreadsheets = Spreadsheets(account)
    first = spreadsheets.create("Results", marker)
    assert spreadsheets.create("Results", marker) == first
    other = spreadsheets.create("Results", "other")
    assert set(server.spreadsheets()) == {first.id, other.id}


@pytest.mark.parametrize("reset", [False, True])
def test_create__acknowledgement_lost_and_tried_again__there_is_one(
    account: GoogleAccount, server: SheetsServer, *, reset: bool
) -> None:
    server.lose(1, reset=reset, to=CREATES)
    with pytest.raises(SinkUnavailableError, match="making the spreadsheet 'Results'"):
        Spreadsheets(account).create("Results", "job-7")
    made = Spreadsheets(account).create("Results", "job-7")
    assert list(server.spreadsheets()) == [made.id]
    assert list(server.requests).count(CREATES) == 1


def test_create__no_answer_in_time_and_tried_again__there_is_one(
    account: GoogleAccount, server: SheetsServer
) -> None:
    server.hang(1, done=True, to=CREATES)
    with hurried(account), pytest.raises(SinkUnavailableError, match="no answer in time"):
        Spreadsheets(account).create("Results", "job-7")
    server.heal()
    made = Spreadsheets(account).create("Results", "job-7")
    assert list(server.spreadsheets()) == [made.id]


@pytest.mark.parametrize("lost", [0, 1])
def test_create__another_was_made_at_the_same_moment__the_older_one_stays(
    account: GoogleAccount, server: SheetsServer, lost: int
) -> None:
    spreadsheets = Spreadsheets(account)
    first = spreadsheets.create("Results", "job-7")
    server.overlook(1)
    server.lose(lost, to="DELETE")
    assert spreadsheets.create("Results", "job-7") == first
    assert list(server.spreadsheets()) == [first.id]


def test_create__search_does_not_find_it_yet__is_what_was_made(
    account: GoogleAccount, server: SheetsServer
) -> None:
    server.overlook(2)
    made = Spreadsheets(account).create("Results", "job-7")
    assert list(server.spreadsheets()) == [made.id]


def test_create__two_processes_at_once__have_the_same(server: SheetsServer) -> None:
    server.latency = 0.05
    with started(2, "sheet_creates", endpoint=server.url, marker="job-7") as workers:
        first, second = together(workers)
    assert first == second
    assert list(server.spreadsheets()) == [first]


def test_create__refused__is_an_error_with_a_name(account: GoogleAccount, server: SheetsServer) -> None:
    server.fail(403, 1, to=CREATES)
    with pytest.raises(SinkDeniedError, match="making the spreadsheet 'Results': 403 on purpose"):
        Spreadsheets(account).create("Results", "job-7")
    assert issubclass(SinkDeniedError, SinkError)


@pytest.mark.parametrize(
    ("name", "marker", "said"),
    [
        ("", "m", "name must be 1 to 1000 characters, got 0"),
        ("x" * 1001, "m", "name must be 1 to 1000 characters, got 1001"),
        ("x", "", "marker must be 1 to 100 bytes, got 0"),
        ("x", "ç" * 51, "marker must be 1 to 100 bytes, got 102"),
    ],
)
def test_create__bad_input__is_refused(account: GoogleAccount, name: str, marker: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Spreadsheets(account).create(name, marker)
