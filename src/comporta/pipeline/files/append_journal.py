"""Announces each append to a file before it happens, so that a resumed run recognizes its own bytes.

A killed run leaves rows beyond the end that its checkpoint knows. They may be cut off only if the run wrote
them: another program may have appended to the file since. The journal is a file of one small record that says
how far the run has written, how far its next append goes, and the checksums of both.

This module knows nothing about rows and checkpoints, and raises the errors of the system. It blocks.
"""

from __future__ import annotations

import os
from pathlib import Path
from struct import Struct, error
from typing import Final, NamedTuple
from zlib import crc32

from comporta.pipeline.files.torn_tail import CHUNK_BYTES

RUN_CHARS: Final = 16
"""The length of the text that identifies a run."""

_PAGE_BYTES: Final = 4096
"""A write that a kill interrupts ends at a multiple of this."""

_RECORD = Struct(f"<{RUN_CHARS}sQQIQI")


class _Record(NamedTuple):
    """What a run wrote, from ``start`` to ``before``, and will write, up to ``after``, with checksums."""

    run: bytes
    start: int
    before: int
    crc_before: int
    after: int
    crc_after: int


class AppendJournal:
    """The journal ``path`` of one run and the file it appends to.

    With ``durable``, a record is on the disk before the append that it announces.
    """

    def __init__(self, path: Path, run: str, *, durable: bool) -> None:
        self._path = path
        self._run = run.encode()
        self._durable = durable
        self._descriptor: int | None = None
        self._last = _Record(self._run, 0, 0, 0, 0, 0)

    def wrote_tail(self, descriptor: int, end: int, size: int) -> bool:
        """Return whether this run wrote the bytes of a file from ``end`` up to its ``size``."""
        record = self._load()
        if record is None or record.run != self._run or not record.start <= end:
            return False
        if size not in (record.before, record.after) and (
            not record.before < size < record.after or size % _PAGE_BYTES
        ):
            return False
        crc = _file_crc(descriptor, record.start, record.before, 0)
        if crc != record.crc_before:
            return False
        return size < record.after or _file_crc(descriptor, record.before, size, crc) == record.crc_after

    def start(self, size: int) -> None:
        """Start a new journal for a file of ``size`` bytes."""
        self.close()
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._save(_Record(self._run, size, size, 0, size, 0))

    def announce(self, size: int, data: bytes) -> None:
        """Announce that data will be appended to the file, which has ``size`` bytes now."""
        last = self._last
        crc = last.crc_after if size == last.after else last.crc_before  # the last append may have failed
        self._save(_Record(self._run, last.start, size, crc, size + len(data), crc32(data, crc)))

    def close(self) -> None:
        """Close the journal; its record stays."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _save(self, record: _Record) -> None:
        descriptor = self._descriptor
        assert descriptor is not None  # noqa: S101 - announced only while the file is open
        os.pwrite(descriptor, _RECORD.pack(*record), 0)
        if self._durable:
            os.fsync(descriptor)
        self._last = record

    def _load(self) -> _Record | None:
        try:
            return _Record(*_RECORD.unpack(self._path.read_bytes()))
        except (FileNotFoundError, error):
            return None


def _file_crc(descriptor: int, start: int, end: int, crc: int) -> int:
    """Return the checksum of a part of a file, continued from ``crc``."""
    while start < end and (chunk := os.pread(descriptor, min(CHUNK_BYTES, end - start), start)):
        crc = crc32(chunk, crc)
        start += len(chunk)
    return crc
