"""Connections to a PostgreSQL server whose calls end at a deadline, for blocking and for awaiting callers.

Set ``deadline`` before a call. If the server has not answered by then, the connection is closed, because the
late reply would answer the next call, and the call raises ``NoReplyError``.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from typing import Any, TypeVar, cast

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.waiting import Ready, Wait

from comporta.database.postgres_errors import NoReplyError, call_error
from comporta.errors import DatabaseUnavailableError
from comporta.runtime import RUNTIME

T = TypeVar("T")

_CONNECT_SECONDS_MIN = 2  # the minimum of libpq
_CONNECT_PAUSE_SECONDS = 0.5
"""For this long after a failed connection no call tries another: each would wait in vain."""

_NOT_READY, _READABLE, _WRITABLE = 0, int(Ready.R), int(Ready.W)
_WRITE = int(Wait.W)


class PostgresConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection of blocking callers."""

    deadline = float("inf")

    def wait(self, gen: Generator[Any, Any, T], *options: Any, **named: Any) -> T:
        """Wait as psycopg does, and check the deadline whenever it wakes up, ten times a second."""
        try:
            return super().wait(_with_deadline(gen, self.deadline), *options, **named)
        except NoReplyError:
            self.pgconn.finish()
            raise


def _with_deadline(gen: Generator[Any, Any, T], deadline: float) -> Generator[Any, Any, T]:
    try:
        request = next(gen)
        while True:
            ready = yield request
            if not ready and RUNTIME.monotonic() > deadline:
                raise NoReplyError
            request = gen.send(ready)
    except StopIteration as end:
        result: T = end.value
        return result


class AsyncPostgresConnection(psycopg.AsyncConnection[tuple[Any, ...]]):
    """A connection of awaiting callers.

    If a caller is cancelled while it reads, ``read_rest`` reads the rest of the reply; then the connection
    can be used again. In a transaction a cancellation closes the connection, which rolls back.
    """

    deadline = float("inf")

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._pid = RUNTIME.pid()
        self._reader: psycopg.AsyncCursor[tuple[Any, ...]] | None = None
        self._rest: list[tuple[Generator[Any, Any, Any], int]] = []  # at most one

    async def read(self, text: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Return the rows of a statement that changes nothing.

        All reads share one cursor, which remembers how to convert parameters and columns.
        """
        cursor = self._reader
        if cursor is None:
            cursor = self._reader = self.cursor()
        await cursor.execute(text, values)
        rows = await cursor.fetchall()
        cast("PGresult", cursor.pgresult).clear()  # otherwise it stays in memory until the next read
        return rows

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a forked child of the one that opened the connection."""
        return RUNTIME.pid() != self._pid

    @property
    def has_rest(self) -> bool:
        """Whether a reply was not read to its end, because its caller was cancelled."""
        return bool(self._rest)

    async def read_rest(self) -> None:
        """Read the rest of a reply whose caller was cancelled."""
        await self._drive(*self._rest.pop())

    async def wait(self, gen: Generator[Any, Any, T], *_: Any, **__: Any) -> T:
        """Wait on the event loop, until the deadline."""
        try:
            request = next(gen)
        except StopIteration as end:
            result: T = end.value
            return result
        return await self._drive(gen, request)

    async def _drive(self, gen: Generator[Any, Any, T], request: int) -> T:
        while True:
            try:
                ready = await self._wait_for_socket(request)
            except asyncio.CancelledError:
                if self.pgconn.pipeline_status:
                    self._abandon(gen)
                else:
                    self._rest.append((gen, request))
                raise
            except BaseException:
                self._abandon(gen)
                raise
            try:
                request = gen.send(ready)
            except StopIteration as end:
                result: T = end.value
                return result

    def _abandon(self, gen: Generator[Any, Any, Any]) -> None:
        """Close the connection in the middle of a call, unless it is that of a parent process."""
        if not self.is_inherited:
            self.pgconn.finish()
            with suppress(psycopg.Error):  # the end of a pipeline would read its replies
                gen.close()

    async def _wait_for_socket(self, request: int) -> int:
        """Wait until the socket is ready for what psycopg requests; return for what it is."""
        loop, socket = asyncio.get_running_loop(), self.pgconn.socket
        future: asyncio.Future[int] = loop.create_future()
        timer = loop.call_later(self.deadline - RUNTIME.monotonic(), _wake, future, _NOT_READY)
        loop.add_reader(socket, _wake, future, _READABLE)  # what psycopg always requests
        if request & _WRITE:
            loop.add_writer(socket, _wake, future, _WRITABLE)
        try:
            ready = await future
        finally:
            timer.cancel()
            if not self.is_inherited:  # a forked child shares the selector of its parent
                _forget_socket(loop, socket, request)
        if not ready and not _has_data(socket):  # it may have come while the event loop was blocked
            raise NoReplyError
        return ready or _READABLE


def _forget_socket(loop: asyncio.AbstractEventLoop, socket: int, request: int) -> None:
    loop.remove_reader(socket)
    if request & _WRITE:
        loop.remove_writer(socket)


def _wake(future: asyncio.Future[int], ready: int) -> None:
    if not future.done():
        future.set_result(ready)


AnyConnection = PostgresConnection | AsyncPostgresConnection


class PostgresConnector:
    """Opens connections, blocking; a call may take ``timeout`` seconds on each."""

    def __init__(self, conninfo: str, address: str, timeout: float) -> None:
        self._conninfo = conninfo
        self._address = address
        self._timeout = timeout
        self._setup = f"SET statement_timeout = {round(timeout * 1000)}"
        self._failure: tuple[float, str] = (0.0, "")

    def connect(self, deadline: float) -> PostgresConnection:
        """Open a connection for blocking callers."""
        return self._connect(self._open, deadline)

    def connect_for_loop(self, deadline: float) -> AsyncPostgresConnection:
        """Open a connection for awaiting callers, on a thread, because resolving a name may hang.

        It belongs to no event loop until it is used.
        """
        return self._connect(lambda seconds, end: asyncio.run(self._open_for_loop(seconds, end)), deadline)

    def _connect(self, open_connection: Callable[[int, float], T], deadline: float) -> T:
        until, reason = self._failure
        now = RUNTIME.monotonic()
        if now < until:
            raise DatabaseUnavailableError(reason)
        seconds = max(_CONNECT_SECONDS_MIN, round(min(deadline - now, self._timeout)))
        try:
            return open_connection(seconds, min(deadline, now + seconds + self._timeout))
        except (NoReplyError, psycopg.Error) as error:
            translated = call_error(error, self._address, seconds + self._timeout)
            self._failure = (RUNTIME.monotonic() + _CONNECT_PAUSE_SECONDS, str(translated))
            raise translated from error

    def _open(self, seconds: int, deadline: float) -> PostgresConnection:
        connection = PostgresConnection.connect(self._conninfo, autocommit=True, connect_timeout=seconds)
        connection.deadline = deadline
        try:
            connection.execute(self._setup)
        except BaseException:
            connection.close()
            raise
        return connection

    async def _open_for_loop(self, seconds: int, deadline: float) -> AsyncPostgresConnection:
        connection = await AsyncPostgresConnection.connect(
            self._conninfo, autocommit=True, connect_timeout=seconds
        )
        connection.deadline = deadline
        try:
            await connection.execute(self._setup)
        except BaseException:
            await connection.close()
            raise
        return connection


def is_usable(connection: AnyConnection) -> bool:
    """Whether an idle connection has no data: the server sends some only when it ends the connection."""
    return not connection.closed and not _has_data(connection.pgconn.socket)


def is_idle(connection: AnyConnection) -> bool:
    """Whether a connection is open and not in a transaction."""
    return not connection.closed and connection.pgconn.transaction_status == TransactionStatus.IDLE


def _has_data(socket: int) -> bool:
    poll = select.poll()
    poll.register(socket, select.POLLIN)
    return bool(poll.poll(0))
