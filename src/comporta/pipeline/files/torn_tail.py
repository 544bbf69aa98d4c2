"""The end of a file of lines, where a process that was killed may have left an incomplete one.

Complete lines were acknowledged and an incomplete one was not, so it is removed and written again. A JSON
value that lacks only the end of its line is kept: another program may have written it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Final

CHUNK_BYTES: Final = 1 << 20


def complete_lines_size(descriptor: int, size: int) -> int:
    """Return how many bytes of a file are complete lines; reads from the end."""
    end = size
    while end > 0:
        start = max(0, end - CHUNK_BYTES)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def lines_before(lines: Iterable[bytes], end: int) -> Iterator[bytes]:
    """Yield the lines that start before the offset ``end``."""
    for line in lines:
        if end <= 0:
            return
        end -= len(line)
        yield line


def is_complete_json(descriptor: int, start: int, size: int) -> bool:
    """Return whether the bytes from ``start`` are one JSON value without the end of its line."""
    import json  # noqa: PLC0415 - CSV files do not need it

    try:
        json.loads(os.pread(descriptor, size - start, start))
    except (ValueError, RecursionError):
        return False
    return True


def complete_records_size(descriptor: int, start: int = 0) -> int:
    """Return how many bytes of a CSV file are complete records; a newline in quotes does not end one.

    ``start`` is the end of a record: it reads only from there.
    """
    complete, quoted = start, False
    while chunk := os.pread(descriptor, CHUNK_BYTES, start):
        at = start
        for part in chunk.split(b'"'):
            if not quoted and (newline := part.rfind(b"\n")) >= 0:
                complete = at + newline + 1
            at += len(part) + 1
            quoted = not quoted
        quoted = not quoted  # a chunk has one part more than quotes
        start += len(chunk)
    return complete


def write_all(descriptor: int, data: bytes) -> None:
    """Write all data; a single write may accept only a part of it."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
