"""No two commands of the cache wait for each other on PostgreSQL: all take their locks in one order.

``cache/sql.py`` states the order. These tests run every command that writes, statement by statement, between
transactions that hold what the command could wait for.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from tests.support import wait_until

from comporta.cache import commands, sql, tags
from comporta.cache.rows import AnswerCounts
from comporta.cache.tables import CacheTables
from comporta.database.command import Command
from comporta.database.urls import open_database
from comporta.testing import PostgresServer

USERS = [f"user {n}" for n in range(5)]
HASHES = [f"{n:064x}" for n in range(2)]
HASH = HASHES[0]
TAG = "cache:t:all"

ROWS = "SELECT id, user_id FROM search_results_cache ORDER BY id"
RECORDS = "SELECT fetch_key FROM search_fetches ORDER BY fetch_key"
FREE = " FOR UPDATE SKIP LOCKED"
EDIT = f"""
    UPDATE search_results_cache SET due_at = now(), fetched_at = now() - interval '1 day',
        last_attempt_at = now() - interval '1 day', last_success_at = now() - interval '1 day'
    WHERE id IN (SELECT id FROM search_results_cache {FREE})
"""  # noqa: S608 - a test's own text

COMMANDS: dict[str, Callable[[], Command[Any]]] = {
    "claim": lambda: commands.claim(HASH, "me", 10),
    "record_success": lambda: _success(USERS[0]),
    "record_success, first row": lambda: _success("new"),
    "record_success, one user": lambda: _success(USERS[0], key=f"{USERS[0]}:{HASH}"),
    "record_failure": lambda: commands.record_failure(HASH, None, USERS[0], HASH),
    "record_failure, first row": lambda: commands.record_failure(HASH, None, "new", HASH),
    "record_accesses": lambda: commands.record_accesses(
        [(user, name, 1, 0.0) for name in reversed(HASHES) for user in USERS], AnswerCounts(1, 1, 1)
    ),
    "evict": lambda: commands.evict(USERS[0], 0),
    "evict_least_recently_used": lambda: commands.evict_least_recently_used(0, 0),
    "remove": lambda: commands.remove(USERS[0], HASH),
    "mark_due": lambda: commands.mark_due(HASH),
    "clear": commands.clear,
    "prune": lambda: commands.prune(0),
    "remove_key": lambda: tags.remove_key(HASH),
    "remove_tagged": lambda: tags.remove_tagged(TAG, prefix=False, shared=True),
    "remove_tagged, separate users": lambda: tags.remove_tagged(TAG, prefix=False, shared=False),
}

ORDERED = {
    "record_success": HASHES[:1],
    "record_failure": HASHES[:1],
    "record_accesses": HASHES,
    "mark_due": HASHES[:1],
    "clear": HASHES,
    "remove_key": HASHES[:1],
    "remove_tagged": HASHES,
}
"""Commands that wait for the locks of several rows, and the hashes of these rows."""


def _success(user: str, key: str = HASH) -> Command[bool]:
    return commands.record_success(key, None, user, HASH, b"{}", b"[]", 0, [], tags=[TAG])


class Session:
    """A connection whose transaction the test ends."""

    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(url)
        self.pid = self.connection.info.backend_pid

    def rows(self, text: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self.connection.execute(text, values).fetchall()

    def run(self, command: Command[Any], first: int = 0, last: int | None = None) -> None:
        """Run some of the statements of a command, and leave the transaction open."""
        for statement in command.statements[first:last]:
            self.connection.execute(statement.postgresql, {"now": None, **command.parameters})

    def commit(self) -> None:
        self.connection.commit()


@pytest.fixture
def sessions(postgres: PostgresServer, migrated_postgres: str) -> Iterator[list[Session]]:
    """Fill the tables so that every command has rows to change, and return four sessions."""
    postgres.command("TRUNCATE migrated.search_results_cache, migrated.search_fetches CASCADE")
    database = open_database(migrated_postgres)
    table = CacheTables(database)
    for name, user in itertools.product(HASHES, USERS):
        table.execute(commands.record_success(name, None, user, name, b"{}", b"[]", 0, [], tags=[TAG]))
    database.close()
    opened = [Session(migrated_postgres) for _ in range(4)]
    yield opened
    for session in opened:
        session.connection.close()


def _edit_free_rows(session: Session) -> None:
    """Make rows that no transaction has locked need a reset, a refresh and a removal, as operators may."""
    session.connection.execute(EDIT)
    session.commit()


def _wait_until_blocked(observer: Session, session: Session, by: Session) -> None:
    def is_blocked() -> bool:
        [[pids]] = observer.rows("SELECT pg_blocking_pids(%s)", [session.pid])
        observer.commit()
        return by.pid in pids

    wait_until(is_blocked)


@pytest.mark.unmeasured
@pytest.mark.parametrize("edited", [False, True])
@pytest.mark.parametrize(
    ("name", "done"),
    [(name, done) for name, make in COMMANDS.items() for done in range(1, len(make().statements))],
)
def test_command__holds_a_row__waits_for_nothing_else(
    sessions: list[Session], name: str, done: int, edited: bool
) -> None:
    """Whatever other transactions lock between two statements, and an operator edits before and meanwhile."""
    worker, other, *_ = sessions
    if edited:
        _edit_free_rows(other)
    command = COMMANDS[name]()
    worker.run(command, 0, done)
    _edit_free_rows(other)
    held = len(other.rows(ROWS)) - len(other.rows(ROWS + FREE))
    other.rows(RECORDS + FREE)
    if not held:
        return  # it may wait for its rows
    worker.connection.execute("SET LOCAL lock_timeout = '100ms'")
    worker.run(command, done)
    worker.commit()


@pytest.mark.parametrize("name", ORDERED)
def test_command__several_rows__locks_them_in_the_order_of_their_ids(
    sessions: list[Session], name: str
) -> None:
    worker, other, observer, _ = sessions
    _edit_free_rows(other)
    text = "SELECT id FROM search_results_cache WHERE params_hash = ANY(%s) ORDER BY id"
    ids = [row[0] for row in observer.rows(text, [ORDERED[name]])]
    middle = len(ids) // 2
    other.rows("SELECT id FROM search_results_cache WHERE id = %s FOR UPDATE", [ids[middle]])
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(worker.run, COMMANDS[name]())
        _wait_until_blocked(observer, worker, other)
        free = {row[0] for row in observer.rows(ROWS + FREE)}
        observer.commit()
        other.commit()
        running.result(60)
    assert free.intersection(ids) == set(ids[middle + 1 :])


def test_remove_tagged__several_keys__locks_their_records_in_order(sessions: list[Session]) -> None:
    worker, other, observer, _ = sessions
    other.rows("SELECT 1 FROM search_fetches WHERE fetch_key = %s FOR UPDATE", [HASHES[0]])
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(worker.run, COMMANDS["remove_tagged"]())
        _wait_until_blocked(observer, worker, other)
        free = [row[0] for row in observer.rows(RECORDS + FREE)]
        observer.commit()
        other.commit()
        running.result(60)
    assert free == HASHES[1:]


def test_record_success__rows_marked_and_counted_meanwhile__does_not_deadlock(
    sessions: list[Session],
) -> None:
    """The record of the key was pruned, so marking its rows does not wait for the worker that stores them."""
    worker, operator, counter, observer = sessions
    observer.connection.execute("DELETE FROM search_fetches")
    observer.connection.execute("DELETE FROM search_results_cache WHERE params_hash <> %s", [HASH])
    lowest, *_, highest = [row[1] for row in observer.rows(ROWS)]
    observer.commit()
    command = _success(highest)
    position = command.statements.index(sql.LOCK_ROWS_TO_RESET)
    with ThreadPoolExecutor(2) as pool:
        operator.run(commands.mark_due(HASH))
        worker.run(command, 0, position)
        locking = pool.submit(worker.run, command, position, position + 1)
        _wait_until_blocked(observer, worker, operator)
        operator.commit()
        locking.result(60)
        counting = pool.submit(
            counter.run, commands.record_accesses([(lowest, HASH, 1, 0.0), (highest, HASH, 1, 0.0)])
        )
        _wait_until_blocked(observer, counter, worker)
        worker.run(command, position + 1)
        worker.commit()
        counting.result(60)


def test_clear__result_stored_meanwhile__does_not_deadlock(sessions: list[Session]) -> None:
    worker, remover, observer, _ = sessions
    command = _success(USERS[0])
    clearing = commands.clear()
    with ThreadPoolExecutor(2) as pool:
        remover.run(clearing, 0, 1)
        worker.run(command, 0, 1)
        storing = pool.submit(worker.run, command, 1)
        _wait_until_blocked(observer, worker, remover)
        remover.run(clearing, 1)
        remover.commit()
        storing.result(60)
        worker.commit()
    assert len(observer.rows(ROWS)) == 1
