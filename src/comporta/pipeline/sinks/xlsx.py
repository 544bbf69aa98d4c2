"""A sink that makes an XLSX workbook when it is closed, because a workbook can only be written as a whole.

Until then the rows are in a SQLite file beside it, where a confirmed batch survives the end of the process.
The sink makes the workbook from that file in constant memory and replaces the old workbook in one step. The
SQLite file stays: a run that resumes needs the rows that came before.

Text is written as text and never read as a formula or a link (``formula_escaping.py``).
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from comporta.database.sqlite import SqliteDatabase
from comporta.errors import (
    DatabaseError,
    DatabaseFullError,
    SinkFullError,
    SinkRowError,
    SinkUnavailableError,
)
from comporta.pipeline.sinks.base import Row
from comporta.pipeline.sinks.columns import SinkColumns, batch_columns, validate_columns
from comporta.pipeline.sinks.formula_escaping import Cell, cell
from comporta.pipeline.sinks.sink_file import DISK_FULL_ERRNOS

ROWS_MAX: Final = 1_048_575
"""How many rows a sheet can have below its header."""

CELL_CHARS_MAX: Final = 32_767
TIMEOUT_SECONDS: Final = 30.0
ROWS_SUFFIX: Final = ".rows"
"""The suffix of the SQLite file beside the workbook."""

_SHEET_NAME = re.compile(r"(?!'|.*'\Z)[^\[\]:*?/\\]{1,31}", re.DOTALL)

_TABLES = (
    "CREATE TABLE IF NOT EXISTS columns (place INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
    "CREATE TABLE IF NOT EXISTS cells (number INTEGER PRIMARY KEY, key TEXT UNIQUE, row TEXT NOT NULL)",
)
_UPSERT = "INSERT INTO cells (key, row) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET row = excluded.row"
_OPTIONS = {
    "constant_memory": True,
    "strings_to_formulas": False,
    "strings_to_numbers": False,
    "strings_to_urls": False,
}


class XlsxSink:
    """Makes the workbook ``path`` when it is closed: one ``sheet`` with a header and all rows.

    The columns are ``columns``, or those of the first batch. With a ``key`` (a column), a row replaces one
    with the same key. Until ``close`` the rows are in ``rows_path``, a SQLite file; with ``durable``, a batch
    there survives a power failure. Needs ``pip install 'comporta[xlsx]'``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        columns: Sequence[str] | None = None,
        key: str | None = None,
        *,
        sheet: str = "results",
        durable: bool = False,
    ) -> None:
        self.path = Path(path)
        self.key = key
        self.columns = None if columns is None else validate_columns("columns", columns)
        if key is not None and self.columns is not None and key not in self.columns:
            raise ValueError(f"key must be among the columns {self.columns}, got {key!r:.50}")
        if str(sheet) != sheet or not _SHEET_NAME.fullmatch(sheet) or sheet.lower() == "history":
            raise ValueError(
                "sheet must have 1 to 31 characters, none of []:*?/\\, no apostrophe at either end, and not "
                f"be 'History', which Excel reserves, got {sheet!r:.50}"
            )
        self.sheet = sheet
        self.rows_path = self.path.with_name(self.path.name + ROWS_SUFFIX)
        self._database = SqliteDatabase(self.rows_path, TIMEOUT_SECONDS, durable=durable)
        self._header: tuple[str, ...] | None = None
        self._changed = False

    def open(self) -> None:
        """Open the rows of an earlier run, or start new ones; refuses a workbook whose rows are gone."""
        _xlsxwriter()
        if self.path.exists() and not self.rows_path.exists():
            raise SinkUnavailableError(
                f"{self._name}: the workbook exists, but {self.rows_path.name} with its rows does not; "
                "choose another path, or move the workbook away"
            )
        try:
            with self._transaction() as connection:
                self._header = self._load_header(connection)
        except BaseException:
            self._database.close()  # a sink that is refused is never closed by its caller
            raise
        self._changed = not self.path.exists()

    def _load_header(self, connection: sqlite3.Connection) -> tuple[str, ...] | None:
        """Return the columns of an earlier run, or save those of this one."""
        for table in _TABLES:
            connection.execute(table)
        existing = tuple(name for (name,) in connection.execute("SELECT name FROM columns ORDER BY place"))
        if existing and self.columns not in (None, existing):
            expected = ", ".join(self.columns or ())
            raise SinkUnavailableError(
                f"{self._name}: expected the columns {expected}, got {', '.join(existing)} of an earlier run"
            )
        if not existing and self.columns is not None:
            _save_columns(connection, self.columns)
        return existing or self.columns

    def write(self, rows: Sequence[Row]) -> None:
        """Write a batch to the SQLite file, in one transaction."""
        with self._transaction() as connection:
            header = self._header or batch_columns(rows)
            if self._header is None:
                _save_columns(connection, header)
            values = SinkColumns(self._name, header).values(rows)
            connection.executemany(_UPSERT, [self._encode_row(*each, header) for each in enumerate(values)])
            (last,) = connection.execute("SELECT max(number) FROM cells").fetchone()
            if last > ROWS_MAX:
                raise SinkFullError(f"{self._name}: a sheet can have {ROWS_MAX} rows, got {last}")
        self._header = header
        self._changed = True

    def close(self) -> None:
        """Make the workbook if there are new rows; after a failure it may be called again."""
        if self._changed:
            self._export()
            self._changed = False
        self._database.close()

    def _encode_row(
        self, index: int, values: Sequence[Any], header: tuple[str, ...]
    ) -> tuple[str | None, str]:
        record = [cell(value) for value in values]
        longest = max(len(each) if type(each) is str else 0 for each in record)
        if longest > CELL_CHARS_MAX:
            text = f"a cell must have at most {CELL_CHARS_MAX} characters, got {longest}"
            raise SinkRowError(f"{self._name}: row {index} of the batch: {text}", index)
        if self.key is None:
            return None, json.dumps(record)
        index_of_key = header.index(self.key) if self.key in header else None
        if index_of_key is None or values[index_of_key] is None:
            raise SinkRowError(
                f"{self._name}: row {index} of the batch has no value for the key {self.key!r}", index
            )
        return json.dumps(record[index_of_key]), json.dumps(record)

    def _export(self) -> None:
        """Write a workbook in a temporary folder and replace the old one."""
        try:
            with TemporaryDirectory(dir=self.path.parent, prefix=f".{self.path.name}.") as folder:
                part = Path(folder, "part.xlsx")
                self._fill(_xlsxwriter().Workbook(part, {**_OPTIONS, "tmpdir": folder}))
                part.replace(self.path)
        except OSError as error:
            raise self._sink_error(error) from error

    def _fill(self, workbook: Any) -> None:
        header = self._header or ()
        workbook.use_zip64()  # without it a file ends at 4 GB
        sheet = workbook.add_worksheet(self.sheet)
        try:
            _write_cells(sheet, 0, header)
            with self._transaction() as connection:
                rows = connection.execute("SELECT row FROM cells ORDER BY number")
                for number, (text,) in enumerate(rows, start=1):
                    _write_cells(sheet, number, json.loads(text))
            workbook.close()
        except _xlsxwriter().exceptions.FileCreateError as error:
            raise error.args[0] from None  # the OSError that the library wraps
        finally:
            workbook.fileclosed = True  # else its finalizer tries to close it again

    def _sink_error(self, error: OSError) -> SinkFullError | SinkUnavailableError:
        kind = SinkFullError if error.errno in DISK_FULL_ERRNOS else SinkUnavailableError
        return kind(f"{self._name}: {error.strerror}; the rows are in {self.rows_path.name}")

    @property
    def _name(self) -> str:
        return f"XlsxSink {self.path}"

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            with self._database.write_transaction(TIMEOUT_SECONDS) as connection:
                yield connection
        except DatabaseError as error:
            kind = SinkFullError if isinstance(error, DatabaseFullError) else SinkUnavailableError
            raise kind(f"{self._name}: {self.rows_path.name}: {error.__cause__ or error}") from error


def _save_columns(connection: sqlite3.Connection, columns: Sequence[str]) -> None:
    connection.executemany("INSERT INTO columns (name) VALUES (?)", [(column,) for column in columns])


def _write_cells(sheet: Any, number: int, record: Sequence[Cell]) -> None:
    for column, each in enumerate(record):
        if isinstance(each, str):
            if each:  # an empty text needs no cell
                sheet.write_string(number, column, each)
        elif isinstance(each, bool):
            sheet.write_boolean(number, column, each)
        else:
            sheet.write_number(number, column, each)


def _xlsxwriter() -> Any:
    try:
        import xlsxwriter  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ImportError("XlsxSink needs xlsxwriter: pip install 'comporta[xlsx]'") from error
    return xlsxwriter
