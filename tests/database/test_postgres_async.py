"""Awaiting callers of a PostgreSQL server: cancelled, on several event loops, in forks, while it is down."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from psycopg.pq import ConnStatus
from tests.support import wait_until, wait_until_async

from comporta.database import postgres_async
from comporta.database.base import Statement
from comporta.database.postgres import PostgresDatabase, _abandoned
from comporta.database.postgres_async import LoopPool
from comporta.database.postgres_connection import _STATEMENTS_MAX, AsyncPostgresConnection
from comporta.database.postgres_socket import SocketDriver
from comporta.errors import DatabaseBusyError, DatabaseError, DatabaseUnavailableError
from comporta.flow import MissingLoopError
from comporta.testing import PostgresServer

T = TypeVar("T")

ONE = Statement("SELECT 1")
PID = Statement("SELECT pg_backend_pid()")
PAUSE = Statement("SELECT pg_sleep(0.3)")
LOCK = Statement("SELECT pg_advisory_xact_lock(7)")
APPLICATION = "async_test"
CONNECTIONS = Statement(f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{APPLICATION}'")  # noqa: S608


@pytest.fixture
def make(postgres: PostgresServer) -> Iterator[Callable[..., PostgresDatabase]]:
    opened: list[PostgresDatabase] = []

    def make(timeout: float = 60, connections: int = 4) -> PostgresDatabase:
        url = f"{postgres.url}?application_name={APPLICATION}"
        opened.append(PostgresDatabase(url, timeout=timeout, connections=connections))
        return opened[-1]

    yield make
    for database in opened:
        database.close()


@pytest.fixture
def database(make: Callable[..., PostgresDatabase]) -> PostgresDatabase:
    return make()


@pytest.fixture
def observer(postgres: PostgresServer) -> Iterator[PostgresDatabase]:
    database = PostgresDatabase(postgres.url, timeout=60)
    yield database
    database.close()


def wait_for_no_connections(observer: PostgresDatabase) -> None:
    wait_until(lambda: observer.read(CONNECTIONS, {}) == [(0,)])


async def until(condition: Callable[[], object]) -> None:
    async def holds() -> object:
        return condition()

    await wait_until_async(holds)


@contextmanager
def hold_lock(observer: PostgresDatabase) -> Iterator[None]:
    """Let ``LOCK`` wait."""
    with observer.transaction(60) as execute:
        execute(LOCK.postgresql)
        yield


async def cancel_when(call: Awaitable[T], when: Callable[[], object]) -> None:
    """Start a call, and cancel it when a condition holds."""
    task = asyncio.ensure_future(call)
    await until(when)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def pool(database: PostgresDatabase) -> LoopPool:
    return database._loop_pools.current()


def test_calls__one_after_another__use_one_connection_and_leave_the_loop_free(
    database: PostgresDatabase, observer: PostgresDatabase
) -> None:
    async def main() -> None:
        [first] = await database.read_async(PID, {})
        [[second], nothing] = await database.write_async([PID, Statement("SET LOCAL jit = off")], {})
        assert first == second
        assert nothing == []
        with hold_lock(observer):
            reading = asyncio.ensure_future(database.read_async(LOCK, {}))
            await until(lambda: pool(database)._in_use)
            for _ in range(100):
                await asyncio.sleep(0)
            assert not reading.done()
        assert await reading == [("",)]
        assert len(pool(database)._idle) == 1

    asyncio.run(main())
    wait_for_no_connections(observer)  # closed with the event loop


def test_calls__many_at_once__share_the_connections(make: Callable[..., PostgresDatabase]) -> None:
    database = make(connections=2)

    async def main() -> None:
        found = await asyncio.gather(*(database.read_async(PID, {}) for _ in range(50)))
        assert len({pid for [(pid,)] in found}) == len(pool(database)._idle) <= 2

    asyncio.run(main())


def test_read__cancelled__connection_is_used_again(
    make: Callable[..., PostgresDatabase], observer: PostgresDatabase
) -> None:
    database = make(connections=1)

    async def main() -> None:
        before = await database.read_async(PID, {})
        with hold_lock(observer):
            await cancel_when(database.read_async(LOCK, {}), lambda: pool(database)._in_use)
        assert await database.read_async(PID, {}) == before  # after the rest of the reply
        assert await database.write_async([PID], {}) == [before]

    asyncio.run(main())


def test_write__cancelled__runs_to_its_end(
    make: Callable[..., PostgresDatabase], observer: PostgresDatabase
) -> None:
    database = make(connections=1)
    observer.write([Statement("CREATE TABLE IF NOT EXISTS written (n INTEGER)")], {})
    insert = Statement("INSERT INTO written VALUES (1)")

    async def main() -> None:
        with hold_lock(observer):
            await cancel_when(database.write_async([LOCK, insert], {}), lambda: pool(database)._in_use)
        assert await database.read_async(Statement("SELECT count(*) FROM written"), {}) == [(1,)]

    asyncio.run(main())
    observer.write([Statement("DROP TABLE written")], {})


@pytest.mark.parametrize("write", [False, True])
def test_loop__ends_during_a_cancelled_call__closes_the_connection(
    database: PostgresDatabase, observer: PostgresDatabase, write: bool
) -> None:
    async def main() -> None:
        call = database.write_async([LOCK], {}) if write else database.read_async(LOCK, {})
        await cancel_when(call, lambda: pool(database)._in_use)

    with hold_lock(observer):
        asyncio.run(main())
    wait_for_no_connections(observer)


def test_loop__ends_during_a_read__closes_the_connection(
    database: PostgresDatabase, observer: PostgresDatabase
) -> None:
    reading: set[asyncio.Future[Any]] = set()

    async def main() -> None:
        reading.add(asyncio.ensure_future(database.read_async(LOCK, {})))
        await until(lambda: pool(database)._in_use)

    with hold_lock(observer):
        asyncio.run(main())
    assert all(each.cancelled() for each in reading)
    wait_for_no_connections(observer)


def test_open__caller_is_cancelled__connection_becomes_idle(
    make: Callable[..., PostgresDatabase], monkeypatch: pytest.MonkeyPatch
) -> None:
    database = make(connections=1)
    called, may_connect = threading.Event(), threading.Event()
    connect = database._connector.connect_for_loop

    def connect_late(deadline: float) -> AsyncPostgresConnection:
        called.set()
        assert may_connect.wait(60)
        return connect(deadline)

    monkeypatch.setattr(database._connector, "connect_for_loop", connect_late)

    async def main() -> None:
        await cancel_when(database.read_async(ONE, {}), called.is_set)
        assert pool(database)._permits.locked()  # the connection counts already
        may_connect.set()
        await until(lambda: pool(database)._idle)
        assert await database.read_async(ONE, {}) == [(1,)]
        assert len(pool(database)._idle) == 1

    asyncio.run(main())


def test_open__caller_is_cancelled_and_it_fails__permit_is_released(
    make: Callable[..., PostgresDatabase], monkeypatch: pytest.MonkeyPatch
) -> None:
    database = make(connections=1)
    called, may_connect = threading.Event(), threading.Event()

    def fail_late(deadline: float) -> AsyncPostgresConnection:
        called.set()
        assert may_connect.wait(60)
        raise DatabaseUnavailableError("down")

    monkeypatch.setattr(database._connector, "connect_for_loop", fail_late)

    async def main() -> None:
        await cancel_when(database.read_async(ONE, {}), called.is_set)
        may_connect.set()
        with pytest.raises(DatabaseUnavailableError, match="down"):
            await database.read_async(ONE, {})

    asyncio.run(main())


def test_open__loop_was_closed_meanwhile__closes_the_connection(database: PostgresDatabase) -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    late = LoopPool("x", 1, database._connector, database._loop_pools._threads, loop)
    assert late._connect(float("inf")).closed


def test_open__setup_gets_no_answer__raises_unavailable_and_closes_the_connection(
    database: PostgresDatabase, observer: PostgresDatabase
) -> None:
    database._connector._setup = LOCK.postgresql
    database._connector._timeout = 0.001

    async def main() -> None:
        with hold_lock(observer), pytest.raises(DatabaseUnavailableError, match="no answer within"):
            await database.read_async(ONE, {})

    asyncio.run(main())
    wait_for_no_connections(observer)


def test_open__no_thread_can_start__permit_is_released(
    make: Callable[..., PostgresDatabase], monkeypatch: pytest.MonkeyPatch
) -> None:
    database = make(connections=1)

    def fail(_: object) -> None:
        raise RuntimeError("cannot start a thread")

    async def main() -> None:
        monkeypatch.setattr(database._loop_pools._threads, "submit", fail)
        with pytest.raises(RuntimeError, match="cannot start a thread"):
            await database.read_async(ONE, {})
        monkeypatch.undo()
        assert await database.read_async(ONE, {}) == [(1,)]

    asyncio.run(main())


def test_server__not_running__raises_unavailable_with_its_address() -> None:
    database = PostgresDatabase("postgresql://me:geheim@127.0.0.1:1/app", connections=1)

    async def main() -> None:
        for _ in range(3):
            with pytest.raises(
                DatabaseUnavailableError, match=r"^postgresql://127\.0\.0\.1:1/app: "
            ) as caught:
                await database.read_async(ONE, {})
            assert "geheim" not in str(caught.value)

    asyncio.run(main())
    database.close()


def test_server__frozen__raises_unavailable_in_time_and_recovers(
    postgres: PostgresServer, make: Callable[..., PostgresDatabase]
) -> None:
    database = make(timeout=1)

    async def main() -> None:
        assert await database.read_async(ONE, {}) == [(1,)]
        postgres.freeze()
        try:
            with pytest.raises(
                DatabaseUnavailableError, match=r"no answer within [01]\S* s; whether the call took"
            ):
                await database.write_async([ONE], {})
            with pytest.raises(DatabaseUnavailableError, match="timeout expired"):
                await database.read_async(ONE, {})
        finally:
            postgres.thaw()

    asyncio.run(main())
    assert asyncio.run(make().read_async(ONE, {})) == [(1,)]


def test_server__restarted__reconnects(postgres: PostgresServer, database: PostgresDatabase) -> None:
    async def main() -> None:
        assert await database.read_async(ONE, {}) == [(1,)]
        await asyncio.to_thread(postgres.restart)
        assert await database.write_async([ONE], {}) == [[(1,)]]

    asyncio.run(main())


def test_connection__terminated_mid_call__raises_unavailable_and_recovers(
    database: PostgresDatabase,
) -> None:
    end = Statement("SELECT pg_terminate_backend(pg_backend_pid())")

    async def main() -> None:
        for call in (database.read_async(end, {}), database.write_async([end], {})):
            with pytest.raises(DatabaseUnavailableError):
                await call
        assert await database.read_async(ONE, {}) == [(1,)]

    asyncio.run(main())


def test_error__in_a_statement__is_translated_and_rolls_back(database: PostgresDatabase) -> None:
    async def main() -> None:
        for call in (
            database.read_async(Statement("SELECT 1 / 0"), {}),
            database.write_async([ONE, Statement("SELECT 1 / 0")], {}),
        ):
            with pytest.raises(DatabaseError, match="division by zero"):
                await call
        assert len(pool(database)._idle) == 1

    asyncio.run(main())


def test_read__of_a_missing_table__raises_its_error_and_the_connection_is_used_again(
    database: PostgresDatabase,
) -> None:
    async def read() -> list[Any]:
        before = await database.read_async(PID, {})
        for _ in range(2):
            with pytest.raises(DatabaseError, match="no_such_table"):
                await database.read_async(Statement("SELECT * FROM no_such_table"), {})
        return [before, await database.read_async(PID, {})]

    before, after = asyncio.run(read())
    assert before == after


def test_write__deadlock__is_retried(database: PostgresDatabase) -> None:
    one, two = Statement("SELECT pg_advisory_xact_lock(1)"), Statement("SELECT pg_advisory_xact_lock(2)")

    async def main() -> None:
        await asyncio.gather(
            database.write_async([one, PAUSE, two], {}), database.write_async([two, PAUSE, one], {})
        )

    asyncio.run(main())


def test_connections__all_in_use__raises_busy(
    make: Callable[..., PostgresDatabase], monkeypatch: pytest.MonkeyPatch
) -> None:
    database = make(timeout=2, connections=1)

    async def main() -> None:
        await database.read_async(ONE, {})
        pool(database)._in_use.add(await pool(database)._acquire(60))
        with pytest.raises(DatabaseBusyError, match="all 1 connections are in use"):
            await database.read_async(ONE, {})
        monkeypatch.setattr(postgres_async, "WAITING_MAX", 0)
        with pytest.raises(DatabaseBusyError, match="0 calls are waiting already"):
            await database.read_async(ONE, {})
        pool(database)._release(next(iter(pool(database)._in_use)))
        assert await database.read_async(ONE, {}) == [(1,)]

    asyncio.run(main())


def test_connection__closed_while_idle__is_not_reused(database: PostgresDatabase) -> None:
    async def main() -> None:
        await database.read_async(ONE, {})
        await pool(database)._idle[0].close()
        assert await database.read_async(ONE, {}) == [(1,)]
        assert len(pool(database)._idle) == 1

    asyncio.run(main())


def test_close__connection_in_use__closes_it_when_it_is_returned(
    database: PostgresDatabase, observer: PostgresDatabase
) -> None:
    async def main() -> None:
        before = pool(database)
        with hold_lock(observer):
            reading = asyncio.ensure_future(database.read_async(LOCK, {}))
            await until(lambda: before._in_use)
            await asyncio.to_thread(database.close)
        assert await reading == [("",)]
        assert not before._idle
        assert await database.read_async(ONE, {}) == [(1,)]
        assert pool(database) is not before

    asyncio.run(main())
    wait_for_no_connections(observer)


def test_loops__in_several_threads__have_a_pool_each(
    database: PostgresDatabase, observer: PostgresDatabase
) -> None:
    pids: list[int] = []
    barrier = threading.Barrier(3)

    async def main() -> None:
        [(pid,)] = await database.read_async(PID, {})
        pids.append(pid)
        await asyncio.to_thread(barrier.wait, 60)

    threads = [threading.Thread(target=lambda: asyncio.run(main())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(pids)) == 3
    wait_for_no_connections(observer)


def test_loop__closed_without_shutdown__next_loop_closes_its_connections(
    database: PostgresDatabase, observer: PostgresDatabase
) -> None:
    loop = asyncio.new_event_loop()
    assert loop.run_until_complete(database.read_async(ONE, {})) == [(1,)]
    loop.close()
    assert observer.read(CONNECTIONS, {}) == [(1,)]
    asyncio.run(database.read_async(ONE, {}))
    wait_for_no_connections(observer)
    assert loop not in database._loop_pools._pools


@pytest.mark.parametrize("write", [False, True])
def test_loop__closed_during_calls__they_leave_no_connection(
    make: Callable[..., PostgresDatabase], observer: PostgresDatabase, write: bool
) -> None:
    database = make(connections=1)
    loop = asyncio.new_event_loop()
    errors: list[object] = []

    async def start() -> None:
        for _ in range(2):  # the second call waits for the connection
            call = database.write_async([LOCK], {}) if write else database.read_async(LOCK, {})
            calls.append(loop.create_task(call))
        await until(lambda: pool(database)._in_use and pool(database)._waiting)

    calls: list[asyncio.Task[Any]] = []
    before, sys.unraisablehook = sys.unraisablehook, errors.append
    try:
        with hold_lock(observer):
            loop.run_until_complete(start())
            loop.close()
            calls.clear()
            gc.collect()
    finally:
        sys.unraisablehook = before
    assert errors == []
    database.close()
    wait_for_no_connections(observer)


def test_fork__child_reads__parent_keeps_its_connection(
    database: PostgresDatabase, observer: PostgresDatabase
) -> None:
    async def main() -> None:
        before = await database.read_async(PID, {})
        with hold_lock(observer):
            waiting = asyncio.ensure_future(database.read_async(LOCK, {}))
            await until(lambda: pool(database)._in_use)
            child = os.fork()
            if not child:
                os._exit(0 if read_in_child(before) else 1)
            _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert status == 0
        assert await waiting == [("",)]
        assert await database.read_async(PID, {}) == before

    def read_in_child(parents: Any) -> bool:
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(asyncio.run(database.read_async(PID, {}))))
        thread.start()
        thread.join()
        return bool(found and found[0] != parents)

    asyncio.run(main())


def test_after_fork__pools__are_abandoned(database: PostgresDatabase) -> None:
    async def main() -> None:
        await database.read_async(ONE, {})
        before = pool(database)
        database.after_fork()
        assert pool(database) is not before
        assert any(isinstance(each, dict) and before in each.values() for each in _abandoned)
        before.close()

    asyncio.run(main())


def test_read__no_event_loop__raises_missing_loop(database: PostgresDatabase) -> None:
    with pytest.raises(MissingLoopError):
        database.read_async(ONE, {}).send(None)


def test_task__destroyed_in_a_forked_child__leaves_the_parents_connection(
    database: PostgresDatabase, observer: PostgresDatabase
) -> None:
    async def main() -> None:
        with hold_lock(observer):
            reading = database.read_async(LOCK, {})
            task = asyncio.ensure_future(reading)
            await until(lambda: pool(database)._in_use)
            [connection] = pool(database)._in_use
            connection._pid = 0  # as in a child
            reading.close()
            assert not connection.closed
            assert pool(database)._in_use == {connection}
            connection._pid = os.getpid()
            connection.pgconn.finish()
            task.cancel()
            with pytest.raises(RuntimeError, match="reuse already awaited"):
                await task

    asyncio.run(main())


def test_driver__deadline_passed_but_data_has_come__reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    driver = SocketDriver(SimpleNamespace(socket=ours.fileno(), status=ConnStatus.OK))  # type: ignore[arg-type]
    driver.deadline = float("-inf")

    def receive() -> Generator[int, int, int]:
        return (yield 1)

    async def main() -> int:
        # as if the event loop had been blocked and ran its timers before it looks at its sockets
        monkeypatch.setattr(asyncio.get_running_loop(), "add_reader", lambda *_: None)
        gen = receive()
        return await driver.run(gen, next(gen))

    theirs.send(b"reply")
    assert asyncio.run(main()) == 1
    for each in (ours, theirs):
        each.close()


def test_driver__later_call_ends_sooner__its_deadline_holds(database: PostgresDatabase) -> None:
    async def main() -> None:
        await database.read_async(ONE, {})
        database.timeout = 0.2
        with pytest.raises(DatabaseUnavailableError, match="no answer within"):
            await database.read_async(Statement("SELECT pg_sleep(60)"), {})

    asyncio.run(main())


def test_driver__reply_longer_than_the_buffers__is_sent_and_read_in_parts(database: PostgresDatabase) -> None:
    text = "x" * 20_000_000

    async def main() -> None:
        assert await database.read_async(Statement("SELECT CAST(:text AS TEXT)"), {"text": text}) == [(text,)]
        assert await database.write_async([Statement("SELECT CAST(:text AS TEXT)")], {"text": text}) == [
            [(text,)]
        ]

    asyncio.run(main())


@pytest.mark.parametrize("statement", [ONE, Statement("SELECT 1 / 0")])
def test_read__cancelled_when_its_reply_has_come__connection_is_used_again(
    make: Callable[..., PostgresDatabase], monkeypatch: pytest.MonkeyPatch, statement: Statement
) -> None:
    database = make(connections=1)
    advance = SocketDriver._advance

    async def main() -> None:
        before = await database.read_async(PID, {})
        task = asyncio.ensure_future(database.read_async(statement, {}))

        def advance_and_cancel(driver: SocketDriver, ready: int) -> None:
            advance(driver, ready)
            if driver.is_ended:
                task.cancel()  # before the caller resumes

        monkeypatch.setattr(SocketDriver, "_advance", advance_and_cancel)
        with pytest.raises(asyncio.CancelledError):
            await task
        monkeypatch.undo()
        assert await database.read_async(PID, {}) == before

    asyncio.run(main())


def test_read__columns_change_their_type__next_read_prepares_again(
    database: PostgresDatabase, observer: PostgresDatabase
) -> None:
    observer.write([Statement("DROP TABLE IF EXISTS changed")], {})
    observer.write([Statement("CREATE TABLE changed AS SELECT 1 AS n")], {})
    read = Statement("SELECT n FROM changed")

    async def main() -> None:
        assert await database.read_async(read, {}) == [(1,)]
        observer.write([Statement("ALTER TABLE changed ALTER COLUMN n TYPE text")], {})
        with pytest.raises(DatabaseError, match="cached plan"):
            await database.read_async(read, {})
        assert await database.read_async(read, {}) == [("1",)]

    asyncio.run(main())
    observer.write([Statement("DROP TABLE changed")], {})


def test_read__any_value__is_what_a_blocking_caller_reads(database: PostgresDatabase) -> None:
    read = Statement("SELECT CAST(:value AS TEXT)")

    async def main() -> None:
        for value in ("a", "ação", "", None, 1.5, -1e300, 7, True):
            assert await database.read_async(read, {"value": value}) == database.read(read, {"value": value})
        with pytest.raises(DatabaseError, match="NUL"):
            await database.read_async(read, {"value": "a\0b"})

    asyncio.run(main())


def test_read__more_statements_than_it_prepares__still_reads(database: PostgresDatabase) -> None:
    async def main() -> None:
        for number in range(_STATEMENTS_MAX + 5):
            assert await database.read_async(Statement(f"SELECT {number}"), {}) == [(number,)]
        [connection] = pool(database)._idle
        assert len(connection._statement_names) == _STATEMENTS_MAX

    asyncio.run(main())


def test_server__ends_an_idle_connection__the_loop_forgets_its_socket(
    make: Callable[..., PostgresDatabase], observer: PostgresDatabase
) -> None:
    database = make(connections=1)

    async def main() -> None:
        [(pid,)] = await database.read_async(PID, {})
        [connection] = pool(database)._idle
        await asyncio.to_thread(observer.read, Statement("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
        await until(lambda: connection._driver.loop is None)
        assert await database.read_async(PID, {}) != [(pid,)]

    asyncio.run(main())


def test_finish__loop_closes_at_this_moment__closes_the_connection_here() -> None:
    ended = []

    def refuse(_: object) -> None:
        raise RuntimeError("Event loop is closed")

    loop = SimpleNamespace(is_running=lambda: True, call_soon_threadsafe=refuse)
    connection: Any = SimpleNamespace(_driver=SimpleNamespace(loop=loop), _finish=lambda: ended.append(True))
    AsyncPostgresConnection.finish(connection)
    assert ended == [True]
