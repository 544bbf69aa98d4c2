"""Books that survive their keeper: counters in a mapped file, and records that show if they are whole."""

from __future__ import annotations

import mmap
from pathlib import Path
from struct import Struct
from types import TracebackType
from zlib import crc32

_CELL = Struct("<q")
_SEAL = Struct("<I")


class Book:
    """Rows of counters in a file, one row for each process; a kill loses at most the count under way."""

    def __init__(self, path: Path, rows: int, columns: int) -> None:
        self._columns = columns
        self._rows = rows
        with path.open("a+b") as file:
            file.truncate(rows * columns * _CELL.size)
            self._memory = mmap.mmap(file.fileno(), rows * columns * _CELL.size)

    def __enter__(self) -> Book:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._memory.close()

    def add(self, row: int, column: int, amount: int = 1) -> None:
        # by one move: pack_into clears the place first, and others read without a lock
        at = self._at(row, column)
        self._memory[at : at + _CELL.size] = _CELL.pack(self.get(row, column) + amount)

    def get(self, row: int, column: int) -> int:
        count: int = _CELL.unpack_from(self._memory, self._at(row, column))[0]
        return count

    def total(self, column: int) -> int:
        return sum(self.get(row, column) for row in range(self._rows))

    def _at(self, row: int, column: int) -> int:
        return (row * self._columns + column) * _CELL.size


def sealed(letter: bytes, length: int) -> bytes:
    """Return a value of one letter that ends with its own checksum, where there is room for one."""
    if length <= _SEAL.size:
        return letter * length
    body = letter * (length - _SEAL.size)
    return body + _SEAL.pack(crc32(body))


def is_whole(value: bytes) -> bool:
    """Whether a value is what ``sealed`` made, and not parts of two."""
    if len(value) <= _SEAL.size:
        return len(set(value)) == 1
    body, seal = value[: -_SEAL.size], value[-_SEAL.size :]
    return len(set(body)) == 1 and seal == _SEAL.pack(crc32(body))
