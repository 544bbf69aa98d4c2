"""A file that grows by whole pieces: data is appended completely or not at all, as far as the system allows.

This module knows nothing about rows and dead letters, and raises the errors of the system. It blocks. Callers
hold the file's ``lock``.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from comporta import fork_safety
from comporta.pipeline.files.torn_tail import write_all


class AppendOnlyFile:
    """The file ``path``, created with the permissions ``mode`` if it does not exist.

    With ``durable``, appended data survives a power failure; each append then flushes the disk.
    """

    def __init__(self, path: str | os.PathLike[str], mode: int, *, durable: bool) -> None:
        self.path = Path(path)
        self.lock = Lock()
        self.descriptor: int | None = None
        self._mode = mode
        self._durable = durable
        fork_safety.register(self)

    def open(self) -> int:
        """Open the file, or create it, unless it is open."""
        if self.descriptor is None:
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self.descriptor = os.open(self.path, flags, self._mode)
        return self.descriptor

    @contextmanager
    def open_exclusive(self) -> Iterator[int]:
        """Open the file and lock it until it is closed; an error inside the block closes it."""
        if self.descriptor is not None:
            raise BlockingIOError
        descriptor = self.open()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield descriptor
        except BaseException:
            self.close()
            raise

    @contextmanager
    def open_locked(self) -> Iterator[int]:
        """Open the file and lock it for the block; if it was moved away, open a new one at the path."""
        if not self._is_still_at_path():
            self.close()
        descriptor = self.open()
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            yield descriptor
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)

    def append(self, descriptor: int, size: int, data: bytes) -> int:
        """Append to a file of ``size`` bytes and return the new size; a failure restores the old size."""
        try:
            write_all(descriptor, data)
            if self._durable:
                os.fsync(descriptor)
        except BaseException:
            os.ftruncate(descriptor, size)
            raise
        return size + len(data)

    def close(self) -> None:
        """Close the file."""
        descriptor, self.descriptor = self.descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def after_fork(self) -> None:
        """Close the descriptor, because a file lock belongs to all processes that share a descriptor."""
        fork_safety.reinit_lock(self.lock)
        self.close()

    def _is_still_at_path(self) -> bool:
        try:
            return self.descriptor is None or os.path.samestat(os.fstat(self.descriptor), self.path.stat())
        except FileNotFoundError:
            return False
