"""The columns of a sink: valid names, the columns of a batch, and rows with other columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

from comporta.errors import SinkColumnError
from comporta.pipeline.sinks.base import Row

COLUMNS_MAX: Final = 1000
NAME_CHARS_MAX: Final = 200


def validate_columns(field: str, columns: Sequence[str]) -> tuple[str, ...]:
    """Return valid column names; raises for others."""
    if isinstance(columns, str) or not all(isinstance(column, str) for column in columns):
        raise TypeError(f"{field} must be a list of strings, got {columns!r:.50}")
    if not 1 <= len(columns) <= COLUMNS_MAX:
        raise ValueError(f"{field} must be 1 to {COLUMNS_MAX} names, got {len(columns)}")
    for column in columns:
        if not 1 <= len(column) <= NAME_CHARS_MAX or "\0" in column:
            raise ValueError(f"{field} must have 1 to {NAME_CHARS_MAX} characters each, got {column!r:.250}")
    if len(set(columns)) < len(columns):
        raise ValueError(f"{field} must all be different, got {list(columns)}")
    return tuple(columns)


def validate_key(key: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns that identify a row; none if there is no key."""
    return () if key is None else validate_columns("key", [key] if isinstance(key, str) else key)


def batch_columns(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return the columns of a first batch, in the order of their first use."""
    seen: dict[str, None] = {}
    for index, row in enumerate(rows):
        seen.update(dict.fromkeys(row))
        try:
            validate_columns("columns", list(seen))
        except (TypeError, ValueError) as error:
            raise SinkColumnError(f"row {index} of the batch: {error}", index) from None
    return tuple(seen)


class SinkColumns:
    """The columns of a sink; puts the values of rows into their order."""

    def __init__(self, name: str, columns: Sequence[str]) -> None:
        self.names = tuple(columns)
        self._name = name
        only = self.names[0]
        self._get = itemgetter(*self.names) if len(self.names) > 1 else lambda row: (row[only],)

    def values(self, rows: Sequence[Row]) -> list[tuple[Any, ...]]:
        """Return the values of rows, ``None`` for missing ones; raises for an unknown column."""
        count = len(self.names)
        try:
            if all(len(row) == count for row in rows):
                return list(map(self._get, rows))
        except KeyError:
            pass  # the same number of columns, but different ones
        return [self._row(index, row) for index, row in enumerate(rows)]

    def _row(self, index: int, row: Mapping[str, Any]) -> tuple[Any, ...]:
        for column in row:
            if column not in self.names:
                expected = ", ".join(self.names)
                text = f"row {index} of the batch: unknown column {column!r:.250}, expected {expected:.500}"
                raise SinkColumnError(f"{self._name}: {text}", index)
        return tuple(row.get(column) for column in self.names)
