"""How many workers of this user on this machine are in fallback for one state.

Workers that start during an outage cannot learn from the store how many there are. Each worker in fallback
therefore keeps a lock file, in one directory per user under ``/dev/shm`` where that exists, and counts the
locked files of its state. The kernel unlocks the file of a process that has ended, however it ended, so
nothing has to be refreshed, and a suspended process still counts. A worker that finds an unlocked file
removes it.

Containers with a ``/dev/shm`` of their own and other users count separately. If the directory cannot be used
(full, read-only, another user's), nothing is counted, and the worker continues with the count that it knows.

The alternative would be one common share of the machine in a ``shared://`` table. But a full or damaged table
would be a second outage within the first, and the process that reports for all might die before or after
doing so.

This module does not deal with limits, and does not know when an outage begins or ends.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import NamedTuple

from comporta import fork_safety
from comporta.runtime import RUNTIME, PerProcess
from comporta.stores.failover.worker_count_file import address_digest, machine_directory

MACHINE_WORKERS_MAX = 1000
"""How many workers of a machine are counted for one state."""

_TRIES_MAX = 3
_FILE_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW


class MachineWorkers:
    """The workers of this machine that are in fallback for one state, and this worker's file among theirs.

    A forked child calls :meth:`after_fork` before it joins as a separate worker.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._own_file: _LockedFile | None = None
        self._lock = Lock()

    def __del__(self) -> None:
        """Leave the list: a store that is no longer referenced does not count as a worker."""
        self.leave()

    def join(self) -> int:
        """List this worker unless it is listed, and return the number of workers; 0 if it is unknown."""
        try:
            with self._lock:
                directory = _open_directory()
                try:
                    return self._join(directory)
                finally:
                    os.close(directory)
        except OSError:
            return 0

    def leave(self) -> None:
        """Remove this worker from the list."""
        with self._lock:
            own_file, self._own_file = self._own_file, None
            if own_file is not None:
                with suppress(OSError):
                    os.unlink(f"{_directory_path()}/{own_file.name}")  # noqa: PTH108 - see worker_count_file.py
                os.close(own_file.fd)

    def after_fork(self) -> None:
        """Drop the file of the parent, which stays locked for as long as the parent has it open."""
        fork_safety.reinit_lock(self._lock)
        own_file, self._own_file = self._own_file, None
        if own_file is not None:
            os.close(own_file.fd)

    def _join(self, directory: int) -> int:
        own_file = self._own_file
        if own_file is not None and not _has_file(directory, own_file.name):  # a person or a tool removed it
            os.close(own_file.fd)
            own_file = self._own_file = None
        prefix = f"{address_digest(self._address)}-"
        if own_file is None:
            _count_locked(directory, "")  # removes files that killed workers left, also of other states
            self._own_file = _create_locked(directory, prefix)
        return _count_locked(directory, prefix)


class _LockedFile(NamedTuple):
    """A file that is locked for as long as its descriptor is open."""

    fd: int
    name: str


MACHINE_WORKERS: PerProcess[Callable[[str], MachineWorkers]] = PerProcess(lambda: MachineWorkers)
"""The factory of the list for a state. A simulation may use another one."""


def _directory_path() -> str:
    return f"{machine_directory()}/comporta-{os.geteuid()}-fallback"


def _open_directory() -> int:
    """Return a descriptor of the directory, which is created if necessary and must be this user's alone."""
    path = _directory_path()
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)  # noqa: PTH102 - see worker_count_file.py
    fd = os.open(path, _DIRECTORY_FLAGS)
    status = os.fstat(fd)
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        os.close(fd)
        raise PermissionError(f"{path} must belong to this user and have mode 0700")
    return fd


def _create_locked(directory: int, prefix: str) -> _LockedFile | None:
    """Return a new locked file; ``None`` if it cannot be locked.

    Another worker may find the file before it is locked and remove it; another file is then created.
    """
    for _ in range(_TRIES_MAX):
        name = prefix + RUNTIME.random_bytes(8).hex()
        fd = os.open(name, _FILE_FLAGS | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=directory)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _has_file(directory, name):
                return _LockedFile(fd, name)
        except OSError:  # another worker looks at it right now, or the file system has no locks
            _remove(directory, name)
        os.close(fd)
    return None


def _count_locked(directory: int, prefix: str) -> int:
    """Return how many files with this prefix are locked, and remove those that are not."""
    names = [name for name in os.listdir(directory) if name.startswith(prefix)]
    return sum(_is_locked(directory, name) for name in names[:MACHINE_WORKERS_MAX])


def _is_locked(directory: int, name: str) -> bool:
    try:
        fd = os.open(name, _FILE_FLAGS, dir_fd=directory)
    except FileNotFoundError:  # its worker has just left
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: another worker may look at the same time
    except BlockingIOError:
        return True
    else:
        _remove(directory, name)
        return False
    finally:
        os.close(fd)


def _has_file(directory: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=directory)
    except FileNotFoundError:
        return False
    return True


def _remove(directory: int, name: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)
