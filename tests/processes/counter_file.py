"""Counters in a mapped file that survive a kill of their process, and values with a checksum."""

from __future__ import annotations

import mmap
from pathlib import Path
from struct import Struct
from types import TracebackType
from zlib import crc32

_CELL = Struct("<q")
_CHECKSUM = Struct("<I")


class CounterFile:
    """Rows of counters in a file, one row for each process; a kill loses at most one increment."""

    def __init__(self, path: Path, rows: int, columns: int) -> None:
        self._columns = columns
        self._rows = rows
        with path.open("a+b") as file:
            file.truncate(rows * columns * _CELL.size)
            self._memory = mmap.mmap(file.fileno(), rows * columns * _CELL.size)

    def __enter__(self) -> CounterFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._memory.close()

    def add(self, row: int, column: int, amount: int = 1) -> None:
        # In one move: pack_into would clear the cell first, and other processes read without a lock.
        at = self._at(row, column)
        self._memory[at : at + _CELL.size] = _CELL.pack(self.get(row, column) + amount)

    def get(self, row: int, column: int) -> int:
        count: int = _CELL.unpack_from(self._memory, self._at(row, column))[0]
        return count

    def total(self, column: int) -> int:
        return sum(self.get(row, column) for row in range(self._rows))

    def _at(self, row: int, column: int) -> int:
        return (row * self._columns + column) * _CELL.size


def with_checksum(letter: bytes, length: int) -> bytes:
    """Return a value that repeats one letter and ends with its checksum, if there is room for one."""
    if length <= _CHECKSUM.size:
        return letter * length
    body = letter * (length - _CHECKSUM.size)
    return body + _CHECKSUM.pack(crc32(body))


def is_intact(value: bytes) -> bool:
    """Return whether ``with_checksum`` made this value; a mix of two values is not intact."""
    if len(value) <= _CHECKSUM.size:
        return len(set(value)) == 1
    body, checksum = value[: -_CHECKSUM.size], value[-_CHECKSUM.size :]
    return len(set(body)) == 1 and checksum == _CHECKSUM.pack(crc32(body))
