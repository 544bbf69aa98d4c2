"""The columns of a sink: what they may be called, where they come from, and rows that have others."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
            raise ValueError(
                f"{field} must have names of 1 to {NAME_CHARS_MAX} characters, got {column!r:.250}"
            )
    if len(set(columns)) < len(columns):
        raise ValueError(f"{field} must all be different, got {list(columns)}")
    return tuple(columns)


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


def unknown(name: str, index: int, row: Mapping[str, Any], columns: Collection[str]) -> None:
    """Raise if a row has a column for which there is no place."""
    for column in row:
        if column not in columns:
            there = ", ".join(columns)
            text = (
                f"{name}: row {index} of the batch has a column {column!r:.250}, there are only {there:.500}"
            )
            raise SinkColumnError(text, index)
