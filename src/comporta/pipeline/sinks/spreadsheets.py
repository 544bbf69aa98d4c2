"""Making spreadsheets, each once: what is made carries a mark, and is looked for by it before another is.

Whoever was not told that a spreadsheet was made (the answer was lost, the process died) finds it by the mark.
Two who make one at the same moment both look again: the older one stays, and the other is removed by whoever
made it, empty as it is.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from comporta.errors import SinkMissingError
from comporta.pipeline.sinks.google import GoogleAccount

NAME_CHARS_MAX: Final = 1000
MARK_BYTES_MAX: Final = 100
"""Drive keeps 124 bytes of a property, its name included."""

_PROPERTY = "comporta_marker"
_KIND = "application/vnd.google-apps.spreadsheet"
_TOLD = "id, name, createdTime"


class Spreadsheet(NamedTuple):
    """A spreadsheet, and where people find it."""

    id: str
    url: str
    name: str


class Spreadsheets:
    """The spreadsheets of one account. It blocks: whoever is on an event loop asks it in a thread."""

    def __init__(self, account: GoogleAccount | None = None) -> None:
        self._account = account or GoogleAccount()

    def create(self, name: str, marker: str, *, folder: str | None = None) -> Spreadsheet:
        """Return the spreadsheet with this mark, made if there is none yet.

        ``folder`` is the id of the one it is made in, such as one of a shared drive; left out: the account's
        own. It may be asked again after any error, with the same ``marker``: there will be one.
        """
        _check(name, marker)
        found = self._marked(name, marker)
        if found:
            return _spreadsheet(found[0])
        made = self._made(name, marker, folder)
        oldest = (self._marked(name, marker) or [made])[0]
        if oldest["id"] != made["id"]:
            self._removed(made["id"], name)
        return _spreadsheet(oldest)

    def has(self, spreadsheet_id: str) -> bool:
        """Whether it is there, and not in the bin; what was only now made is found as well."""
        request = self._account.files.get(fileId=spreadsheet_id, fields="trashed", supportsAllDrives=True)
        try:
            return not self._account.ask(request, f"looking for the spreadsheet {spreadsheet_id:.100}")[
                "trashed"
            ]
        except SinkMissingError:
            return False

    def _made(self, name: str, marker: str, folder: str | None) -> Any:
        told: dict[str, Any] = {"name": name, "mimeType": _KIND, "appProperties": {_PROPERTY: marker}}
        if folder is not None:
            told["parents"] = [folder]
        request = self._account.files.create(body=told, fields=_TOLD, supportsAllDrives=True)
        return self._account.ask(request, f"making the spreadsheet {name!r:.100}", once=True)

    def _marked(self, name: str, marker: str) -> list[Any]:
        """Find those with a mark, the oldest first."""
        quoted = marker.replace("\\", "\\\\").replace("'", "\\'")
        query = f"appProperties has {{ key='{_PROPERTY}' and value='{quoted}' }} and trashed = false"
        request = self._account.files.list(
            q=query,
            orderBy="createdTime",
            fields=f"files({_TOLD})",
            supportsAllDrives=True,
            includeItemsFromAllDrives=True,
        )
        found = self._account.ask(request, f"looking for the spreadsheet {name!r:.100}")
        return sorted(found.get("files", ()), key=lambda each: (each["createdTime"], each["id"]))

    def _removed(self, number: str, name: str) -> None:
        request = self._account.files.delete(fileId=number, supportsAllDrives=True)
        try:
            self._account.ask(request, f"removing a second spreadsheet {name!r:.100}")
        except SinkMissingError:
            return  # removed already: the first answer was lost


def _spreadsheet(told: Any) -> Spreadsheet:
    return Spreadsheet(told["id"], f"https://docs.google.com/spreadsheets/d/{told['id']}/edit", told["name"])


def _check(name: str, marker: str) -> None:
    if not 1 <= len(name) <= NAME_CHARS_MAX:
        raise ValueError(f"name must be 1 to {NAME_CHARS_MAX} characters, got {len(name)}")
    if not 1 <= len(marker.encode()) <= MARK_BYTES_MAX:
        raise ValueError(f"marker must be 1 to {MARK_BYTES_MAX} bytes, got {len(marker.encode())}")
