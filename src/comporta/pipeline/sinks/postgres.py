"""A sink that writes rows to a table of a PostgreSQL server, one row for each key.

A batch may be written twice: a row replaces the one with its key.
The types of the columns decide what is stored: text for text columns, JSON for ``json`` and ``jsonb``, and
everything else as psycopg adapts it. This module needs psycopg, so ``sinks`` imports it on first use.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final, LiteralString

import psycopg
from psycopg.sql import SQL, Composed, Identifier
from psycopg.types.json import Json

from comporta.database.postgres import PostgresDatabase
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
from comporta.pipeline.strict_json import dump_json

TIMEOUT_SECONDS: Final = 30.0
NAME_BYTES_MAX: Final = 63

_TYPES: Final[dict[type, LiteralString]] = {
    bool: "boolean",
    int: "bigint",
    float: "double precision",
    Decimal: "numeric",
    datetime: "timestamp with time zone",
    date: "date",
    time: "time",
    bytes: "bytea",
    dict: "jsonb",
    list: "jsonb",
    tuple: "jsonb",
}
"""The types of columns that the sink creates, by the type of their values; all others are text."""

_TEXT_TYPES: Final = ("text", "character", "citext")
_JSON_TYPES: Final = ("json", "jsonb")
_MISMATCHES: Final = (None, "42804")
"""SQL states of a value that psycopg cannot adapt at all, or not to the type of its column."""

_COLUMNS: Final = (
    "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute "
    "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
)

_LOCK_NAME: Final = "SELECT pg_advisory_xact_lock(hashtextextended('comporta ' || %s, 0))"

Connection = psycopg.Connection[tuple[Any, ...]]
Values = tuple[Any, ...]


class PostgresSink(TableSink[Connection]):
    """Writes rows to ``table`` of the PostgreSQL database ``url``; a row replaces one with the same ``key``.

    The sink creates the table if it does not exist: with ``columns``, or the columns of the first batch, and
    types that follow from the values of that batch. A table that exists needs a unique constraint on the key.
    ``table`` may name a schema: ``"imports.companies"``. ``timeout`` is how many seconds a batch may take.
    Needs ``pip install 'comporta[postgres]'``.
    """

    def __init__(
        self,
        url: str,
        table: str = "results",
        key: str | Sequence[str] = "id",
        columns: Sequence[str] | None = None,
        *,
        timeout: float = TIMEOUT_SECONDS,
    ) -> None:
        names = table.split(".")
        if len(names) > 2 or any(not 1 <= len(name.encode()) <= NAME_BYTES_MAX for name in names):
            raise ValueError(
                f"table must be a name of 1 to {NAME_BYTES_MAX} bytes, or schema.name, got {table!r:.100}"
            )
        super().__init__(table, key, columns)
        self._database = PostgresDatabase(url, timeout, connections=1)
        self._name = f"PostgresSink {self._database.address}, table {table}"
        self._identifier = Identifier(*names)

    def _find_table(self, connection: Connection) -> _PostgresTable | None:
        types: dict[str, str] = dict(connection.execute(_COLUMNS, [self._identifier.as_string()]).fetchall())
        if not types:
            return None
        require_existing_columns(self._name, (*self.key, *(self.columns or ())), types)
        columns = self.columns or tuple(types)
        writer = _PostgresTable(
            self._name, self._identifier, self.key, {column: types[column] for column in columns}
        )
        connection.execute(SQL("EXPLAIN ") + writer.statement("NULL"))  # raises without a unique constraint
        return writer

    def _find_or_create_table(self, connection: Connection, rows: Sequence[Row]) -> _PostgresTable:
        """Return the table; processes that start together create it one after another."""
        table = self._find_table(connection)
        if table is None:
            connection.execute(_LOCK_NAME, [self._identifier.as_string()])
            table = self._find_table(connection)
        if table is None:
            self._create_table(connection, rows)
            table = self._find_table(connection)
        assert table is not None  # noqa: S101 - it was created in this transaction
        return table

    def _create_table(self, connection: Connection, rows: Sequence[Row]) -> None:
        columns = self.columns or batch_columns(rows)
        require_key_columns(self._name, self.key, columns)
        definitions = [
            Identifier(column) + SQL(" ") + SQL(_column_type([row.get(column) for row in rows]))
            for column in columns
        ]
        statement = SQL("CREATE TABLE {} ({}, PRIMARY KEY ({}))")
        connection.execute(
            statement.format(self._identifier, SQL(", ").join(definitions), _identifiers(self.key))
        )


class _PostgresTable:
    """Writes batches to an existing table; ``types`` are its columns' types, in the order of the values."""

    def __init__(self, name: str, table: Identifier, key: Sequence[str], types: dict[str, str]) -> None:
        self._name = name
        self._table = table
        self._key = key
        self._columns = list(types)
        self._text_columns = {n for n, kind in enumerate(types.values()) if kind.startswith(_TEXT_TYPES)}
        self._json_columns = {n for n, kind in enumerate(types.values()) if kind in _JSON_TYPES}
        self._sink_columns = SinkColumns(name, self._columns)
        self._insert = self.statement("%s")

    def statement(self, value: LiteralString) -> Composed:
        """Return the statement that inserts or replaces one row; ``value`` stands for each of its values."""
        changes = [
            SQL("{0} = excluded.{0}").format(Identifier(column))
            for column in self._columns
            if column not in self._key
        ]
        then = SQL("UPDATE SET ") + SQL(", ").join(changes) if changes else SQL("NOTHING")
        return SQL("INSERT INTO {} ({}) VALUES ({}) ON CONFLICT ({}) DO {}").format(
            self._table,
            _identifiers(self._columns),
            SQL(", ").join([SQL(value)] * len(self._columns)),
            _identifiers(self._key),
            then,
        )

    def write(self, connection: Connection, rows: Sequence[Row]) -> None:
        """Write rows; raises an error that names the row that cannot be stored."""
        values = self._values(rows)
        try:
            with connection.transaction(), connection.cursor() as cursor:
                cursor.executemany(self._insert, values)
        except psycopg.Error as error:
            if _is_row_error(error):
                self._raise_faulty_row(connection, values)
            raise

    def _raise_faulty_row(self, connection: Connection, values: list[Values]) -> None:
        """Raise for the first row that fails alone; the caller rolls the transaction back."""
        for index, each in enumerate(values):
            try:
                with connection.transaction():
                    connection.execute(self._insert, each)
            except psycopg.Error as error:
                raise SinkRowError(f"{self._name}: row {index} of the batch: {error}", index) from error

    def _values(self, rows: Sequence[Row]) -> list[Values]:
        values = keyed_values(self._name, self._sink_columns, self._key, rows)
        return [tuple(map(self._storable, range(len(each)), each)) for each in values]

    def _storable(self, column: int, value: Any) -> Any:
        if value is None:
            return None
        if column in self._text_columns:
            return _storable_text(value)
        return Json(value, _dump_json) if column in self._json_columns else value


def _column_type(values: Sequence[Any]) -> LiteralString:
    """Return the type of a column that can hold all of these values."""
    kinds = {_TYPES.get(type(value), "text") for value in values if value is not None}
    if kinds == {"bigint", "double precision"}:
        return "double precision"
    return kinds.pop() if len(kinds) == 1 else "text"


def _identifiers(names: Sequence[str]) -> Composed:
    return SQL(", ").join(map(Identifier, names))


def _storable_text(value: Any) -> str:
    """Return a value as text that PostgreSQL can store: without characters with the code 0."""
    return clean_text(as_text(value)).replace("\0", "\ufffd")


def _dump_json(value: Any) -> str:
    return dump_json(value, default=as_text)


def _is_row_error(error: psycopg.Error) -> bool:
    if isinstance(error, psycopg.DataError | psycopg.IntegrityError):
        return True
    return isinstance(error, psycopg.ProgrammingError) and error.sqlstate in _MISMATCHES
