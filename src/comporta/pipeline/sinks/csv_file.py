"""Rows in a CSV file, there to be read while it grows.

A batch is in the file whole or not at all, as far as this process can see to it; half a row that a killed one
left is cut off when the file is opened again. Nothing is ever overwritten: a resumed run appends, and what it
writes again is marked as such where a key tells rows apart.

Text from outside cannot become a formula in whatever program opens the file (``cells.py``).
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from comporta.errors import SinkRowError, SinkUnavailableError
from comporta.pipeline.cells import Cell, guarded
from comporta.pipeline.sinks.base import Row
from comporta.pipeline.sinks.columns import Columns, all_columns, checked_columns, checked_key
from comporta.pipeline.sinks.files import REPEATED, SinkFile
from comporta.pipeline.tail import upto, whole_records

CELL_CHARS_MAX: Final = 100_000
"""A longer cell is refused: most programs that read CSV give up soon after."""

TORN_BYTES_MAX: Final = 1 << 20
"""No half row is longer than this; what is may be something else, and is not cut off."""


class CsvSink:
    """Appends rows to the file ``path``, under a header of ``columns`` or of those of the first batch.

    With a ``key`` (a column, or several) a row whose key is in the file already says so in a last column:
    ``repeated``.
    ``durable``: a batch survives also a power cut, which takes the time of a disk's flush each.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        columns: Sequence[str] | None = None,
        key: str | Sequence[str] | None = None,
        *,
        durable: bool = False,
    ) -> None:
        self.path = Path(path)
        self.key = checked_key(key)
        self.columns = None if columns is None else checked_columns("columns", columns)
        named = self.columns or self.key
        if self.key and REPEATED in named:
            raise ValueError(f"columns must not have {REPEATED!r} where there is a key, got {named}")
        if self.columns is not None and not set(self.key) <= set(self.columns):
            raise ValueError(f"key must be among the columns {self.columns}, got {key!r:.50}")
        self._file = SinkFile("CsvSink", path, durable=durable)
        self._name = self._file.name
        self._header: tuple[str, ...] | None = None

    def open(self) -> None:
        """Open the file, or make it; learn what is there, and cut off half a row."""
        with self._file.opening() as descriptor:
            whole = self._whole(descriptor)
            self._header = self._learnt(descriptor, whole)
            self._file.cut(descriptor, whole)
            if self._header is None and self.columns is not None:
                self._file.append(self._begun(self.columns))
                self._header = self.columns

    def write(self, rows: Sequence[Row]) -> None:
        """Append a batch, whole."""
        with self._file.writing():
            header = self._header or self._named_columns(rows)
            begun = b"" if self._header else self._begun(header)
            records = [list(map(guarded, values)) for values in Columns(self._name, header).values(rows)]
            keys = self._marked(records, _places(header, self.key)) if self.key else {}
            data = _encoded(records)
            if len(data) > CELL_CHARS_MAX:
                self._check_lengths(records)
            self._file.append(begun + data)
            self._header = header
            self._file.remember(keys)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _whole(self, descriptor: int) -> int:
        """Return how many bytes are whole rows; what we did not begin is left alone."""
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, 0) != b'"':
            raise SinkUnavailableError(f"{self._name}: there is a file already, and it was not begun by us")
        whole = whole_records(descriptor)
        if size - whole > TORN_BYTES_MAX:
            raise SinkUnavailableError(
                f"{self._name}: the last {size - whole} bytes are no whole row: too many for one, please look"
            )
        return whole

    def _learnt(self, descriptor: int, whole: int) -> tuple[str, ...] | None:
        """Return the columns of a file that goes on, and remember the keys in its whole rows."""
        if not whole:
            return None
        with open(descriptor, "rb", closefd=False) as file:
            records = csv.reader(line.decode() for line in upto(file, whole))
            header = self._same(tuple(next(records)))
            if self.key:
                places = _places(header, self.key)
                for record in records:
                    self._file.remember({_known(record, places): None})
        return header

    def _same(self, there: tuple[str, ...]) -> tuple[str, ...]:
        """Return the columns of a file that goes on, if they are those wanted."""
        found = tuple(_unguarded(name) for name in (there[:-1] if self.key else there))
        wanted = self.columns or found
        if there != self._shown(wanted) or not set(self.key) <= set(wanted):
            shown = ", ".join(self._shown(self.columns or ("...", *self.key)))
            raise SinkUnavailableError(f"{self._name}: its columns are {', '.join(there)}, and not {shown}")
        return wanted

    def _shown(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        """Return columns as they stand in the header; they come from outside as well."""
        shown = tuple(str(guarded(column)) for column in columns)
        return (*shown, REPEATED) if self.key else shown

    def _begun(self, columns: tuple[str, ...]) -> bytes:
        return _encoded([list(self._shown(columns))])

    def _named_columns(self, rows: Sequence[Row]) -> tuple[str, ...]:
        columns = all_columns(rows)
        missing = [column for column in self.key if column not in columns]
        if missing:
            raise SinkRowError(f"{self._name}: row 0 of the batch has no {missing[0]!r}", 0)
        if self.key and REPEATED in columns:
            raise SinkRowError(f"{self._name}: {REPEATED!r} is a column of the file's own", 0)
        return columns

    def _marked(self, records: list[list[Cell]], places: list[int]) -> dict[int, None]:
        """Say of each row whether its key was there before; returns the keys."""
        keys: dict[int, None] = {}
        for record in records:
            known = _known(record, places)
            record.append("yes" if self._file.is_known(known) or known in keys else "")
            keys[known] = None
        return keys

    def _check_lengths(self, records: list[list[Cell]]) -> None:
        for index, record in enumerate(records):
            longest = max(len(str(each)) for each in record)
            if longest > CELL_CHARS_MAX:
                text = f"a cell has {longest} characters, {CELL_CHARS_MAX} are the most"
                raise SinkRowError(f"{self._name}: row {index} of the batch: {text}", index)


def _encoded(records: list[Any]) -> bytes:
    """Return records as they stand in the file: all text in quotes, so that a comma or a line end is text."""
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\r\n").writerows(records)
    return text.getvalue().encode()


def _places(header: tuple[str, ...], key: tuple[str, ...]) -> list[int]:
    return [header.index(column) for column in key]


def _known(record: Sequence[Cell], places: list[int]) -> int:
    """Return what a key is remembered by: the same for what was written and for what is read again."""
    return hash(tuple(str(record[place]) for place in places))


def _unguarded(shown: str) -> str:
    """Return the column that stands so in a header."""
    return shown[1:] if shown.startswith("'") and guarded(shown[1:]) == shown else shown
