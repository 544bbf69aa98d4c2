"""The connections of awaiting callers to a PostgreSQL server: a small pool for each event loop.

A call waits for its reply on the event loop and takes no thread. Threads only open connections. A caller that
is cancelled stops waiting: a write continues to its end, and the rest of the reply to a read is read in the
background, so that the connection can be used again. The pool closes with its event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import Any, Final

import psycopg

from comporta import fork_safety
from comporta.database.base import Parameters, Rows, Statement
from comporta.database.postgres_connection import (
    AsyncPostgresConnection,
    PostgresConnector,
    is_idle,
    is_usable,
)
from comporta.database.postgres_errors import NoReplyError, call_error
from comporta.errors import DatabaseBusyError
from comporta.flow import missing_loop_error
from comporta.runtime import RUNTIME
from comporta.thread_pool import ThreadPool

WAITING_MAX: Final = 1000
"""How many calls of one event loop may wait for a connection."""


class LoopPools:
    """The pools of all event loops that use one database."""

    def __init__(self, address: str, connections: int, connector: PostgresConnector) -> None:
        self._address = address
        self._connections = connections
        self._connector = connector
        self._threads = ThreadPool(
            "database", connections, refusal=lambda text: DatabaseBusyError(f"{address}: {text}")
        )
        self._pools: dict[asyncio.AbstractEventLoop, LoopPool] = {}
        self._lock = Lock()

    def current(self) -> LoopPool:
        """Return the pool of the running event loop."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise missing_loop_error() from None
        pool = self._pools.get(loop)
        return self._new_pool(loop) if pool is None or pool.is_closed else pool

    def close(self) -> None:
        """Close idle connections; those in use close when they are returned."""
        self._threads.close(wait=True)
        with self._lock:
            pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.close()

    def after_fork(self) -> object:
        """Start without connections; return those of the parent process, which must stay open."""
        fork_safety.reinit_lock(self._lock)
        pools, self._pools = self._pools, {}
        return pools

    def _new_pool(self, loop: asyncio.AbstractEventLoop) -> LoopPool:
        pool = LoopPool(self._address, self._connections, self._connector, self._threads, loop)
        with self._lock:
            for other in [each for each in self._pools if each.is_closed()]:
                self._pools.pop(other).close()
            self._pools[loop] = pool
        return pool


class LoopPool:
    """At most ``connections`` connections of one event loop."""

    def __init__(
        self,
        address: str,
        connections: int,
        connector: PostgresConnector,
        threads: ThreadPool,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.is_closed = False
        self._address = address
        self._connections = connections
        self._connector = connector
        self._threads = threads
        self._loop = loop
        self._permits = asyncio.Semaphore(connections)
        self._waiting = 0
        self._idle: list[AsyncPostgresConnection] = []
        self._in_use: set[AsyncPostgresConnection] = set()
        self._background: set[asyncio.Task[Any]] = set()
        self._closer: AsyncGenerator[None, None] | None = None

    async def read(self, statement: Statement, values: Parameters, seconds: float) -> Rows:
        """Read in one round trip."""
        connection = await self._acquire(seconds)
        try:
            return await connection.read(statement.postgresql, values)
        except (NoReplyError, psycopg.Error) as error:
            raise call_error(error, self._address, seconds) from error
        finally:
            self._release(connection)

    async def write(self, statements: Sequence[Statement], values: Parameters, seconds: float) -> list[Rows]:
        """Run a transaction in one round trip, to its end even if the caller is cancelled."""
        task = self._loop.create_task(self._write(statements, values, seconds))
        return await asyncio.shield(task)

    def close(self) -> None:
        """Close idle connections; those in use close when they are returned."""
        self.is_closed = True
        with suppress(IndexError):
            while True:
                connection = self._idle.pop()
                connection.finish()
        if self._loop.is_closed():  # then the calls that it ran never end
            with suppress(KeyError):
                while True:
                    self._in_use.pop().finish()

    async def _write(self, statements: Sequence[Statement], values: Parameters, seconds: float) -> list[Rows]:
        connection = await self._acquire(seconds)
        try:
            async with connection.pipeline(), connection.transaction():
                cursors = [await connection.execute(each.postgresql, values) for each in statements]
            return [await cursor.fetchall() if cursor.description else [] for cursor in cursors]
        except (NoReplyError, psycopg.Error) as error:
            raise call_error(error, self._address, seconds) from error
        finally:
            self._release(connection)

    # -- connections

    async def _acquire(self, seconds: float) -> AsyncPostgresConnection:
        """Take an idle connection, or open one, or wait for one; return it with its deadline."""
        deadline = RUNTIME.monotonic() + seconds
        if self._permits.locked():
            await self._wait_for_permit(seconds)
        else:
            await self._permits.acquire()
        connection = self._pop_idle() or await self._open(deadline)
        self._in_use.add(connection)
        connection.deadline = deadline
        return connection

    async def _wait_for_permit(self, seconds: float) -> None:
        if self._waiting >= WAITING_MAX:
            raise DatabaseBusyError(f"{self._address}: {WAITING_MAX} calls are waiting already")
        self._waiting += 1
        try:
            async with asyncio.timeout(seconds) as _timeout:  # named: see clock.py
                await self._permits.acquire()
        except TimeoutError:
            raise DatabaseBusyError(
                f"{self._address}: all {self._connections} connections are in use; allow more with "
                "?connections= in the URL"
            ) from None
        finally:
            self._waiting -= 1

    def _pop_idle(self) -> AsyncPostgresConnection | None:
        while self._idle:
            with suppress(IndexError):  # another thread closes the pool
                connection = self._idle.pop()
                if is_usable(connection):
                    return connection
                connection.finish()
        return None

    async def _open(self, deadline: float) -> AsyncPostgresConnection:
        """Open a connection on a thread; if the caller is cancelled meanwhile, it becomes idle."""
        try:
            if self._closer is None:
                self._closer = self._close_with_loop()
                await anext(self._closer)  # from now on the event loop knows it
            opening = self._threads.submit(partial(self._connect, deadline))
        except BaseException:
            self._release_permit()
            raise
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(self._release_opened)
            raise
        except BaseException:
            self._release_permit()
            raise

    def _connect(self, deadline: float) -> AsyncPostgresConnection:
        connection = self._connector.connect_for_loop(deadline)
        if self._loop.is_closed():
            connection.finish()
        return connection

    def _release_opened(self, opening: asyncio.Future[AsyncPostgresConnection]) -> None:
        if opening.exception() is None:
            self._keep(opening.result())
        self._release_permit()

    def _release(self, connection: AsyncPostgresConnection) -> None:
        """Return a connection; one whose caller was cancelled has to read the rest of its reply first."""
        if connection.is_inherited:  # the task of a parent process, destroyed in a forked child
            return
        if connection.has_rest and not self._loop.is_closed():
            task = self._loop.create_task(self._read_rest(connection))
            self._background.add(task)
            task.add_done_callback(self._background.discard)
        else:
            self._keep(connection)
            self._release_permit()

    async def _read_rest(self, connection: AsyncPostgresConnection) -> None:
        try:
            with suppress(psycopg.Error, NoReplyError):
                await connection.read_rest()
        finally:
            self._keep(connection)
            self._release_permit()

    def _release_permit(self) -> None:
        if not self._loop.is_closed():  # otherwise waking the next caller would fail
            self._permits.release()

    def _keep(self, connection: AsyncPostgresConnection) -> None:
        """Keep a connection idle, or close it: in a transaction, or if the pool was closed meanwhile."""
        self._in_use.discard(connection)
        if is_idle(connection):
            self._idle.append(connection)
        else:
            connection.finish()
        if self.is_closed:  # maybe by another thread, at this moment
            self.close()

    async def _close_with_loop(self) -> AsyncGenerator[None, None]:
        """Close the pool when the event loop shuts its generators down, as ``asyncio.run`` does."""
        try:
            yield
        finally:
            self.close()
            tasks = list(self._background)
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
