"""A sink that appends rows to a CSV file, which can be read while it grows.

A batch is appended as a whole, as far as the system allows; an incomplete row of a killed process is removed
when the file is opened again. A run that resumes from a checkpoint also removes the rows beyond it. Without a
checkpoint rows are appended, and with a key the sink marks those that are in the file already.

Text from outside cannot become a formula in the program that opens the file (``formula_escaping.py``).
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from comporta.errors import SinkRowError, SinkUnavailableError
from comporta.pipeline.files.torn_tail import complete_records_size, lines_before
from comporta.pipeline.sinks.base import ResumePoint, Row
from comporta.pipeline.sinks.columns import SinkColumns, batch_columns, validate_columns, validate_key
from comporta.pipeline.sinks.formula_escaping import Cell, csv_cell
from comporta.pipeline.sinks.sink_file import REPEATED_COLUMN, SinkFile

CELL_CHARS_MAX: Final = 100_000
"""A longer cell is refused: most programs that read CSV fail at lengths not far beyond it."""

TORN_BYTES_MAX: Final = 1 << 20
"""A longer incomplete end is not removed, because it may be something else."""


class CsvSink:
    """Appends rows to the CSV file ``path``; the header is ``columns``, or the columns of the first batch.

    With a ``key`` (one column, or several), the file gets a last column ``repeated``, which is ``yes`` for a
    row whose key is in the file already. With ``durable``, a batch survives a power failure; each batch then
    flushes the disk.
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
        self.key = validate_key(key)
        self.columns = None if columns is None else validate_columns("columns", columns)
        named = self.columns or self.key
        if self.key and REPEATED_COLUMN in named:
            raise ValueError(f"columns must not contain {REPEATED_COLUMN!r} if there is a key, got {named}")
        if self.columns is not None and not set(self.key) <= set(self.columns):
            raise ValueError(f"key must be among the columns {self.columns}, got {key!r:.50}")
        self._file = SinkFile("CsvSink", path, durable=durable)
        self._name = self._file.name
        self._header: tuple[str, ...] | None = None

    def open(self) -> None:
        """Open the file, or create it, read its header and keys, and remove an incomplete row."""
        self._open(None)

    def open_run(self, point: ResumePoint) -> None:
        """Open the file and remove what the run wrote after its last checkpoint."""
        self._open(point)

    @property
    def end(self) -> int:
        """The size of the file."""
        return self._file.size

    def _open(self, point: ResumePoint | None) -> None:
        with self._file.open_exclusive(point) as descriptor:
            complete = self._complete_size(descriptor)
            self._header = self._load_existing(descriptor, complete)
            self._file.truncate_torn_row(descriptor, complete)
            if self._header is None and self.columns is not None:
                self._file.append(self._encoded_header(self.columns))
                self._header = self.columns

    def write(self, rows: Sequence[Row]) -> None:
        """Append a batch."""
        with self._file.locked():
            header = self._header or self._first_batch_columns(rows)
            encoded_header = b"" if self._header else self._encoded_header(header)
            records = [list(map(csv_cell, values)) for values in SinkColumns(self._name, header).values(rows)]
            keys = self._mark_repeated(records, _key_indexes(header, self.key)) if self.key else {}
            data = encode_csv(records)
            if len(data) > CELL_CHARS_MAX:
                self._check_lengths(records)
            self._file.append(encoded_header + data)
            self._header = header
            self._file.remember_keys(keys)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _complete_size(self, descriptor: int) -> int:
        """Return how many bytes are complete rows; refuses a file of another kind."""
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, 0) != b'"':
            raise SinkUnavailableError(
                f"{self._name}: the file exists and was not written by a CsvSink; choose another path"
            )
        complete = complete_records_size(descriptor)
        if size - complete > TORN_BYTES_MAX:
            raise SinkUnavailableError(
                f"{self._name}: the last {size - complete} bytes are not a complete row, and too many "
                "for one that was interrupted; inspect the file"
            )
        return complete

    def _load_existing(self, descriptor: int, complete: int) -> tuple[str, ...] | None:
        """Return the columns of an existing file, and remember the keys of its complete rows."""
        if not complete:
            return None
        with open(descriptor, "rb", closefd=False) as file:
            records = csv.reader(line.decode() for line in lines_before(file, complete))
            header = self._check_header(tuple(next(records)))
            if self.key:
                indexes = _key_indexes(header, self.key)
                for record in records:
                    self._file.remember_keys({_key_hash(record, indexes): None})
        return header

    def _check_header(self, cells: tuple[str, ...]) -> tuple[str, ...]:
        """Return the columns of an existing file; raises if they differ from those of the sink."""
        existing = tuple(_unescape(name) for name in (cells[:-1] if self.key else cells))
        columns = self.columns or existing
        if cells != self._header_cells(columns) or not set(self.key) <= set(columns):
            expected = ", ".join(self._header_cells(self.columns or ("...", *self.key)))
            raise SinkUnavailableError(
                f"{self._name}: expected the columns {expected}, got {', '.join(cells)} in the file"
            )
        return columns

    def _header_cells(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        """Return the cells of the header; its names are escaped because they come from outside as well."""
        cells = tuple(str(csv_cell(column)) for column in columns)
        return (*cells, REPEATED_COLUMN) if self.key else cells

    def _encoded_header(self, columns: tuple[str, ...]) -> bytes:
        return encode_csv([list(self._header_cells(columns))])

    def _first_batch_columns(self, rows: Sequence[Row]) -> tuple[str, ...]:
        columns = batch_columns(rows)
        missing = [column for column in self.key if column not in columns]
        if missing:
            raise SinkRowError(f"{self._name}: row 0 of the batch has no value for the key {missing[0]!r}", 0)
        if self.key and REPEATED_COLUMN in columns:
            raise SinkRowError(
                f"{self._name}: the column name {REPEATED_COLUMN!r} is reserved for the sink", 0
            )
        return columns

    def _mark_repeated(self, records: list[list[Cell]], indexes: list[int]) -> dict[int, None]:
        """Add to each row whether its key was in the file before; returns the keys."""
        keys: dict[int, None] = {}
        for record in records:
            key = _key_hash(record, indexes)
            record.append("yes" if self._file.has_key(key) or key in keys else "")
            keys[key] = None
        return keys

    def _check_lengths(self, records: list[list[Cell]]) -> None:
        for index, record in enumerate(records):
            longest = max(len(str(each)) for each in record)
            if longest > CELL_CHARS_MAX:
                text = f"a cell must have at most {CELL_CHARS_MAX} characters, got {longest}"
                raise SinkRowError(f"{self._name}: row {index} of the batch: {text}", index)


def encode_csv(records: Iterable[Sequence[Cell]]) -> bytes:
    """Return records as CSV with all text in quotes, so that a comma or a newline is text."""
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\r\n").writerows(records)
    return text.getvalue().encode()


def _key_indexes(header: tuple[str, ...], key: tuple[str, ...]) -> list[int]:
    return [header.index(column) for column in key]


def _key_hash(record: Sequence[Cell], indexes: list[int]) -> int:
    """Return a hash of a key, the same for a row that was written and one that is read again."""
    return hash(tuple(str(record[index]) for index in indexes))


def _unescape(cell: str) -> str:
    """Return the column name of a header cell."""
    return cell[1:] if cell.startswith("'") and csv_cell(cell[1:]) == cell else cell
