"""Checks whether the disks that the service writes to have room, by writing to them.

It writes a file without a name to each directory of this machine, and makes a PostgreSQL server write a
temporary file: updating a row would reuse an existing page, and succeed on a full disk. Neither leaves
anything behind. Each disk is written to at most once every 5 s, however often health is read, on a thread or
on the server, and with a deadline: a disk that hangs blocks neither a health check nor anything else.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from comporta.clock import MONOTONIC
from comporta.database.base import Statement
from comporta.errors import DatabaseError, DatabaseFullError
from comporta.thread_pool import ThreadPool

if TYPE_CHECKING:
    from comporta.database.base import Database

CHECK_BYTES: Final = 65_536
CHECK_SECONDS: Final = 5.0
TIMEOUT_SECONDS: Final = 2.0

DATABASE: Final = "the database"

Check = Callable[[], Awaitable[str | None]]
"""Writes to a disk; returns why it cannot be written, or ``None``."""

_NO_MEMORY = Statement(
    "SELECT set_config('work_mem', '64kB', true), set_config('temp_tablespaces', '', true)"
)
_WRITE_TEMPORARY_FILE = Statement(
    "SELECT current_setting('transaction_read_only'), count(*) FROM generate_series(1, 20000)"
)
"""The rows need more memory than the transaction has, so the server writes them (about 400 KB) to a file."""


class DiskCheck:
    """Writes to each directory, and to the disk of ``database`` if it is on a server.

    ``directories`` are keyed by what they hold.
    """

    def __init__(self, directories: Mapping[str, Path], database: Database | None = None) -> None:
        self._pool = ThreadPool("disk", max(1, len(directories)))
        checks: dict[str, Check] = {
            what: partial(self._pool.run, _write_file, directory) for what, directory in directories.items()
        }
        if database is not None and database.dialect == "postgresql":
            checks[DATABASE] = partial(_write_on_server, database)
        self._checks = [_BoundedCheck(what, check) for what, check in checks.items()]

    async def run(self) -> list[str]:
        """Return a sentence for each disk that cannot be written."""
        reasons = await asyncio.gather(*(check.reason() for check in self._checks))
        return [reason for reason in reasons if reason is not None]

    def close(self) -> None:
        """End the threads."""
        for check in self._checks:
            check.close()
        self._pool.close()


class _BoundedCheck:
    """Runs a check at most once every ``CHECK_SECONDS``, and waits up to ``TIMEOUT_SECONDS`` for it."""

    def __init__(self, what: str, check: Check) -> None:
        self._what = what
        self._check = check
        self._began = float("-inf")
        self._running: asyncio.Task[str | None] | None = None

    async def reason(self) -> str | None:
        """Return why the disk cannot be written; a check that hangs is not started a second time."""
        now = MONOTONIC.now_ns() / 1e9
        if self._running is None or (self._running.done() and now - self._began >= CHECK_SECONDS):
            self._began = now
            self._running = asyncio.ensure_future(self._check())
        await asyncio.wait((self._running,), timeout=max(0.0, self._began + TIMEOUT_SECONDS - now))
        if not self._running.done():
            return f"the disk of {self._what} did not respond within {TIMEOUT_SECONDS:g} s"
        problem = self._running.result()
        return None if problem is None else f"the disk of {self._what} cannot be written: {problem}"

    def close(self) -> None:
        if self._running is not None:
            self._running.cancel()


def _write_file(directory: Path) -> str | None:
    """Write a file that has no name, so that nothing is left behind."""
    if not directory.is_dir():
        return None  # the service creates it when needed
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(bytes(CHECK_BYTES))
            file.flush()  # one system call may write only a part
            os.fsync(file.fileno())
    except OSError as error:
        return error.strerror
    return None


async def _write_on_server(database: Database) -> str | None:
    """Make the server write a temporary file, where the tables of this database are.

    An unreachable server is not a problem of the disk: health reports it under ``database``.
    """
    try:
        _, [(read_only, _)] = await database.write_async((_NO_MEMORY, _WRITE_TEMPORARY_FILE), {})
    except DatabaseFullError:
        return "the server has no room left"
    except DatabaseError:
        return None
    return "the server is read-only" if read_only == "on" else None
