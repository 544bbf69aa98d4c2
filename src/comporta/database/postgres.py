"""A PostgreSQL server, through a small pool of blocking psycopg connections.

A call takes an idle connection, opens one, or waits for one, all within its timeout. A write is one round
trip: the statements of its transaction are sent together. Nothing is sent twice, except after a deadlock,
which is sure to have rolled everything back. A connection that ended while it was idle (the server was
restarted) is detected before it is used.
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
from psycopg.pq import TransactionStatus

from comporta import fork_safety
from comporta.database.base import TIMEOUT_SECONDS, Execute, Parameters, Rows, Statement, check_timeout
from comporta.errors import (
    DatabaseBusyError,
    DatabaseError,
    DatabaseFullError,
    DatabaseReadOnlyError,
    DatabaseSchemaError,
    DatabaseUnavailableError,
)
from comporta.thread_pool import ThreadPool
from comporta.validators import require_integer

T = TypeVar("T")

CONNECTIONS: Final = 4
CONNECTIONS_MAX: Final = 100
DEADLOCK_TRIES_MAX: Final = 5

_CONNECT_SECONDS_MIN = 2  # the minimum of libpq
_CONNECT_PAUSE_SECONDS = 0.5
"""For this long after a failed connection no call tries another: each would wait in vain."""

_DEADLOCKS = ("40001", "40P01")
_ERROR_TYPES: dict[str, type[DatabaseError]] = {
    "25006": DatabaseReadOnlyError,  # a replica, or a session that may only read
    "42501": DatabaseReadOnlyError,  # the user lacks the permission
    "53100": DatabaseFullError,
    "53200": DatabaseFullError,
    "55P03": DatabaseBusyError,  # a lock timeout
    "57014": DatabaseBusyError,  # a statement timeout
    "3F000": DatabaseSchemaError,
    "42703": DatabaseSchemaError,
    "42P01": DatabaseSchemaError,
    **dict.fromkeys(_DEADLOCKS, DatabaseBusyError),
}
_abandoned: list[object] = []
"""Connections of a parent process, which a child must neither use nor close."""


class NoReplyError(Exception):
    """The server did not answer before the deadline of the call."""


class PostgresConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection whose calls end at a deadline, even if the server does not answer."""

    deadline = float("inf")

    def wait(self, gen: Generator[Any, Any, T], *options: Any, **named: Any) -> T:
        """Wait as psycopg does, and check the deadline whenever it wakes up, ten times a second."""
        try:
            return super().wait(_with_deadline(gen, self.deadline), *options, **named)
        except NoReplyError:
            self.pgconn.finish()  # the late reply would answer the next call
            raise


def _with_deadline(gen: Generator[Any, Any, T], deadline: float) -> Generator[Any, Any, T]:
    try:
        request = next(gen)
        while True:
            ready = yield request
            if not ready and monotonic() > deadline:
                raise NoReplyError
            request = gen.send(ready)
    except StopIteration as end:
        result: T = end.value
        return result


class PostgresDatabase:
    """See :class:`comporta.database.base.Database`."""

    dialect = "postgresql"

    def __init__(self, url: str, timeout: float = TIMEOUT_SECONDS, connections: int = CONNECTIONS) -> None:
        self.timeout = check_timeout(timeout)
        require_integer("connections", connections, 1, CONNECTIONS_MAX)
        self._conninfo, self.address = _parse_url(url)
        self._lock = Lock()
        self._connections = connections
        self._permits = BoundedSemaphore(connections)
        self._idle: list[PostgresConnection] = []
        self._connect_failure: tuple[float, str] = (0.0, "")
        address = self.address  # the pool keeps no reference to the database
        self._pool = ThreadPool(
            "database", connections, refusal=lambda text: DatabaseBusyError(f"{address}: {text}")
        )
        fork_safety.register(self)

    def try_read(self, statement: Statement, parameters: Parameters) -> None:
        """Return ``None``: a server never answers without a wait."""

    def read(self, statement: Statement, parameters: Parameters) -> Rows:
        """Read in one round trip."""
        return self._read(statement, parameters, self.timeout)

    async def read_async(self, statement: Statement, parameters: Parameters) -> Rows:
        """Do the same on a thread of the pool."""
        return await self._pool.run_within(self.timeout, partial(self._read, statement, parameters))

    def write(self, statements: Sequence[Statement], parameters: Parameters) -> list[Rows]:
        """Run a transaction, and run it again after a deadlock."""
        return self._write(statements, parameters, self.timeout)

    async def write_async(self, statements: Sequence[Statement], parameters: Parameters) -> list[Rows]:
        """Do the same on a thread of the pool."""
        return await self._pool.run_within(self.timeout, partial(self._write, statements, parameters))

    @contextmanager
    def transaction(self, seconds: float) -> Iterator[Execute]:
        """Open a transaction in which a statement may take as long as the whole."""
        with self._connection(seconds) as connection:
            bound_ms = round(seconds * 1000)
            with connection.transaction():
                connection.execute(
                    f"SET LOCAL statement_timeout = {bound_ms}; SET LOCAL lock_timeout = {bound_ms}"
                )
                yield lambda text: _rows(connection.execute(text))

    def close(self) -> None:
        """Stop the threads and close idle connections; those in use close when they are returned."""
        self._pool.close(wait=True)
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def after_fork(self) -> None:
        """Abandon the parent's connections."""
        fork_safety.reinit_lock(self._lock)
        _abandoned.extend(self._idle)
        self._idle = []
        self._permits = BoundedSemaphore(self._connections)

    def _read(self, statement: Statement, parameters: Parameters, seconds: float) -> Rows:
        values = {"now": None, **parameters}
        with self._connection(seconds) as connection:
            return connection.execute(statement.postgresql, values).fetchall()

    def _write(self, statements: Sequence[Statement], parameters: Parameters, seconds: float) -> list[Rows]:
        deadline, values = monotonic() + seconds, {"now": None, **parameters}
        for _ in range(DEADLOCK_TRIES_MAX - 1):
            try:
                return self._write_once(statements, values, deadline - monotonic())
            except DatabaseBusyError as error:
                if not _was_deadlock(error):
                    raise
        return self._write_once(statements, values, deadline - monotonic())

    def _write_once(self, statements: Sequence[Statement], values: Parameters, seconds: float) -> list[Rows]:
        with self._connection(seconds) as connection:
            with connection.pipeline(), connection.transaction():
                cursors = [connection.execute(statement.postgresql, values) for statement in statements]
            return [_rows(cursor) for cursor in cursors]

    @contextmanager
    def _connection(self, seconds: float) -> Iterator[PostgresConnection]:
        """Take a connection for up to ``seconds``, and return it if it is still usable."""
        deadline = monotonic() + seconds
        free, idle = self._permits, self._idle
        if not free.acquire(timeout=max(seconds, 0)):
            raise DatabaseBusyError(f"{self.address}: all {self._connections} connections are in use")
        connection = None
        try:
            connection = self._pop_idle() or self._connect(deadline)
            connection.deadline = deadline
            yield connection
        except NoReplyError:
            raise DatabaseUnavailableError(
                f"{self.address}: no answer within {round(seconds, 3):g} s; whether it took effect is unknown"
            ) from None
        except psycopg.Error as error:
            raise _translate_error(error, self.address) from error
        finally:
            if connection is not None:
                self._return(connection, idle)
            free.release()

    def _pop_idle(self) -> PostgresConnection | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if _is_usable(connection):
                return connection
            connection.close()

    def _connect(self, deadline: float) -> PostgresConnection:
        until, reason = self._connect_failure
        if monotonic() < until:
            raise DatabaseUnavailableError(reason)
        seconds = max(_CONNECT_SECONDS_MIN, round(min(deadline - monotonic(), self.timeout)))
        try:
            connection = PostgresConnection.connect(self._conninfo, autocommit=True, connect_timeout=seconds)
        except psycopg.Error as error:
            translated = _translate_error(error, self.address)
            self._connect_failure = (monotonic() + _CONNECT_PAUSE_SECONDS, str(translated))
            raise translated from error
        connection.deadline = min(deadline, monotonic() + self.timeout)
        try:
            connection.execute(f"SET statement_timeout = {round(self.timeout * 1000)}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _return(self, connection: PostgresConnection, idle: list[PostgresConnection]) -> None:
        """Keep a connection idle, or close it: in a transaction, or if the database was closed meanwhile."""
        is_usable = not connection.closed and connection.info.transaction_status == TransactionStatus.IDLE
        with self._lock:
            keep = is_usable and idle is self._idle
            if keep:
                idle.append(connection)
        if not keep:
            with suppress(psycopg.Error):
                connection.close()


def _rows(cursor: psycopg.Cursor[tuple[Any, ...]]) -> Rows:
    return cursor.fetchall() if cursor.description else []


def _is_usable(connection: PostgresConnection) -> bool:
    """Whether an idle connection has no data: the server sends some only when it ends the connection."""
    if connection.closed:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)


def _was_deadlock(error: DatabaseBusyError) -> bool:
    return getattr(error.__cause__, "sqlstate", None) in _DEADLOCKS


def _parse_url(url: str) -> tuple[str, str]:
    """Return the connection string for libpq and the address for messages; errors do not show the URL."""
    try:
        options = conninfo_to_dict(url)
    except psycopg.Error:
        options = {"port": "?"}
    ports, name = str(options.get("port") or ""), str(options.get("dbname") or options.get("user") or "")
    where = str(options.get("host") or "localhost")
    if "@" in name + where or not all(port.isdecimal() for port in ports.split(",") if port):
        raise ValueError(
            "database is not a valid PostgreSQL URL: the port must be a number, every option must be one of "
            "libpq's, and in a user or password write / as %2F, ? as %3F, # as %23, @ as %40"
        )
    options["client_encoding"] = "utf8"  # independent of the server's encoding
    return make_conninfo("", **options), f"postgresql://{where}{ports and f':{ports}'}/{name}"


def _translate_error(error: psycopg.Error, address: str) -> DatabaseError:
    message = " ".join(str(error).split()) or type(error).__name__
    text = f"{address}: {message}"
    state = error.sqlstate
    if state is None:
        error_class: Callable[[str], DatabaseError] = DatabaseError
        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            error_class = DatabaseUnavailableError
        return error_class(text)
    error_type = _ERROR_TYPES.get(state)
    if error_type is DatabaseSchemaError:
        return DatabaseSchemaError(f"{text}; run `comporta db migrate`")
    if error_type is None and state[:2] in ("08", "28", "3D", "53", "57", "58"):
        error_type = DatabaseUnavailableError
    return (error_type or DatabaseError)(text)
