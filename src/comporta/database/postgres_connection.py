"""Connections to a PostgreSQL server whose calls end at a deadline, for blocking and for awaiting callers.

Set ``deadline`` before a call. If the server has not answered by then, the connection is closed, because the
late reply would answer the next call, and the call raises ``NoReplyError``.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import count
from types import NoneType
from typing import Any, TypeVar, cast

import psycopg
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.generators import execute
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGresult

from comporta.database.postgres_errors import NoReplyError, call_error
from comporta.database.postgres_socket import SocketDriver, has_data
from comporta.errors import DatabaseUnavailableError
from comporta.runtime import RUNTIME

T = TypeVar("T")

_CONNECT_SECONDS_MIN = 2  # the minimum of libpq
_CONNECT_PAUSE_SECONDS = 0.5
"""For this long after a failed attempt to connect, no call tries again: each would wait in vain."""

_NAMED_PARAMETERS = re.compile(r"%\((\w+)\)s")
_PARAMETER_TYPES = {str: 0, NoneType: 0, float: 701}
"""The types of parameters of a direct read, by their numbers in PostgreSQL, which infers types with 0."""

_STATEMENTS_MAX = 100
"""How many statements a connection prepares for direct reads."""


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
        self._statement_names: dict[tuple[str, tuple[int, ...]], bytes] = {}
        self._statement_numbers = count()
        self._transformer = Transformer(self)
        self._driver = SocketDriver(self.pgconn)
        self._rest: list[tuple[Generator[Any, Any, Any], int]] = []  # at most one

    async def read(self, text: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Return the rows of a statement that changes nothing.

        All reads share one cursor, which remembers how to convert parameters and columns. If all parameters
        are numbers and plain texts, the statement is prepared and sent without the cursor, which would take
        longer than the rest of the call.
        """
        parameters = _direct_parameters(text, values)
        if parameters is not None and len(self._statement_names) < _STATEMENTS_MAX:
            return await self._read_directly(text, *parameters)
        cursor = self._reader
        if cursor is None:
            cursor = self._reader = self.cursor()
        await cursor.execute(text, values)
        rows = await cursor.fetchall()
        cast("PGresult", cursor.pgresult).clear()  # otherwise it stays in memory until the next read
        return rows

    async def _read_directly(
        self, text: str, types: tuple[int, ...], parameters: Sequence[bytes | None]
    ) -> list[tuple[Any, ...]]:
        name = self._statement_names.get((text, types)) or await self._prepare(text, types)
        self.pgconn.send_query_prepared(name, parameters)
        result = (await self.wait(execute(self.pgconn)))[-1]
        if result.status != ExecStatus.TUPLES_OK:
            del self._statement_names[text, types]  # a migration may have changed the types of its columns
            raise error_from_result(result, self.info.encoding)
        self._transformer.set_pgresult(result)
        rows = self._transformer.load_rows(0, result.ntuples, tuple)
        result.clear()  # otherwise it stays in memory until the next read
        return rows

    async def _prepare(self, text: str, types: tuple[int, ...]) -> bytes:
        name = f"comporta_{next(self._statement_numbers)}".encode()
        self.pgconn.send_prepare(name, _with_numbers(text)[0], types)
        result = (await self.wait(execute(self.pgconn)))[-1]
        if result.status != ExecStatus.COMMAND_OK:
            raise error_from_result(result, self.info.encoding)
        self._statement_names[text, types] = name
        return name

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a forked child of the process that opened the connection."""
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
        driver = self._driver
        driver.deadline = self.deadline
        try:
            return await driver.run(gen, request)
        except psycopg.Error:
            raise
        except asyncio.CancelledError:
            if self.pgconn.pipeline_status:
                self._abandon(gen)
            elif not driver.is_ended:
                self._rest.append((gen, driver.request))
            raise
        except BaseException:
            self._abandon(gen)
            raise

    def _abandon(self, gen: Generator[Any, Any, Any]) -> None:
        """Close the connection in the middle of a call, unless it belongs to a parent process."""
        if not self.is_inherited:
            self.finish()
            with suppress(psycopg.Error):  # the end of a pipeline would read its replies
                gen.close()

    async def close(self) -> None:
        """Close the connection, as psycopg does."""
        self._driver.stop()
        await super().close()

    def finish(self) -> None:
        """Close the connection, on any thread; a loop that runs on another thread does so when it can."""
        loop = self._driver.loop
        if loop is None or not loop.is_running() or loop is _running_loop():
            self._finish()
        else:
            try:
                loop.call_soon_threadsafe(self._finish)
            except RuntimeError:  # it was closed at this moment
                self._finish()

    def _finish(self) -> None:
        self._driver.stop()
        self.pgconn.finish()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


@lru_cache(1000)
def _with_numbers(text: str) -> tuple[bytes, tuple[str, ...]]:
    """Return a statement with numbered instead of named parameters, and their names in order."""
    names = tuple(dict.fromkeys(_NAMED_PARAMETERS.findall(text)))
    return _NAMED_PARAMETERS.sub(lambda name: f"${names.index(name[1]) + 1}", text).encode(), names


def _direct_parameters(
    text: str, values: Mapping[str, Any]
) -> tuple[tuple[int, ...], list[bytes | None]] | None:
    """Return the types and the texts of all parameters; ``None`` if psycopg has to convert one."""
    types, parameters = [], []
    for name in _with_numbers(text)[1]:
        value = values[name]
        kind = _PARAMETER_TYPES.get(type(value))
        if kind is None or (value is not None and kind == 0 and not (value.isascii() and "\0" not in value)):
            return None
        types.append(kind)
        parameters.append(None if value is None else str(value).encode())
    return tuple(types), parameters


AnyConnection = PostgresConnection | AsyncPostgresConnection


class PostgresConnector:
    """Opens connections, blocking; a call on one may take ``timeout`` seconds."""

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

        The connection belongs to no event loop until it is used.
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
    """Whether an idle connection has no data: the server sends data only when it ends the connection."""
    return not connection.closed and not has_data(connection.pgconn.socket)


def is_idle(connection: AnyConnection) -> bool:
    """Whether a connection is open and not in a transaction."""
    return not connection.closed and connection.pgconn.transaction_status == TransactionStatus.IDLE
