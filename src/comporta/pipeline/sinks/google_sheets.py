"""A sink that writes rows to a sheet of a Google spreadsheet, each row at a fixed place.

It never appends. A database assigns a row number to each key before anything is written (``sheet_rows.py``);
then one request writes the cells of a whole batch to their rows (``sheets_client.py``). So writing a row
twice is the same as writing it once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from comporta.database.base import Database
from comporta.errors import SinkColumnError, SinkError, SinkRowError
from comporta.pipeline.sinks.base import Row
from comporta.pipeline.sinks.formula_escaping import Cell, cell
from comporta.pipeline.sinks.google_account import GoogleAccount
from comporta.pipeline.sinks.sheet_rows import SheetRows
from comporta.pipeline.sinks.sheets_client import SheetClient

ROWS_PER_REQUEST_MAX: Final = 5_000
COLUMNS_MAX: Final = 1_000
CELL_CHARS_MAX: Final = 50_000
KEY_CHARS_MAX: Final = 500


class SheetsSink:
    """Writes rows to a sheet of the spreadsheet ``spreadsheet_id``, one for each value of ``key`` (a column).

    ``sheet`` is the title of the sheet, which is created if it does not exist; by default it is the first
    sheet. ``columns`` is the header; by default it is the existing header, or the columns of the first row.
    ``database``, a URL or a database, stores which row belongs to which key; by default it is the database at
    ``DATABASE_URL``. All processes that write to a spreadsheet need the same database. ``migrate`` says
    whether to create and update its tables; by default only in SQLite files.

    The sink refuses a sheet with rows that were not written through this database.
    """

    def __init__(
        self,
        spreadsheet_id: str,
        account: GoogleAccount | None = None,
        *,
        sheet: str | None = None,
        key: str = "id",
        columns: Sequence[str] | None = None,
        database: str | Database | None = None,
        migrate: bool | None = None,
    ) -> None:
        from comporta.database.urls import open_database  # noqa: PLC0415 - imports pathlib

        if not spreadsheet_id:
            raise ValueError("spreadsheet_id must not be empty")
        self.spreadsheet_id = spreadsheet_id
        self.key = key
        self._owned_resources: list[GoogleAccount | Database] = []
        self._columns = None if columns is None else _validate_columns(columns, key)
        self._sheet = SheetClient(account or self._own(GoogleAccount()), spreadsheet_id, sheet)
        opened = self._own(open_database(database)) if isinstance(database, str | None) else database
        self._sheet_rows = SheetRows(opened)
        self._migrate = migrate
        self._is_header_written = False

    def open(self) -> None:
        """Find the sheet, or create it; raises if it holds rows from elsewhere."""
        try:
            self._sheet_rows.prepare(may_migrate=self._migrate)
            self._sheet.open()
            self._columns = self._agreed_columns()
        except BaseException:
            self.close()  # a sink that is refused is never closed by its caller
            raise

    def write(self, rows: Sequence[Row]) -> None:
        """Write each row at its place; of several rows with one key, the last one counts."""
        if not rows:
            return
        keys = [self._key(row, index) for index, row in enumerate(rows)]
        columns = self._columns or self._columns_of(rows[0])
        cells = self._cells(rows, columns)  # raises before invalid rows get a row number
        properties = self._sheet.properties
        assigned = self._sheet_rows.assign(
            self.spreadsheet_id, str(properties.number), columns, [*dict.fromkeys(keys)]
        )
        if assigned.columns != columns:  # another process was first and has set the columns
            cells = self._cells(rows, assigned.columns)
        self._columns = assigned.columns
        numbered = {assigned.rows[key]: line for key, line in zip(keys, cells, strict=True)}
        for chunk in _chunks(sorted(numbered)):
            self._put({number: numbered[number] for number in chunk}, assigned.columns)

    def close(self) -> None:
        """Close the account and the database, if the sink opened them."""
        for own in self._owned_resources:
            own.close()

    def forget(self) -> None:
        """Delete the assigned rows of a spreadsheet that is no longer written to."""
        self._sheet_rows.delete(self.spreadsheet_id)

    def _own(self, resource: Any) -> Any:
        self._owned_resources.append(resource)
        return resource

    def _agreed_columns(self) -> tuple[str, ...] | None:
        """Return the columns of the sheet, or else those of this sink; raises if the sheet lacks one."""
        existing = self._recorded_columns() or self._existing_columns()
        if existing and self._columns and not set(existing).issuperset(self._columns):
            missing = ", ".join(name for name in self._columns if name not in existing)
            raise SinkError(
                f"{self._sheet}: expected the columns {missing:.200}, got {', '.join(existing):.500}"
            )
        return existing or self._columns

    def _recorded_columns(self) -> tuple[str, ...] | None:
        return self._sheet_rows.columns(self.spreadsheet_id, str(self._sheet.properties.number))

    def _existing_columns(self) -> tuple[str, ...] | None:
        """Return the header of a sheet that was not written through this database; ``None`` without one."""
        header, has_rows = self._sheet.header()
        # Other processes enter the database before they write; this order does not overlook them.
        recorded = self._recorded_columns()
        if has_rows and recorded is None:
            raise SinkError(
                f"{self._sheet}: the sheet holds rows that were not written through this database"
            )
        try:
            return recorded or (_validate_columns(header, self.key) if header else None)
        except ValueError as error:
            raise SinkError(f"{self._sheet}: the header cannot be used: {error}") from None

    def _columns_of(self, first: Row) -> tuple[str, ...]:
        try:
            return _validate_columns(list(first), self.key)
        except ValueError as error:
            raise SinkColumnError(f"{self._sheet}: {error}", 0) from None

    def _key(self, row: Row, index: int) -> str:
        value = row.get(self.key)
        text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        if not isinstance(text, str) or not 1 <= len(text) <= KEY_CHARS_MAX or not _is_storable(text):
            allowed = f"an integer or a string of 1 to {KEY_CHARS_MAX} characters"
            raise SinkRowError(f"{self._sheet}: {self.key} must be {allowed}, got {value!r:.100}", index)
        return text

    def _cells(self, rows: Sequence[Row], columns: Sequence[str]) -> list[list[Cell]]:
        """Return the cells of rows; a missing value becomes an empty cell."""
        names = set(columns)
        lines = []
        for index, row in enumerate(rows):
            if not names.issuperset(row):
                unknown = ", ".join(str(name) for name in row if name not in names)
                text = f"unknown columns {unknown:.200}; expected {', '.join(columns):.500}"
                raise SinkColumnError(f"{self._sheet}: {text}", index)
            lines.append([self._cell(row.get(name), name, index) for name in columns])
        return lines

    def _cell(self, value: Any, name: str, index: int) -> Cell:
        content = cell(value)
        if isinstance(content, str) and len(content) > CELL_CHARS_MAX:
            text = f"{name} must have at most {CELL_CHARS_MAX} characters, got {len(content)}"
            raise SinkRowError(f"{self._sheet}: {text}", index)
        return content

    def _put(self, lines: dict[int, list[Cell]], columns: Sequence[str]) -> None:
        header: dict[int, list[Cell]] = {} if self._is_header_written else {1: list(columns)}
        self._sheet.put(header | lines, len(columns))
        self._is_header_written = True


def _validate_columns(columns: Sequence[Any], key: str) -> tuple[str, ...]:
    names = tuple(columns)
    if not 1 <= len(names) <= COLUMNS_MAX:
        raise ValueError(f"columns must be 1 to {COLUMNS_MAX} names, got {len(names)}")
    if not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        raise ValueError(f"columns must be different strings, got {', '.join(map(repr, names)):.500}")
    if key not in names:
        raise ValueError(f"columns must contain the key {key!r:.100}, got {', '.join(names):.500}")
    return names


def _is_storable(text: str) -> bool:
    """Return whether every database can store a text: it has no NUL and no unpaired surrogate."""
    return "\0" not in text and text.encode("utf-8", "replace").decode() == text


def _chunks(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(numbers), ROWS_PER_REQUEST_MAX):
        yield numbers[start : start + ROWS_PER_REQUEST_MAX]
