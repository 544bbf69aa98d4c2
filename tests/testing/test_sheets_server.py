"""The stand-in for Google Sheets and Drive: what it rejects, as they do, and its faults."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from http.client import RemoteDisconnected
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote

import pytest
from tests.support import wait_until

from comporta.testing import SheetsServer
from comporta.testing.fake_spreadsheet import CELLS_MAX


@pytest.fixture(scope="module")
def sheets_server() -> Iterator[SheetsServer]:
    with SheetsServer() as server:
        yield server


@pytest.fixture
def server(sheets_server: SheetsServer) -> SheetsServer:
    sheets_server.heal()
    return sheets_server


@pytest.fixture
def sheet(server: SheetsServer) -> str:
    return f"/v4/spreadsheets/{server.create(rows=4, columns=3)}"


def fetch(server: SheetsServer, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Return the status and the body of the response; for an error, its message."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{server.url}{path}", data, method=method)  # noqa: S310 - loopback
    try:
        with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310 - loopback
            return response.status, json.loads(response.read())
    except HTTPError as error:
        with error:
            return error.code, json.loads(error.read())["error"]["message"]


def write(server: SheetsServer, sheet: str, name: str, *values: list[Any], option: str = "RAW") -> Any:
    body = {"valueInputOption": option, "data": [{"range": name, "values": list(values)}]}
    return fetch(server, "POST", f"{sheet}/values:batchUpdate", body)


def read(server: SheetsServer, sheet: str, name: str) -> Any:
    return fetch(server, "GET", f"{sheet}/values/{quote(name, safe='')}")


def rows_of(server: SheetsServer, sheet: str) -> list[list[Any]]:
    return server.rows(sheet.rpartition("/")[2])


def test_values__written__are_read_without_trailing_empty_cells(server: SheetsServer, sheet: str) -> None:
    assert write(server, sheet, "'Sheet1'!A1:C3", ["a", "", 3], [], ["", True])[0] == 200
    assert read(server, sheet, "Sheet1!A1:C4")[1]["values"] == [["a", "", 3], [], ["", True]]
    assert read(server, sheet, "B3")[1]["values"] == [[True]]
    assert "values" not in read(server, sheet, "A4:C4")[1]
    assert write(server, sheet, "A1:C1", ["", None, "x"])[1]["totalUpdatedCells"] == 3
    assert rows_of(server, sheet) == [["", "", "x"], [], ["", True]]


@pytest.mark.parametrize("name", ["A1:D1", "A5", "'Sheet1'!A1:A5"])
def test_values__outside_of_the_grid__are_rejected_and_change_nothing(
    server: SheetsServer, sheet: str, name: str
) -> None:
    limits = f"Range ({name}) exceeds grid limits. Max rows: 4, max columns: 3"
    assert read(server, sheet, name) == (400, limits)
    data = [{"range": "A1", "values": [["x"]]}, {"range": name, "values": [["x"]]}]
    body = {"valueInputOption": "RAW", "data": data}
    assert fetch(server, "POST", f"{sheet}/values:batchUpdate", body) == (400, limits)
    assert rows_of(server, sheet) == []


@pytest.mark.parametrize(
    ("name", "values", "error"),
    [
        ("A1:B1", [["a", "b", "c"]], "tried writing outside of it"),
        ("A1:B1", [["a"], ["b"]], "tried writing outside of it"),
        ("A1", [[["nested"]]], "Invalid values: list_value"),
        ("A1", [["x" * 50_001]], "more than the maximum of 50000 characters"),
        ("Absent!A1", [["a"]], "Unable to parse range: Absent"),
        ("A1:", [["a"]], "Unable to parse range: A1:"),
    ],
)
def test_values__of_an_invalid_type__are_rejected(
    server: SheetsServer, sheet: str, name: str, values: list[list[Any]], error: str
) -> None:
    status, message = write(server, sheet, name, *values)
    assert status == 400
    assert error in message


def test_values__user_entered__may_become_formulas(server: SheetsServer, sheet: str) -> None:
    number = sheet.rpartition("/")[2]
    assert write(server, sheet, "A1:C1", ["=1+1", "+2", "text"], option="USER_ENTERED")[0] == 200
    assert server.formulas(number) == ["=1+1", "+2"]
    assert write(server, sheet, "A1:B1", ["=1+1", ""])[0] == 200
    assert server.formulas(number) == []
    assert write(server, sheet, "A1", ["x"], option="")[0] == 400


def test_batch_update__sheets_and_dimensions__are_added(server: SheetsServer, sheet: str) -> None:
    def batch_update(**request: Any) -> tuple[int, Any]:
        return fetch(server, "POST", f"{sheet}:batchUpdate", {"requests": [request]})

    status, body = batch_update(addSheet={"properties": {"title": "More"}})
    added = body["replies"][0]["addSheet"]["properties"]
    assert (status, added["title"]) == (200, "More")
    assert "already exists" in batch_update(addSheet={"properties": {"title": "More"}})[1]
    for dimension in ("ROWS", "COLUMNS"):
        grown = {"sheetId": 0, "dimension": dimension, "length": 2}
        assert batch_update(appendDimension=grown)[0] == 200
    sheets = fetch(server, "GET", sheet)[1]["sheets"]
    assert sheets[0]["properties"]["gridProperties"] == {"rowCount": 6, "columnCount": 5}
    endless = {"sheetId": 0, "dimension": "ROWS", "length": CELLS_MAX}
    assert "above the limit of 10000000 cells" in batch_update(appendDimension=endless)[1]
    assert "No sheet with id: 7" in batch_update(appendDimension={**endless, "sheetId": 7})[1]
    assert "paintItBlue is not implemented here" in batch_update(paintItBlue={})[1]


def test_drive__files__are_created_found_and_deleted(server: SheetsServer) -> None:
    body = {
        "name": "n",
        "mimeType": "application/vnd.google-apps.spreadsheet",
        "appProperties": {"mark": "it's"},
    }
    created = fetch(server, "POST", "/drive/v3/files", body)[1]
    query = r"appProperties has { key='mark' and value='it\'s' } and trashed = false"
    path = f"/drive/v3/files?q={quote(query)}"
    assert fetch(server, "GET", path)[1] == {"files": [created]}
    server.miss_searches()
    assert fetch(server, "GET", path)[1] == {"files": []}
    assert fetch(server, "DELETE", f"/drive/v3/files/{created['id']}")[0] == 200
    assert fetch(server, "DELETE", f"/drive/v3/files/{created['id']}")[0] == 404
    assert fetch(server, "GET", "/drive/v3/files?q=everything") == (400, "Invalid Value")
    assert fetch(server, "POST", "/drive/v3/files", {**body, "mimeType": "x"})[0] == 400
    assert fetch(server, "PUT", "/elsewhere") == (404, "PUT /elsewhere is not implemented here")


def test_spreadsheet__forbidden_or_removed__is_rejected(server: SheetsServer, sheet: str) -> None:
    number = sheet.rpartition("/")[2]
    server.forbid(number)
    assert fetch(server, "GET", sheet) == (403, "The caller does not have permission")
    server.remove(number)
    assert fetch(server, "GET", sheet) == (404, "Requested entity was not found.")


def test_faults__with_matching__apply_to_matching_requests(server: SheetsServer, sheet: str) -> None:
    server.fail(429, 1, retry_after="5", matching="values")
    assert fetch(server, "GET", sheet)[0] == 200
    assert write(server, sheet, "A1", ["lost"]) == (429, "on purpose")
    assert rows_of(server, sheet) == []
    server.lose_responses(1, matching="values")
    with pytest.raises(RemoteDisconnected):
        write(server, sheet, "A1", ["done"])
    server.lose_responses(1, reset=True, matching="values")
    with pytest.raises(ConnectionError):
        write(server, sheet, "A2", ["done"])
    assert rows_of(server, sheet) == [["done"], ["done"]]
    server.latency = 0.001
    assert fetch(server, "GET", sheet)[0] == 200
    assert server.requests[-1] == f"GET {sheet}"


@pytest.mark.parametrize("execute", [False, True])
def test_hang__with_and_without_execute__client_times_out(
    server: SheetsServer, sheet: str, *, execute: bool
) -> None:
    server.hang(1, execute=execute)
    body = json.dumps({"valueInputOption": "RAW", "data": [{"range": "A1", "values": [["x"]]}]}).encode()
    with pytest.raises(TimeoutError):
        urllib.request.urlopen(f"{server.url}{sheet}/values:batchUpdate", body, timeout=0.3)  # noqa: S310
    wait_until(lambda: not execute or rows_of(server, sheet))  # the client may time out first
    assert rows_of(server, sheet) == ([["x"]] if execute else [])
