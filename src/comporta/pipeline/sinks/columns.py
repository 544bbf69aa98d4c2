"""The columns of a sink: what they may be called, where they come from, and rows that have others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

from comporta.errors import SinkColumnError
from comporta.pipeline.sinks.base import Row

COLUMNS_MAX: Final = 1000
NAME_CHARS_MAX: Final = 200


def checked_columns(field: str, columns: Sequence[str]) -> tuple[str, ...]:
    """Return columns that may be ones; a ``ValueError`` says what is allowed."""
    if isinstance(columns, str) or not all(isinstance(column, str) for column in columns):
        raise TypeError(f"{field} must be a list of texts, got {columns!r:.50}")
    if not 1 <= len(columns) <= COLUMNS_MAX:
        raise ValueError(f"{field} must be 1 to {COLUMNS_MAX} names, got {len(columns)}")
    for column in columns:
        if not 1 <= len(column) <= NAME_CHARS_MAX or "\0" in column:
            raise ValueError(f"{field} must be of 1 to {NAME_CHARS_MAX} characters each, got {column!r:.250}")
    if len(set(columns)) < len(columns):
        raise ValueError(f"{field} must all be different, got {list(columns)}")
    return tuple(columns)


def checked_key(key: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns that tell rows apart, one or several; none: nothing does."""
    return () if key is None else checked_columns("key", [key] if isinstance(key, str) else key)


def all_columns(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return the columns of a first batch, in the order in which they come up."""
    seen: dict[str, None] = {}
    for index, row in enumerate(rows):
        seen.update(dict.fromkeys(row))
        try:
            checked_columns("columns", list(seen))
        except (TypeError, ValueError) as error:
            raise SinkColumnError(f"row {index} of the batch: {error}", index) from None
    return tuple(seen)


class Columns:
    """The columns of a place, and how a row's values get into their order."""

    def __init__(self, name: str, columns: Sequence[str]) -> None:
        self.names = tuple(columns)
        self._name = name
        only = self.names[0]
        self._get = itemgetter(*self.names) if len(self.names) > 1 else lambda row: (row[only],)

    def values(self, rows: Sequence[Row]) -> list[tuple[Any, ...]]:
        """Return the values of rows, ``None`` for what is not there; a column without a place is an error."""
        count = len(self.names)
        try:
            if all(len(row) == count for row in rows):
                return list(map(self._get, rows))
        except KeyError:
            pass  # as many columns, but others
        return [self._row(index, row) for index, row in enumerate(rows)]

    def _row(self, index: int, row: Mapping[str, Any]) -> tuple[Any, ...]:
        for column in row:
            if column not in self.names:
                shown = ", ".join(self.names)
                text = f"row {index} of the batch has a column {column!r:.250}, there are only {shown:.500}"
                raise SinkColumnError(f"{self._name}: {text}", index)
        return tuple(row.get(column) for column in self.names)
