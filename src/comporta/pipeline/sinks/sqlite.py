"""A sink that writes rows to a table of a SQLite file, one row for each key: a batch may be written twice.

Text is stored unchanged, because a database does not evaluate it. Values without a SQLite type become text:
dates in ISO form, lists and dictionaries as JSON.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

from comporta.database.sqlite import SqliteDatabase
from comporta.errors import SinkRowError
from comporta.pipeline.sinks.base import Row
from comporta.pipeline.sinks.columns import SinkColumns, batch_columns
from comporta.pipeline.sinks.formula_escaping import as_text, clean_text
from comporta.pipeline.sinks.sql_table import (
    TableSink,
    keyed_values,
    require_existing_columns,
    require_key_columns,
)

TIMEOUT_SECONDS: Final = 30.0
VARIABLES_MAX: Final = 30_000
CHUNKS: Final = (256, 64, 16)
"""How many rows one statement inserts: meanwhile SQLite does not hold the interpreter."""

_NATIVE_TYPES: Final = frozenset({str, int, float, bool, bytes, type(None)})
_INTEGER_MAX: Final = 2**63
_ROW_ERRORS = (sqlite3.IntegrityError, sqlite3.DataError)

Values = tuple[Any, ...]


class SqliteSink(TableSink[sqlite3.Connection]):
    """Writes rows to ``table`` of the SQLite file ``path``; a row replaces one with the same ``key``.

    The sink creates the table if it does not exist, with ``columns``, or the columns of the first batch. With
    ``durable``, a batch survives a power failure; each batch then flushes the disk. ``timeout`` is how many
    seconds the sink waits for other programs that write to the file.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        table: str = "results",
        key: str | Sequence[str] = "id",
        columns: Sequence[str] | None = None,
        *,
        durable: bool = False,
        timeout: float = TIMEOUT_SECONDS,
    ) -> None:
        if not table or "\0" in table or table.lower().startswith("sqlite_"):
            raise ValueError(f"table must be a name that SQLite does not reserve, got {table!r:.50}")
        super().__init__(table, key, columns)
        self.path = os.fspath(path)
        self._database = SqliteDatabase(self.path, timeout, durable=durable)
        self._name = f"SqliteSink {self.path}, table {table}"

    def _find_table(self, connection: sqlite3.Connection) -> _TableWriter | None:
        existing = [row[1] for row in connection.execute(f"PRAGMA table_info({_quote(self.table)})")]
        if not existing:
            return None
        require_existing_columns(self._name, (*self.key, *(self.columns or ())), existing)
        writer = _TableWriter(self._name, self.table, self.key, self.columns or tuple(existing))
        connection.execute(f"EXPLAIN {writer.statement(1)}", [None] * len(writer.columns))
        return writer

    def _find_or_create_table(self, connection: sqlite3.Connection, rows: Sequence[Row]) -> _TableWriter:
        return self._find_table(connection) or self._create_table(
            connection, self.columns or batch_columns(rows)
        )

    def _open_table(self, connection: sqlite3.Connection) -> _TableWriter | None:
        """Find the table, or create it if its columns are known."""
        if self.columns is None:
            return self._find_table(connection)
        return self._find_table(connection) or self._create_table(connection, self.columns)

    def _create_table(self, connection: sqlite3.Connection, columns: tuple[str, ...]) -> _TableWriter:
        require_key_columns(self._name, self.key, columns)
        shown = ", ".join(
            f"{_quote(column)} NOT NULL" if column in self.key else _quote(column) for column in columns
        )
        unique = ", ".join(map(_quote, self.key))
        connection.execute(f"CREATE TABLE {_quote(self.table)} ({shown}, PRIMARY KEY ({unique}))")
        return _TableWriter(self._name, self.table, self.key, columns)


class _TableWriter:
    """Writes batches to an existing table."""

    def __init__(self, name: str, table: str, key: Sequence[str], columns: Sequence[str]) -> None:
        self.columns = columns
        self._name = name
        self._table = table
        self._key = key
        self._chunks = [size for size in CHUNKS if size * len(columns) <= VARIABLES_MAX]
        self._statements = {size: self.statement(size) for size in (*self._chunks, 1)}
        self._sink_columns = SinkColumns(name, columns)

    def statement(self, rows: int) -> str:
        """Return the statement that inserts or replaces a number of rows."""
        names = ", ".join(map(_quote, self.columns))
        others = [_quote(column) for column in self.columns if column not in self._key]
        changes = ", ".join(f"{column} = excluded.{column}" for column in others)
        one = f"({', '.join('?' * len(self.columns))})"
        then = f"UPDATE SET {changes}" if others else "NOTHING"
        into = f"{_quote(self._table)} ({names}) VALUES {', '.join([one] * rows)}"
        unique = ", ".join(map(_quote, self._key))
        return f"INSERT INTO {into} ON CONFLICT ({unique}) DO {then}"

    def write(self, connection: sqlite3.Connection, rows: Sequence[Row]) -> None:
        """Write rows; raises an error that names the row that cannot be stored."""
        values = keyed_values(self._name, self._sink_columns, self._key, rows)
        try:
            done = 0
            for size in self._chunks:
                while len(values) - done >= size:
                    self._execute(connection, size, values[done : done + size])
                    done += size
            for each in values[done:]:
                self._execute(connection, 1, [each])
        except _ROW_ERRORS:
            self._raise_faulty_row(connection, values)
            raise  # no row fails alone, only all of them together

    def _execute(self, connection: sqlite3.Connection, size: int, values: list[Values]) -> None:
        flat = list(chain.from_iterable(values))
        statement = self._statements[size]
        try:
            if _NATIVE_TYPES.issuperset(map(type, flat)):
                connection.execute(statement, flat)
                return
        except (
            UnicodeEncodeError,
            OverflowError,
        ):  # an unpaired surrogate, or more than 64 bits
            pass
        connection.execute(statement, [_storable(value) for value in flat])

    def _raise_faulty_row(self, connection: sqlite3.Connection, values: list[Values]) -> None:
        """Raise for the first row that fails alone; the caller rolls the transaction back."""
        for index, each in enumerate(values):
            try:
                self._execute(connection, 1, [each])
            except _ROW_ERRORS as error:
                raise SinkRowError(f"{self._name}: row {index} of the batch: {error}", index) from error


def _storable(value: Any) -> Any:
    if type(value) is str:
        return clean_text(value)
    if type(value) is int and not -_INTEGER_MAX <= value < _INTEGER_MAX:
        return str(value)
    return value if type(value) in _NATIVE_TYPES else clean_text(as_text(value))


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
