"""A SQLite file that is locked, full, read-only, missing, or not a database."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.support import wait_until

from comporta.database import sqlite as sqlite_module
from comporta.database.base import Statement
from comporta.database.sqlite import READERS_MAX, SqliteDatabase
from comporta.errors import (
    DatabaseBusyError,
    DatabaseError,
    DatabaseFullError,
    DatabaseReadOnlyError,
    DatabaseSchemaError,
    DatabaseUnavailableError,
)

MAKE = Statement("CREATE TABLE IF NOT EXISTS numbers (n INTEGER)")
ADD = Statement("INSERT INTO numbers VALUES (:n) RETURNING n")
COUNT = Statement("SELECT COUNT(*) FROM numbers")
FILL = Statement("INSERT INTO numbers VALUES (zeroblob(100000))")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[SqliteDatabase]:
    opened = SqliteDatabase(tmp_path / "x.db", timeout=0.2)
    opened.write([MAKE], {})
    yield opened
    opened.close()


def other(database: SqliteDatabase) -> closing[sqlite3.Connection]:
    """Connect as another process would."""
    return closing(sqlite3.connect(database.path, isolation_level=None, timeout=0))


def count(database: SqliteDatabase) -> int:
    [[number]] = database.read(COUNT, {})
    return int(number)


def test_write__several_statements__run_in_one_transaction(database: SqliteDatabase) -> None:
    assert database.write([ADD, COUNT], {"n": 7}) == [[(7,)], [(1,)]]
    with pytest.raises(DatabaseSchemaError, match="run `comporta db migrate`"):
        database.write([ADD, Statement("INSERT INTO nowhere VALUES (1)")], {"n": 8})
    assert count(database) == 1


def test_write__another_process_writes__raises_busy_after_the_timeout(database: SqliteDatabase) -> None:
    with other(database) as holder:
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(DatabaseBusyError, match="database is locked"):
            database.write([ADD], {"n": 1})
        assert count(database) == 0
        assert asyncio.run(database.read_async(COUNT, {})) == [(0,)]
        holder.execute("COMMIT")
    database.write([ADD], {"n": 1})
    assert count(database) == 1


def test_write__another_thread_writes__raises_busy_after_the_timeout(database: SqliteDatabase) -> None:
    with database.transaction(5) as execute:
        with pytest.raises(DatabaseBusyError, match=r"other threads of this process were writing for 0\.2 s"):
            database.write([ADD], {"n": 1})
        assert execute("SELECT 1") == [(1,)]


def test_read__file_of_another_program__is_read(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "x.db", timeout=30)
    with other(database) as holder:
        holder.execute("PRAGMA journal_mode = DELETE")
        holder.execute("CREATE TABLE numbers (n INTEGER)")
    assert count(database) == 0
    database.close()


def test_read__file_locked__raises_busy_until_it_is_released(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "x.db", timeout=0.05)
    with other(database) as holder:
        holder.execute("PRAGMA locking_mode = EXCLUSIVE")
        holder.execute("PRAGMA journal_mode = WAL")
        holder.execute("CREATE TABLE numbers (n INTEGER)")
        with pytest.raises(DatabaseBusyError):
            database.read(COUNT, {})
        with pytest.raises(DatabaseBusyError):
            asyncio.run(database.read_async(COUNT, {}))
    assert count(database) == 0
    database.close()


def test_read_async__large_result__runs_on_a_thread(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "x.db", timeout=30)
    database.write([MAKE], {})
    assert asyncio.run(database.read_async(COUNT, {})) == [(0,)]
    database.close()


def test_write__disk_full__raises_full_and_recovers(database: SqliteDatabase) -> None:
    assert database._writer is not None
    database._writer.execute("PRAGMA max_page_count = 3")
    with pytest.raises(DatabaseFullError, match="full"):
        database.write([FILL], {})
    assert count(database) == 0
    database._writer.execute("PRAGMA max_page_count = 100000")
    database.write([FILL], {})
    assert count(database) == 1


def test_write__read_only__raises_and_reads_still_work(database: SqliteDatabase) -> None:
    assert database._writer is not None
    database._writer.execute("PRAGMA query_only = 1")
    with pytest.raises(DatabaseReadOnlyError, match="readonly"):
        database.write([ADD], {"n": 1})
    assert count(database) == 0


def test_database__folder_missing__raises_unavailable(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "none" / "x.db")
    with pytest.raises(DatabaseUnavailableError, match="unable to open"):
        database.read(COUNT, {})
    with pytest.raises(DatabaseUnavailableError, match="unable to open"):
        database.write([ADD], {"n": 1})
    database.close()


def test_database__not_a_database_file__raises_unavailable(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    path.write_bytes(b"not a database, but long enough to be read as the header of one" * 20)
    database = SqliteDatabase(path)
    with pytest.raises(DatabaseUnavailableError, match="not a database"):
        database.write([ADD], {"n": 1})
    with pytest.raises(DatabaseUnavailableError, match="not a database"):
        database.read(COUNT, {})
    database.close()


def test_write__file_removed__goes_to_a_new_file(database: SqliteDatabase) -> None:
    database.write([ADD], {"n": 1})
    assert count(database) == 1
    for path in database.path.parent.glob("x.db*"):
        path.unlink()
    with pytest.raises(DatabaseSchemaError, match="no such table"):
        database.write([ADD], {"n": 1})
    database.write([MAKE, ADD], {"n": 1})
    assert count(database) == 1


def test_write__invalid_statement__raises_database_error(database: SqliteDatabase) -> None:
    with pytest.raises(DatabaseError, match="syntax error"):
        database.write([Statement("NONSENSE")], {})
    with pytest.raises(DatabaseError, match="syntax error"):
        database.read(Statement("NONSENSE"), {})


def test_read__interrupted__closes_its_connection(database: SqliteDatabase) -> None:
    assert count(database) == 0
    with pytest.raises(UnicodeEncodeError):
        database.read(Statement("SELECT :n"), {"n": "\ud800"})
    assert count(database) == 0


def test_read__many_threads__keeps_at_most_readers_max_idle(database: SqliteDatabase) -> None:
    readers = database._readers
    for reader in [database._open(0) for _ in range(READERS_MAX + 2)]:
        readers.open_marks.append(None)
        readers.idle.append(reader)
        readers.trim()
    assert len(readers.idle) == len(readers.open_marks) == READERS_MAX
    assert count(database) == 0


def test_close__read_under_way__closes_its_connection_too(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "x.db", timeout=30)
    database.write([MAKE], {})
    assert count(database) == 0
    reader = database._readers.idle.pop()
    thread = threading.Thread(target=database.close)
    thread.start()
    wait_until(lambda: database._writer is None)
    database._readers.idle.append(reader)
    database._readers.trim()
    thread.join()
    with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
        reader.execute("SELECT 1")


def test_close__read_does_not_end__gives_up_after_the_timeout(database: SqliteDatabase) -> None:
    assert count(database) == 0
    reader = database._readers.idle.pop()
    database.close()
    assert reader.execute("SELECT 1").fetchall() == [(1,)]
    database._readers.discard(reader)


def test_database__sqlite_too_old__raises(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sqlite_module, "SQLITE_VERSION_MIN", (99, 0, 0))
    with pytest.raises(DatabaseUnavailableError, match=r"SQLite 99\.0\.0 or newer is required, got"):
        SqliteDatabase(tmp_path / "x.db")


def test_open__interrupted__leaves_no_connection_open(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "x.db", timeout=0.05)
    with other(database) as holder:
        holder.execute("PRAGMA locking_mode = EXCLUSIVE")
        holder.execute("CREATE TABLE numbers (n INTEGER)")
        with pytest.raises(DatabaseBusyError):
            database.write([ADD], {"n": 1})
    database.close()


def test_database__after_a_fork__leaves_the_parents_connections(database: SqliteDatabase) -> None:
    assert count(database) == 0
    writer, readers = database._writer, list(database._readers.idle)
    database.after_fork()
    database.write([ADD], {"n": 1})
    assert count(database) == 1
    assert database._writer is not writer
    assert not set(readers) & set(database._readers.idle)
    for connection in (writer, *readers):
        assert connection is not None
        connection.close()


def test_write__in_a_child_whose_parent_closes_the_file__is_not_lost(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "x.db", timeout=30)
    database.write([MAKE], {})
    assert count(database) == 0
    (from_parent, to_child), (from_child, to_parent) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            database.write([ADD], {"n": 1})
            os.write(to_parent, b"1")
            os.read(from_parent, 1)
            database.write([ADD], {"n": 2})
        finally:
            os._exit(0)
    os.read(from_child, 1)
    assert count(database) == 1
    database.close()  # the last connection of this process, while the child still has one
    os.write(to_child, b"1")
    assert os.waitpid(pid, 0)[1] == 0
    assert count(database) == 2
    database.close()
    for end in (from_parent, to_child, from_child, to_parent):
        os.close(end)


def test_fork__other_threads_read_and_write__waits_and_they_continue(database: SqliteDatabase) -> None:
    readers = database._readers
    readers.open_marks.append(None)  # a reader that is in use
    release = threading.Timer(0.05, readers.discard, (None,))
    release.start()
    database.before_fork()
    assert database._writer is None
    assert not readers.open_marks
    database.after_fork_in_parent()
    with database.transaction(1):
        database.before_fork()  # the wait for the writer is bounded
        database.after_fork_in_parent()
    assert count(database) == 0


def test_read__file_replaced__reads_the_new_file(database: SqliteDatabase) -> None:
    old = database._readers
    assert count(database) == 0
    reader = old.idle.pop()
    database.path.unlink()
    database.write([MAKE, ADD], {"n": 1})
    old.idle.append(reader)
    old.trim()
    assert count(database) == 1


def test_write__two_threads__run_one_after_the_other(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "x.db", timeout=30)
    database.write([MAKE], {})
    threads = [threading.Thread(target=database.write, args=([ADD], {"n": n})) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count(database) == 20
    database.close()


def test_sqlite__used_after_close__leaves_no_connection(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "x.db")
    database.write([MAKE], {})
    database.close()
    database.write([ADD], {"n": 1})
    assert count(database) == 1
    assert (database._writer, len(database._readers.idle), len(database._readers.open_marks)) == (None, 0, 0)


def test_sqlite__closed_during_a_read__closes_its_connection(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "x.db", timeout=0.05)
    database.write([MAKE], {})
    closes_itself = Statement("SELECT close_now()")
    count(database)
    reader = database._readers.idle[-1]
    reader.create_function("close_now", 0, database.close)
    database.read(closes_itself, {})
    assert (len(database._readers.idle), len(database._readers.open_marks)) == (0, 0)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        reader.execute("SELECT 1")
