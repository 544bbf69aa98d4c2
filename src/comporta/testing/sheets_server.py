"""A stand-in for Google Sheets and Drive on loopback: the part of their APIs that comporta uses.

Google's own client can talk to it. It rejects what Google rejects. It can also be slow, busy or broken, or
execute a request and lose the response, which is how clients come to write rows twice.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Literal

from comporta.testing.fake_spreadsheet import CellRange, FakeSpreadsheet, SheetsApiError
from comporta.testing.http_server import Disconnect, HttpRequest, HttpServer, json_response
from comporta.testing.sheets_service import SheetsService

REQUESTS_MAX = 10_000
"""``requests`` keeps at most this many; a new request replaces the oldest."""

_STATUS_NAMES = {
    400: "INVALID_ARGUMENT",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
}


@dataclass
class SheetsFault:
    """A fault for the next ``remaining`` requests whose method and path contain ``matching``."""

    kind: Literal["fail", "lose", "hang"]
    remaining: int
    matching: str
    executes: bool = False  # whether the request is executed all the same
    reset: bool = False
    status: int = 0
    reason: str = ""
    headers: dict[str, str] = field(default_factory=dict)


class SheetsServer(HttpServer):
    """Google Sheets v4 and Drive v3, as far as comporta uses them, with switches for faults.

    ::

        with SheetsServer() as server:
            account = GoogleAccount(endpoint=server.url)
            server.lose_responses(2)
            ...
            assert server.rows(spreadsheet_id) == [["id"], ["1"]]

    ``latency`` is in seconds, before each response. ``fail``, ``lose_responses`` and ``hang`` apply to the
    next ``count`` requests whose method and path (``"POST /v4/spreadsheets/…/values:batchUpdate"``) contain
    ``matching``; :meth:`heal` ends them. ``requests`` holds the methods and paths of the requests so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.latency = 0.0
        self.requests: deque[str] = deque(maxlen=REQUESTS_MAX)
        self._faults: list[SheetsFault] = []
        self._service = SheetsService()

    def fail(
        self,
        status: int,
        count: int = 1,
        *,
        retry_after: str | None = None,
        reason: str = "on purpose",
        matching: str = "",
    ) -> None:
        """Respond with an error, without executing the request."""
        headers = {} if retry_after is None else {"retry-after": retry_after}
        fault = SheetsFault("fail", count, matching, status=status, reason=reason, headers=headers)
        self._faults.append(fault)

    def lose_responses(self, count: int = 1, *, reset: bool = False, matching: str = "") -> None:
        """Execute the request and close the connection without a response."""
        self._faults.append(SheetsFault("lose", count, matching, executes=True, reset=reset))

    def hang(self, count: int = 1, *, execute: bool = False, matching: str = "") -> None:
        """Never respond; with ``execute``, execute the request all the same."""
        self._faults.append(SheetsFault("hang", count, matching, executes=execute))

    def miss_searches(self, count: int = 1) -> None:
        """Return nothing from the next searches, as Drive may shortly after a file was created."""
        self._service.searches_to_miss = count

    def heal(self) -> None:
        """Switch all faults and the latency off."""
        self.latency = 0.0
        self._faults = []
        self._service.searches_to_miss = 0

    def create(self, name: str = "made by hand", *, rows: int = 1000, columns: int = 26) -> str:
        """Create a spreadsheet, as a person would, and return its id."""
        return self._service.create(name, {}, FakeSpreadsheet(rows, columns)).spreadsheet_id

    def forbid(self, spreadsheet_id: str) -> None:
        """Stop sharing a spreadsheet with the account."""
        self._service.forbidden.add(spreadsheet_id)

    def remove(self, spreadsheet_id: str) -> None:
        """Delete a spreadsheet."""
        del self._service.files[spreadsheet_id]

    def trash(self, spreadsheet_id: str) -> None:
        """Move a spreadsheet to the trash, where it can still be written to."""
        self._service.files[spreadsheet_id].trashed = True

    def spreadsheets(self) -> dict[str, str]:
        """Return the names of all spreadsheets by id."""
        return {stored.spreadsheet_id: stored.name for stored in list(self._service.files.values())}

    def folders(self, spreadsheet_id: str) -> list[str]:
        """Return the ids of the folders of a spreadsheet; none means the root folder of the account."""
        return self._service.files[spreadsheet_id].folders

    def spreadsheet(self, spreadsheet_id: str) -> FakeSpreadsheet:
        """Return a spreadsheet, to inspect it and to change it as a person would."""
        return self._service.files[spreadsheet_id].content

    def rows(self, spreadsheet_id: str, sheet: str | None = None) -> list[list[Any]]:
        """Return the values of a sheet (default: the first) without trailing empty cells and rows."""
        content = self.spreadsheet(spreadsheet_id).sheet(sheet)
        return content.read(CellRange(1, 1, content.rows, content.columns))

    def formulas(self, spreadsheet_id: str, sheet: str | None = None) -> list[str]:
        """Return the cells of a sheet that Google would have evaluated as formulas."""
        return list(self.spreadsheet(spreadsheet_id).sheet(sheet).formulas.values())

    async def _respond(self, request: HttpRequest) -> bytes | Disconnect:
        line = f"{request.method} {request.path}"
        self.requests.append(line)
        fault = self._next_fault(line)
        if self.latency > 0:
            await asyncio.sleep(self.latency)
        if fault is None:
            return self._execute(request)
        if fault.kind == "fail":
            return _error_response(fault.status, fault.reason, fault.headers)
        if fault.executes:
            self._execute(request)
        if fault.kind == "hang":
            await asyncio.sleep(math.inf)
        return Disconnect(fault.reset)

    def _next_fault(self, line: str) -> SheetsFault | None:
        candidates = (fault for fault in self._faults if fault.remaining > 0 and fault.matching in line)
        fault = next(candidates, None)
        if fault is not None:
            fault.remaining -= 1
        return fault

    def _execute(self, request: HttpRequest) -> bytes:
        try:
            return json_response(200, self._service.handle(request))
        except SheetsApiError as error:
            return _error_response(error.status, error.message, {})


def _error_response(status: int, message: str, headers: dict[str, str]) -> bytes:
    """Return an error in the format of Google's APIs."""
    error = {"code": status, "message": message, "status": _STATUS_NAMES.get(status, "UNAVAILABLE")}
    return json_response(status, {"error": error}, headers)
