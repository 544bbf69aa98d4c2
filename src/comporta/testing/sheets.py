"""A stand-in for Google Sheets and Drive: the part of their interfaces that is used here, on loopback.

Google's own client talks to it. It refuses what the service refuses, and can be slow, busy, broken, or do
what it was asked and lose the answer: that is where rows are written twice.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Literal

from comporta.testing.grids import Area, Grid, RefusedRequest
from comporta.testing.loopback import Loopback, NoAnswer, Request, response
from comporta.testing.sheets_service import SheetsService

REQUESTS_MAX = 10_000
"""How many requests are remembered; older ones are forgotten."""

_WORDS = {400: "INVALID_ARGUMENT", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 429: "RESOURCE_EXHAUSTED"}


@dataclass
class Fault:
    """What happens to the next requests that contain a text."""

    kind: Literal["fail", "lose", "hang"]
    left: int
    to: str
    done: bool = False  # the work is done all the same
    reset: bool = False
    status: int = 0
    reason: str = ""
    headers: dict[str, str] = field(default_factory=dict)


class SheetsServer(Loopback):
    """Google Sheets v4 and Drive v3, as far as they are used, with switches for trouble.

    ::

        with SheetsServer() as server:
            account = GoogleAccount(endpoint=server.url)
            server.lose(2)
            ...
            assert server.rows(spreadsheet_id) == [["id"], ["1"]]

    ``latency`` is in seconds, before each answer. ``fail``, ``lose`` and ``hang`` happen to the next
    ``count`` requests whose method and path (``"POST /v4/spreadsheets/…/values:batchUpdate"``) contain
    ``to``; :meth:`heal` ends them. ``requests`` are the methods and paths it has seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.latency = 0.0
        self.requests: deque[str] = deque(maxlen=REQUESTS_MAX)
        self._faults: list[Fault] = []
        self._service = SheetsService()

    def fail(
        self,
        status: int,
        count: int = 1,
        *,
        retry_after: str | None = None,
        reason: str = "on purpose",
        to: str = "",
    ) -> None:
        """Answer with an error, and do nothing."""
        headers = {} if retry_after is None else {"retry-after": retry_after}
        self._faults.append(Fault("fail", count, to, status=status, reason=reason, headers=headers))

    def lose(self, count: int = 1, *, reset: bool = False, to: str = "") -> None:
        """Do what is asked, and end the connection without an answer."""
        self._faults.append(Fault("lose", count, to, done=True, reset=reset))

    def hang(self, count: int = 1, *, done: bool = False, to: str = "") -> None:
        """Never answer; ``done``: but do what is asked."""
        self._faults.append(Fault("hang", count, to, done=done))

    def overlook(self, count: int = 1) -> None:
        """Find nothing in the next searches, as Drive may for a while after something was made."""
        self._service.overlooked = count

    def heal(self) -> None:
        """Answer as ever, at once, from now on."""
        self.latency = 0.0
        self._faults = []
        self._service.overlooked = 0

    def create(self, name: str = "made by hand", *, rows: int = 1000, columns: int = 26) -> str:
        """Make a spreadsheet, as a person would; returns its id."""
        return self._service.create(name, {}, Grid(rows, columns)).number

    def forbid(self, spreadsheet_id: str) -> None:
        """Share it no longer."""
        self._service.forbidden.add(spreadsheet_id)

    def remove(self, spreadsheet_id: str) -> None:
        """Delete it."""
        del self._service.files[spreadsheet_id]

    def trash(self, spreadsheet_id: str) -> None:
        """Put it into the bin, where it can still be written to."""
        self._service.files[spreadsheet_id].trashed = True

    def spreadsheets(self) -> dict[str, str]:
        """Return ids and names of all there are."""
        return {stored.number: stored.name for stored in list(self._service.files.values())}

    def folders(self, spreadsheet_id: str) -> list[str]:
        """Return the ids of the folders it was made in; none: the account's own."""
        return self._service.files[spreadsheet_id].folders

    def grid(self, spreadsheet_id: str) -> Grid:
        """Return the spreadsheet itself, to be looked at and changed as a person would."""
        return self._service.files[spreadsheet_id].grid

    def rows(self, spreadsheet_id: str, sheet: str | None = None) -> list[list[Any]]:
        """Return the values of a tab, the first one if none is named, without empty ones at the ends."""
        tab = self.grid(spreadsheet_id).tab(sheet)
        return tab.read(Area(1, 1, tab.rows, tab.columns))

    def formulas(self, spreadsheet_id: str, sheet: str | None = None) -> list[str]:
        """Return what became a formula."""
        return list(self.grid(spreadsheet_id).tab(sheet).formulas.values())

    async def answered(self, request: Request) -> bytes | NoAnswer:
        """Do what is asked, unless a fault has been ordered for it."""
        line = f"{request.method} {request.path}"
        self.requests.append(line)
        fault = self._fault(line)
        if self.latency > 0:
            await asyncio.sleep(self.latency)
        if fault is None:
            return self._done(request)
        if fault.kind == "fail":
            return _error(fault.status, fault.reason, fault.headers)
        if fault.done:
            self._done(request)
        if fault.kind == "hang":
            await asyncio.sleep(math.inf)
        return NoAnswer(fault.reset)

    def _fault(self, line: str) -> Fault | None:
        found = next((fault for fault in self._faults if fault.left > 0 and fault.to in line), None)
        if found is not None:
            found.left -= 1
        return found

    def _done(self, request: Request) -> bytes:
        try:
            return response(200, self._service.do(request))
        except RefusedRequest as refused:
            return _error(refused.status, refused.message, {})


def _error(status: int, message: str, headers: dict[str, str]) -> bytes:
    """Return an error in the service's form."""
    told = {"code": status, "message": message, "status": _WORDS.get(status, "UNAVAILABLE")}
    return response(status, {"error": told}, headers)
