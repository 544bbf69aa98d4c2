"""What the sinks that write to a table of a database share: keys, the columns of the table, and errors.

It knows no database: statements and types are in the modules of the sinks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from comporta.errors import (
    DatabaseError,
    DatabaseFullError,
    SinkColumnError,
    SinkFullError,
    SinkRowError,
    SinkUnavailableError,
)
from comporta.pipeline.sinks.base import Row
from comporta.pipeline.sinks.columns import SinkColumns, validate_columns, validate_key


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
