"""What Google Sheets v4 and Drive v3 do with a request, as far as they are used here, in memory.

No sockets: a request comes as a value, what is done is answered as a value, and what the services would
refuse is raised in their words.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from comporta.testing.grids import Grid, RefusedRequest
from comporta.testing.loopback import Request

_QUERY = re.compile(
    r"appProperties has \{ *key='((?:[^'\\]|\\.)*)' and value='((?:[^'\\]|\\.)*)' *\} and trashed ?= ?false"
)
_SPREADSHEET = "application/vnd.google-apps.spreadsheet"


@dataclass
class Stored:
    """A spreadsheet as Drive knows it."""

    number: str
    name: str
    marks: dict[str, str]
    created: float
    grid: Grid
    folders: list[str] = field(default_factory=list)
    trashed: bool = False

    def told(self) -> dict[str, Any]:
        """Return what Drive says of it."""
        seconds, ms = divmod(round(self.created * 1000), 1000)
        moment = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{ms:03}Z"
        address = f"https://docs.google.com/spreadsheets/d/{self.number}/edit"
        return {"id": self.number, "name": self.name, "createdTime": moment, "webViewLink": address}


class SheetsService:
    """All spreadsheets of one account."""

    def __init__(self) -> None:
        self.files: dict[str, Stored] = {}
        self.forbidden: set[str] = set()
        self.overlooked = 0  # searches to come that find nothing
        self._made = 0

    def do(self, request: Request) -> Any:
        for method, form, work in _ROUTES:
            parsed = re.fullmatch(form, request.path)
            if parsed and method == request.method:
                return work(self, request, **parsed.groupdict())
        raise RefusedRequest(404, f"{request.method} {request.path} is not known here")

    def _stored(self, number: str) -> Stored:
        if number not in self.files:
            raise RefusedRequest(404, "Requested entity was not found.")
        if number in self.forbidden:
            raise RefusedRequest(403, "The caller does not have permission")
        return self.files[number]

    def create(self, name: str, marks: dict[str, str], grid: Grid) -> Stored:
        self._made += 1
        number = f"spreadsheet-{self._made}"
        self.files[number] = Stored(number, name, marks, time.time(), grid)
        return self.files[number]

    def drive_create(self, request: Request) -> Any:
        told = json.loads(request.body)
        if told["mimeType"] != _SPREADSHEET:
            raise RefusedRequest(400, "only spreadsheets are known here")
        stored = self.create(told["name"], told.get("appProperties", {}), Grid())
        stored.folders = told.get("parents", [])
        return stored.told()

    def drive_list(self, request: Request) -> Any:
        parsed = _QUERY.fullmatch(request.query.get("q", ""))
        if parsed is None:
            raise RefusedRequest(400, "Invalid Value")
        if self.overlooked > 0:
            self.overlooked -= 1
            return {"files": []}
        key, value = (re.sub(r"\\(.)", r"\1", text) for text in parsed.groups())
        there = [stored for stored in self.files.values() if not stored.trashed]
        found = [stored for stored in there if stored.marks.get(key) == value]
        return {"files": [stored.told() for stored in sorted(found, key=lambda each: each.created)]}

    def drive_get(self, _: Request, number: str) -> Any:
        stored = self._stored(number)
        return {**stored.told(), "trashed": stored.trashed}

    def drive_delete(self, _: Request, number: str) -> Any:
        del self.files[self._stored(number).number]
        return {}

    def sheets_get(self, _: Request, number: str) -> Any:
        tabs = self._stored(number).grid.tabs
        return {"spreadsheetId": number, "sheets": [{"properties": tab.properties()} for tab in tabs]}

    def sheets_change(self, request: Request, number: str) -> Any:
        replies = self._stored(number).grid.change(json.loads(request.body)["requests"])
        return {"spreadsheetId": number, "replies": replies}

    def values_get(self, _: Request, number: str, name: str) -> Any:
        values = self._stored(number).grid.read(name)
        return {"range": name, "majorDimension": "ROWS", **({"values": values} if values else {})}

    def values_write(self, request: Request, number: str) -> Any:
        told = json.loads(request.body)
        option = told.get("valueInputOption")
        if option not in ("RAW", "USER_ENTERED"):
            raise RefusedRequest(400, "'valueInputOption' is required but not specified")
        cells = self._stored(number).grid.write(told["data"], entered=option == "USER_ENTERED")
        return {"spreadsheetId": number, "totalUpdatedCells": cells}


_ID = r"(?P<number>[\w-]+)"
_ROUTES: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("POST", f"/v4/spreadsheets/{_ID}/values:batchUpdate", SheetsService.values_write),
    ("GET", f"/v4/spreadsheets/{_ID}/values/(?P<name>.+)", SheetsService.values_get),
    ("POST", f"/v4/spreadsheets/{_ID}:batchUpdate", SheetsService.sheets_change),
    ("GET", f"/v4/spreadsheets/{_ID}", SheetsService.sheets_get),
    ("POST", "/drive/v3/files", SheetsService.drive_create),
    ("GET", "/drive/v3/files", SheetsService.drive_list),
    ("GET", f"/drive/v3/files/{_ID}", SheetsService.drive_get),
    ("DELETE", f"/drive/v3/files/{_ID}", SheetsService.drive_delete),
)
