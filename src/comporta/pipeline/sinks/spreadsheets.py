"""Creates Google spreadsheets, each once: a spreadsheet carries a marker, and ``create`` looks for it first.

A caller that did not learn of its success (the response was lost, the process died) finds the spreadsheet by
the marker. If two callers create one at the same moment, both look again: the older one stays, and the
creator of the other one deletes it, while it is still empty.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from comporta.errors import SinkNotFoundError
from comporta.pipeline.sinks.google_account import GoogleAccount

NAME_CHARS_MAX: Final = 1000
MARKER_BYTES_MAX: Final = 100
"""Drive stores 124 bytes of a property, including its name."""

_PROPERTY = "comporta_marker"
_MIME_TYPE = "application/vnd.google-apps.spreadsheet"
_FIELDS = "id, name, createdTime"


class Spreadsheet(NamedTuple):
    """A spreadsheet: its ``id``, the ``url`` for people, and its ``name``."""

    id: str
    url: str
    name: str


class Spreadsheets:
    """The spreadsheets of one account. It blocks; coroutines call it on a thread."""

    def __init__(self, account: GoogleAccount | None = None) -> None:
        self._account = account or GoogleAccount()

    def create(self, name: str, marker: str, *, folder: str | None = None) -> Spreadsheet:
        """Return the spreadsheet with this marker; create it if it does not exist.

        ``folder`` is the id of its folder, for example in a shared drive; by default it is the account's own
        folder. You may call this again after any error with the same ``marker``: there will be only one
        spreadsheet.
        """
        _check_create(name, marker)
        existing = self._find_by_marker(name, marker)
        if existing:
            return _spreadsheet(existing[0])
        created = self._create(name, marker, folder)
        oldest = (self._find_by_marker(name, marker) or [created])[0]
        if oldest["id"] != created["id"]:
            self._delete(created["id"], name)
        return _spreadsheet(oldest)

    def has(self, spreadsheet_id: str) -> bool:
        """Return whether a spreadsheet exists and is not in the bin, even if it was created just now."""
        request = self._account.files.get(fileId=spreadsheet_id, fields="trashed", supportsAllDrives=True)
        try:
            return not self._account.execute(request, f"looking for the spreadsheet {spreadsheet_id:.100}")[
                "trashed"
            ]
        except SinkNotFoundError:
            return False

    def _create(self, name: str, marker: str, folder: str | None) -> Any:
        body: dict[str, Any] = {"name": name, "mimeType": _MIME_TYPE, "appProperties": {_PROPERTY: marker}}
        if folder is not None:
            body["parents"] = [folder]
        request = self._account.files.create(body=body, fields=_FIELDS, supportsAllDrives=True)
        return self._account.execute(request, f"creating the spreadsheet {name!r:.100}", once=True)

    def _find_by_marker(self, name: str, marker: str) -> list[Any]:
        """Return the spreadsheets with a marker, the oldest first."""
        quoted = marker.replace("\\", "\\\\").replace("'", "\\'")
        query = f"appProperties has {{ key='{_PROPERTY}' and value='{quoted}' }} and trashed = false"
        request = self._account.files.list(
            q=query,
            orderBy="createdTime",
            fields=f"files({_FIELDS})",
            supportsAllDrives=True,
            includeItemsFromAllDrives=True,
        )
        reply = self._account.execute(request, f"looking for the spreadsheet {name!r:.100}")
        return sorted(reply.get("files", ()), key=lambda each: (each["createdTime"], each["id"]))

    def _delete(self, spreadsheet_id: str, name: str) -> None:
        request = self._account.files.delete(fileId=spreadsheet_id, supportsAllDrives=True)
        try:
            self._account.execute(request, f"deleting a second spreadsheet {name!r:.100}")
        except SinkNotFoundError:
            return  # deleted already: the first response was lost


def _spreadsheet(file: Any) -> Spreadsheet:
    return Spreadsheet(file["id"], f"https://docs.google.com/spreadsheets/d/{file['id']}/edit", file["name"])


def _check_create(name: str, marker: str) -> None:
    if not 1 <= len(name) <= NAME_CHARS_MAX:
        raise ValueError(f"name must be 1 to {NAME_CHARS_MAX} characters, got {len(name)}")
    if not 1 <= len(marker.encode()) <= MARKER_BYTES_MAX:
        raise ValueError(f"marker must be 1 to {MARKER_BYTES_MAX} bytes, got {len(marker.encode())}")
