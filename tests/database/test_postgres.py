"""A PostgreSQL server that is busy, frozen, restarted or down, or returns an error."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import NoReturn

import psycopg
import pytest

from comporta.database import postgres as postgres_module
from comporta.database import postgres_connection as connection_module
from comporta.database.base import Statement
from comporta.database.postgres import PostgresDatabase
from comporta.errors import (
    DatabaseBusyError,
    DatabaseError,
    DatabaseFullError,
    DatabaseReadOnlyError,
    DatabaseSchemaError,
    DatabaseUnavailableError,
)
from comporta.testing import PostgresServer

ONE = Statement("SELECT 1")
SLEEP = Statement("SELECT pg_sleep(60)")
LOCK_1 = Statement("SELECT pg_advisory_xact_lock(1)")
LOCK_2 = Statement("SELECT pg_advisory_xact_lock(2)")
PAUSE = Statement("SELECT pg_sleep(0.3)")


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[PostgresDatabase]:
    opened = PostgresDatabase(postgres.url, timeout=10)
    yield opened
    opened.close()


def failing_statement(state: str) -> Statement:
    """Return a statement that fails as the server would."""
    return Statement(f"DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '{state}'; END $$")


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("25006", DatabaseReadOnlyError),
        ("42501", DatabaseReadOnlyError),
        ("53100", DatabaseFullError),
        ("53300", DatabaseUnavailableError),
        ("55P03", DatabaseBusyError),
        ("57014", DatabaseBusyError),
        ("57P01", DatabaseUnavailableError),
        ("40001", DatabaseBusyError),
        ("42P01", DatabaseSchemaError),
        ("22012", DatabaseError),
    ],
)
def test_write__server_error__raises_the_matching_error(
    database: PostgresDatabase, state: str, kind: type[DatabaseError]
) -> None:
    with pytest.raises(DatabaseError) as caught:
        database.write([failing_statement(state)], {})
    assert type(caught.value) is kind
    assert str(caught.value).startswith(f"{database.address}: ")
    assert database.read(ONE, {}) == [(1,)]


def test_write__one_statement_fails__rolls_back_all(database: PostgresDatabase) -> None:
    add = Statement("CREATE TABLE IF NOT EXISTS kept (n INTEGER)")
    with pytest.raises(DatabaseError):
        database.write([add, Statement("SELECT 1 / 0"), ONE], {})
    with pytest.raises(DatabaseSchemaError, match="run `comporta db migrate`"):
        database.read(Statement("SELECT * FROM kept"), {})


def test_write__deadlock__is_retried(database: PostgresDatabase) -> None:
    done: list[int] = []

    def write(*statements: Statement) -> None:
        database.write(statements, {})
        done.append(1)

    threads = [
        threading.Thread(target=write, args=(first, PAUSE, second))
        for first, second in ((LOCK_1, LOCK_2), (LOCK_2, LOCK_1))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 2


def test_read__takes_too_long__is_cancelled_by_the_server(postgres: PostgresServer) -> None:
    database = PostgresDatabase(postgres.url, timeout=1)
    with pytest.raises(DatabaseError) as caught:
        database.read(SLEEP, {})
    assert isinstance(caught.value, DatabaseBusyError | DatabaseUnavailableError)
    assert database.read(ONE, {}) == [(1,)]
    database.close()


def test_connections__all_in_use__raises_busy(postgres: PostgresServer) -> None:
    database = PostgresDatabase(postgres.url, timeout=1, connections=1)
    with database.transaction(10) as execute:
        assert execute("SELECT 1") == [(1,)]
        with pytest.raises(DatabaseBusyError, match="all 1 connections are in use"):
            database.read(ONE, {})
    assert asyncio.run(database.read_async(ONE, {})) == [(1,)]
    database.close()


def test_server__frozen__raises_unavailable_in_time_and_recovers(
    postgres: PostgresServer,
) -> None:
    database = PostgresDatabase(postgres.url, timeout=1)
    assert database.read(ONE, {}) == [(1,)]
    postgres.freeze()
    try:
        with pytest.raises(
            DatabaseUnavailableError, match=r"no answer within [01]\S* s; whether the call took"
        ):
            database.write([ONE], {})
        with pytest.raises(DatabaseUnavailableError, match="timeout expired"):
            database.read(ONE, {})
        with pytest.raises(DatabaseUnavailableError, match="timeout expired"):
            database.read(ONE, {})  # fails immediately: no second wait for the same failure
    finally:
        postgres.thaw()
    database.close()
    database = PostgresDatabase(postgres.url, timeout=30)
    assert database.read(ONE, {}) == [(1,)]
    database.close()


def test_transaction__server_frozen__connect_wait_is_bounded(
    postgres: PostgresServer,
) -> None:
    database = PostgresDatabase(postgres.url, timeout=2)
    postgres.freeze()
    try:
        with pytest.raises(DatabaseUnavailableError), database.transaction(600):
            pass
    finally:
        postgres.thaw()
    database.close()


def test_connection__setup_fails__is_closed(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = PostgresDatabase(postgres.url, timeout=2)
    opened = []

    class Refused(connection_module.PostgresConnection):
        def execute(self, *_: object, **__: object) -> NoReturn:
            opened.append(self)
            raise psycopg.OperationalError("no")

    monkeypatch.setattr(connection_module, "PostgresConnection", Refused)
    with pytest.raises(DatabaseUnavailableError):
        database.read(ONE, {})
    assert [each.closed for each in opened] == [True]
    database.close()


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_read__database_with_another_encoding__returns_text(postgres: PostgresServer, encoding: str) -> None:
    name = f"in_{encoding.lower()}"
    postgres.command(f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
    database = PostgresDatabase(
        postgres.url.removesuffix("postgres") + f"{name}?client_encoding=latin1", timeout=10
    )
    echo = Statement("SELECT CAST(:text AS text)")
    assert database.read(echo, {"text": "ação"}) == [("ação",)]
    if encoding == "LATIN1":
        with pytest.raises(DatabaseError):
            database.read(echo, {"text": "日本"})
    database.close()
    postgres.command(f"DROP DATABASE {name}")


def test_server__restarted__reconnects(postgres: PostgresServer) -> None:
    database = PostgresDatabase(postgres.url, timeout=30)
    assert database.read(ONE, {}) == [(1,)]
    postgres.restart()
    assert database.write([ONE], {}) == [[(1,)]]
    database.close()


def test_connection__terminated_mid_call__raises_unavailable_and_recovers(
    postgres: PostgresServer, database: PostgresDatabase
) -> None:
    with pytest.raises(DatabaseUnavailableError):
        database.write([Statement("SELECT pg_terminate_backend(pg_backend_pid())")], {})
    assert database.write([ONE], {}) == [[(1,)]]


def test_server__not_running__raises_unavailable_with_its_address() -> None:
    database = PostgresDatabase("postgresql://me:geheim@127.0.0.1:1/app")
    with pytest.raises(DatabaseUnavailableError, match=r"^postgresql://127\.0\.0\.1:1/app: ") as caught:
        database.read(ONE, {})
    assert "geheim" not in str(caught.value)


def test_server__wrong_password__raises_unavailable_without_the_password(postgres: PostgresServer) -> None:
    url = postgres.url.replace(postgres._password, "geheim")
    with pytest.raises(DatabaseUnavailableError, match="password authentication failed") as caught:
        PostgresDatabase(url).read(ONE, {})
    assert "geheim" not in str(caught.value)


def test_connection__closed_while_idle__is_not_reused(database: PostgresDatabase) -> None:
    assert database.read(ONE, {}) == [(1,)]
    database._idle[0].close()
    assert database.read(ONE, {}) == [(1,)]
    assert len(database._idle) == 1


def test_close__connection_in_use__closes_it_when_it_is_returned(database: PostgresDatabase) -> None:
    with database._connection(10) as connection:
        database.close()
        assert connection.execute("SELECT 1").fetchall() == [(1,)]
    assert connection.closed
    assert database.read(ONE, {}) == [(1,)]


def test_transaction__body_raises__rolls_back(database: PostgresDatabase) -> None:
    def create_and_raise() -> None:
        with database.transaction(10) as execute:
            execute("CREATE TABLE never (n INTEGER)")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        create_and_raise()
    with pytest.raises(DatabaseSchemaError):
        database.read(Statement("SELECT * FROM never"), {})


def test_error__no_sqlstate_and_not_of_the_connection__is_database_error(
    database: PostgresDatabase,
) -> None:
    with pytest.raises(DatabaseError) as caught:
        database.read(Statement("SELECT :missing"), {})
    assert type(caught.value) is DatabaseError


def test_database__after_a_fork__leaves_the_parents_connections(database: PostgresDatabase) -> None:
    assert database.read(ONE, {}) == [(1,)]
    [connection] = database._idle
    database.after_fork()
    assert database.read(ONE, {}) == [(1,)]
    assert connection not in database._idle
    assert connection in postgres_module._abandoned
    assert connection.execute("SELECT 1").fetchall() == [(1,)]
    connection.close()
