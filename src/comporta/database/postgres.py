"""A PostgreSQL server, through a few blocking connections of psycopg's.

Whoever wants one takes it from those at hand, or makes it, or waits for it, all within one bound. A write is
one round trip, whatever it consists of: the statements of a transaction are sent together. Nothing is sent
twice, except after a deadlock, which is sure to have undone everything; a connection that ended while nobody
used it (a server that was restarted) is found out before it is used.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from threading import BoundedSemaphore, Lock
from time import monotonic
from typing import Any, Final, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

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

T = TypeVar("T")

CONNECTIONS: Final = 4
CONNECTIONS_MAX: Final = 100
DEADLOCK_TRIES_MAX: Final = 5

_CONNECT_SECONDS_MIN = 2  # libpq takes no less
_DOWN_SECONDS = 0.5
"""For so long after a connection could not be made nobody tries another: they would all wait in vain."""

_DEADLOCKS = ("40001", "40P01")
_KINDS: dict[str, type[DatabaseError]] = {
    "25006": DatabaseReadOnlyError,  # a replica, or a session that may only read
    "42501": DatabaseReadOnlyError,  # a user without the right
    "53100": DatabaseFullError,
    "53200": DatabaseFullError,
    "55P03": DatabaseBusyError,  # a lock was not free in time
    "57014": DatabaseBusyError,  # a statement took too long
    "3F000": DatabaseSchemaError,
    "42703": DatabaseSchemaError,
    "42P01": DatabaseSchemaError,
    **dict.fromkeys(_DEADLOCKS, DatabaseBusyError),
}
_left_behind: list[object] = []
"""Connections of a parent process: a child must neither use nor close them."""


class NoAnswerError(Exception):
    """The server did not answer by the deadline of the call."""


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """One that waits until a deadline, whatever the server does."""

    deadline = float("inf")

    def wait(self, gen: Generator[Any, Any, T], *options: Any, **named: Any) -> T:
        """Wait as psycopg does, which looks up from it ten times a second."""
        try:
            return super().wait(_until(gen, self.deadline), *options, **named)
        except NoAnswerError:
            self.pgconn.finish()  # what comes after it would be answered with this
            raise


def _until(gen: Generator[Any, Any, T], deadline: float) -> Generator[Any, Any, T]:
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if not ready and monotonic() > deadline:
                raise NoAnswerError
            wanted = gen.send(ready)
    except StopIteration as end:
        result: T = end.value
        return result


class PostgresDatabase:
    """See :class:`comporta.database.base.Database`."""

    dialect = "postgresql"

    def __init__(self, url: str, timeout: float = TIMEOUT_SECONDS, connections: int = CONNECTIONS) -> None:
        self.timeout = check_timeout(timeout)
        if not 1 <= connections <= CONNECTIONS_MAX:
            raise ValueError(f"connections must be 1 to {CONNECTIONS_MAX}, got {connections}")
        self._conninfo, self.address = _read_url(url)
        self._lock = Lock()
        self._connections = connections
        self._free = BoundedSemaphore(connections)
        self._idle: list[Connection] = []
        self._down: tuple[float, str] = (0.0, "")
        self._crew = Crew(self.address, connections, self.timeout)
        forks.register(self)

    def glance(self, statement: Statement, parameters: Parameters) -> None:
        """A server is never there without waiting."""

    def read(self, statement: Statement, parameters: Parameters) -> Rows:
        """Ask in one round trip."""
        return self._read(statement, parameters, self.timeout)

    async def read_async(self, statement: Statement, parameters: Parameters) -> Rows:
        """Do the same on a thread."""
        return await self._crew.run(partial(self._read, statement, parameters))

    def write(self, statements: Sequence[Statement], parameters: Parameters) -> list[Rows]:
        """Run the transaction, again if it met another in a deadlock."""
        return self._write(statements, parameters, self.timeout)

    async def write_async(self, statements: Sequence[Statement], parameters: Parameters) -> list[Rows]:
        """Do the same on a thread."""
        return await self._crew.run(partial(self._write, statements, parameters))

    @contextmanager
    def transaction(self, seconds: float) -> Iterator[Execute]:
        """Have a connection to oneself; statements may take as long as the whole."""
        with self._connected(seconds) as connection:
            bound_ms = round(seconds * 1000)
            with connection.transaction():
                connection.execute(
                    f"SET LOCAL statement_timeout = {bound_ms}; SET LOCAL lock_timeout = {bound_ms}"
                )
                yield lambda text: _rows(connection.execute(text))

    def close(self) -> None:
        """End the threads and the connections at hand; those in use end when they are given back."""
        self._crew.close()
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def after_fork(self) -> None:
        """Leave the parent's connections alone."""
        forks.renew(self._lock)
        _left_behind.extend(self._idle)
        self._idle = []
        self._free = BoundedSemaphore(self._connections)

    def _read(self, statement: Statement, parameters: Parameters, seconds: float) -> Rows:
        told = {"now": None, **parameters}
        with self._connected(seconds) as connection:
            return connection.execute(statement.postgresql, told).fetchall()

    def _write(self, statements: Sequence[Statement], parameters: Parameters, seconds: float) -> list[Rows]:
        deadline, told = monotonic() + seconds, {"now": None, **parameters}
        for _ in range(DEADLOCK_TRIES_MAX - 1):
            try:
                return self._written(statements, told, deadline - monotonic())
            except DatabaseBusyError as error:
                if not _was_deadlock(error):
                    raise
        return self._written(statements, told, deadline - monotonic())

    def _written(self, statements: Sequence[Statement], told: Parameters, seconds: float) -> list[Rows]:
        with self._connected(seconds) as connection:
            with connection.pipeline(), connection.transaction():
                asked = [connection.execute(statement.postgresql, told) for statement in statements]
            return [_rows(cursor) for cursor in asked]

    @contextmanager
    def _connected(self, seconds: float) -> Iterator[Connection]:
        """Have a connection for so long at the most, and give it back if it is still good."""
        deadline = monotonic() + seconds
        free = self._free
        if not free.acquire(timeout=max(seconds, 0)):
            raise DatabaseBusyError(f"{self.address}: all {self._connections} connections were in use")
        connection = None
        try:
            connection = self._at_hand() or self._made(deadline)
            connection.deadline = deadline
            yield connection
        except NoAnswerError:
            raise DatabaseUnavailableError(
                f"{self.address}: no answer within {round(seconds, 3):g} s; whether it took effect is unknown"
            ) from None
        except psycopg.Error as error:
            raise _translated(error, self.address) from error
        finally:
            if connection is not None:
                self._put_back(connection)
            free.release()

    def _at_hand(self) -> Connection | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if _quiet(connection):
                return connection
            connection.close()

    def _made(self, deadline: float) -> Connection:
        until, why = self._down
        if monotonic() < until:
            raise DatabaseUnavailableError(why)
        seconds = max(_CONNECT_SECONDS_MIN, round(min(deadline - monotonic(), self.timeout)))
        try:
            connection = Connection.connect(self._conninfo, autocommit=True, connect_timeout=seconds)
        except psycopg.Error as error:
            named = _translated(error, self.address)
            self._down = (monotonic() + _DOWN_SECONDS, str(named))
            raise named from error
        connection.deadline = min(deadline, monotonic() + self.timeout)
        try:
            connection.execute(f"SET statement_timeout = {round(self.timeout * 1000)}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _put_back(self, connection: Connection) -> None:
        """Keep it only if nothing is under way on it."""
        idle = psycopg.pq.TransactionStatus.IDLE
        if not connection.closed and connection.info.transaction_status == idle:
            with self._lock:
                self._idle.append(connection)
        else:
            with suppress(psycopg.Error):
                connection.close()


def _rows(cursor: psycopg.Cursor[tuple[Any, ...]]) -> Rows:
    return cursor.fetchall() if cursor.description else []


def _quiet(connection: Connection) -> bool:
    """Whether nothing came while nobody listened; what comes then is good-bye."""
    if connection.closed:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)


def _was_deadlock(error: DatabaseBusyError) -> bool:
    return getattr(error.__cause__, "sqlstate", None) in _DEADLOCKS


def _read_url(url: str) -> tuple[str, str]:
    """Return what libpq connects with, and what may be shown; what is wrong is said without the URL."""
    try:
        found = conninfo_to_dict(url)
    except psycopg.Error:
        found = {"port": "?"}
    ports, name = str(found.get("port") or ""), str(found.get("dbname") or found.get("user") or "")
    where = str(found.get("host") or "localhost")
    if "@" in name + where or not all(port.isdecimal() for port in ports.split(",") if port):
        raise ValueError(
            "database cannot be read: the port must be a number, an option one of libpq's, and in a user or "
            "password / is written %2F, ? %3F, # %23, @ %40"
        )
    found["client_encoding"] = "utf8"  # whatever the server's is: text comes as text
    return make_conninfo("", **found), f"postgresql://{where}{ports and f':{ports}'}/{name}"


def _translated(error: psycopg.Error, address: str) -> DatabaseError:
    said = " ".join(str(error).split()) or type(error).__name__
    text = f"{address}: {said}"
    state = error.sqlstate
    if state is None:
        kind: Callable[[str], DatabaseError] = DatabaseError
        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            kind = DatabaseUnavailableError
        return kind(text)
    found = _KINDS.get(state)
    if found is DatabaseSchemaError:
        return DatabaseSchemaError(f"{text}; run `comporta db migrate`")
    if found is None and state[:2] in ("08", "28", "3D", "53", "57", "58"):
        found = DatabaseUnavailableError
    return (found or DatabaseError)(text)
