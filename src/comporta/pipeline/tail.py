"""The end of a file to which lines are added: a process that was killed may have left half of one there.

What was added whole was confirmed, what was not was not: half a line is cut off, and comes again.
"""

from __future__ import annotations

import os
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
