"""The last known worker count, for a worker that starts during an outage.

A process learns the count from the replies of the store. A process that starts during an outage uses the
highest number it can find: ``COMPORTA_WORKERS``, or else ``WEB_CONCURRENCY`` (which several web servers read
and set), and the count that the workers of this user on this machine last saw, in one small file per state.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from comporta.runtime import RUNTIME, PerProcess

WORKERS_VARIABLE = "COMPORTA_WORKERS"
WORKER_COUNT_MAX = 1_000_000


def configured_worker_count() -> int:
    """Return the lowest worker count that the environment allows; 1 if it sets none."""
    text = os.environ.get(WORKERS_VARIABLE)
    if text:
        if not (text.isascii() and text.isdigit() and 1 <= int(text) <= WORKER_COUNT_MAX):
            raise ValueError(
                f"{WORKERS_VARIABLE} must be a whole number, 1 to {WORKER_COUNT_MAX}, got {text!r:.50}"
            )
        return int(text)
    return _parse_count(os.environ.get("WEB_CONCURRENCY", ""))


def load_worker_count(address: str) -> int:
    """Return the worker count last saved on this machine; 1 if there is none."""
    try:
        fd = os.open(_path(address), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return 1
    try:
        status = os.fstat(fd)
        is_own_file = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
        return _parse_count(os.read(fd, 32).decode("ascii", "replace").strip()) if is_own_file else 1
    finally:
        os.close(fd)


def save_worker_count(address: str, workers: int) -> None:
    """Save the worker count for processes that start later; errors are ignored."""
    from pathlib import Path  # noqa: PLC0415 - see _path

    path = _path(address)
    temporary = f"{path}.{RUNTIME.pid()}"
    with suppress(OSError):
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.write(fd, b"%d\n" % workers)
            Path(temporary).replace(path)
        finally:
            os.close(fd)
            Path(temporary).unlink(missing_ok=True)


class WorkerCountFiles:
    """The worker counts that are saved on this machine. A simulation replaces the files."""

    load = staticmethod(load_worker_count)
    save = staticmethod(save_worker_count)


WORKER_COUNT_FILES = PerProcess(WorkerCountFiles)


def machine_directory() -> str:
    """Return the directory for files that the workers of one machine share."""
    import tempfile  # noqa: PLC0415 - with pathlib a tenth of the time that importing comporta takes

    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()  # noqa: S108


def address_digest(address: str) -> str:
    """Return a short text for a state, for the names of its files."""
    from hashlib import blake2b  # noqa: PLC0415 - loads OpenSSL

    return blake2b(address.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _path(address: str) -> str:
    return f"{machine_directory()}/comporta-{os.geteuid()}-seen-{address_digest(address)}"


def _parse_count(text: str) -> int:
    """Return a worker count; 1 if the text is not a valid count."""
    return min(int(text), WORKER_COUNT_MAX) if text.isascii() and text.isdigit() and int(text) else 1
