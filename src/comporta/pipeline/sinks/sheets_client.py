"""One sheet of a Google spreadsheet, as the service sees it: a title, a grid of limited size, values.

This module addresses rows by their numbers and knows nothing about keys. Everything here may be repeated:
values go to fixed ranges, unchanged (``RAW``), the grid only grows, and a sheet that exists already is found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from comporta.errors import SinkError, SinkNotFoundError
from comporta.pipeline.sinks.formula_escaping import Cell
from comporta.pipeline.sinks.google_account import GoogleAccount

GROWTH_ROWS_MIN: Final = 1_000
"""The grid grows by at least this many rows, because each growth is a request."""

INSPECTED_ROWS_MAX: Final = 1_000
"""How many rows of a sheet are read to see whether it is empty."""

RowsByNumber = Mapping[int, Sequence[Cell]]
"""The cells of rows, by row number."""


class SheetProperties(NamedTuple):
    """The properties of a sheet; its title may change, but its number does not."""

    number: int
    title: str
    rows: int
    columns: int

    def range(self, top: int, bottom: int, columns: int) -> str:
        """Return a range of rows in A1 notation."""
        title = self.title.replace("'", "''")
        return f"'{title}'!A{top}:{column_name(columns)}{bottom}"


class SheetClient:
    """A sheet by its title, or by default the first sheet of the spreadsheet."""

    def __init__(self, account: GoogleAccount, spreadsheet_id: str, title: str | None) -> None:
        self._account = account
        self._spreadsheet_id = spreadsheet_id
        self._title = title
        self._properties: SheetProperties | None = None

    def __str__(self) -> str:
        title = self._properties.title if self._properties else self._title
        return f"spreadsheet {self._spreadsheet_id}" + (f", sheet {title!r:.100}" if title else "")

    @property
    def properties(self) -> SheetProperties:
        """The properties as last read."""
        if self._properties is None:
            raise SinkError(f"{self}: the sheet is not open")
        return self._properties

    def open(self) -> None:
        """Find the sheet, or create it."""
        self._properties = self._find() or self._add()

    def header(self) -> tuple[list[Any], bool]:
        """Return the cells of the first row, and whether there are rows below it."""
        name = self.properties.range(
            1, min(self.properties.rows, INSPECTED_ROWS_MAX), self.properties.columns
        )
        request = self._account.values.get(spreadsheetId=self._spreadsheet_id, range=name)
        values = self._account.execute(request, str(self)).get("values", [])
        return (values[0] if values else []), len(values) > 1

    def put(self, lines: RowsByNumber, columns: int) -> None:
        """Write rows; if the properties of the sheet changed meanwhile, write once more."""
        try:
            self._put(lines, columns)
        except SinkError as error:
            if type(error) is not SinkError:
                raise
            self._refresh_after(error)
            self._put(lines, columns)

    def _put(self, lines: RowsByNumber, columns: int) -> None:
        properties = self._ensure_size(max(lines), columns)
        data = [
            {"range": properties.range(run[0], run[-1], columns), "values": [lines[number] for number in run]}
            for run in _consecutive_runs(sorted(lines))
        ]
        request = self._account.values.batchUpdate(
            spreadsheetId=self._spreadsheet_id,
            body={"valueInputOption": "RAW", "data": data},
            fields="spreadsheetId",
        )
        self._account.execute(request, str(self))

    def _ensure_size(self, rows: int, columns: int) -> SheetProperties:
        """Make the grid large enough by appending: setting its size could undo another process's growth."""
        properties = self.properties
        if properties.rows < rows or properties.columns < columns:
            self._properties = properties = self._find(properties.number) or properties
        growth = []
        if properties.rows < rows:
            length = max(rows - properties.rows, GROWTH_ROWS_MIN)
            growth.append(_append_dimension(properties.number, "ROWS", length))
        if properties.columns < columns:
            length = columns - properties.columns
            growth.append(_append_dimension(properties.number, "COLUMNS", length))
        if growth:
            self._batch_update(growth)
            self._properties = properties = self._find(properties.number) or properties
        return properties

    def _refresh_after(self, error: SinkError) -> None:
        """Read the properties again after an error; raises it if they are unchanged."""
        properties = self._find(self.properties.number)
        if properties is None:
            raise SinkNotFoundError(f"{self}: the sheet was removed") from error
        if properties == self.properties:
            raise error
        self._properties = properties

    def _find(self, number: int | None = None) -> SheetProperties | None:
        request = self._account.sheets.get(
            spreadsheetId=self._spreadsheet_id,
            fields="sheets.properties(sheetId,title,gridProperties(rowCount,columnCount))",
        )
        reply = [each["properties"] for each in self._account.execute(request, str(self))["sheets"]]
        # a chart sheet has no grid
        sheets = [_parse_properties(each) for each in reply if "gridProperties" in each]
        if number is not None:
            return next((sheet for sheet in sheets if sheet.number == number), None)
        if self._title is not None:
            return next((sheet for sheet in sheets if sheet.title == self._title), None)
        return min(sheets, default=None)

    def _add(self) -> SheetProperties:
        """Create the sheet, or find it if another process created it at the same moment."""
        if self._title is None:
            raise SinkNotFoundError(f"{self}: the spreadsheet has no sheet with cells")
        try:
            reply = self._batch_update([{"addSheet": {"properties": {"title": self._title}}}])
        except SinkError as error:
            if type(error) is not SinkError or (existing := self._find()) is None:
                raise
            return existing
        return _parse_properties(reply["replies"][0]["addSheet"]["properties"])

    def _batch_update(self, requests: list[dict[str, Any]]) -> Any:
        request = self._account.sheets.batchUpdate(
            spreadsheetId=self._spreadsheet_id, body={"requests": requests}, fields="replies"
        )
        return self._account.execute(request, str(self))


def column_name(number: int) -> str:
    """Return the letters of a column; columns count from 1."""
    name = ""
    while number:
        number, letter = divmod(number - 1, 26)
        name = chr(ord("A") + letter) + name
    return name


def _parse_properties(reply: Any) -> SheetProperties:
    grid = reply["gridProperties"]
    return SheetProperties(reply["sheetId"], reply["title"], grid["rowCount"], grid["columnCount"])


def _append_dimension(number: int, dimension: str, length: int) -> dict[str, Any]:
    return {"appendDimension": {"sheetId": number, "dimension": dimension, "length": length}}


def _consecutive_runs(numbers: Sequence[int]) -> Iterator[list[int]]:
    """Yield runs of consecutive numbers: each is one range."""
    run: list[int] = []
    for number in numbers:
        if run and number != run[-1] + 1:
            yield run
            run = []
        run.append(number)
    yield run
