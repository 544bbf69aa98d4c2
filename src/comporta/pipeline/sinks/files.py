"""What sinks that add rows to a file have in common: the file for oneself, keys known again, named errors."""

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
from comporta.pipeline.appended import AppendedFile

REPEATED: Final = "repeated"
"""The column, or field, in which a row whose key is in the file already says so."""

KEYS_MAX: Final = 1_000_000
"""How many keys are remembered, the latest ones, to know a row again (and up to a tenth more)."""

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

STRANGE: Final = (csv.Error, ValueError, IndexError)
"""What reading a file raises that is not what it should be."""


class SinkFile:
    """One file of one sink, which ``name`` says in every error."""

    def __init__(self, kind: str, path: str | os.PathLike[str], *, durable: bool) -> None:
        self.name = f"{kind} {Path(path)}"
        self._file = AppendedFile(path, 0o644, durable=durable)
        self._size = 0
        self._torn = False
        self._keys: dict[int, None] = {}

    @contextmanager
    def opening(self) -> Iterator[int]:
        """Have the file for oneself: who looks at what is there cuts off nothing before it knows it."""
        with self._file.lock, self._named(), self._file.begun_alone() as descriptor:
            self._keys.clear()
            self._size, self._torn = os.fstat(descriptor).st_size, False
            try:
                yield descriptor
            except STRANGE as error:
                raise SinkUnavailableError(f"{self.name}: not a file of ours: {error}") from error

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Add to it."""
        with self._file.lock, self._named():
            if self._file.descriptor is None:
                raise SinkUnavailableError(f"{self.name}: not open")
            yield

    def append(self, data: bytes) -> None:
        """Add a piece, whole; a file that somebody else changed meanwhile is not touched."""
        descriptor = self._file.open()
        self._check_unchanged(os.fstat(descriptor))
        if self._torn:
            os.ftruncate(descriptor, self._size)
        self._torn = True
        self._size = self._file.append(descriptor, self._size, data)
        self._torn = False

    def cut(self, descriptor: int, whole: int) -> None:
        """Cut off half a row that somebody who was killed left behind ``whole`` bytes."""
        if self._size > whole:
            os.ftruncate(descriptor, whole)
            publish("sink_mended", self.name, f"half a row, {self._size - whole} bytes, was cut off", "info")
        self._size = whole

    def close(self) -> None:
        """Close the file."""
        with self._file.lock:
            self._file.close()

    def is_known(self, key: int) -> bool:
        """Whether a row of this key is in the file."""
        return key in self._keys

    def remember(self, keys: dict[int, None]) -> None:
        """Know these from now on; many are forgotten at once: each time it is a look past all that were."""
        self._keys.update(keys)
        over = len(self._keys) - KEYS_MAX
        if over > KEYS_MAX // 10:
            for key in list(islice(self._keys, over)):
                del self._keys[key]

    def _check_unchanged(self, there: os.stat_result) -> None:
        if there.st_nlink == 0:
            raise SinkUnavailableError(f"{self.name}: somebody else has removed or replaced it")
        if there.st_size < self._size or (there.st_size > self._size and not self._torn):
            text = f"somebody else has changed it: {there.st_size} bytes, {self._size} were ours"
            raise SinkUnavailableError(f"{self.name}: {text}")

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except BlockingIOError as error:
            raise SinkUnavailableError(f"{self.name}: another process, or another sink, writes it") from error
        except OSError as error:
            kind = SinkFullError if error.errno in FULL else SinkUnavailableError
            raise kind(f"{self.name}: {error.strerror}") from error
