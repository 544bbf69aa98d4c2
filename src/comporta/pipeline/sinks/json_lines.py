"""Rows as JSON, one object a line, there to be read while the file grows.

A batch is in the file whole or not at all, as far as this process can see to it; half a line that a killed
one left is cut off when the file is opened again. A resumed run appends; what it writes again is marked.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, Final

from comporta import forks
from comporta.errors import SinkFullError, SinkRowError, SinkUnavailableError
from comporta.events import publish
from comporta.pipeline.sinks.base import Row
from comporta.pipeline.tail import whole_lines, write_all

REPEATED: Final = "repeated"
"""The field that says ``true`` in a row whose key is in the file already."""

KEYS_MAX: Final = 1_000_000
"""How many keys are remembered, the latest ones, to know a row again."""

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class JsonLinesSink:
    """Appends rows to the file ``path``. With a ``key``, a field, those that are there already say so.

    ``durable``: a batch survives also a power cut, which takes the time of a disk's flush each.
    """

    def __init__(
        self, path: str | os.PathLike[str], key: str | None = None, *, durable: bool = False
    ) -> None:
        self.path = Path(path)
        self.key = key
        self._durable = durable
        self._lock = Lock()
        self._descriptor: int | None = None
        self._size = 0
        self._keys: dict[int, None] = {}
        forks.register(self)

    def open(self) -> None:
        """Open the file, or make it; cut off half a line, and learn what is there."""
        with self._lock, self._named():
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._size = self._mended(descriptor)
                self._learn(descriptor)
            except BaseException:
                os.close(descriptor)
                raise
            self._descriptor = descriptor

    def write(self, rows: Sequence[Row]) -> None:
        """Append a batch, whole."""
        with self._lock, self._named():
            if self._descriptor is None:
                raise SinkUnavailableError(f"{self._name}: not open")
            keys: dict[int, None] = {}
            data = b"".join(self._line(index, row, keys) for index, row in enumerate(rows))
            self._append(self._descriptor, data)
            self._remember(keys)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            descriptor, self._descriptor = self._descriptor, None
            if descriptor is not None:
                os.close(descriptor)

    def after_fork(self) -> None:
        """The file is the parent's: two would write over each other's ends."""
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
        """Cut off half a line; returns the size. What we did not begin is left alone."""
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, 0) != b"{":
            raise SinkUnavailableError(f"{self._name}: there is a file already, and it was not begun by us")
        whole = whole_lines(descriptor, size)
        if size > whole:
            os.ftruncate(descriptor, whole)
            publish("sink_mended", self._name, f"half a row, {size - whole} bytes, was cut off", "info")
        return whole

    def _learn(self, descriptor: int) -> None:
        """Remember the keys of a file that goes on."""
        self._keys.clear()
        if self.key is None:
            return
        with open(descriptor, "rb", closefd=False) as lines:
            for line in lines:
                row = json.loads(line)
                if isinstance(row, dict) and self.key in row:
                    self._remember({_known(row[self.key]): None})

    def _line(self, index: int, row: Row, keys: dict[int, None]) -> bytes:
        record = dict(row)
        if self.key is not None:
            if self.key not in record:
                raise SinkRowError(f"{self._name}: row {index} of the batch has no {self.key!r}", index)
            known = _known(record[self.key])
            if known in self._keys or known in keys:
                record[REPEATED] = True
            keys[known] = None
        try:
            return json.dumps(record, default=str).encode() + b"\n"
        except (TypeError, ValueError, RecursionError) as error:
            raise SinkRowError(f"{self._name}: row {index} of the batch: {error}", index) from error

    def _remember(self, keys: dict[int, None]) -> None:
        self._keys.update(keys)
        while len(self._keys) > KEYS_MAX:
            del self._keys[next(iter(self._keys))]

    @property
    def _name(self) -> str:
        return f"JsonLinesSink {self.path}"

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except BlockingIOError as error:
            raise SinkUnavailableError(
                f"{self._name}: another process, or another sink, writes it"
            ) from error
        except OSError as error:
            kind = SinkFullError if error.errno in _FULL else SinkUnavailableError
            raise kind(f"{self._name}: {error.strerror}") from error
        except ValueError as error:
            raise SinkUnavailableError(f"{self._name}: is not JSON lines: {error}") from error


def _known(value: Any) -> int:
    """Return what a key is remembered by: the same for what was written and for what is read again."""
    return hash(json.dumps(value, default=str, sort_keys=True))
