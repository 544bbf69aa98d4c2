"""A sheet of Google's as a sink: each row has an address of its own, so writing it twice is writing it once.

Rows are never appended. The row of a key is kept in a database and given out before anything is written
(``addresses.py``); then the cells go to that row (``tabs.py``), all of a batch in one request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from comporta.database.base import Database
from comporta.errors import SinkColumnError, SinkError, SinkRowError
from comporta.pipeline.cells import Cell, cell
from comporta.pipeline.sinks.addresses import Addresses
from comporta.pipeline.sinks.base import Row
from comporta.pipeline.sinks.google import GoogleAccount
from comporta.pipeline.sinks.tabs import Sheet

ROWS_PER_REQUEST_MAX: Final = 5_000
COLUMNS_MAX: Final = 1_000
CELL_CHARS_MAX: Final = 50_000
KEY_CHARS_MAX: Final = 500


class SheetsSink:
    """Keeps rows in a sheet of a spreadsheet, each once, by its ``key`` (a column).

    ``sheet`` is its title (made if it is not there), left out: the one the spreadsheet was made with.
    ``columns`` are its header; left out, that which is there already, or the columns of the first row.
    ``database`` keeps which row belongs to which key: a URL, a database, or what ``DATABASE_URL`` says;
    all processes that write to a spreadsheet need the same. ``migrate``: bring its tables up to date (left
    out: a file, not a server).

    What is in the sheet and was not written through this database is left alone: to open it is refused.
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
        from comporta.database.urls import open_database  # noqa: PLC0415 - brings in paths

        if not spreadsheet_id:
            raise ValueError("spreadsheet_id must not be empty")
        self.spreadsheet_id = spreadsheet_id
        self.key = key
        self._own: list[GoogleAccount | Database] = []
        self._columns = None if columns is None else _checked(columns, key)
        self._sheet = Sheet(account or self._owned(GoogleAccount()), spreadsheet_id, sheet)
        opened = self._owned(open_database(database)) if isinstance(database, str | None) else database
        self._addresses = Addresses(opened)
        self._migrate = migrate
        self._headed = False

    def open(self) -> None:
        """Find the sheet, or make it; refuse one that holds somebody else's rows."""
        self._addresses.prepare(may_migrate=self._migrate)
        self._sheet.open()
        known = self._known() or self._taken_over()
        if known and self._columns and not set(known).issuperset(self._columns):
            missing = ", ".join(name for name in self._columns if name not in known)
            raise SinkError(f"{self._sheet}: no column {missing:.200}; the header is {', '.join(known):.500}")
        self._columns = known or self._columns

    def write(self, rows: Sequence[Row]) -> None:
        """Put each row at its address; of several with one key the last one counts."""
        if not rows:
            return
        keys = [self._key(row, index) for index, row in enumerate(rows)]
        columns = self._columns or self._columns_of(rows[0])
        lines = self._lines(rows, columns)  # what cannot be kept is given no address
        tab = self._sheet.tab
        assigned = self._addresses.assign(
            self.spreadsheet_id, str(tab.number), columns, [*dict.fromkeys(keys)]
        )
        if assigned.columns != columns:  # another process came first, and decided
            lines = self._lines(rows, assigned.columns)
        self._columns = assigned.columns
        numbered = {assigned.rows[key]: line for key, line in zip(keys, lines, strict=True)}
        for part in _parts(sorted(numbered)):
            self._put({number: numbered[number] for number in part}, assigned.columns)

    def close(self) -> None:
        """Give back the connections that are the sink's own."""
        for own in self._own:
            own.close()

    def forget(self) -> None:
        """Remove the addresses of a spreadsheet that is written to no longer."""
        self._addresses.forget(self.spreadsheet_id)

    def _owned(self, thing: Any) -> Any:
        self._own.append(thing)
        return thing

    def _known(self) -> tuple[str, ...] | None:
        return self._addresses.columns(self.spreadsheet_id, str(self._sheet.tab.number))

    def _taken_over(self) -> tuple[str, ...] | None:
        """Return the columns of a sheet that nobody wrote to from here; ``None``: it is empty."""
        header, others = self._sheet.header()
        # Another process is in the database before it writes: asked in this order, it is not overlooked.
        known = self._known()
        if others and known is None:
            raise SinkError(f"{self._sheet}: it holds rows that were not written through this database")
        try:
            return known or (_checked(header, self.key) if header else None)
        except ValueError as error:
            raise SinkError(f"{self._sheet}: its header cannot be used: {error}") from None

    def _columns_of(self, first: Row) -> tuple[str, ...]:
        try:
            return _checked(list(first), self.key)
        except ValueError as error:
            raise SinkColumnError(f"{self._sheet}: {error}", 0) from None

    def _key(self, row: Row, index: int) -> str:
        value = row.get(self.key)
        text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        if not isinstance(text, str) or not 1 <= len(text) <= KEY_CHARS_MAX or not _storable(text):
            allowed = f"a whole number or a text of 1 to {KEY_CHARS_MAX} characters"
            raise SinkRowError(f"{self._sheet}: {self.key} must be {allowed}, got {value!r:.100}", index)
        return text

    def _lines(self, rows: Sequence[Row], columns: Sequence[str]) -> list[list[Cell]]:
        """Return the cells of rows; what is not in a row is empty, whatever was there before."""
        known = set(columns)
        lines = []
        for index, row in enumerate(rows):
            if not known.issuperset(row):
                unknown = ", ".join(str(name) for name in row if name not in known)
                text = f"no column {unknown:.200}; the header is {', '.join(columns):.500}"
                raise SinkColumnError(f"{self._sheet}: {text}", index)
            lines.append([self._cell(row.get(name), name, index) for name in columns])
        return lines

    def _cell(self, value: Any, name: str, index: int) -> Cell:
        kept = cell(value)
        if isinstance(kept, str) and len(kept) > CELL_CHARS_MAX:
            text = f"{name} must be at most {CELL_CHARS_MAX} characters, got {len(kept)}"
            raise SinkRowError(f"{self._sheet}: {text}", index)
        return kept

    def _put(self, lines: dict[int, list[Cell]], columns: Sequence[str]) -> None:
        header: dict[int, list[Cell]] = {} if self._headed else {1: list(columns)}
        self._sheet.put(header | lines, len(columns))
        self._headed = True


def _checked(columns: Sequence[Any], key: str) -> tuple[str, ...]:
    names = tuple(columns)
    if not 1 <= len(names) <= COLUMNS_MAX:
        raise ValueError(f"columns must be 1 to {COLUMNS_MAX}, got {len(names)}")
    if not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        raise ValueError(f"columns must be texts, each once, got {', '.join(map(repr, names)):.500}")
    if key not in names:
        raise ValueError(f"columns must hold the key {key!r:.100}, got {', '.join(names):.500}")
    return names


def _storable(text: str) -> bool:
    """Whether every database keeps it: no NUL, no half of a surrogate pair."""
    return "\0" not in text and text.encode("utf-8", "replace").decode() == text


def _parts(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(numbers), ROWS_PER_REQUEST_MAX):
        yield numbers[start : start + ROWS_PER_REQUEST_MAX]
