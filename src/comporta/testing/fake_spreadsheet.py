"""A Google spreadsheet in memory: sheets with a bounded grid of cells.

No HTTP here. A request that Google would reject raises a :class:`SheetsApiError` with Google's status and
message, and changes nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

CELL_CHARS_MAX = 50_000
CELLS_MAX = 10_000_000
_RANGE = re.compile(r"(?:(?P<title>'(?:[^']|'')*'|[^'!:]+)!)?(?P<cells>[A-Z]+\d+(?::[A-Z]+\d+)?)")
_CORNER = re.compile(r"([A-Z]+)(\d+)")


class SheetsApiError(Exception):
    """The error response of the API to a request."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class CellRange(NamedTuple):
    """A range of cells. Rows and columns count from 1, and both ends are included."""

    top: int
    left: int
    bottom: int
    right: int


@dataclass
class FakeSheet:
    """One sheet of a spreadsheet."""

    sheet_id: int
    title: str
    rows: int = 1000
    columns: int = 26
    cells: dict[tuple[int, int], Any] = field(default_factory=dict)
    formulas: dict[tuple[int, int], str] = field(default_factory=dict)

    def read(self, area: CellRange) -> list[list[Any]]:
        """Return the values of a range, without trailing empty cells and rows."""
        cells = [cell for cell in list(self.cells) if _is_inside(cell, area)]  # a client may write meanwhile
        values: list[list[Any]] = [
            [] for _ in range(max((row for row, _ in cells), default=0) + 1 - area.top)
        ]
        for row, column in sorted(cells):
            line = values[row - area.top]
            line.extend([""] * (column - area.left - len(line)))
            line.append(self.cells[row, column])
        return values

    def check_bounds(self, area: CellRange, name: str) -> None:
        """Reject a range that exceeds the grid."""
        if area.bottom > self.rows or area.right > self.columns:
            limits = f"Max rows: {self.rows}, max columns: {self.columns}"
            raise SheetsApiError(400, f"Range ({name}) exceeds grid limits. {limits}")

    def set_cell(self, row: int, column: int, value: Any, *, parse_formulas: bool) -> None:
        """Set one cell. ``None`` leaves it unchanged; with ``parse_formulas`` text may become a formula."""
        if value is None:
            return
        cell = row, column
        self.cells.pop(cell, None)
        self.formulas.pop(cell, None)
        if parse_formulas and isinstance(value, str) and value[:1] in "=+" and len(value) > 1:
            self.formulas[cell] = value
        if value != "":
            self.cells[cell] = value

    def properties(self) -> dict[str, Any]:
        """Return the properties of the sheet in the API's format."""
        grid = {"rowCount": self.rows, "columnCount": self.columns}
        return {"sheetId": self.sheet_id, "title": self.title, "index": 0, "gridProperties": grid}


class FakeSpreadsheet:
    """One spreadsheet."""

    def __init__(self, rows: int = 1000, columns: int = 26) -> None:
        self.sheets = [FakeSheet(0, "Sheet1", rows, columns)]
        self._sheet_ids = count(1001)

    def sheet(self, title: str | None) -> FakeSheet:
        """Return the sheet with this title; ``None`` means the first sheet."""
        sheet = next((sheet for sheet in self.sheets if title in (None, sheet.title)), None)
        if sheet is None:
            raise SheetsApiError(400, f"Unable to parse range: {title}")
        return sheet

    def read(self, name: str) -> list[list[Any]]:
        """Return the values of a range such as ``Sheet1!A1:B2``."""
        sheet, area = self._resolve_range(name)
        sheet.check_bounds(area, name)
        return sheet.read(area)

    def write(self, data: list[dict[str, Any]], *, parse_formulas: bool) -> int:
        """Write all ranges or none; return the number of cells given."""
        targets = [(*self._resolve_range(each["range"]), each) for each in data]
        for sheet, area, each in targets:
            sheet.check_bounds(area, each["range"])
            _check_values(area, each)
        for sheet, area, each in targets:
            for row, line in enumerate(each["values"], area.top):
                for column, value in enumerate(line, area.left):
                    sheet.set_cell(row, column, value, parse_formulas=parse_formulas)
        return sum(len(line) for each in data for line in each["values"])

    def batch_update(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Execute the requests of a ``batchUpdate`` call, as far as they are implemented here."""
        return [
            self._apply_request(kind, arguments)
            for request in requests
            for kind, arguments in request.items()
        ]

    def _apply_request(self, kind: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if kind == "addSheet":
            return {kind: {"properties": self._add_sheet(arguments["properties"]["title"]).properties()}}
        if kind == "appendDimension":
            self._append_dimension(arguments)
            return {}
        raise SheetsApiError(400, f"Invalid requests[0]: {kind} is not implemented here")

    def _add_sheet(self, title: str) -> FakeSheet:
        if any(sheet.title == title for sheet in self.sheets):
            raise SheetsApiError(
                400,
                f'Invalid requests[0].addSheet: A sheet with the name "{title}" already exists.'
                " Please enter another name.",
            )
        self.sheets.append(FakeSheet(next(self._sheet_ids), title))
        return self.sheets[-1]

    def _append_dimension(self, arguments: dict[str, Any]) -> None:
        sheet = next((each for each in self.sheets if each.sheet_id == arguments["sheetId"]), None)
        if sheet is None:
            text = f"Invalid requests[0].appendDimension: No sheet with id: {arguments['sheetId']}"
            raise SheetsApiError(400, text)
        added = {"ROWS": (arguments["length"], 0), "COLUMNS": (0, arguments["length"])}[
            arguments["dimension"]
        ]
        rows, columns = sheet.rows + added[0], sheet.columns + added[1]
        others = sum(each.rows * each.columns for each in self.sheets if each is not sheet)
        if others + rows * columns > CELLS_MAX:
            text = f"This action would increase the number of cells above the limit of {CELLS_MAX} cells."
            raise SheetsApiError(400, f"Invalid requests[0].appendDimension: {text}")
        sheet.rows, sheet.columns = rows, columns

    def _resolve_range(self, name: str) -> tuple[FakeSheet, CellRange]:
        match = _RANGE.fullmatch(name)
        if match is None:
            raise SheetsApiError(400, f"Unable to parse range: {name}")
        title = match["title"]
        if title is not None and title.startswith("'"):
            title = title[1:-1].replace("''", "'")
        (top, left), (bottom, right) = (_parse_corner(text) for text in _range_ends(match["cells"]))
        return self.sheet(title), CellRange(top, left, bottom, right)


def _range_ends(cells: str) -> tuple[str, str]:
    first, _, last = cells.partition(":")
    return first, last or first


def _parse_corner(text: str) -> tuple[int, int]:
    match = _CORNER.fullmatch(text)
    assert match is not None  # noqa: S101 - the pattern for ranges contains this one
    column = 0
    for letter in match[1]:
        column = column * 26 + ord(letter) - ord("A") + 1
    return int(match[2]), column


def _is_inside(cell: tuple[int, int], area: CellRange) -> bool:
    return area.top <= cell[0] <= area.bottom and area.left <= cell[1] <= area.right


def _check_values(area: CellRange, value_range: dict[str, Any]) -> None:
    for number, line in enumerate(value_range["values"]):
        if area.top + number > area.bottom or area.left + len(line) - 1 > area.right:
            text = f"Requested writing within range [{value_range['range']}], but tried writing outside of it"
            raise SheetsApiError(400, text)
        for value in line:
            _check_value(value)


def _check_value(value: Any) -> None:
    if isinstance(value, list | dict):
        raise SheetsApiError(400, f"Invalid values: {type(value).__name__}_value")
    if isinstance(value, str) and len(value) > CELL_CHARS_MAX:
        text = f"Your input contains more than the maximum of {CELL_CHARS_MAX} characters in a single cell."
        raise SheetsApiError(400, text)
