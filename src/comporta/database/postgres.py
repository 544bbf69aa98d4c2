"""A PostgreSQL server, through small pools of psycopg connections.

Blocking callers share one pool; awaiting callers have one for each event loop (``postgres_async.py``). A call
takes an idle connection, opens one, or waits for one, all within its timeout. A write is one round trip: the
statements of its transaction are sent together. Nothing is sent twice, except after a deadlock, because then
the server has rolled everything back. A connection that ended while it was idle (the server was restarted) is
detected before it is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from threading import BoundedSemaphore, Lock
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

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
from comporta.database.postgres_async import LoopPools
from comporta.database.postgres_connection import PostgresConnection, PostgresConnector, is_idle, is_usable
from comporta.database.postgres_errors import NoReplyError, call_error, was_deadlock
from comporta.errors import DatabaseBusyError
from comporta.flow import Flow, Perform, run, run_async
from comporta.runtime import RUNTIME
from comporta.validators import require_integer

CONNECTIONS: Final = 4
CONNECTIONS_MAX: Final = 100
DEADLOCK_TRIES_MAX: Final = 5

_abandoned: list[object] = []
"""Connections of a parent process, which a child must neither use nor close."""


class PostgresDatabase:
    """See :class:`comporta.database.base.Database`."""

    dialect = "postgresql"
    path = None
    reads_directly = False

    def __init__(self, url: str, timeout: float = TIMEOUT_SECONDS, connections: int = CONNECTIONS) -> None:
        self.timeout = check_timeout(timeout)
        require_integer("connections", connections, 1, CONNECTIONS_MAX)
        conninfo, self.address = _parse_url(url)
        self._lock = Lock()
        self._connections = connections
        self._permits = BoundedSemaphore(connections)
        self._idle: list[PostgresConnection] = []
        self._connector = PostgresConnector(conninfo, self.address, self.timeout)
        self._loop_pools = LoopPools(self.address, connections, self._connector)
        fork_safety.register(self)

    def try_read(self, statement: Statement, parameters: Parameters) -> None:
        """Return ``None``: a server never answers without a wait."""

    def read(self, statement: Statement, parameters: Parameters) -> Rows:
        """Read in one round trip."""
        values = {"now": None, **parameters}
        with self._connection(self.timeout) as connection:
            return connection.execute(statement.postgresql, values).fetchall()

    async def read_async(self, statement: Statement, parameters: Parameters) -> Rows:
        """Do the same on a connection of the event loop."""
        values = {"now": None, **parameters}
        return await self._loop_pools.current().read(statement, values, self.timeout)

    def write(self, statements: Sequence[Statement], parameters: Parameters) -> list[Rows]:
        """Run a transaction, and run it again after a deadlock."""
        return run(self._write_flow(statements, parameters))

    async def write_async(self, statements: Sequence[Statement], parameters: Parameters) -> list[Rows]:
        """Do the same on a connection of the event loop."""
        return await run_async(self._write_flow(statements, parameters))

    @contextmanager
    def transaction(self, seconds: float) -> Iterator[Execute]:
        """Open a transaction in which each statement may take up to ``seconds``."""
        with self._connection(seconds) as connection:
            bound_ms = round(seconds * 1000)
            with connection.transaction():
                connection.execute(
                    f"SET LOCAL statement_timeout = {bound_ms}; SET LOCAL lock_timeout = {bound_ms}"
                )
                yield lambda text: _rows(connection.execute(text))

    @contextmanager
    def write_transaction(self, seconds: float) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        """Open a transaction on a connection of the pool; an error inside the block rolls it back."""
        with self._connection(seconds) as connection, connection.transaction():
            yield connection

    @contextmanager
    def statement_transaction(self, seconds: float) -> Iterator[RunStatement]:
        """Open a write transaction for statements that depend on each other's rows."""
        with self.write_transaction(seconds) as connection:
            yield partial(self.run_in, connection)

    @staticmethod
    def run_in(
        connection: psycopg.Connection[tuple[Any, ...]], statement: Statement, parameters: Parameters
    ) -> Rows:
        """Run a statement in a transaction of ``write_transaction``."""
        return _rows(connection.execute(statement.postgresql, {"now": None, **parameters}))

    def close(self) -> None:
        """Stop the threads and close idle connections; those in use close when they are returned."""
        self._loop_pools.close()
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def after_fork(self) -> None:
        """Abandon the parent's connections."""
        fork_safety.reinit_lock(self._lock)
        _abandoned.extend((*self._idle, self._loop_pools.after_fork()))
        self._idle = []
        self._permits = BoundedSemaphore(self._connections)

    def _write_flow(self, statements: Sequence[Statement], parameters: Parameters) -> Flow[list[Rows]]:
        deadline, values = RUNTIME.monotonic() + self.timeout, {"now": None, **parameters}
        tries_left = DEADLOCK_TRIES_MAX
        while True:
            seconds = deadline - RUNTIME.monotonic()
            tries_left -= 1
            try:
                rows: list[Rows] = yield Perform(
                    partial(self._write_once, statements, values, seconds),
                    partial(self._write_once_async, statements, values, seconds),
                )
            except DatabaseBusyError as error:
                if not tries_left or not was_deadlock(error):
                    raise
            else:
                return rows

    def _write_once(self, statements: Sequence[Statement], values: Parameters, seconds: float) -> list[Rows]:
        with self._connection(seconds) as connection:
            with connection.pipeline(), connection.transaction():
                cursors = [connection.execute(statement.postgresql, values) for statement in statements]
            return [_rows(cursor) for cursor in cursors]

    async def _write_once_async(
        self, statements: Sequence[Statement], values: Parameters, seconds: float
    ) -> list[Rows]:
        return await self._loop_pools.current().write(statements, values, seconds)

    @contextmanager
    def _connection(self, seconds: float) -> Iterator[PostgresConnection]:
        """Take a connection for up to ``seconds``, and return it if it is still usable."""
        deadline = RUNTIME.monotonic() + seconds
        free, idle = self._permits, self._idle
        if not free.acquire(timeout=max(seconds, 0)):
            raise DatabaseBusyError(
                f"{self.address}: all {self._connections} connections are in use; allow more with "
                "?connections= in the URL"
            )
        connection = None
        try:
            connection = self._pop_idle() or self._connector.connect(deadline)
            connection.deadline = deadline
            yield connection
        except (NoReplyError, psycopg.Error) as error:
            raise call_error(error, self.address, seconds) from error
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
            if is_usable(connection):
                return connection
            connection.close()

    def _return(self, connection: PostgresConnection, idle: list[PostgresConnection]) -> None:
        """Keep a connection idle; close it if it is in a transaction, or if the database has been closed."""
        with self._lock:
            keep = idle is self._idle and is_idle(connection)
            if keep:
                idle.append(connection)
        if not keep:
            with suppress(psycopg.Error):
                connection.close()


def _rows(cursor: psycopg.Cursor[tuple[Any, ...]]) -> Rows:
    return cursor.fetchall() if cursor.description else []


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
