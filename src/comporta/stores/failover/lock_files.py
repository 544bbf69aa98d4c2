"""Locked files that the processes of one user on one machine share.

The kernel unlocks the file of a process that has ended, however it ended. The files are in one directory per
user, under ``/dev/shm`` where that exists, which must belong to this user alone.

This module does not know what a locked file stands for (``machine_workers.py``). A simulation replaces it.
"""

from __future__ import annotations

import fcntl
import os
from abc import ABC, abstractmethod
from contextlib import suppress

from comporta.runtime import PerProcess
from comporta.stores.failover.worker_count_file import machine_directory

_FILE_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW


class LockDirectory(ABC):
    """The open directory. Every method may raise ``OSError``."""

    @abstractmethod
    def close(self) -> None:
        """Close the directory; files stay open."""

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of all files."""

    @abstractmethod
    def create(self, name: str) -> int:
        """Create a file and return its descriptor; ``FileExistsError`` if it exists."""

    @abstractmethod
    def open(self, name: str) -> int:
        """Return a descriptor of a file; ``FileNotFoundError`` if it does not exist."""

    @abstractmethod
    def has(self, name: str) -> bool:
        """Return whether a file exists."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file, if it exists; its descriptors and its lock remain."""


class LockFiles(ABC):
    """The directory, and what a process does with open files."""

    @abstractmethod
    def open_directory(self) -> LockDirectory:
        """Open the directory, which is created if necessary; ``OSError`` if it cannot be used."""

    @abstractmethod
    def lock(self, fd: int, *, shared: bool = False) -> None:
        """Lock an open file until it is closed; ``BlockingIOError`` if another process has locked it."""

    @abstractmethod
    def close(self, fd: int) -> None:
        """Close a file, which unlocks it."""

    @abstractmethod
    def unlink(self, name: str) -> None:
        """Remove a file without opening the directory, so that a process without descriptors can do it."""


class _MachineDirectory(LockDirectory):
    """A descriptor of the directory of this user."""

    def __init__(self) -> None:
        path = _directory_path()
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)  # noqa: PTH102 - see worker_count_file.py
        self._fd = os.open(path, _DIRECTORY_FLAGS)
        status = os.fstat(self._fd)
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            os.close(self._fd)
            raise PermissionError(f"{path} must belong to this user and have mode 0700")

    def close(self) -> None:
        os.close(self._fd)

    def names(self) -> list[str]:
        return os.listdir(self._fd)  # noqa: PTH208 - a descriptor is not a path

    def create(self, name: str) -> int:
        return os.open(name, _FILE_FLAGS | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=self._fd)

    def open(self, name: str) -> int:
        return os.open(name, _FILE_FLAGS, dir_fd=self._fd)

    def has(self, name: str) -> bool:
        try:
            os.stat(name, dir_fd=self._fd)
        except FileNotFoundError:
            return False
        return True

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._fd)


class _MachineLockFiles(LockFiles):
    """The files of the real machine."""

    def open_directory(self) -> LockDirectory:
        return _MachineDirectory()

    def lock(self, fd: int, *, shared: bool = False) -> None:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)

    def close(self, fd: int) -> None:
        os.close(fd)

    def unlink(self, name: str) -> None:
        os.unlink(f"{_directory_path()}/{name}")  # noqa: PTH108 - see worker_count_file.py


LOCK_FILES: PerProcess[LockFiles] = PerProcess(_MachineLockFiles)


def _directory_path() -> str:
    return f"{machine_directory()}/comporta-{os.geteuid()}-fallback"
