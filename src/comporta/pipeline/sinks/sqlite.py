"""Rows in a table of SQLite's, one for each key: a batch that is written twice is there once.

A database is no spreadsheet: text is kept as it is. What SQLite has no type for becomes text (dates in ISO
form, lists and dictionaries as JSON).
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, Final

from comporta.database.sqlite import SqliteDatabase
from comporta.errors import (
    DatabaseError,
    DatabaseFullError,
    SinkColumnError,
    SinkFullError,
    SinkRowError,
    SinkUnavailableError,
)
from comporta.pipeline.cells import as_text, clean
from comporta.pipeline.sinks.base import Row
from comporta.pipeline.sinks.columns import Columns, all_columns, checked_columns, checked_key

TIMEOUT_SECONDS: Final = 30.0
VARIABLES_MAX: Final = 30_000
CHUNKS: Final = (256, 64, 16)
"""How many rows go into one statement: SQLite works on them all without Python, which it leaves to others."""

_PLAIN: Final = frozenset({str, int, float, bool, bytes, type(None)})
_WHOLE_MAX: Final = 2**63
_AT_FAULT = (sqlite3.IntegrityError, sqlite3.DataError)

Values = tuple[Any, ...]


class SqliteSink:
    """Keeps rows in ``table`` of the file ``path``; a row whose ``key`` is there already takes its place.

    The table is made if it is not there, with ``columns``, or else those of the first batch. ``durable``: a
    batch survives also a power cut, which takes the time of a disk's flush each.
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
            raise ValueError(f"table must be a name that SQLite does not keep for itself, got {table!r:.50}")
        self.path = os.fspath(path)
        self.table = table
        self.key = checked_key(key)
        self.columns = None if columns is None else checked_columns("columns", columns)
        if self.columns is not None and not set(self.key) <= set(self.columns):
            raise ValueError(f"key must be among the columns {self.columns}, got {self.key}")
        self._database = SqliteDatabase(self.path, timeout, durable=durable)
        self._place: _Place | None = None

    def open(self) -> None:
        """Find the table, or make it if its columns are known."""
        with self._writing() as connection:
            self._place = self._found(connection)
            if self._place is None and self.columns is not None:
                self._place = self._made(connection, self.columns)

    def write(self, rows: Sequence[Row]) -> None:
        """Put a batch in, in one transaction."""
        with self._writing() as connection:
            place = self._place or self._found(connection) or self._made(connection, all_columns(rows))
            place.put(connection, rows)
        self._place = place

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def _found(self, connection: sqlite3.Connection) -> _Place | None:
        there = [row[1] for row in connection.execute(f"PRAGMA table_info({_quoted(self.table)})")]
        if not there:
            return None
        missing = [column for column in (*self.key, *(self.columns or ())) if column not in there]
        if missing:
            raise SinkUnavailableError(f"{self._name}: there is no column {missing[0]!r}, only {there}")
        place = _Place(self._name, self.table, self.key, self.columns or tuple(there))
        connection.execute(f"EXPLAIN {place.statement(1)}", [None] * len(place.columns))
        return place

    def _made(self, connection: sqlite3.Connection, columns: tuple[str, ...]) -> _Place:
        if not set(self.key) <= set(columns):
            raise SinkColumnError(f"{self._name}: key {self.key} must be among the columns {columns}", 0)
        shown = ", ".join(
            f"{_quoted(column)} NOT NULL" if column in self.key else _quoted(column) for column in columns
        )
        unique = ", ".join(map(_quoted, self.key))
        connection.execute(f"CREATE TABLE {_quoted(self.table)} ({shown}, PRIMARY KEY ({unique}))")
        return _Place(self._name, self.table, self.key, columns)

    @property
    def _name(self) -> str:
        return f"SqliteSink {self.path}, table {self.table}"

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        try:
            with self._database.writing(self._database.timeout) as connection:
                yield connection
        except DatabaseError as error:
            kind = SinkFullError if isinstance(error, DatabaseFullError) else SinkUnavailableError
            raise kind(f"{self._name}: {error.__cause__ or error}") from error


class _Place:
    """A table as it is: how a batch gets into it."""

    def __init__(self, name: str, table: str, key: Sequence[str], columns: Sequence[str]) -> None:
        self.columns = columns
        self._name = name
        self._table = table
        self._key = key
        self._places = [list(columns).index(column) for column in key]
        self._chunks = [size for size in CHUNKS if size * len(columns) <= VARIABLES_MAX]
        self._statements = {size: self.statement(size) for size in (*self._chunks, 1)}
        self._picked = Columns(name, columns)

    def statement(self, rows: int) -> str:
        """Return the upsert of so many rows."""
        names = ", ".join(map(_quoted, self.columns))
        others = [_quoted(column) for column in self.columns if column not in self._key]
        changes = ", ".join(f"{column} = excluded.{column}" for column in others)
        one = f"({', '.join('?' * len(self.columns))})"
        then = f"UPDATE SET {changes}" if others else "NOTHING"
        into = f"{_quoted(self._table)} ({names}) VALUES {', '.join([one] * rows)}"
        unique = ", ".join(map(_quoted, self._key))
        return f"INSERT INTO {into} ON CONFLICT ({unique}) DO {then}"

    def put(self, connection: sqlite3.Connection, rows: Sequence[Row]) -> None:
        """Put rows in, or say which one cannot be."""
        values = self._values(rows)
        try:
            done = 0
            for size in self._chunks:
                while len(values) - done >= size:
                    self._execute(connection, size, values[done : done + size])
                    done += size
            for each in values[done:]:
                self._execute(connection, 1, [each])
        except _AT_FAULT:
            self._blame(connection, values)
            raise  # no row alone: all of them together

    def _execute(self, connection: sqlite3.Connection, size: int, values: list[Values]) -> None:
        flat = list(chain.from_iterable(values))
        statement = self._statements[size]
        try:
            if _PLAIN.issuperset(map(type, flat)):
                connection.execute(statement, flat)
                return
        except (UnicodeEncodeError, OverflowError):  # half a surrogate pair, a number of more than 64 bits
            pass
        connection.execute(statement, [_stored(value) for value in flat])

    def _blame(self, connection: sqlite3.Connection, values: list[Values]) -> None:
        """Find the one row that is at fault; all of this is rolled back."""
        for index, each in enumerate(values):
            try:
                self._execute(connection, 1, [each])
            except _AT_FAULT as why:
                raise SinkRowError(f"{self._name}: row {index} of the batch: {why}", index) from why

    def _values(self, rows: Sequence[Row]) -> list[Values]:
        values = self._picked.values(rows)
        for place in self._places:
            for index, each in enumerate(values):
                if each[place] is None:
                    key = self.columns[place]
                    raise SinkRowError(f"{self._name}: row {index} of the batch has no {key!r}", index)
        return values


def _stored(value: Any) -> Any:
    if type(value) is str:
        return clean(value)
    if type(value) is int and not -_WHOLE_MAX <= value < _WHOLE_MAX:
        return str(value)
    return value if type(value) in _PLAIN else clean(as_text(value))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
