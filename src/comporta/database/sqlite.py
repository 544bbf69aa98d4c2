"""A file of SQLite's, shared by the processes of one machine.

One connection writes, behind a lock of this process and SQLite's own between processes; readers never wait
for it (write-ahead log), so that a small read can be done on an event loop. Whoever reads takes a connection
from those at hand and puts it back.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Final

from comporta import forks
from comporta.database.base import TIMEOUT_SECONDS, Execute, Parameters, Rows, Statement, check_timeout
from comporta.database.crew import Crew
from comporta.errors import (
    DatabaseBusyError,
    DatabaseError,
    DatabaseFullError,
    DatabaseReadOnlyError,
    DatabaseSchemaError,
    DatabaseUnavailableError,
)

OLDEST: Final = (3, 35, 0)
"""The first SQLite that has RETURNING."""

THREADS: Final = 4
READERS_MAX: Final = 8
"""How many readers are kept at hand."""

_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_UNUSABLE = (
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_PROTOCOL,
)
_KINDS: dict[int, type[DatabaseError]] = {
    sqlite3.SQLITE_FULL: DatabaseFullError,
    sqlite3.SQLITE_READONLY: DatabaseReadOnlyError,
    sqlite3.SQLITE_PERM: DatabaseReadOnlyError,
    **dict.fromkeys(_BUSY, DatabaseBusyError),
    **dict.fromkeys(_UNUSABLE, DatabaseUnavailableError),
}
_MISSING = (": no such table: ", ": no such column: ", " has no column named ")
_left_behind: list[object] = []
"""Connections that must be neither used nor closed: a parent process's, and those to a file that is gone."""


class Readers:
    """The connections that read one file: those at hand, and a mark for every one there is."""

    __slots__ = ("at_hand", "open")

    def __init__(self) -> None:
        self.at_hand: deque[sqlite3.Connection] = deque()
        self.open: deque[None] = deque()

    def put_back(self, reader: sqlite3.Connection) -> None:
        """Keep it at hand, unless there are enough."""
        if len(self.at_hand) < READERS_MAX:
            self.at_hand.append(reader)
        else:
            self.let_go(reader)

    def let_go(self, reader: sqlite3.Connection | None) -> None:
        """Close it, or take note that it could not be opened."""
        if reader is not None:
            reader.close()
        self.open.pop()

    def close(self) -> int:
        """Close those at hand, and return how many are in use."""
        with suppress(IndexError):
            while True:
                self.let_go(self.at_hand.pop())
        return len(self.open)


class SqliteDatabase:
    """See :class:`comporta.database.base.Database`."""

    dialect = "sqlite"

    def __init__(
        self,
        path: str | Path,
        timeout: float = TIMEOUT_SECONDS,
        *,
        own_folder: bool = False,
        durable: bool = False,
    ) -> None:
        if sqlite3.sqlite_version_info < OLDEST:
            raise DatabaseUnavailableError(
                f"SQLite must be {'.'.join(map(str, OLDEST))} or newer, got {sqlite3.sqlite_version}"
            )
        self.path = Path(path).absolute()
        self.timeout = check_timeout(timeout)
        self.address = f"sqlite:///{self.path}"
        self._own_folder = own_folder
        # what is not may lose the last writes, whole ones, when the power goes; nothing when a process dies
        self._synchronous = "FULL" if durable else "NORMAL"
        self._lock = Lock()
        self._writer: sqlite3.Connection | None = None
        self._file = (0, 0)
        self._readers = Readers()
        self._opening = Lock()
        self._rested: list[Lock] = []
        self._crew = Crew(self.address, THREADS, self.timeout)
        forks.register(self)
        forks.register_thread(self)

    def glance(self, statement: Statement, parameters: Parameters) -> Rows | None:
        """Read here and now, unless somebody holds the whole file; a thread would take ten times as long."""
        try:
            return self._read(statement, parameters, 0)
        except DatabaseBusyError:
            return None

    def read(self, statement: Statement, parameters: Parameters) -> Rows:
        """Read without waiting; if somebody holds the whole file, wait for them."""
        found = self.glance(statement, parameters)
        return self._read(statement, parameters, self.timeout) if found is None else found

    async def read_async(self, statement: Statement, parameters: Parameters) -> Rows:
        """Read on a thread."""
        return await self._crew.run(partial(self._read, statement, parameters))

    def write(self, statements: Sequence[Statement], parameters: Parameters) -> list[Rows]:
        """Write as the only one who does."""
        return self._write(statements, parameters, self.timeout)

    async def write_async(self, statements: Sequence[Statement], parameters: Parameters) -> list[Rows]:
        """Write on a thread: it may have to wait."""
        return await self._crew.run(partial(self._write, statements, parameters))

    @contextmanager
    def transaction(self, seconds: float) -> Iterator[Execute]:
        """Hold the file against all writers."""
        with self.writing(seconds) as writer:
            yield lambda text: writer.execute(text).fetchall()

    @contextmanager
    def writing(self, seconds: float) -> Iterator[sqlite3.Connection]:
        """Be the one writer: of this process by our lock, of the machine by SQLite's."""
        deadline = monotonic() + seconds
        if not self._lock.acquire(timeout=seconds):
            waited = f"others of this process wrote for {round(seconds, 3):g} s"
            raise DatabaseBusyError(f"{self.address}: {waited}")
        try:
            with self._named():
                writer = self._current_writer()
                _patient(writer, max(deadline - monotonic(), 0))
                writer.execute("BEGIN IMMEDIATE")
                try:
                    yield writer
                    writer.execute("COMMIT")
                finally:
                    if writer.in_transaction:
                        writer.rollback()
        finally:
            self._lock.release()

    def close(self) -> None:
        """End the threads and close the file."""
        self._crew.close()
        with self._lock:
            self._close()

    def before_fork(self) -> None:
        """Hold no connection while the process forks.

        SQLite knows within a process who has a file open. A child would take its parent's connections for
        its own and lock nothing, and the parent, the last one as it thinks, would remove the log in which
        the child writes.
        """
        deadline = monotonic() + self.timeout
        for lock in (self._lock, self._opening):
            if lock.acquire(timeout=max(deadline - monotonic(), 0)):
                self._rested.append(lock)
        if self._lock in self._rested:
            self._close()
        while self._readers.close() and monotonic() < deadline:
            time.sleep(0.001)

    def after_fork_in_parent(self) -> None:
        """Go on; what is wanted is opened again."""
        while self._rested:
            self._rested.pop().release()

    def after_fork(self) -> None:
        """Leave alone what the parent could not close in time."""
        forks.renew(self._lock)
        forks.renew(self._opening)
        self._rested.clear()
        self._leave_behind()

    def _read(self, statement: Statement, parameters: Parameters, seconds: float) -> Rows:
        readers, reader = self._readers, None
        try:
            try:
                reader = readers.at_hand.pop()
            except IndexError:
                with self._opening:
                    readers.open.append(None)
                reader = self._opened(seconds)
            if seconds:
                _patient(reader, seconds)
            found = reader.execute(statement.sqlite, {"now": time.time(), **parameters}).fetchall()
            if seconds:
                _patient(reader, 0)
        except BaseException as error:
            readers.let_go(reader)
            if isinstance(error, sqlite3.Error):
                raise _translated(error, self.address) from error
            raise
        readers.put_back(reader)
        return found

    def _write(self, statements: Sequence[Statement], parameters: Parameters, seconds: float) -> list[Rows]:
        with self.writing(seconds) as writer:
            told = {"now": time.time(), **parameters}  # after the wait for the others
            return [writer.execute(statement.sqlite, told).fetchall() for statement in statements]

    def _current_writer(self) -> sqlite3.Connection:
        """Somebody may have removed the file, or put another in its place: what we hold open is nobody's.

        To close it would remove the log of that other file, which has the same name.
        """
        if self._writer is not None and self._file != _identity(self.path):
            self._leave_behind()
        if self._writer is None:
            self._writer = self._opened(self.timeout)
            self._file = _identity(self.path)
        return self._writer

    def _opened(self, seconds: float) -> sqlite3.Connection:
        if self._own_folder:
            _make_folder(self.path.parent)
        connection = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            _patient(connection, seconds)
            with suppress(sqlite3.OperationalError):  # a file that cannot be written can still be read
                connection.execute("PRAGMA journal_mode = WAL").fetchall()
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            _patient(connection, 0)
        except BaseException:
            connection.close()
            raise
        return connection

    def _leave_behind(self) -> None:
        _left_behind.extend((self._writer, self._readers))
        self._writer = None
        self._readers = Readers()

    def _close(self) -> None:
        self._readers.close()
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Call SQLite's errors by our names."""
        try:
            yield
        except sqlite3.Error as error:
            raise _translated(error, self.address) from error


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise DatabaseUnavailableError(f"{path}: {error.strerror}") from None


def _patient(connection: sqlite3.Connection, seconds: float) -> None:
    connection.execute(f"PRAGMA busy_timeout = {round(seconds * 1000)}").fetchall()


def _identity(path: Path) -> tuple[int, int]:
    try:
        found = os.stat(path)  # noqa: PTH116 - in front of every write: pathlib takes twice as long
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino


def _translated(error: sqlite3.Error, address: str) -> DatabaseError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    text = f"{address}: {error}"
    if any(words in text for words in _MISSING):
        return DatabaseSchemaError(f"{text}; run `comporta db migrate`")
    return _KINDS.get(code, DatabaseError)(text)
