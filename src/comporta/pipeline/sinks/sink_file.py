"""The file of a sink that appends rows: its lock, the keys in it, and errors that name the sink."""

from __future__ import annotations

import csv
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Final

from comporta.errors import SinkFullError, SinkUnavailableError
from comporta.events import publish
from comporta.pipeline.files.append_journal import AppendJournal
from comporta.pipeline.files.append_only import AppendOnlyFile
from comporta.pipeline.sinks.base import ResumePoint

REPEATED_COLUMN: Final = "repeated"
"""The column, or field, that marks a row whose key is in the file already."""

KEYS_MAX: Final = 1_000_000
"""How many keys are remembered, the latest ones (and up to a tenth more)."""

DISK_FULL_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

PARSE_ERRORS: Final = (csv.Error, ValueError, IndexError)
"""The errors that reading a file of another kind raises."""


class SinkFile:
    """The file of one sink; errors start with ``name``."""

    def __init__(self, kind: str, path: str | os.PathLike[str], *, durable: bool) -> None:
        self.name = f"{kind} {Path(path)}"
        self._file = AppendOnlyFile(path, 0o644, durable=durable)
        self._size = 0
        self._torn = False
        self._keys: dict[int, None] = {}
        self._journal: AppendJournal | None = None
        self._durable = durable

    @property
    def size(self) -> int:
        """The size of the file in bytes, without a batch that is being appended."""
        return self._size

    @contextmanager
    def open_exclusive(self, point: ResumePoint | None) -> Iterator[int]:
        """Open and lock the file; the caller reads it before it truncates anything.

        With a ``point``, the file ends there: what the run wrote beyond is removed.
        """
        with self._file.lock, self._translated_errors(), self._file.open_exclusive() as descriptor:
            self._keys.clear()
            self._size, self._torn = os.fstat(descriptor).st_size, False
            journal = None
            if point is not None:
                journal = AppendJournal(point.journal, point.run, durable=self._durable)
                self._truncate_to(descriptor, point.end, journal)
            try:
                yield descriptor
            except PARSE_ERRORS as error:
                raise SinkUnavailableError(
                    f"{self.name}: the file is not one of this kind of sink: {error}; choose another path"
                ) from error
            if journal is not None:
                journal.start(self._size)
            self._journal = journal

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of this sink for an append."""
        with self._file.lock, self._translated_errors():
            if self._file.descriptor is None:
                raise SinkUnavailableError(f"{self.name}: the sink is not open")
            yield

    def append(self, data: bytes) -> None:
        """Append data as a whole; raises if another program changed the file meanwhile."""
        descriptor = self._file.open()
        self._check_unchanged(os.fstat(descriptor))
        if self._torn:
            os.ftruncate(descriptor, self._size)
        if self._journal is not None:
            self._journal.announce(self._size, data)
        self._torn = True
        self._size = self._file.append(descriptor, self._size, data)
        self._torn = False

    def truncate_torn_row(self, descriptor: int, complete: int) -> None:
        """Remove the incomplete row that a killed process left behind ``complete`` bytes."""
        if self._size > complete:
            os.ftruncate(descriptor, complete)
            text = f"removed an incomplete row of {self._size - complete} bytes"
            publish("sink_repaired", self.name, text, "info")
        self._size = complete

    def close(self) -> None:
        """Close the file."""
        with self._file.lock:
            self._file.close()
            if self._journal is not None:
                self._journal.close()
                self._journal = None

    def has_key(self, key: int) -> bool:
        """Return whether a row of this key is in the file."""
        return key in self._keys

    def remember_keys(self, keys: dict[int, None]) -> None:
        """Remember keys; beyond the limit many are forgotten at once, because each removal costs a scan."""
        self._keys.update(keys)
        over = len(self._keys) - KEYS_MAX
        if over > KEYS_MAX // 10:
            for key in list(islice(self._keys, over)):
                del self._keys[key]

    def _truncate_to(self, descriptor: int, end: int | None, journal: AppendJournal) -> None:
        """Remove what a run wrote beyond the ``end`` that its checkpoint knows."""
        size = self._size
        if end is None:
            return
        if size < end:
            raise SinkUnavailableError(
                f"{self.name}: the file has {size} bytes, but the checkpoint knows {end}: confirmed rows are "
                "missing; restore the file, or remove the checkpoint to start again"
            )
        if size > end:
            if not journal.wrote_tail(descriptor, end, size):
                raise SinkUnavailableError(
                    f"{self.name}: this run did not write the last {size - end} bytes, which are beyond the "
                    f"{end} bytes that the checkpoint knows; move them to another file, or remove the "
                    "checkpoint to start again"
                )
            os.ftruncate(descriptor, end)
            text = f"removed {size - end} bytes that were written after the last checkpoint"
            publish("sink_repaired", self.name, text, "info")
            self._size = end

    def _check_unchanged(self, status: os.stat_result) -> None:
        if status.st_nlink == 0:
            raise SinkUnavailableError(f"{self.name}: another program removed or replaced the file")
        if status.st_size < self._size or (status.st_size > self._size and not self._torn):
            text = f"another program changed the file: expected {self._size} bytes, got {status.st_size}"
            raise SinkUnavailableError(f"{self.name}: {text}")

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except BlockingIOError as error:
            raise SinkUnavailableError(
                f"{self.name}: another process, or another sink, has the file open"
            ) from error
        except OSError as error:
            kind = SinkFullError if error.errno in DISK_FULL_ERRNOS else SinkUnavailableError
            raise kind(f"{self.name}: {error.strerror}") from error
