"""A file that grows by whole pieces: what is added is there whole or not at all, as far as one can see to it.

It knows neither rows nor letters, and its errors are the system's own; whoever uses it holds its ``lock``.
It blocks.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from comporta import forks
from comporta.pipeline.tail import write_all


class AppendedFile:
    """The file ``path``, made if it is not there with the rights ``mode``.

    ``durable``: a piece survives also a power cut, which takes the time of a disk's flush each.
    """

    def __init__(self, path: str | os.PathLike[str], mode: int, *, durable: bool) -> None:
        self.path = Path(path)
        self.lock = Lock()
        self.descriptor: int | None = None
        self._mode = mode
        self._durable = durable
        forks.register(self)

    def open(self) -> int:
        """Open it, or make it, unless it is open."""
        if self.descriptor is None:
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self.descriptor = os.open(self.path, flags, self._mode)
        return self.descriptor

    @contextmanager
    def begun_alone(self) -> Iterator[int]:
        """Open it for nobody else as long as it is open; what is raised meanwhile closes it again."""
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
    def in_turn(self) -> Iterator[int]:
        """Open it, and have it as long as this takes; a file that was moved away is left where it is."""
        if not self._is_at_its_path():
            self.close()
        descriptor = self.open()
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            yield descriptor
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)

    def append(self, descriptor: int, size: int, data: bytes) -> int:
        """Write all of it behind the first ``size`` bytes, or cut off what there was room for."""
        try:
            write_all(descriptor, data)
            if self._durable:
                os.fsync(descriptor)
        except BaseException:
            os.ftruncate(descriptor, size)
            raise
        return size + len(data)

    def close(self) -> None:
        """Let go of it."""
        descriptor, self.descriptor = self.descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def after_fork(self) -> None:
        """Leave it to the parent: a lock on a file belongs to all who share a descriptor."""
        forks.renew(self.lock)
        self.close()

    def _is_at_its_path(self) -> bool:
        try:
            return self.descriptor is None or os.path.samestat(os.fstat(self.descriptor), self.path.stat())
        except FileNotFoundError:
            return False
