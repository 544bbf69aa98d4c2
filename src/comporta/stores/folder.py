"""Finding, making and guarding the folder of ``shared://``.

One folder per user and name, under ``/dev/shm`` where there is one, closed to all other users. It holds the
table and a few lock files. It is made whole under another name and then renamed into place, so nobody ever
sees half of it; the table's space is allocated beforehand, so that a full disk is an error here and not a
signal later. A folder from before the last start of the machine is put away, because its times mean nothing
any more. Remove the folder as a whole, if ever; never a file of it.
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
import time

from comporta.errors import StateTimeoutError, StateUnavailableError
from comporta.stores.table import HEADER_BYTES, VERSION, geometry, header, read_header

LOCKS = 16
TABLE = "table"

_TRIES_MAX = 20
_REPLACE_WAIT_SECONDS = 5.0
_OPEN = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


def path_of(name: str) -> str:
    """Return the folder of a name, for this user."""
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()  # noqa: S108
    return os.path.join(parent, f"comporta-{os.geteuid()}-{name}-v{VERSION}")


def boot_id() -> str:
    """Return something that differs after each start of the machine."""
    if sys.platform == "darwin":
        command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


class Folder:
    """An opened folder: its own descriptor, by which its files are found whatever becomes of its name."""

    def __init__(self, path: str, keys: int, boot: str) -> None:
        self.path = path
        self._fd, self.keys = _open(path, keys, boot)

    def table(self) -> int:
        """Return a descriptor of the table."""
        return os.open(TABLE, _OPEN, dir_fd=self._fd)

    def locks(self) -> list[int]:
        """Return descriptors of the lock files; a lock belongs to the descriptor it was taken by."""
        return [os.open(_lock_name(number), _OPEN, dir_fd=self._fd) for number in range(LOCKS)]

    def close(self) -> None:
        """Close the folder's own descriptor."""
        os.close(self._fd)


def _lock_name(number: int) -> str:
    return f"lock.{number:02}"


def _open(path: str, keys: int, boot: str) -> tuple[int, int]:
    """Return a descriptor of the folder and for how many keys it was made; make it if need be."""
    for _ in range(_TRIES_MAX):
        fd = _opened(path)
        if fd is None:
            _make(path, keys, boot)
            continue
        try:
            found_keys, found_boot = _found(fd, path)
            if found_boot == boot:
                return fd, found_keys
            _put_away(fd, path)
        except FileNotFoundError as error:
            if _is_at(fd, path):
                os.close(fd)
                raise StateUnavailableError(f"{path} lacks {error.filename}: remove the folder") from None
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
    raise StateUnavailableError(f"{path} keeps disappearing while it is opened")


def _opened(path: str) -> int | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        why = "it is a symbolic link" if os.path.islink(path) else error.strerror
        raise StateUnavailableError(f"cannot open {path}: {why}") from error
    found = os.fstat(fd)
    if found.st_uid != os.geteuid():
        why = f"belongs to user {found.st_uid}, not to {os.geteuid()}"
    elif found.st_mode & 0o077:
        why = f"has mode {stat.S_IMODE(found.st_mode):04o}, others could change it; 0700 is needed"
    else:
        return fd
    os.close(fd)
    raise StateUnavailableError(f"{path} {why}")


def _found(folder: int, path: str) -> tuple[int, str]:
    """Read the table's header, and see that the table is as long as it says and has its locks."""
    table = os.path.join(path, TABLE)
    for number in range(LOCKS):
        os.stat(_lock_name(number), dir_fd=folder)
    try:
        fd = os.open(TABLE, _OPEN, dir_fd=folder)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StateUnavailableError(f"cannot open {table}: {error.strerror}") from error
    try:
        keys, boot = read_header(os.pread(fd, HEADER_BYTES, 0), table)
        needed, size = geometry(keys)[-1].end, os.fstat(fd).st_size
    finally:
        os.close(fd)
    if size < needed:
        raise StateUnavailableError(f"{table} has {size} bytes, {needed} are needed; remove {path}")
    return keys, boot


def _make(path: str, keys: int, boot: str) -> None:
    size = geometry(keys)[-1].end
    temporary = f"{path}.{os.getpid()}.{time.monotonic_ns()}"
    try:
        os.mkdir(temporary, 0o700)
        for name in (TABLE, *map(_lock_name, range(LOCKS))):
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            fd = os.open(os.path.join(temporary, name), flags, 0o600)
            try:
                if name == TABLE:
                    _allocate(fd, size)
                    os.pwrite(fd, header(keys, boot), 0)
            finally:
                os.close(fd)
        os.rename(temporary, path)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            return  # another process was quicker; its folder is as good
        why = error.strerror
        if error.errno == errno.ENOSPC:
            why = f"{why}: {size / 2**20:.0f} MB are needed; ask for fewer with ?keys="
        raise StateUnavailableError(f"cannot make {path}: {why}") from error


def _allocate(fd: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
    else:
        block = bytes(2**20)
        for start in range(0, size, len(block)):
            os.pwrite(fd, block[: size - start], start)


def _put_away(folder: int, path: str) -> None:
    """Rename a folder from before the last start; of many processes that try, one does."""
    fd = os.open(_lock_name(0), _OPEN, dir_fd=folder)
    try:
        _lock(fd, path)
        if _is_at(folder, path):
            away = f"{path}.{os.getpid()}.{time.monotonic_ns()}"
            os.rename(path, away)
            shutil.rmtree(away, ignore_errors=True)
    finally:
        os.close(fd)


def _is_at(folder: int, path: str) -> bool:
    """Whether an opened folder is still the one of that name."""
    try:
        return os.stat(path).st_ino == os.fstat(folder).st_ino
    except FileNotFoundError:
        return False


def _lock(fd: int, path: str) -> None:
    deadline = time.monotonic() + _REPLACE_WAIT_SECONDS
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise StateTimeoutError(
                    f"{path} is being replaced by another process for {_REPLACE_WAIT_SECONDS} s"
                ) from None
            time.sleep(0.001)
        else:
            return
