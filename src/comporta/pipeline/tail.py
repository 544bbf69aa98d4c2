"""The end of a file to which lines are added: a process that was killed may have left half of one there.

What was added whole was confirmed, what was not was not: half a line is cut off, and comes again. A value
that lacks but the end of its line is kept: it may be somebody else's, and twice is better than never.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Final

CHUNK_BYTES: Final = 1 << 20


def whole_lines(descriptor: int, size: int) -> int:
    """Return how many bytes of a file are whole lines; looks from the end."""
    end = size
    while end > 0:
        start = max(0, end - CHUNK_BYTES)
        found = os.pread(descriptor, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def upto(lines: Iterable[bytes], end: int) -> Iterator[bytes]:
    """Return the lines that begin before ``end``."""
    for line in lines:
        if end <= 0:
            return
        end -= len(line)
        yield line


def is_whole(descriptor: int, start: int, size: int) -> bool:
    """Whether what stands from here on is one JSON value, and lacks but the end of its line."""
    import json  # noqa: PLC0415 - files of CSV need none

    try:
        json.loads(os.pread(descriptor, size - start, start))
    except (ValueError, RecursionError):
        return False
    return True


def whole_records(descriptor: int) -> int:
    """Return how many bytes are whole records of a CSV file: in quotes, the end of a line ends nothing."""
    whole, start, quoted = 0, 0, False
    while chunk := os.pread(descriptor, CHUNK_BYTES, start):
        at = start
        for part in chunk.split(b'"'):
            if not quoted and (found := part.rfind(b"\n")) >= 0:
                whole = at + found + 1
            at += len(part) + 1
            quoted = not quoted
        quoted = not quoted  # a chunk has one part more than quotes
        start += len(chunk)
    return whole


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of it; a file that is full takes some first."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
