"""A SQLite file, shared by the processes of one machine.

One connection writes, behind a lock in this process and SQLite's lock between processes. With the write-ahead
log readers never wait for it, so that a short read can run on an event loop. Each read takes an idle
connection and returns it.
"""

from __future__ import annotations

import os
import sqlite3
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Final

from comporta import fork_safety
from comporta.database.base import (
    TIMEOUT_SECONDS,
    Execute,
    Parameters,
    Rows,
    RunStatement,
    Statement,
    check_timeout,
)
from comporta.errors import (
    DatabaseBusyError,
    DatabaseError,
    DatabaseFullError,
    DatabaseReadOnlyError,
    DatabaseSchemaError,
    DatabaseUnavailableError,
)
from comporta.runtime import RUNTIME
from comporta.thread_pool import ThreadPool

SQLITE_VERSION_MIN: Final = (3, 35, 0)
"""The first version with RETURNING."""

THREADS: Final = 4
READERS_MAX: Final = 8
"""How many idle readers are kept open."""

_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_UNUSABLE = (
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_PROTOCOL,
)
_ERROR_TYPES: dict[int, type[DatabaseError]] = {
    sqlite3.SQLITE_FULL: DatabaseFullError,
    sqlite3.SQLITE_READONLY: DatabaseReadOnlyError,
    sqlite3.SQLITE_PERM: DatabaseReadOnlyError,
    **dict.fromkeys(_BUSY, DatabaseBusyError),
    **dict.fromkeys(_UNUSABLE, DatabaseUnavailableError),
}
_SCHEMA_MESSAGES = (": no such table: ", ": no such column: ", " has no column named ")
_abandoned: list[object] = []
"""Connections that must be neither used nor closed: of a parent process, or to a replaced file."""


class ReaderPool:
    """The connections that read one file: the idle ones, and one mark for each that is open.

    ``idle_max`` is how many stay open: 0 after the database was closed.
    """

    __slots__ = ("idle", "idle_max", "open_marks")

    def __init__(self, idle_max: int = READERS_MAX) -> None:
        self.idle: deque[sqlite3.Connection] = deque()
        self.idle_max = idle_max
        self.open_marks: deque[None] = deque()

    def trim(self) -> None:
        """Close the idle readers beyond ``idle_max``."""
        with suppress(IndexError):  # another thread was faster
            while len(self.idle) > self.idle_max:
                self.discard(self.idle.pop())

    def discard(self, reader: sqlite3.Connection | None) -> None:
        """Close a reader, or remove the mark of one that could not be opened."""
        if reader is not None:
            reader.close()
        self.open_marks.pop()

    def close(self) -> int:
        """Close the idle readers, and return how many are in use."""
        with suppress(IndexError):
            while True:
                self.discard(self.idle.pop())
        return len(self.open_marks)


class SqliteDatabase:
    """See :class:`comporta.database.base.Database`."""

    dialect = "sqlite"
    reads_directly = True

    def __init__(
        self,
        path: str | Path,
        timeout: float = TIMEOUT_SECONDS,
        *,
        create_folder: bool = False,
        durable: bool = False,
    ) -> None:
        if sqlite3.sqlite_version_info < SQLITE_VERSION_MIN:
            raise DatabaseUnavailableError(
                f"SQLite {'.'.join(map(str, SQLITE_VERSION_MIN))} or newer is required, "
                f"got {sqlite3.sqlite_version}"
            )
        self.path = Path(path).absolute()
        self.timeout = check_timeout(timeout)
        self.address = f"sqlite:///{self.path}"
        self._create_folder = create_folder
        # NORMAL may lose the last transactions in a power failure, but none when a process dies
        self._synchronous = "FULL" if durable else "NORMAL"
        self._lock = Lock()
        self._writer: sqlite3.Connection | None = None
        self._writer_file = (0, 0)
        self._readers = ReaderPool()
        self._open_lock = Lock()
        self._fork_locks: list[Lock] = []
        address = self.address  # the pool keeps no reference to the database
        self._pool = ThreadPool(
            "database", THREADS, refusal=lambda text: DatabaseBusyError(f"{address}: {text}")
        )
        fork_safety.register(self)
        fork_safety.register_thread_owner(self)

    def try_read(self, statement: Statement, parameters: Parameters) -> Rows | None:
        """Read on this thread, unless the file is locked; another thread would take ten times as long."""
        try:
            return self._read(statement, parameters, 0)
        except DatabaseBusyError:
            return None

    def read(self, statement: Statement, parameters: Parameters) -> Rows:
        """Read, and wait if another process has locked the whole file."""
        rows = self.try_read(statement, parameters)
        return self._read(statement, parameters, self.timeout) if rows is None else rows

    async def read_async(self, statement: Statement, parameters: Parameters) -> Rows:
        """Read on a thread."""
        return await self._pool.run_within(self.timeout, partial(self._read, statement, parameters))

    def write(self, statements: Sequence[Statement], parameters: Parameters) -> list[Rows]:
        """Run a write transaction."""
        return self._write(statements, parameters, self.timeout)

    async def write_async(self, statements: Sequence[Statement], parameters: Parameters) -> list[Rows]:
        """Run a write transaction on a thread, because it may have to wait."""
        return await self._pool.run_within(self.timeout, partial(self._write, statements, parameters))

    @contextmanager
    def transaction(self, seconds: float) -> Iterator[Execute]:
        """Lock the file against all writers."""
        with self.write_transaction(seconds) as writer:
            yield lambda text: writer.execute(text).fetchall()

    @contextmanager
    def write_transaction(self, seconds: float) -> Iterator[sqlite3.Connection]:
        """Hold the lock of this process and SQLite's lock; commit at the end, or roll back on an error."""
        deadline = RUNTIME.monotonic() + seconds
        if not self._lock.acquire(timeout=seconds):
            reason = f"other threads of this process were writing for {round(seconds, 3):g} s"
            raise DatabaseBusyError(f"{self.address}: {reason}")
        try:
            with self._translate_errors():
                writer = self._current_writer()
                _set_busy_timeout(writer, max(deadline - RUNTIME.monotonic(), 0))
                writer.execute("BEGIN IMMEDIATE")
                try:
                    yield writer
                    writer.execute("COMMIT")
                finally:
                    if writer.in_transaction:
                        writer.rollback()
        finally:
            if not self._readers.idle_max:
                self._close()
            self._lock.release()

    @contextmanager
    def statement_transaction(self, seconds: float) -> Iterator[RunStatement]:
        """Open a write transaction for statements that depend on each other's rows."""
        with self.write_transaction(seconds) as connection:
            yield partial(self.run_in, connection)

    @staticmethod
    def run_in(connection: sqlite3.Connection, statement: Statement, parameters: Parameters) -> Rows:
        """Run a statement in a transaction of ``write_transaction``."""
        values = {"now": RUNTIME.unix_time(), **parameters}
        return connection.execute(statement.sqlite, values).fetchall()

    def close(self) -> None:
        """Stop the threads, and close the file; reads in progress have up to ``timeout`` seconds to end.

        A later call opens its own connection and closes it.
        """
        self._pool.close(wait=True)
        with self._lock:
            self._readers.idle_max = 0
            self._close()
        self._close_readers(RUNTIME.monotonic() + self.timeout)

    def before_fork(self) -> None:
        """Close all connections before a fork.

        SQLite tracks open files per process. In a child, SQLite would take the parent's open files for its
        own and lock nothing; and the parent would take itself for the last user and remove the log that the
        child writes.
        """
        deadline = RUNTIME.monotonic() + self.timeout
        for lock in (self._lock, self._open_lock):
            if lock.acquire(timeout=max(deadline - RUNTIME.monotonic(), 0)):
                self._fork_locks.append(lock)
        if self._lock in self._fork_locks:
            self._close()
        self._close_readers(deadline)

    def after_fork_in_parent(self) -> None:
        """Release the locks; the next call opens new connections."""
        while self._fork_locks:
            self._fork_locks.pop().release()

    def after_fork(self) -> None:
        """Abandon connections that the parent could not close in time."""
        fork_safety.reinit_lock(self._lock)
        fork_safety.reinit_lock(self._open_lock)
        self._fork_locks.clear()
        self._abandon_connections()

    def _read(self, statement: Statement, parameters: Parameters, seconds: float) -> Rows:
        readers, reader = self._readers, None
        try:
            try:
                reader = readers.idle.pop()
            except IndexError:
                with self._open_lock:
                    readers.open_marks.append(None)
                reader = self._open(seconds)
            if seconds:
                _set_busy_timeout(reader, seconds)
            rows = reader.execute(statement.sqlite, {"now": RUNTIME.unix_time(), **parameters}).fetchall()
            if seconds:
                _set_busy_timeout(reader, 0)
        except BaseException as error:
            readers.discard(reader)
            if isinstance(error, sqlite3.Error):
                raise _translate_error(error, self.address) from error
            raise
        readers.idle.append(reader)
        if len(readers.idle) > readers.idle_max:  # checked after the append: close() may have run in between
            readers.trim()
        return rows

    def _write(self, statements: Sequence[Statement], parameters: Parameters, seconds: float) -> list[Rows]:
        with self.write_transaction(seconds) as writer:
            values = {"now": RUNTIME.unix_time(), **parameters}  # read the clock after the wait for the lock
            return [writer.execute(statement.sqlite, values).fetchall() for statement in statements]

    def _current_writer(self) -> sqlite3.Connection:
        """Return the connection that writes; open a new one if the file was removed or replaced.

        The old connection is abandoned, not closed: closing it would remove the log of the new file, which
        has the same name.
        """
        if self._writer is not None and self._writer_file != _file_identity(self.path):
            self._abandon_connections()
        if self._writer is None:
            self._writer = self._open(self.timeout)
            self._writer_file = _file_identity(self.path)
        return self._writer

    def _open(self, seconds: float) -> sqlite3.Connection:
        if self._create_folder:
            _make_folder(self.path.parent)
        connection = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            _set_busy_timeout(connection, seconds)
            with suppress(sqlite3.OperationalError):  # a read-only file can still be read
                connection.execute("PRAGMA journal_mode = WAL").fetchall()
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            _set_busy_timeout(connection, 0)
        except BaseException:
            connection.close()
            raise
        return connection

    def _abandon_connections(self) -> None:
        _abandoned.extend((self._writer, self._readers))
        self._writer = None
        self._readers = ReaderPool(self._readers.idle_max)

    def _close_readers(self, deadline: float) -> None:
        """Close the idle readers, and those in use as soon as they are idle."""
        while self._readers.close() and RUNTIME.monotonic() < deadline:
            RUNTIME.sleep(0.001)

    def _close(self) -> None:
        self._readers.close()
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Raise SQLite's errors as ``DatabaseError``."""
        try:
            yield
        except sqlite3.Error as error:
            raise _translate_error(error, self.address) from error


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise DatabaseUnavailableError(f"{path}: {error.strerror}") from None


def _set_busy_timeout(connection: sqlite3.Connection, seconds: float) -> None:
    connection.execute(f"PRAGMA busy_timeout = {round(seconds * 1000)}").fetchall()


def _file_identity(path: Path) -> tuple[int, int]:
    try:
        status = os.stat(path)  # noqa: PTH116 - before every write; pathlib takes twice as long
    except OSError:
        return 0, 0
    return status.st_dev, status.st_ino


def _translate_error(error: sqlite3.Error, address: str) -> DatabaseError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    text = f"{address}: {error}"
    if any(message in text for message in _SCHEMA_MESSAGES):
        return DatabaseSchemaError(f"{text}; run `comporta db migrate`")
    return _ERROR_TYPES.get(code, DatabaseError)(text)
