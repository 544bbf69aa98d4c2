"""Rows in a CSV file, there to be read while it grows.

A batch is in the file whole or not at all, as far as this process can see to it; half a row that a killed one
left is cut off when the file is opened again. Nothing is ever overwritten: a resumed run appends, and what it
writes again is marked as such where a key tells rows apart.

Text from outside cannot become a formula in whatever program opens the file (``cells.py``).
"""

from __future__ import annotations

import csv
import errno
import fcntl
import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, Final

from comporta import forks
from comporta.errors import SinkError, SinkFullError, SinkRowError, SinkUnavailableError
from comporta.events import publish
from comporta.pipeline.cells import Cell, guarded
from comporta.pipeline.sinks.base import Row
from comporta.pipeline.sinks.columns import Columns, all_columns, checked_columns
from comporta.pipeline.tail import whole_records, write_all

REPEATED: Final = "repeated"
"""The column in which a row that is in the file already says ``yes``."""

KEYS_MAX: Final = 1_000_000
"""How many keys are remembered, the latest ones, to know a row again."""

CELL_CHARS_MAX: Final = 100_000
"""A longer cell is refused: most programs that read CSV give up soon after."""

TORN_BYTES_MAX: Final = 1 << 20
"""No half row is longer than this; what is may be something else, and is not cut off."""

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class CsvSink:
    """Appends rows to the file ``path``, under a header of ``columns`` or of those of the first batch.

    With a ``key`` (a column) a row whose key is in the file already says so in a last column: ``repeated``.
    ``durable``: a batch survives also a power cut, which takes the time of a disk's flush each.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        columns: Sequence[str] | None = None,
        key: str | None = None,
        *,
        durable: bool = False,
    ) -> None:
        self.path = Path(path)
        self.key = key
        self.columns = None if columns is None else checked_columns("columns", columns)
        if key is not None and REPEATED in (self.columns or ()):
            raise ValueError(f"columns must not have {REPEATED!r} where there is a key, got {self.columns}")
        if key is not None and self.columns is not None and key not in self.columns:
            raise ValueError(f"key must be among the columns {self.columns}, got {key!r:.50}")
        self._durable = durable
        self._lock = Lock()
        self._descriptor: int | None = None
        self._size = 0
        self._header: tuple[str, ...] | None = None
        self._keys: dict[int, None] = {}
        forks.register(self)

    def open(self) -> None:
        """Open the file, or make it; cut off half a row, and learn what is there."""
        with self._lock, self._named():
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._size = self._mended(descriptor)
                self._header = self._learnt(descriptor)
                if self._header is None and self.columns is not None:
                    self._append(descriptor, self._begun(self.columns))
                    self._header = self.columns
            except BaseException:
                os.close(descriptor)
                raise
            self._descriptor = descriptor

    def write(self, rows: Sequence[Row]) -> None:
        """Append a batch, whole."""
        with self._lock, self._named():
            if self._descriptor is None:
                raise SinkUnavailableError(f"{self._name}: not open")
            header = self._header or self._named_columns(rows)
            begun = b"" if self._header else self._begun(header)
            records = [list(map(guarded, values)) for values in Columns(self._name, header).values(rows)]
            keys = {} if self.key is None else self._marked(records, header.index(self.key))
            data = _encoded(records)
            if len(data) > CELL_CHARS_MAX:
                self._check_lengths(records)
            self._append(self._descriptor, begun + data)
            self._header = header
            self._remember(keys)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            descriptor, self._descriptor = self._descriptor, None
            if descriptor is not None:
                os.close(descriptor)

    def after_fork(self) -> None:
        """The file is the parent's: two would cut off each other's ends."""
        forks.renew(self._lock)
        self.close()

    def _append(self, descriptor: int, data: bytes) -> None:
        """Write all of it; or cut off what there was room for."""
        os.ftruncate(descriptor, self._size)  # what an earlier attempt may have left
        try:
            write_all(descriptor, data)
            if self._durable:
                os.fsync(descriptor)
        except BaseException:
            os.ftruncate(descriptor, self._size)
            raise
        self._size += len(data)

    def _mended(self, descriptor: int) -> int:
        """Cut off half a row; returns the size. What we did not begin is left alone."""
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, 0) != b'"':
            raise SinkUnavailableError(f"{self._name}: there is a file already, and it was not begun by us")
        whole = whole_records(descriptor)
        if size - whole > TORN_BYTES_MAX:
            raise SinkUnavailableError(
                f"{self._name}: the last {size - whole} bytes are no whole row: too many for one, please look"
            )
        if size > whole:
            os.ftruncate(descriptor, whole)
            publish("sink_mended", self._name, f"half a row, {size - whole} bytes, was cut off", "info")
        return whole

    def _learnt(self, descriptor: int) -> tuple[str, ...] | None:
        """Return the columns of a file that goes on, and remember the keys in it."""
        self._keys.clear()
        with open(descriptor, encoding="utf-8", newline="", closefd=False) as lines:
            records = csv.reader(lines)
            there = next(records, None)
            if there is None:
                return None
            header = self._same(tuple(there))
            if self.key is not None:
                place = header.index(self.key)
                for record in records:
                    self._remember({hash(record[place]): None})
        return header

    def _same(self, there: tuple[str, ...]) -> tuple[str, ...]:
        """Return the columns of a file that goes on, if they are those wanted."""
        found = tuple(_unguarded(name) for name in (there if self.key is None else there[:-1]))
        wanted = self.columns or found
        if there != self._shown(wanted) or (self.key is not None and self.key not in wanted):
            shown = ", ".join(self._shown(self.columns or ("...", *filter(None, [self.key]))))
            raise SinkUnavailableError(f"{self._name}: its columns are {', '.join(there)}, and not {shown}")
        return wanted

    def _shown(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        """Return columns as they stand in the header; they come from outside as well."""
        shown = tuple(str(guarded(column)) for column in columns)
        return shown if self.key is None else (*shown, REPEATED)

    def _begun(self, columns: tuple[str, ...]) -> bytes:
        return _encoded([list(self._shown(columns))])

    def _named_columns(self, rows: Sequence[Row]) -> tuple[str, ...]:
        columns = all_columns(rows)
        if self.key is not None and self.key not in columns:
            raise SinkRowError(f"{self._name}: row 0 of the batch has no {self.key!r}", 0)
        if self.key is not None and REPEATED in columns:
            raise SinkRowError(f"{self._name}: {REPEATED!r} is a column of the file's own", 0)
        return columns

    def _marked(self, records: list[list[Cell]], place: int) -> dict[int, None]:
        """Say of each row whether its key was there before; returns the keys."""
        keys: dict[int, None] = {}
        for record in records:
            known = hash(str(record[place]))
            record.append("yes" if known in self._keys or known in keys else "")
            keys[known] = None
        return keys

    def _check_lengths(self, records: list[list[Cell]]) -> None:
        for index, record in enumerate(records):
            longest = max(len(str(each)) for each in record)
            if longest > CELL_CHARS_MAX:
                text = f"a cell has {longest} characters, {CELL_CHARS_MAX} are the most"
                raise SinkRowError(f"{self._name}: row {index} of the batch: {text}", index)

    def _remember(self, keys: dict[int, None]) -> None:
        self._keys.update(keys)
        while len(self._keys) > KEYS_MAX:
            del self._keys[next(iter(self._keys))]

    @property
    def _name(self) -> str:
        return f"CsvSink {self.path}"

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except BlockingIOError as error:
            raise SinkUnavailableError(f"{self._name}: somebody else is writing it") from error
        except OSError as error:
            kind: Callable[[str], SinkError] = SinkFullError if error.errno in FULL else SinkUnavailableError
            raise kind(f"{self._name}: {error.strerror}") from error
        except (csv.Error, UnicodeDecodeError) as error:
            raise SinkUnavailableError(f"{self._name}: not a CSV file of ours: {error}") from error


def _encoded(records: list[Any]) -> bytes:
    """Return records as they stand in the file: all text in quotes, so that a comma or a line end is text."""
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\r\n").writerows(records)
    return text.getvalue().encode()


def _unguarded(shown: str) -> str:
    """Return the column that stands so in a header."""
    return shown[1:] if shown.startswith("'") and guarded(shown[1:]) == shown else shown
