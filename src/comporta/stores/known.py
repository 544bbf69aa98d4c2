"""How many workers there were when the shared state was last seen, for those who start while it is away.

Each process knows the count from the replies it gets. One that starts during an outage asks, in this order,
for the most it can learn: ``COMPORTA_WORKERS``, ``WEB_CONCURRENCY`` (which several web servers read and set),
and what the workers of this user on this machine last saw, kept in one small file for each shared state.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

WORKERS_VARIABLE = "COMPORTA_WORKERS"
WORKERS_KNOWN_MAX = 1_000_000


def at_least() -> int:
    """Return how many workers there are at the least, as far as the environment says."""
    text = os.environ.get(WORKERS_VARIABLE)
    if text:
        if not (text.isascii() and text.isdigit() and 1 <= int(text) <= WORKERS_KNOWN_MAX):
            raise ValueError(
                f"{WORKERS_VARIABLE} must be a whole number, 1 to {WORKERS_KNOWN_MAX}, got {text!r:.50}"
            )
        return int(text)
    return _number(os.environ.get("WEB_CONCURRENCY", ""))


def recalled(address: str) -> int:
    """Return how many workers were last seen from this machine; 1 if nobody knows."""
    try:
        fd = os.open(_path(address), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return 1
    try:
        found = os.fstat(fd)
        ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
        return _number(os.read(fd, 32).decode("ascii", "replace").strip()) if ours else 1
    finally:
        os.close(fd)


def remember(address: str, workers: int) -> None:
    """Write down how many workers were seen; where that cannot be done, nobody will know."""
    from pathlib import Path  # noqa: PLC0415 - see _path

    path = _path(address)
    made = f"{path}.{os.getpid()}"
    with suppress(OSError):
        fd = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.write(fd, b"%d\n" % workers)
            Path(made).replace(path)
        finally:
            os.close(fd)
            Path(made).unlink(missing_ok=True)


def _path(address: str) -> str:
    import tempfile  # noqa: PLC0415 - with pathlib a tenth of all that importing comporta costs
    from hashlib import blake2b  # noqa: PLC0415 - loads OpenSSL

    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()  # noqa: S108
    digest = blake2b(address.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{parent}/comporta-{os.geteuid()}-seen-{digest}"


def _number(text: str) -> int:
    """Return a number of workers; 1 for what is none."""
    return min(int(text), WORKERS_KNOWN_MAX) if text.isascii() and text.isdigit() and int(text) else 1
