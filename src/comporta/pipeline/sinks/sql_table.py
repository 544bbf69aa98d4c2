"""What the sinks that write to a table of a database share: transactions, keys, columns and errors.

This module knows no particular database: statements and types are in the modules of the sinks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Generic, Protocol, TypeVar

from comporta.database.base import Parameters, Rows, Statement
from comporta.errors import (
    DatabaseError,
    DatabaseFullError,
    SinkColumnError,
    SinkFullError,
    SinkRowError,
    SinkUnavailableError,
)
from comporta.pipeline.sinks.base import Row, SinkTransaction
from comporta.pipeline.sinks.columns import SinkColumns, validate_columns, validate_key

ConnectionT = TypeVar("ConnectionT")
ConnectionT_contra = TypeVar("ConnectionT_contra", contravariant=True)


class TableWriter(Protocol[ConnectionT_contra]):
    """Writes batches to an existing table."""

    def write(self, connection: ConnectionT_contra, rows: Sequence[Row]) -> None:
        """Write rows; raises an error that names the row that cannot be stored."""


class SinkDatabase(Protocol[ConnectionT]):
    """What a sink requires of its database."""

    address: str
    timeout: float

    def write_transaction(self, seconds: float) -> AbstractContextManager[ConnectionT]:
        """Open a transaction; an error inside the block rolls it back."""

    def run_in(self, connection: ConnectionT, statement: Statement, parameters: Parameters) -> Rows:
        """Run a statement in a transaction."""

    def close(self) -> None:
        """Close the connections."""


class TableSink(ABC, Generic[ConnectionT]):
    """Writes rows to ``table`` of a database; a row replaces one with the same ``key``.

    ``columns`` are the columns of a table that the sink creates; by default those of the first batch.
    """

    _database: SinkDatabase[ConnectionT]
    _name: str

    def __init__(self, table: str, key: str | Sequence[str], columns: Sequence[str] | None) -> None:
        self.table = table
        self.key, self.columns = validate_key_and_columns(key, columns)
        self._writer: TableWriter[ConnectionT] | None = None

    @abstractmethod
    def _find_table(self, connection: ConnectionT) -> TableWriter[ConnectionT] | None:
        """Check the table and return it; ``None`` if it does not exist."""

    @abstractmethod
    def _find_or_create_table(self, connection: ConnectionT, rows: Sequence[Row]) -> TableWriter[ConnectionT]:
        """Return the table; it is created for these rows if it does not exist."""

    def _open_table(self, connection: ConnectionT) -> TableWriter[ConnectionT] | None:
        """Return the table before the first batch; ``None`` if the first batch must define it."""
        return self._find_table(connection)

    def open(self) -> None:
        """Connect, and check the table if it exists."""
        try:
            with self._transaction() as connection:
                self._writer = self._open_table(connection)
        except BaseException:
            self._database.close()  # a sink that is refused is never closed by its caller
            raise

    def write(self, rows: Sequence[Row]) -> None:
        """Write a batch in one transaction."""
        with self.transaction() as transaction:
            transaction.write(rows)

    @property
    def database_address(self) -> str:
        """The URL of the database, without user and password."""
        return self._database.address

    @contextmanager
    def transaction(self) -> Iterator[SinkTransaction]:
        """Open a transaction for rows and other changes."""
        with self._transaction() as connection:
            transaction = _TableTransaction(self, connection)
            yield transaction
        self._writer = transaction.writer

    def close(self) -> None:
        """Close the connection."""
        self._database.close()

    @contextmanager
    def _transaction(self) -> Iterator[ConnectionT]:
        with (
            sink_errors(self._name),
            self._database.write_transaction(self._database.timeout) as connection,
        ):
            yield connection


class _TableTransaction(Generic[ConnectionT]):
    """Writes rows to the table of a sink, which is created if it does not exist."""

    def __init__(self, sink: TableSink[ConnectionT], connection: ConnectionT) -> None:
        self._sink = sink
        self._connection = connection
        self.writer = sink._writer

    def execute(self, statement: Statement, parameters: Parameters) -> Rows:
        return self._sink._database.run_in(self._connection, statement, parameters)

    def write(self, rows: Sequence[Row]) -> None:
        self.writer = self.writer or self._sink._find_or_create_table(self._connection, rows)
        self.writer.write(self._connection, rows)


def validate_key_and_columns(
    key: str | Sequence[str], columns: Sequence[str] | None
) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """Return both as tuples; raises if the key is not among the columns."""
    key = validate_key(key)
    if columns is None:
        return key, None
    columns = validate_columns("columns", columns)
    if not set(key) <= set(columns):
        raise ValueError(f"key must be among the columns {columns}, got {key}")
    return key, columns


def require_key_columns(name: str, key: Sequence[str], columns: Sequence[str]) -> None:
    """Raise if a table that a batch defines would lack a column of the key."""
    if not set(key) <= set(columns):
        raise SinkColumnError(f"{name}: key {key} must be among the columns {columns}", 0)


def require_existing_columns(name: str, wanted: Sequence[str], existing: Collection[str]) -> None:
    """Raise if an existing table lacks a column."""
    missing = [column for column in wanted if column not in existing]
    if missing:
        raise SinkUnavailableError(
            f"{name}: expected a column {missing[0]!r}, got the columns {list(existing)}"
        )


def keyed_values(
    name: str, columns: SinkColumns, key: Sequence[str], rows: Sequence[Row]
) -> list[tuple[Any, ...]]:
    """Return the values of rows in the order of the columns; raises for a row without a value for the key."""
    values = columns.values(rows)
    for column in key:
        position = columns.names.index(column)
        for index, each in enumerate(values):
            if each[position] is None:
                raise SinkRowError(
                    f"{name}: row {index} of the batch has no value for the key {column!r}", index
                )
    return values


@contextmanager
def sink_errors(name: str) -> Iterator[None]:
    """Raise errors of the database as errors of the sink ``name``."""
    try:
        yield
    except DatabaseError as error:
        kind = SinkFullError if isinstance(error, DatabaseFullError) else SinkUnavailableError
        raise kind(f"{name}: {error.__cause__ or error}") from error
