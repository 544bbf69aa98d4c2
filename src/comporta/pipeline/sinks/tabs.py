"""One sheet of a spreadsheet of Google's, as the service knows it: a title, a grid that ends, values.

It knows rows by their numbers and nothing of keys. Everything here may be done again: values go to fixed
ranges, as they are (``RAW``), the grid only ever grows, and a sheet that was made already is found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from comporta.errors import SinkError, SinkMissingError
from comporta.pipeline.cells import Cell
from comporta.pipeline.sinks.google import GoogleAccount

GROWN_ROWS_MIN: Final = 1_000
"""The grid grows by so many rows at least: each growth is a request."""

LOOKED_AT_ROWS: Final = 1_000
"""How much of a sheet is looked at to see whether there is anything."""

Lines = Mapping[int, Sequence[Cell]]
"""Cells by the number of their row."""


class Tab(NamedTuple):
    """What a sheet is like at the moment: its title may change, its number does not."""

    number: int
    title: str
    rows: int
    columns: int

    def range(self, top: int, bottom: int, columns: int) -> str:
        """Return rows of it in A1 notation."""
        title = self.title.replace("'", "''")
        return f"'{title}'!A{top}:{column_name(columns)}{bottom}"


class Sheet:
    """A sheet by its title, or the one that its spreadsheet was made with."""

    def __init__(self, account: GoogleAccount, spreadsheet_id: str, title: str | None) -> None:
        self._account = account
        self._spreadsheet_id = spreadsheet_id
        self._title = title
        self._tab: Tab | None = None

    def __str__(self) -> str:
        title = self._tab.title if self._tab else self._title
        return f"spreadsheet {self._spreadsheet_id}" + (f", sheet {title!r:.100}" if title else "")

    @property
    def tab(self) -> Tab:
        """How it was when it was last looked at."""
        if self._tab is None:
            raise SinkError(f"{self}: it is not open")
        return self._tab

    def open(self) -> None:
        """Find it, or make it."""
        self._tab = self._found() or self._added()

    def header(self) -> tuple[list[Any], bool]:
        """Return what stands in the first row, and whether there is anything below it."""
        name = self.tab.range(1, min(self.tab.rows, LOOKED_AT_ROWS), self.tab.columns)
        request = self._account.values.get(spreadsheetId=self._spreadsheet_id, range=name)
        values = self._account.ask(request, str(self)).get("values", [])
        return (values[0] if values else []), len(values) > 1

    def put(self, lines: Lines, columns: int) -> None:
        """Write rows; if the sheet is no longer as it was, write once more."""
        try:
            self._put(lines, columns)
        except SinkError as error:
            if type(error) is not SinkError:
                raise
            self._look_again(error)
            self._put(lines, columns)

    def _put(self, lines: Lines, columns: int) -> None:
        tab = self._grown(max(lines), columns)
        data = [
            {"range": tab.range(run[0], run[-1], columns), "values": [lines[number] for number in run]}
            for run in _runs(sorted(lines))
        ]
        request = self._account.values.batchUpdate(
            spreadsheetId=self._spreadsheet_id,
            body={"valueInputOption": "RAW", "data": data},
            fields="spreadsheetId",
        )
        self._account.ask(request, str(self))

    def _grown(self, rows: int, columns: int) -> Tab:
        """See that there is room: by appending, as a size set here could be less than another process's."""
        tab = self.tab
        if tab.rows < rows or tab.columns < columns:
            self._tab = tab = self._found(tab.number) or tab
        growth = []
        if tab.rows < rows:
            growth.append(_append(tab.number, "ROWS", max(rows - tab.rows, GROWN_ROWS_MIN)))
        if tab.columns < columns:
            growth.append(_append(tab.number, "COLUMNS", columns - tab.columns))
        if growth:
            self._change(growth)
            self._tab = tab = self._found(tab.number) or tab
        return tab

    def _look_again(self, error: SinkError) -> None:
        """See whether somebody renamed the sheet, or removed rows of it; otherwise the error stands."""
        found = self._found(self.tab.number)
        if found is None:
            raise SinkMissingError(f"{self}: somebody removed the sheet") from error
        if found == self.tab:
            raise error
        self._tab = found

    def _found(self, number: int | None = None) -> Tab | None:
        request = self._account.sheets.get(
            spreadsheetId=self._spreadsheet_id,
            fields="sheets.properties(sheetId,title,gridProperties(rowCount,columnCount))",
        )
        told = [each["properties"] for each in self._account.ask(request, str(self))["sheets"]]
        tabs = [_tab(each) for each in told if "gridProperties" in each]  # a chart can be a sheet, too
        if number is not None:
            return next((tab for tab in tabs if tab.number == number), None)
        if self._title is not None:
            return next((tab for tab in tabs if tab.title == self._title), None)
        return min(tabs, default=None)

    def _added(self) -> Tab:
        """Make the sheet; if another process made it at the same moment, it is there all the same."""
        if self._title is None:
            raise SinkMissingError(f"{self}: it has no sheet with cells")
        try:
            told = self._change([{"addSheet": {"properties": {"title": self._title}}}])
        except SinkError as error:
            if type(error) is not SinkError or (found := self._found()) is None:
                raise
            return found
        return _tab(told["replies"][0]["addSheet"]["properties"])

    def _change(self, requests: list[dict[str, Any]]) -> Any:
        request = self._account.sheets.batchUpdate(
            spreadsheetId=self._spreadsheet_id, body={"requests": requests}, fields="replies"
        )
        return self._account.ask(request, str(self))


def column_name(number: int) -> str:
    """Return the letters of a column, counted from 1."""
    name = ""
    while number:
        number, letter = divmod(number - 1, 26)
        name = chr(ord("A") + letter) + name
    return name


def _tab(told: Any) -> Tab:
    grid = told["gridProperties"]
    return Tab(told["sheetId"], told["title"], grid["rowCount"], grid["columnCount"])


def _append(number: int, dimension: str, length: int) -> dict[str, Any]:
    return {"appendDimension": {"sheetId": number, "dimension": dimension, "length": length}}


def _runs(numbers: Sequence[int]) -> Iterator[list[int]]:
    """Join numbers that follow each other: each run is one range."""
    run: list[int] = []
    for number in numbers:
        if run and number != run[-1] + 1:
            yield run
            run = []
        run.append(number)
    yield run
