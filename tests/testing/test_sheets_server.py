"""The stand-in for Google Sheets and Drive: what it refuses as they do, and how it can be made to fail."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from http.client import RemoteDisconnected
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote

import pytest

from comporta.testing import SheetsServer
from comporta.testing.grids import CELLS_MAX


@pytest.fixture(scope="module")
def started() -> Iterator[SheetsServer]:
    with SheetsServer() as server:
        yield server


@pytest.fixture
def server(started: SheetsServer) -> SheetsServer:
    started.heal()
    return started


@pytest.fixture
def sheet(server: SheetsServer) -> str:
    return f"/v4/spreadsheets/{server.create(rows=4, columns=3)}"


def asked(server: SheetsServer, method: str, path: str, told: Any = None) -> tuple[int, Any]:
    """Return status and answer; of an error, its message."""
    data = None if told is None else json.dumps(told).encode()
    request = urllib.request.Request(f"{server.url}{path}", data, method=method)  # noqa: S310 - loopback
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - loopback
            return answer.status, json.loads(answer.read())
    except HTTPError as error:
        with error:
            return error.code, json.loads(error.read())["error"]["message"]


def written(server: SheetsServer, sheet: str, name: str, *values: list[Any], option: str = "RAW") -> Any:
    told = {"valueInputOption": option, "data": [{"range": name, "values": list(values)}]}
    return asked(server, "POST", f"{sheet}/values:batchUpdate", told)


def read(server: SheetsServer, sheet: str, name: str) -> Any:
    return asked(server, "GET", f"{sheet}/values/{quote(name, safe='')}")


def rows_of(server: SheetsServer, sheet: str) -> list[list[Any]]:
    return server.rows(sheet.rpartition("/")[2])


def test_values__written__are_read_without_empty_ends(server: SheetsServer, sheet: str) -> None:
    assert written(server, sheet, "'Sheet1'!A1:C3", ["a", "", 3], [], ["", True])[0] == 200
    assert read(server, sheet, "Sheet1!A1:C4")[1]["values"] == [["a", "", 3], [], ["", True]]
    assert read(server, sheet, "B3")[1]["values"] == [[True]]
    assert "values" not in read(server, sheet, "A4:C4")[1]
    assert written(server, sheet, "A1:C1", ["", None, "x"])[1]["totalUpdatedCells"] == 3
    assert rows_of(server, sheet) == [["", "", "x"], [], ["", True]]


@pytest.mark.parametrize("name", ["A1:D1", "A5", "'Sheet1'!A1:A5"])
def test_values__outside_of_the_grid__are_refused_and_change_nothing(
    server: SheetsServer, sheet: str, name: str
) -> None:
    limits = f"Range ({name}) exceeds grid limits. Max rows: 4, max columns: 3"
    assert read(server, sheet, name) == (400, limits)
    told = [{"range": "A1", "values": [["x"]]}, {"range": name, "values": [["x"]]}]
    body = {"valueInputOption": "RAW", "data": told}
    assert asked(server, "POST", f"{sheet}/values:batchUpdate", body) == (400, limits)
    assert rows_of(server, sheet) == []


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("A1:B1", [["a", "b", "c"]], "tried writing outside of it"),
        ("A1:B1", [["a"], ["b"]], "tried writing outside of it"),
        ("A1", [[["nested"]]], "Invalid values: list_value"),
        ("A1", [["x" * 50_001]], "more than the maximum of 50000 characters"),
        ("Nobody!A1", [["a"]], "Unable to parse range: Nobody"),
        ("A1:", [["a"]], "Unable to parse range: A1:"),
    ],
)
def test_values__that_cannot_be__are_refused(
    server: SheetsServer, sheet: str, name: str, values: list[list[Any]], said: str
) -> None:
    status, message = written(server, sheet, name, *values)
    assert status == 400
    assert said in message


def test_values__entered_as_by_a_person__may_become_formulas(server: SheetsServer, sheet: str) -> None:
    number = sheet.rpartition("/")[2]
    assert written(server, sheet, "A1:C1", ["=1+1", "+2", "text"], option="USER_ENTERED")[0] == 200
    assert server.formulas(number) == ["=1+1", "+2"]
    assert written(server, sheet, "A1:B1", ["=1+1", ""])[0] == 200
    assert server.formulas(number) == []
    assert written(server, sheet, "A1", ["x"], option="")[0] == 400


def test_change__sheets_and_dimensions__are_added(server: SheetsServer, sheet: str) -> None:
    def changed(**request: Any) -> tuple[int, Any]:
        return asked(server, "POST", f"{sheet}:batchUpdate", {"requests": [request]})

    status, told = changed(addSheet={"properties": {"title": "More"}})
    added = told["replies"][0]["addSheet"]["properties"]
    assert (status, added["title"]) == (200, "More")
    assert "already exists" in changed(addSheet={"properties": {"title": "More"}})[1]
    for dimension in ("ROWS", "COLUMNS"):
        grown = {"sheetId": 0, "dimension": dimension, "length": 2}
        assert changed(appendDimension=grown)[0] == 200
    tabs = asked(server, "GET", sheet)[1]["sheets"]
    assert tabs[0]["properties"]["gridProperties"] == {"rowCount": 6, "columnCount": 5}
    endless = {"sheetId": 0, "dimension": "ROWS", "length": CELLS_MAX}
    assert "above the limit of 10000000 cells" in changed(appendDimension=endless)[1]
    assert "No sheet with id: 7" in changed(appendDimension={**endless, "sheetId": 7})[1]
    assert "paintItBlue is not known here" in changed(paintItBlue={})[1]


def test_drive__files__are_made_found_and_deleted(server: SheetsServer) -> None:
    told = {
        "name": "n",
        "mimeType": "application/vnd.google-apps.spreadsheet",
        "appProperties": {"mark": "it's"},
    }
    made = asked(server, "POST", "/drive/v3/files", told)[1]
    query = r"appProperties has { key='mark' and value='it\'s' } and trashed = false"
    path = f"/drive/v3/files?q={quote(query)}"
    assert asked(server, "GET", path)[1] == {"files": [made]}
    server.overlook()
    assert asked(server, "GET", path)[1] == {"files": []}
    assert asked(server, "DELETE", f"/drive/v3/files/{made['id']}")[0] == 200
    assert asked(server, "DELETE", f"/drive/v3/files/{made['id']}")[0] == 404
    assert asked(server, "GET", "/drive/v3/files?q=everything") == (400, "Invalid Value")
    assert asked(server, "POST", "/drive/v3/files", {**told, "mimeType": "x"})[0] == 400
    assert asked(server, "PUT", "/elsewhere") == (404, "PUT /elsewhere is not known here")


def test_spreadsheet__forbidden_or_removed__is_refused(server: SheetsServer, sheet: str) -> None:
    number = sheet.rpartition("/")[2]
    server.forbid(number)
    assert asked(server, "GET", sheet) == (403, "The caller does not have permission")
    server.remove(number)
    assert asked(server, "GET", sheet) == (404, "Requested entity was not found.")


def test_faults__ordered__happen_to_what_they_are_for(server: SheetsServer, sheet: str) -> None:
    server.fail(429, 1, retry_after="5", to="values")
    assert asked(server, "GET", sheet)[0] == 200
    assert written(server, sheet, "A1", ["lost"]) == (429, "on purpose")
    assert rows_of(server, sheet) == []
    server.lose(1, to="values")
    with pytest.raises(RemoteDisconnected):
        written(server, sheet, "A1", ["done"])
    server.lose(1, reset=True, to="values")
    with pytest.raises(ConnectionError):
        written(server, sheet, "A2", ["done"])
    assert rows_of(server, sheet) == [["done"], ["done"]]
    server.latency = 0.001
    assert asked(server, "GET", sheet)[0] == 200
    assert server.requests[-1] == f"GET {sheet}"


@pytest.mark.parametrize("done", [False, True])
def test_hang__client_gives_up__was_done_or_not(server: SheetsServer, sheet: str, *, done: bool) -> None:
    server.hang(1, done=done)
    told = json.dumps({"valueInputOption": "RAW", "data": [{"range": "A1", "values": [["x"]]}]}).encode()
    with pytest.raises(TimeoutError):
        urllib.request.urlopen(f"{server.url}{sheet}/values:batchUpdate", told, timeout=0.3)  # noqa: S310
    while done and not rows_of(server, sheet):
        time.sleep(0.01)  # the client may be quicker than the server
    assert rows_of(server, sheet) == ([["x"]] if done else [])
