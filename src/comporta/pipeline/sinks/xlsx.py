"""Rows in a workbook, which can only be written as a whole: at the end.

Until then they are in a file beside it, a table of SQLite's, where a batch that was confirmed survives
whatever happens to the process; the workbook is made from that in constant memory and takes its place in one
step. The file beside it stays: a run that goes on after all needs the rows that came before.

Text is written as text and never read as a formula or a link (``cells.py`` tells it from numbers).
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
from comporta.pipeline.cells import Cell, cell
from comporta.pipeline.sinks.base import Row
from comporta.pipeline.sinks.columns import Columns, all_columns, checked_columns
from comporta.pipeline.sinks.files import FULL

ROWS_MAX: Final = 1_048_575
"""How many rows a sheet has below its header."""

CELL_CHARS_MAX: Final = 32_767
TIMEOUT_SECONDS: Final = 30.0
BESIDE: Final = ".rows"
"""What the file beside the workbook has after its name."""

_SHEET = re.compile(r"(?!'|.*'\Z)[^\[\]:*?/\\]{1,31}", re.DOTALL)

_TABLES = (
    "CREATE TABLE IF NOT EXISTS columns (place INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
    "CREATE TABLE IF NOT EXISTS cells (number INTEGER PRIMARY KEY, key TEXT UNIQUE, row TEXT NOT NULL)",
)
_PUT = "INSERT INTO cells (key, row) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET row = excluded.row"
_OPTIONS = {
    "constant_memory": True,
    "strings_to_formulas": False,
    "strings_to_numbers": False,
    "strings_to_urls": False,
}


class XlsxSink:
    """Makes the workbook ``path`` when it is closed, one sheet with a header and all rows.

    The columns are ``columns``, or those of the first batch. With a ``key`` (a column) a row whose key was
    there already takes its place. Needs ``pip install 'comporta[xlsx]'``.
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
        self.columns = None if columns is None else checked_columns("columns", columns)
        if key is not None and self.columns is not None and key not in self.columns:
            raise ValueError(f"key must be among the columns {self.columns}, got {key!r:.50}")
        if str(sheet) != sheet or not _SHEET.fullmatch(sheet) or sheet.lower() == "history":
            raise ValueError(
                "sheet must be 1 to 31 characters, none of []:*?/\\, no apostrophe at either end, and not "
                f"'History', which Excel keeps for itself, got {sheet!r:.50}"
            )
        self.sheet = sheet
        self.rows_path = self.path.with_name(self.path.name + BESIDE)
        self._database = SqliteDatabase(self.rows_path, TIMEOUT_SECONDS, durable=durable)
        self._header: tuple[str, ...] | None = None
        self._changed = False

    def open(self) -> None:
        """Find the rows of an earlier run, or begin; a workbook whose rows are gone is left alone."""
        _writer()
        if self.path.exists() and not self.rows_path.exists():
            raise SinkUnavailableError(
                f"{self._name}: there is a workbook already, and {self.rows_path.name}, the rows it was made "
                "of, is gone: choose another path, or move it away"
            )
        with self._writing() as connection:
            for table in _TABLES:
                connection.execute(table)
            there = tuple(name for (name,) in connection.execute("SELECT name FROM columns ORDER BY place"))
            if there and self.columns not in (None, there):
                wanted = ", ".join(self.columns or ())
                raise SinkUnavailableError(
                    f"{self._name}: its columns are {', '.join(there)}, and not {wanted}"
                )
            if not there and self.columns is not None:
                _keep_columns(connection, self.columns)
        self._header = there or self.columns
        self._changed = not self.path.exists()

    def write(self, rows: Sequence[Row]) -> None:
        """Keep a batch in the file beside the workbook, in one transaction."""
        with self._writing() as connection:
            header = self._header or all_columns(rows)
            if self._header is None:
                _keep_columns(connection, header)
            values = Columns(self._name, header).values(rows)
            connection.executemany(_PUT, [self._record(*each, header) for each in enumerate(values)])
            (last,) = connection.execute("SELECT max(number) FROM cells").fetchone()
            if last > ROWS_MAX:
                raise SinkFullError(f"{self._name}: a sheet has {ROWS_MAX} rows, these would be {last}")
        self._header = header
        self._changed = True

    def close(self) -> None:
        """Make the workbook, if there is anything new; what fails can be tried again."""
        if self._changed:
            self._export()
            self._changed = False
        self._database.close()

    def _record(self, index: int, values: Sequence[Any], header: tuple[str, ...]) -> tuple[str | None, str]:
        record = [cell(value) for value in values]
        longest = max(len(each) if type(each) is str else 0 for each in record)
        if longest > CELL_CHARS_MAX:
            text = f"a cell has {longest} characters, {CELL_CHARS_MAX} are the most"
            raise SinkRowError(f"{self._name}: row {index} of the batch: {text}", index)
        if self.key is None:
            return None, json.dumps(record)
        place = header.index(self.key) if self.key in header else None
        if place is None or values[place] is None:
            raise SinkRowError(f"{self._name}: row {index} of the batch has no {self.key!r}", index)
        return json.dumps(record[place]), json.dumps(record)

    def _export(self) -> None:
        """Write a workbook in a folder of its own, and have it take the place of the old one."""
        try:
            with TemporaryDirectory(dir=self.path.parent, prefix=f".{self.path.name}.") as folder:
                part = Path(folder, "part.xlsx")
                self._fill(_writer().Workbook(part, {**_OPTIONS, "tmpdir": folder}))
                part.replace(self.path)
        except OSError as error:
            raise self._named(error) from error

    def _fill(self, workbook: Any) -> None:
        header = self._header or ()
        workbook.use_zip64()  # or there is an end at 4 GB
        sheet = workbook.add_worksheet(self.sheet)
        try:
            _write(sheet, 0, header)
            with self._writing() as connection:
                found = connection.execute("SELECT row FROM cells ORDER BY number")
                for number, (text,) in enumerate(found, start=1):
                    _write(sheet, number, json.loads(text))
            workbook.close()
        except _writer().exceptions.FileCreateError as error:
            raise error.args[0] from None  # an OSError, in the library's wrapping
        finally:
            workbook.fileclosed = True  # or it would try once more when it is forgotten, and complain

    def _named(self, error: OSError) -> SinkFullError | SinkUnavailableError:
        kind = SinkFullError if error.errno in FULL else SinkUnavailableError
        return kind(f"{self._name}: {error.strerror}; its rows are in {self.rows_path.name}")

    @property
    def _name(self) -> str:
        return f"XlsxSink {self.path}"

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        try:
            with self._database.writing(TIMEOUT_SECONDS) as connection:
                yield connection
        except DatabaseError as error:
            kind = SinkFullError if isinstance(error, DatabaseFullError) else SinkUnavailableError
            raise kind(f"{self._name}: {self.rows_path.name}: {error.__cause__ or error}") from error


def _keep_columns(connection: sqlite3.Connection, columns: Sequence[str]) -> None:
    connection.executemany("INSERT INTO columns (name) VALUES (?)", [(column,) for column in columns])


def _write(sheet: Any, number: int, record: Sequence[Cell]) -> None:
    for place, each in enumerate(record):
        if isinstance(each, str):
            if each:  # an empty text is no cell
                sheet.write_string(number, place, each)
        elif isinstance(each, bool):
            sheet.write_boolean(number, place, each)
        else:
            sheet.write_number(number, place, each)


def _writer() -> Any:
    try:
        import xlsxwriter  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ImportError("a workbook needs xlsxwriter: pip install 'comporta[xlsx]'") from error
    return xlsxwriter
