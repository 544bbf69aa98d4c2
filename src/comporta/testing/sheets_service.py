"""The behaviour of the Google Sheets v4 and Drive v3 APIs, as far as comporta uses them, in memory.

No sockets: the service takes a request and returns the JSON body of the response. A request that Google would
reject raises a :class:`SheetsApiError` with Google's status and message.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from comporta.testing.fake_spreadsheet import FakeSpreadsheet, SheetsApiError
from comporta.testing.http_server import HttpRequest

_QUERY = re.compile(
    r"appProperties has \{ *key='((?:[^'\\]|\\.)*)' and value='((?:[^'\\]|\\.)*)' *\} and trashed ?= ?false"
)
_SPREADSHEET = "application/vnd.google-apps.spreadsheet"


@dataclass
class StoredSpreadsheet:
    """A spreadsheet as a file in Drive."""

    spreadsheet_id: str
    name: str
    app_properties: dict[str, str]
    created: float
    content: FakeSpreadsheet
    folders: list[str] = field(default_factory=list)
    trashed: bool = False

    def metadata(self) -> dict[str, Any]:
        """Return the metadata in Drive's format."""
        seconds, ms = divmod(round(self.created * 1000), 1000)
        created = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{ms:03}Z"
        link = f"https://docs.google.com/spreadsheets/d/{self.spreadsheet_id}/edit"
        return {"id": self.spreadsheet_id, "name": self.name, "createdTime": created, "webViewLink": link}


class SheetsService:
    """All spreadsheets of one account."""

    def __init__(self) -> None:
        self.files: dict[str, StoredSpreadsheet] = {}
        self.forbidden: set[str] = set()
        self.searches_to_miss = 0
        self._created_count = 0

    def handle(self, request: HttpRequest) -> Any:
        """Execute a request and return the body of the response."""
        for method, pattern, work in _ROUTES:
            match = re.fullmatch(pattern, request.path)
            if match and method == request.method:
                return work(self, request, **match.groupdict())
        raise SheetsApiError(404, f"{request.method} {request.path} is not implemented here")

    def create(
        self, name: str, app_properties: dict[str, str], content: FakeSpreadsheet
    ) -> StoredSpreadsheet:
        """Add a spreadsheet."""
        self._created_count += 1
        spreadsheet_id = f"spreadsheet-{self._created_count:06}"  # sorts by age, as ties in createdTime need
        stored = StoredSpreadsheet(spreadsheet_id, name, app_properties, time.time(), content)
        self.files[spreadsheet_id] = stored
        return stored

    def drive_create(self, request: HttpRequest) -> Any:
        """Create a file."""
        body = json.loads(request.body)
        if body["mimeType"] != _SPREADSHEET:
            raise SheetsApiError(400, "only spreadsheets are implemented here")
        stored = self.create(body["name"], body.get("appProperties", {}), FakeSpreadsheet())
        stored.folders = body.get("parents", [])
        return stored.metadata()

    def drive_list(self, request: HttpRequest) -> Any:
        """Search for files by an app property."""
        match = _QUERY.fullmatch(request.query.get("q", ""))
        if match is None:
            raise SheetsApiError(400, "Invalid Value")
        if self.searches_to_miss > 0:
            self.searches_to_miss -= 1
            return {"files": []}
        key, value = (re.sub(r"\\(.)", r"\1", text) for text in match.groups())
        present = [stored for stored in self.files.values() if not stored.trashed]
        matches = [stored for stored in present if stored.app_properties.get(key) == value]
        return {"files": [stored.metadata() for stored in sorted(matches, key=lambda each: each.created)]}

    def drive_get(self, _: HttpRequest, spreadsheet_id: str) -> Any:
        """Return the metadata of a file."""
        stored = self._find(spreadsheet_id)
        return {**stored.metadata(), "trashed": stored.trashed}

    def drive_delete(self, _: HttpRequest, spreadsheet_id: str) -> Any:
        """Delete a file."""
        del self.files[self._find(spreadsheet_id).spreadsheet_id]
        return {}

    def sheets_get(self, _: HttpRequest, spreadsheet_id: str) -> Any:
        """Return the properties of a spreadsheet's sheets."""
        sheets = self._find(spreadsheet_id).content.sheets
        properties = [{"properties": sheet.properties()} for sheet in sheets]
        return {"spreadsheetId": spreadsheet_id, "sheets": properties}

    def sheets_batch_update(self, request: HttpRequest, spreadsheet_id: str) -> Any:
        """Change the structure of a spreadsheet."""
        replies = self._find(spreadsheet_id).content.batch_update(json.loads(request.body)["requests"])
        return {"spreadsheetId": spreadsheet_id, "replies": replies}

    def values_get(self, _: HttpRequest, spreadsheet_id: str, name: str) -> Any:
        """Return the values of a range."""
        values = self._find(spreadsheet_id).content.read(name)
        return {"range": name, "majorDimension": "ROWS", **({"values": values} if values else {})}

    def values_batch_update(self, request: HttpRequest, spreadsheet_id: str) -> Any:
        """Write the values of several ranges."""
        body = json.loads(request.body)
        option = body.get("valueInputOption")
        if option not in ("RAW", "USER_ENTERED"):
            raise SheetsApiError(400, "'valueInputOption' is required but not specified")
        content = self._find(spreadsheet_id).content
        cells = content.write(body["data"], parse_formulas=option == "USER_ENTERED")
        return {"spreadsheetId": spreadsheet_id, "totalUpdatedCells": cells}

    def _find(self, spreadsheet_id: str) -> StoredSpreadsheet:
        if spreadsheet_id not in self.files:
            raise SheetsApiError(404, "Requested entity was not found.")
        if spreadsheet_id in self.forbidden:
            raise SheetsApiError(403, "The caller does not have permission")
        return self.files[spreadsheet_id]


_ID = r"(?P<spreadsheet_id>[\w-]+)"
_ROUTES: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("POST", f"/v4/spreadsheets/{_ID}/values:batchUpdate", SheetsService.values_batch_update),
    ("GET", f"/v4/spreadsheets/{_ID}/values/(?P<name>.+)", SheetsService.values_get),
    ("POST", f"/v4/spreadsheets/{_ID}:batchUpdate", SheetsService.sheets_batch_update),
    ("GET", f"/v4/spreadsheets/{_ID}", SheetsService.sheets_get),
    ("POST", "/drive/v3/files", SheetsService.drive_create),
    ("GET", "/drive/v3/files", SheetsService.drive_list),
    ("GET", f"/drive/v3/files/{_ID}", SheetsService.drive_get),
    ("DELETE", f"/drive/v3/files/{_ID}", SheetsService.drive_delete),
)
