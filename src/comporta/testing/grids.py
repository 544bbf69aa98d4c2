"""Spreadsheets as Google's service keeps them, in memory: tabs with a grid that ends, and cells.

No HTTP here. What the service would refuse is :class:`RefusedRequest`, with its status and in its words; a
request that is refused has changed nothing.
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


class RefusedRequest(Exception):  # noqa: N818 - it is the service's answer, not a fault of ours
    """A request that the service answers with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Area(NamedTuple):
    """A range of cells, counted from 1, both ends included."""

    top: int
    left: int
    bottom: int
    right: int


@dataclass
class Tab:
    """One sheet of a spreadsheet."""

    number: int
    title: str
    rows: int = 1000
    columns: int = 26
    cells: dict[tuple[int, int], Any] = field(default_factory=dict)
    formulas: dict[tuple[int, int], str] = field(default_factory=dict)

    def read(self, area: Area) -> list[list[Any]]:
        """Return values, without the empty ones at the ends of rows and of the whole."""
        held = [place for place in self.cells if _inside(place, area)]
        values: list[list[Any]] = [[] for _ in range(max((row for row, _ in held), default=0) + 1 - area.top)]
        for row, column in sorted(held):
            line = values[row - area.top]
            line.extend([""] * (column - area.left - len(line)))
            line.append(self.cells[row, column])
        return values

    def check(self, area: Area, name: str) -> None:
        """Refuse what lies outside of the grid."""
        if area.bottom > self.rows or area.right > self.columns:
            limits = f"Max rows: {self.rows}, max columns: {self.columns}"
            raise RefusedRequest(400, f"Range ({name}) exceeds grid limits. {limits}")

    def put(self, row: int, column: int, value: Any, *, entered: bool) -> None:
        """Set one cell; ``None`` leaves it as it is, and what is ``entered`` may be a formula."""
        if value is None:
            return
        place = row, column
        self.cells.pop(place, None)
        self.formulas.pop(place, None)
        if entered and isinstance(value, str) and value[:1] in "=+" and len(value) > 1:
            self.formulas[place] = value
        if value != "":
            self.cells[place] = value

    def properties(self) -> dict[str, Any]:
        """Return what the service tells about a tab."""
        grid = {"rowCount": self.rows, "columnCount": self.columns}
        return {"sheetId": self.number, "title": self.title, "index": 0, "gridProperties": grid}


class Grid:
    """One spreadsheet."""

    def __init__(self, rows: int = 1000, columns: int = 26) -> None:
        self.tabs = [Tab(0, "Sheet1", rows, columns)]
        self._numbers = count(1001)

    def tab(self, title: str | None) -> Tab:
        """Return a tab by its title; none is meant: the first."""
        found = next((tab for tab in self.tabs if title in (None, tab.title)), None)
        if found is None:
            raise RefusedRequest(400, f"Unable to parse range: {title}")
        return found

    def read(self, name: str) -> list[list[Any]]:
        """Return the values of a range."""
        tab, area = self._found(name)
        tab.check(area, name)
        return tab.read(area)

    def write(self, data: list[dict[str, Any]], *, entered: bool) -> int:
        """Write all ranges or none; returns how many cells were given."""
        found = [(*self._found(each["range"]), each) for each in data]
        for tab, area, each in found:
            tab.check(area, each["range"])
            _check_values(area, each)
        for tab, area, each in found:
            for row, line in enumerate(each["values"], area.top):
                for column, value in enumerate(line, area.left):
                    tab.put(row, column, value, entered=entered)
        return sum(len(line) for each in data for line in each["values"])

    def change(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Do what ``batchUpdate`` asks, as far as it is known here."""
        return [self._changed(kind, told) for request in requests for kind, told in request.items()]

    def _changed(self, kind: str, told: dict[str, Any]) -> dict[str, Any]:
        if kind == "addSheet":
            return {kind: {"properties": self._added(told["properties"]["title"]).properties()}}
        if kind == "appendDimension":
            self._appended(told)
            return {}
        raise RefusedRequest(400, f"Invalid requests[0]: {kind} is not known here")

    def _added(self, title: str) -> Tab:
        if any(tab.title == title for tab in self.tabs):
            raise RefusedRequest(
                400,
                f'Invalid requests[0].addSheet: A sheet with the name "{title}" already exists.'
                " Please enter another name.",
            )
        self.tabs.append(Tab(next(self._numbers), title))
        return self.tabs[-1]

    def _appended(self, told: dict[str, Any]) -> None:
        tab = next((tab for tab in self.tabs if tab.number == told["sheetId"]), None)
        if tab is None:
            text = f"Invalid requests[0].appendDimension: No sheet with id: {told['sheetId']}"
            raise RefusedRequest(400, text)
        more = {"ROWS": (told["length"], 0), "COLUMNS": (0, told["length"])}[told["dimension"]]
        rows, columns = tab.rows + more[0], tab.columns + more[1]
        if (
            sum(each.rows * each.columns for each in self.tabs if each is not tab) + rows * columns
            > CELLS_MAX
        ):
            text = f"This action would increase the number of cells above the limit of {CELLS_MAX} cells."
            raise RefusedRequest(400, f"Invalid requests[0].appendDimension: {text}")
        tab.rows, tab.columns = rows, columns

    def _found(self, name: str) -> tuple[Tab, Area]:
        parsed = _RANGE.fullmatch(name)
        if parsed is None:
            raise RefusedRequest(400, f"Unable to parse range: {name}")
        title = parsed["title"]
        if title is not None and title.startswith("'"):
            title = title[1:-1].replace("''", "'")
        (top, left), (bottom, right) = (_corner(text) for text in _ends(parsed["cells"]))
        return self.tab(title), Area(top, left, bottom, right)


def _ends(cells: str) -> tuple[str, str]:
    first, _, last = cells.partition(":")
    return first, last or first


def _corner(text: str) -> tuple[int, int]:
    parsed = _CORNER.fullmatch(text)
    assert parsed is not None  # noqa: S101 - the expression for ranges is made of this one
    column = 0
    for letter in parsed[1]:
        column = column * 26 + ord(letter) - ord("A") + 1
    return int(parsed[2]), column


def _inside(place: tuple[int, int], area: Area) -> bool:
    return area.top <= place[0] <= area.bottom and area.left <= place[1] <= area.right


def _check_values(area: Area, told: dict[str, Any]) -> None:
    for number, line in enumerate(told["values"]):
        if area.top + number > area.bottom or area.left + len(line) - 1 > area.right:
            text = f"Requested writing within range [{told['range']}], but tried writing outside of it"
            raise RefusedRequest(400, text)
        for value in line:
            _check_value(value)


def _check_value(value: Any) -> None:
    if isinstance(value, list | dict):
        raise RefusedRequest(400, f"Invalid values: {type(value).__name__}_value")
    if isinstance(value, str) and len(value) > CELL_CHARS_MAX:
        text = f"Your input contains more than the maximum of {CELL_CHARS_MAX} characters in a single cell."
        raise RefusedRequest(400, text)
