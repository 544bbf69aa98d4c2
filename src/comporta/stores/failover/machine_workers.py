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

from contextlib import suppress
from threading import Lock
from typing import NamedTuple

from comporta import fork_safety
from comporta.runtime import RUNTIME
from comporta.stores.failover.lock_files import LOCK_FILES, LockDirectory, LockFiles
from comporta.stores.failover.worker_count_file import address_digest

MACHINE_WORKERS_MAX = 1000
"""How many workers of a machine are counted for one state."""

_TRIES_MAX = 3


class MachineWorkers:
    """The workers of this machine that are in fallback for one state, and this worker's file among theirs.

    ``count`` is the number at the last :meth:`join`; 0 if it is unknown or this worker is not listed.

    A forked child calls :meth:`after_fork` before it joins as a separate worker.
    """

    def __init__(self, address: str) -> None:
        self.count = 0
        self._address = address
        self._files = LOCK_FILES.get()
        self._own_file: _LockedFile | None = None
        self._lock = Lock()

    def __del__(self) -> None:
        """Leave the list: a store that is no longer referenced does not count as a worker."""
        self.leave()

    def join(self) -> int:
        """List this worker unless it is listed, and return the number of workers; 0 if it is unknown."""
        try:
            with self._lock:
                directory = self._files.open_directory()
                try:
                    self.count = self._join(directory)
                finally:
                    directory.close()
        except OSError:
            self.count = 0
        return self.count

    def leave(self) -> None:
        """Remove this worker from the list."""
        with self._lock:
            own_file, self._own_file = self._own_file, None
            self.count = 0
            if own_file is not None:
                with suppress(OSError):
                    self._files.unlink(own_file.name)
                self._files.close(own_file.fd)

    def after_fork(self) -> None:
        """Drop the file of the parent, which stays locked for as long as the parent has it open."""
        fork_safety.reinit_lock(self._lock)
        own_file, self._own_file = self._own_file, None
        self.count = 0
        if own_file is not None:
            self._files.close(own_file.fd)

    def _join(self, directory: LockDirectory) -> int:
        own_file = self._own_file
        if own_file is not None and not directory.has(own_file.name):  # a person or a tool removed it
            self._files.close(own_file.fd)
            own_file = self._own_file = None
        prefix = f"{address_digest(self._address)}-"
        if own_file is None:
            _count_locked(
                self._files, directory, ""
            )  # removes files that killed workers left, also of other states
            self._own_file = _create_locked(self._files, directory, prefix)
        return _count_locked(self._files, directory, prefix)


class _LockedFile(NamedTuple):
    """A file that is locked for as long as its descriptor is open."""

    fd: int
    name: str


def _create_locked(files: LockFiles, directory: LockDirectory, prefix: str) -> _LockedFile | None:
    """Return a new locked file; ``None`` if it cannot be locked.

    Another worker may find the file before it is locked and remove it; another file is then created.
    """
    for _ in range(_TRIES_MAX):
        name = prefix + RUNTIME.random_bytes(8).hex()
        fd = directory.create(name)
        try:
            files.lock(fd)
            if directory.has(name):
                return _LockedFile(fd, name)
        except OSError:  # another worker looks at it right now, or the file system has no locks
            directory.remove(name)
        files.close(fd)
    return None


def _count_locked(files: LockFiles, directory: LockDirectory, prefix: str) -> int:
    """Return how many files with this prefix are locked, and remove those that are not."""
    names = [name for name in directory.names() if name.startswith(prefix)]
    return sum(_is_locked(files, directory, name) for name in names[:MACHINE_WORKERS_MAX])


def _is_locked(files: LockFiles, directory: LockDirectory, name: str) -> bool:
    try:
        fd = directory.open(name)
    except FileNotFoundError:  # its worker has just left
        return False
    try:
        files.lock(fd, shared=True)  # shared: another worker may look at the same time
    except BlockingIOError:
        return True
    else:
        directory.remove(name)
        return False
    finally:
        files.close(fd)
