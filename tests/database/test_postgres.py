"""A PostgreSQL that is busy, frozen, restarted, gone, or says no."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import NoReturn

import psycopg
import pytest

from comporta.database import postgres as postgres_module
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


def raising(state: str) -> Statement:
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
def test_write__server_says_no__is_called_by_its_name(
    database: PostgresDatabase, state: str, kind: type[DatabaseError]
) -> None:
    with pytest.raises(DatabaseError) as caught:
        database.write([raising(state)], {})
    assert type(caught.value) is kind
    assert str(caught.value).startswith(f"{database.address}: ")
    assert database.read(ONE, {}) == [(1,)]


def test_write__one_statement_fails__nothing_is_kept(database: PostgresDatabase) -> None:
    add = Statement("CREATE TABLE IF NOT EXISTS kept (n INTEGER)")
    with pytest.raises(DatabaseError):
        database.write([add, Statement("SELECT 1 / 0"), ONE], {})
    with pytest.raises(DatabaseSchemaError, match="run `comporta db migrate`"):
        database.read(Statement("SELECT * FROM kept"), {})


def test_write__deadlock__is_run_again(database: PostgresDatabase) -> None:
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


def test_read__takes_too_long__is_ended_by_the_server(postgres: PostgresServer) -> None:
    database = PostgresDatabase(postgres.url, timeout=1)
    with pytest.raises(DatabaseError) as caught:
        database.read(SLEEP, {})
    assert isinstance(caught.value, DatabaseBusyError | DatabaseUnavailableError)
    assert database.read(ONE, {}) == [(1,)]
    database.close()


def test_connections__all_in_use__is_busy(postgres: PostgresServer) -> None:
    database = PostgresDatabase(postgres.url, timeout=1, connections=1)
    with database.transaction(10) as execute:
        assert execute("SELECT 1") == [(1,)]
        with pytest.raises(DatabaseBusyError, match="all 1 connections were in use"):
            database.read(ONE, {})
    assert asyncio.run(database.read_async(ONE, {})) == [(1,)]
    database.close()


def test_server__frozen__is_unavailable_within_the_bound_and_then_there_again(
    postgres: PostgresServer,
) -> None:
    database = PostgresDatabase(postgres.url, timeout=1)
    assert database.read(ONE, {}) == [(1,)]
    postgres.freeze()
    try:
        with pytest.raises(DatabaseUnavailableError, match=r"no answer within [01]\S* s; whether it took"):
            database.write([ONE], {})
        with pytest.raises(DatabaseUnavailableError, match="timeout expired"):
            database.read(ONE, {})
        with pytest.raises(DatabaseUnavailableError, match="timeout expired"):
            database.read(ONE, {})  # at once: nobody waits again for the same
    finally:
        postgres.thaw()
    database.close()
    database = PostgresDatabase(postgres.url, timeout=30)
    assert database.read(ONE, {}) == [(1,)]
    database.close()


def test_transaction__server_frozen__does_not_wait_for_a_connection_as_long_as_for_its_work(
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


def test_connection__cannot_be_made_ready__is_closed(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = PostgresDatabase(postgres.url, timeout=2)
    made = []

    class Refused(postgres_module.Connection):
        def execute(self, *_: object, **__: object) -> NoReturn:
            made.append(self)
            raise psycopg.OperationalError("no")

    monkeypatch.setattr(postgres_module, "Connection", Refused)
    with pytest.raises(DatabaseUnavailableError):
        database.read(ONE, {})
    assert [each.closed for each in made] == [True]
    database.close()


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_read__database_of_another_encoding__is_text(postgres: PostgresServer, encoding: str) -> None:
    name = f"in_{encoding.lower()}"
    postgres.command(f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
    database = PostgresDatabase(
        postgres.url.removesuffix("postgres") + f"{name}?client_encoding=latin1", timeout=10
    )
    told = Statement("SELECT CAST(:text AS text)")
    assert database.read(told, {"text": "ação"}) == [("ação",)]
    if encoding == "LATIN1":
        with pytest.raises(DatabaseError):
            database.read(told, {"text": "日本"})
    database.close()
    postgres.command(f"DROP DATABASE {name}")


def test_server__restarted__is_connected_to_again(postgres: PostgresServer) -> None:
    database = PostgresDatabase(postgres.url, timeout=30)
    assert database.read(ONE, {}) == [(1,)]
    postgres.restart()
    assert database.write([ONE], {}) == [[(1,)]]
    database.close()


def test_connection__ended_in_mid_call__is_unavailable_and_then_there_again(
    postgres: PostgresServer, database: PostgresDatabase
) -> None:
    with pytest.raises(DatabaseUnavailableError):
        database.write([Statement("SELECT pg_terminate_backend(pg_backend_pid())")], {})
    assert database.write([ONE], {}) == [[(1,)]]


def test_server__not_there__is_unavailable_and_named() -> None:
    database = PostgresDatabase("postgresql://me:geheim@127.0.0.1:1/app")
    with pytest.raises(DatabaseUnavailableError, match=r"^postgresql://127\.0\.0\.1:1/app: ") as caught:
        database.read(ONE, {})
    assert "geheim" not in str(caught.value)


def test_server__wrong_password__is_unavailable_and_not_shown(postgres: PostgresServer) -> None:
    url = postgres.url.replace(postgres._password, "geheim")
    with pytest.raises(DatabaseUnavailableError, match="password authentication failed") as caught:
        PostgresDatabase(url).read(ONE, {})
    assert "geheim" not in str(caught.value)


def test_connection__closed_while_idle__is_not_used(database: PostgresDatabase) -> None:
    assert database.read(ONE, {}) == [(1,)]
    database._idle[0].close()
    assert database.read(ONE, {}) == [(1,)]
    assert len(database._idle) == 1


def test_transaction__left_by_an_error__is_rolled_back(database: PostgresDatabase) -> None:
    def begin_and_give_up() -> None:
        with database.transaction(10) as execute:
            execute("CREATE TABLE never (n INTEGER)")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        begin_and_give_up()
    with pytest.raises(DatabaseSchemaError):
        database.read(Statement("SELECT * FROM never"), {})


def test_error__without_a_state_and_not_of_the_connection__is_a_plain_one(
    database: PostgresDatabase,
) -> None:
    with pytest.raises(DatabaseError) as caught:
        database.read(Statement("SELECT :missing"), {})
    assert type(caught.value) is DatabaseError


def test_database__after_a_fork__leaves_the_parents_connections(database: PostgresDatabase) -> None:
    assert database.read(ONE, {}) == [(1,)]
    [mine] = database._idle
    database.after_fork()
    assert database.read(ONE, {}) == [(1,)]
    assert mine not in database._idle
    assert mine in postgres_module._left_behind
    assert mine.execute("SELECT 1").fetchall() == [(1,)]
    mine.close()
