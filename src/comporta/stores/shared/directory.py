"""Finding, creating and checking the directory of ``shared://``.

There is one directory per user and name, under ``/dev/shm`` where that exists, closed to all other users. It
holds the table and its lock files. A process creates it completely under another name and then renames it, so
no other process ever sees an incomplete one. The beginning of the table is allocated beforehand, so that a
full disk is an error here and not a signal later. A directory from before the last boot is replaced, because
its times are no longer valid. An operator must remove the directory as a whole, never a single file in it.

This module does not know what is in the table.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from contextlib import suppress

from comporta.errors import StateTimeoutError, StateUnavailableError
from comporta.runtime import RUNTIME
from comporta.stores.shared.layout import (
    HEADER_BYTES,
    SEGMENT_BYTES,
    SEGMENTS_OFFSET,
    SHARDS,
    VERSION,
    pack_header,
    parse_header,
    table_geometry,
)
from comporta.stores.shared.slots import allocate

LOCK_COUNT = SHARDS + 1
"""One lock for each shard, and one for growth."""

TABLE_NAME = "table"

_TRIES_MAX = 20
_REPLACE_WAIT_SECONDS = 5.0
_CLOSED = -1
_OPEN_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


def directory_path(name: str) -> str:
    """Return the path of a name's directory, for this user."""
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()  # noqa: S108
    return os.path.join(parent, f"comporta-{os.geteuid()}-{name}-v{VERSION}")


def boot_id() -> str:
    """Return a text that differs after each boot of the machine."""
    if sys.platform == "darwin":
        command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


class StateDirectory:
    """An open directory. It finds its files by its own descriptor, even if its name is changed or reused."""

    def __init__(self, path: str, memory_mb: int, boot: str) -> None:
        self.path = path
        self._fd, self.memory_mb = _open_or_create(path, memory_mb, boot)

    def open_table(self) -> int:
        """Return a new descriptor of the table."""
        return os.open(TABLE_NAME, _OPEN_FLAGS, dir_fd=self._fd)

    def open_locks(self) -> list[int]:
        """Return new descriptors of the lock files; a lock belongs to the descriptor it was taken by."""
        return [os.open(_lock_name(number), _OPEN_FLAGS, dir_fd=self._fd) for number in range(LOCK_COUNT)]

    def problem(self) -> str | None:
        """Return what happened to the directory since it was opened, or ``None``."""
        if not _is_at(self._fd, self.path):
            return f"{self.path} was removed"
        try:
            size = os.stat(TABLE_NAME, dir_fd=self._fd).st_size
        except FileNotFoundError:
            return f"the table of {self.path} was removed"
        needed = table_geometry(self.memory_mb).size
        return f"the table of {self.path} was truncated to {size} bytes" if size < needed else None

    def remove_damaged(self) -> None:
        """Remove the directory, unless another process already did; of several processes, one does."""
        if _is_at(self._fd, self.path):
            with suppress(FileNotFoundError):  # someone is removing it right now
                _remove_stale(self._fd, self.path)

    def close(self) -> None:
        """Close the directory's own descriptor, only once: a second close could close a file opened since."""
        fd, self._fd = self._fd, _CLOSED
        if fd != _CLOSED:
            os.close(fd)


def _lock_name(number: int) -> str:
    return f"lock.{number:02}"


def _open_or_create(path: str, memory_mb: int, boot: str) -> tuple[int, int]:
    """Return a descriptor of the directory and the megabytes it was created for."""
    for _ in range(_TRIES_MAX):
        fd = _open_directory(path)
        if fd is None:
            _create(path, memory_mb, boot)
            continue
        try:
            table_mb, table_boot = _read_table_header(fd, path)
            if table_boot == boot:
                return fd, table_mb
            _remove_stale(fd, path)
        except FileNotFoundError as error:
            if _is_at(fd, path):
                os.close(fd)
                raise StateUnavailableError(f"{path} lacks {error.filename}: remove the folder") from None
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
    raise StateUnavailableError(f"{path} disappeared {_TRIES_MAX} times while it was being opened")


def _open_directory(path: str) -> int | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = "it is a symbolic link" if os.path.islink(path) else error.strerror
        raise StateUnavailableError(f"cannot open {path}: {reason}") from error
    status = os.fstat(fd)
    if status.st_uid != os.geteuid():
        reason = f"belongs to user {status.st_uid}, not to {os.geteuid()}"
    elif status.st_mode & 0o077:
        reason = f"has mode {stat.S_IMODE(status.st_mode):04o}, others could change it; 0700 is needed"
    else:
        return fd
    os.close(fd)
    raise StateUnavailableError(f"{path} {reason}")


def _read_table_header(directory: int, path: str) -> tuple[int, str]:
    """Return the table's megabytes and boot id, after checking its length and that all lock files exist."""
    table = os.path.join(path, TABLE_NAME)
    for number in range(LOCK_COUNT):
        os.stat(_lock_name(number), dir_fd=directory)
    try:
        fd = os.open(TABLE_NAME, _OPEN_FLAGS, dir_fd=directory)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StateUnavailableError(f"cannot open {table}: {error.strerror}") from error
    try:
        memory_mb, boot = parse_header(os.pread(fd, HEADER_BYTES, 0), table)
        needed, size = table_geometry(memory_mb).size, os.fstat(fd).st_size
    finally:
        os.close(fd)
    if size < needed:
        raise StateUnavailableError(f"{table} has {size} bytes, {needed} are needed; remove {path}")
    return memory_mb, boot


def _create(path: str, memory_mb: int, boot: str) -> None:
    geometry = table_geometry(memory_mb)
    segments = -(-geometry.chunks_offset // SEGMENT_BYTES) + 1
    temporary = f"{path}.{RUNTIME.pid()}.{RUNTIME.monotonic_ns()}"
    try:
        os.mkdir(temporary, 0o700)
        for name in (TABLE_NAME, *map(_lock_name, range(LOCK_COUNT))):
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            fd = os.open(os.path.join(temporary, name), flags, 0o600)
            try:
                if name == TABLE_NAME:
                    os.ftruncate(fd, geometry.size)
                    allocate(fd, 0, segments * SEGMENT_BYTES)
                    os.pwrite(fd, pack_header(memory_mb, boot), 0)
                    os.pwrite(fd, segments.to_bytes(4, "little"), SEGMENTS_OFFSET)
            finally:
                os.close(fd)
        os.rename(temporary, path)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            return  # another process was faster; its directory can be used
        reason = error.strerror
        if error.errno == errno.ENOSPC:
            reason = f"{reason}: {segments} MB are needed to begin with"
        raise StateUnavailableError(f"cannot create {path}: {reason}") from error


def _remove_stale(directory: int, path: str) -> None:
    """Rename and delete a directory that cannot be used; only one of several processes succeeds."""
    fd = os.open(_lock_name(0), _OPEN_FLAGS, dir_fd=directory)
    try:
        _lock(fd, path)
        if _is_at(directory, path):
            stale = f"{path}.{RUNTIME.pid()}.{RUNTIME.monotonic_ns()}"
            os.rename(path, stale)
            shutil.rmtree(stale, ignore_errors=True)
    finally:
        os.close(fd)


def _is_at(directory: int, path: str) -> bool:
    """Whether ``path`` still leads to this open directory."""
    try:
        return os.stat(path).st_ino == os.fstat(directory).st_ino
    except FileNotFoundError:
        return False


def _lock(fd: int, path: str) -> None:
    deadline = RUNTIME.monotonic() + _REPLACE_WAIT_SECONDS
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if RUNTIME.monotonic() >= deadline:
                raise StateTimeoutError(
                    f"another process has been replacing {path} for {_REPLACE_WAIT_SECONDS} s"
                ) from None
            RUNTIME.sleep(0.001)
        else:
            return
