"""A sink that creates an XLSX workbook when it is closed, because a workbook can only be written as a whole.

Until then the rows are in a SQLite file beside it, where a confirmed batch survives the end of the process.
The sink creates the workbook from that file in constant memory and replaces the old workbook in one step. The
SQLite file stays: a run that resumes needs the rows that came before.

Text is written as text and never read as a formula or a link (``formula_escaping.py``).
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from comporta.database.sqlite import SqliteDatabase
from comporta.errors import (
    SinkFullError,
    SinkRowError,
    SinkUnavailableError,
)
from comporta.pipeline.sinks.base import ResumePoint, Row
from comporta.pipeline.sinks.columns import SinkColumns, batch_columns, validate_columns
from comporta.pipeline.sinks.formula_escaping import Cell, cell
from comporta.pipeline.sinks.sink_file import DISK_FULL_ERRNOS
from comporta.pipeline.sinks.sql_table import sink_errors

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
    "CREATE TABLE IF NOT EXISTS runs (run TEXT PRIMARY KEY, last_number INTEGER NOT NULL)",
)
_LAST_NUMBER = "SELECT coalesce(max(number), 0) FROM cells"
_SAVE_RUN = (
    "INSERT INTO runs VALUES (?, ?) ON CONFLICT (run) DO UPDATE SET last_number = excluded.last_number"
)
_UPSERT = "INSERT INTO cells (key, row) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET row = excluded.row"
_OPTIONS = {
    "constant_memory": True,
    "strings_to_formulas": False,
    "strings_to_numbers": False,
    "strings_to_urls": False,
}


class XlsxSink:
    """Creates the workbook ``path`` when it is closed: one ``sheet`` with a header and all rows.

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
        self._run: str | None = None
        self._last_number = 0
        self._changed = False

    def open(self) -> None:
        """Open the rows of an earlier run, or start new ones; refuses a workbook whose rows are gone."""
        self._open(None)

    def open_run(self, point: ResumePoint) -> None:
        """Open the rows and remove those that the run wrote after its last checkpoint."""
        self._open(point)

    @property
    def end(self) -> int:
        """The number of the last row."""
        return self._last_number

    def _open(self, point: ResumePoint | None) -> None:
        _xlsxwriter()
        if self.path.exists() and not self.rows_path.exists():
            raise SinkUnavailableError(
                f"{self._name}: the workbook exists, but {self.rows_path.name} with its rows does not; "
                "choose another path, or move the workbook away"
            )
        try:
            with self._transaction() as connection:
                for table in _TABLES:
                    connection.execute(table)
                (self._last_number,) = connection.execute(_LAST_NUMBER).fetchone()
                is_cut = point is not None and self._remove_rows_beyond(connection, point)
                self._header = self._load_header(connection)
        except BaseException:
            self._database.close()  # a sink that is refused is never closed by its caller
            raise
        self._run = None if point is None else point.run
        self._changed = is_cut or not self.path.exists()

    def _remove_rows_beyond(self, connection: sqlite3.Connection, point: ResumePoint) -> bool:
        """Remove the rows that a run wrote after its last checkpoint; false if there are none."""
        last, end = self._last_number, point.end
        if end is None or last == end:
            return False
        if last < end:
            raise SinkUnavailableError(
                f"{self._name}: {self.rows_path.name} has {last} rows, but the checkpoint knows {end}: "
                "confirmed rows are missing; restore the file, or remove the checkpoint to start again"
            )
        query = "SELECT last_number FROM runs WHERE run = ?"
        if connection.execute(query, (point.run,)).fetchone() != (last,):
            raise SinkUnavailableError(
                f"{self._name}: this run did not write the last {last - end} rows, which are beyond the "
                f"{end} rows that the checkpoint knows; choose another path, or remove the checkpoint to "
                "start again"
            )
        connection.execute("DELETE FROM cells WHERE number > ?", (end,))
        if not end:
            connection.execute("DELETE FROM columns")
        self._last_number = end
        return True

    def _load_header(self, connection: sqlite3.Connection) -> tuple[str, ...] | None:
        """Return the columns of an earlier run, or save those of this one."""
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
            (last,) = connection.execute(_LAST_NUMBER).fetchone()
            if last > ROWS_MAX:
                raise SinkFullError(f"{self._name}: a sheet can have {ROWS_MAX} rows, got {last}")
            if self._run is not None:
                connection.execute(_SAVE_RUN, (self._run, last))
        self._header, self._last_number = header, last
        self._changed = True

    def close(self) -> None:
        """Create the workbook if there are new rows; after a failure it may be called again."""
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
                with self._transaction() as connection:
                    rows = connection.execute("SELECT row FROM cells ORDER BY number")
                    records = (json.loads(text) for (text,) in rows)
                    write_workbook(part, self.sheet, self._header or (), records)
                part.replace(self.path)
        except OSError as error:
            raise self._sink_error(error) from error

    def _sink_error(self, error: OSError) -> SinkFullError | SinkUnavailableError:
        kind = SinkFullError if error.errno in DISK_FULL_ERRNOS else SinkUnavailableError
        return kind(f"{self._name}: {error.strerror}; the rows are in {self.rows_path.name}")

    @property
    def _name(self) -> str:
        return f"XlsxSink {self.path}"

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with (
            sink_errors(f"{self._name}: {self.rows_path.name}"),
            self._database.write_transaction(TIMEOUT_SECONDS) as connection,
        ):
            yield connection


def write_workbook(path: Path, sheet: str, header: Sequence[str], records: Iterable[Sequence[Cell]]) -> None:
    """Write a workbook with one sheet, in constant memory; temporary files are in the folder of ``path``.

    At most :data:`ROWS_MAX` records of cells with at most :data:`CELL_CHARS_MAX` characters.
    """
    workbook = _xlsxwriter().Workbook(path, {**_OPTIONS, "tmpdir": str(path.parent)})
    workbook.use_zip64()  # without it a file ends at 4 GB
    worksheet = workbook.add_worksheet(sheet)
    try:
        for number, record in enumerate(chain((header,), records)):
            _write_cells(worksheet, number, record)
        workbook.close()
    except _xlsxwriter().exceptions.FileCreateError as error:
        raise error.args[0] from None  # the OSError that the library wraps
    finally:
        workbook.fileclosed = True  # otherwise its finalizer tries to close it again
        with suppress(OSError):
            worksheet.row_data_fh.close()  # the library leaves its temporary file open when it fails


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
