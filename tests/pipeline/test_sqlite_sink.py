"""The SQLite sink: each key once, batches in one transaction, errors that name the row."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from comporta.errors import SinkColumnError, SinkFullError, SinkRowError, SinkUnavailableError
from comporta.pipeline.sinks import SqliteSink


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.db"


def read(path: Path, query: str = "SELECT * FROM results") -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def open_sink(path: Path, **options: Any) -> SqliteSink:
    sink = SqliteSink(path, **options)
    sink.open()
    return sink


@pytest.mark.parametrize("count", [1, 15, 16, 700])
def test_write__batch_repeated__is_stored_once(path: Path, count: int) -> None:
    sink = open_sink(path)
    rows = [{"id": number, "name": f"n{number}"} for number in range(count)]
    sink.write(rows)
    sink.write([{**row, "name": "new"} for row in rows])
    sink.close()
    sink.close()
    assert read(path) == [(number, "new") for number in range(count)]


def test_write__key_repeated_in_a_batch__stores_the_last(path: Path) -> None:
    sink = open_sink(path)
    sink.write([{"id": number % 4, "at": number} for number in range(40)])
    sink.close()
    assert read(path) == [(0, 36), (1, 37), (2, 38), (3, 39)]


def test_write__values__are_stored_unchanged_or_as_text(path: Path) -> None:
    sink = open_sink(path, columns=["id", "value"])
    values = [1, -1.5, "=1+1", b"\0", None, True, date(2026, 2, 3), {"a": [1]}, 2**70, "\ud800", 1j]
    sink.write([{"id": number, "value": value} for number, value in enumerate(values)])
    sink.close()
    assert [value for _, value in read(path)] == [
        *(1, -1.5, "=1+1", b"\0", None, 1),
        *("2026-02-03", '{"a": [1]}', str(2**70), "?", "1j"),
    ]


def test_columns__not_given__are_those_of_the_first_batch(path: Path) -> None:
    sink = open_sink(path)
    sink.write([{"id": 1, "a": 2}, {"b": 3, "id": 2}])
    sink.write([{"id": 3}])
    with pytest.raises(
        SinkColumnError, match=r"row 1 of the batch: unknown column 'c', expected id, a, b"
    ) as raised:
        sink.write([{"id": 4}, {"id": 5, "c": 1}])
    assert raised.value.index == 1
    with pytest.raises(SinkColumnError, match="column 'c'"):
        sink.write([{"id": 4, "a": 1, "c": 1}])
    sink.close()
    assert read(path) == [(1, 2, None), (2, None, 3), (3, None, None)]


def test_open__existing_table__is_used(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute('CREATE TABLE "the ""t""" (id INTEGER PRIMARY KEY, n TEXT CHECK (n <> \'bad\'))')
    sink = open_sink(path, table='the "t"')
    sink.write([{"id": 1, "n": "a"}])
    with pytest.raises(SinkRowError, match="row 20 of the batch: CHECK constraint failed") as raised:
        sink.write([{"id": number, "n": "bad" if number == 20 else "b"} for number in range(40)])
    assert raised.value.index == 20
    with pytest.raises(SinkRowError, match="row 1 of the batch: datatype mismatch"):
        sink.write([{"id": 1, "n": "b"}, {"id": "x", "n": "b"}])
    sink.close()
    assert read(path, 'SELECT * FROM "the ""t"""') == [(1, "a")], "a batch is stored completely or not at all"


def test_write__key_of_all_columns__stores_each_once(path: Path) -> None:
    sink = open_sink(path, key=("a", "b"))
    sink.write([{"a": 1, "b": 1}, {"a": 1, "b": 2}] * 20)
    sink.close()
    assert read(path) == [(1, 1), (1, 2)]


def test_write__single_column__is_stored(path: Path) -> None:
    sink = open_sink(path)
    sink.write([{"id": 1}, {"id": 2}])
    sink.close()
    assert read(path) == [(1,), (2,)]


def test_write__batch_fails_but_no_single_row__names_none(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE results (id PRIMARY KEY, a)")
        connection.execute(
            "CREATE TRIGGER third AFTER INSERT ON results WHEN (SELECT count(*) FROM results) = 3 "
            "BEGIN SELECT RAISE(FAIL, 'not the third'); END"
        )
    sink = open_sink(path)
    with pytest.raises(SinkUnavailableError, match="not the third"):
        sink.write([{"id": number, "a": 1} for number in range(3)])
    sink.close()
    assert read(path) == []


@pytest.mark.parametrize("row", [{"id": None, "a": 1}, {"a": 1}])
def test_write__row_without_a_key__is_named_in_the_error(path: Path, row: dict[str, Any]) -> None:
    sink = open_sink(path, columns=["id", "a"])
    with pytest.raises(SinkRowError, match="row 1 of the batch has no value for the key 'id'"):
        sink.write([{"id": 1, "a": 1}, row])
    sink.close()


def test_write__first_batch_without_a_key__creates_no_table(path: Path) -> None:
    sink = open_sink(path)
    with pytest.raises(SinkColumnError, match="must be among the columns"):
        sink.write([{"a": 1}])
    with pytest.raises(SinkColumnError, match=r"columns must have 1 to 200 characters each, got ''"):
        sink.write([{"id": 1}, {"": 1}])
    sink.write([{"id": 1}])
    sink.close()
    assert read(path) == [(1,)]


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        ("results (id PRIMARY KEY)", {"columns": ["id", "b"]}, "expected a column 'b', got"),
        ("results (a)", {}, "expected a column 'id', got"),
        ("results (id)", {}, "ON CONFLICT clause does not match"),
    ],
)
def test_open__unsuitable_table__is_refused_and_closes_the_file(
    path: Path, table: str, options: dict[str, Any], message: str
) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"CREATE TABLE {table}")
    sink = SqliteSink(path, **options)
    with pytest.raises(SinkUnavailableError, match=f"SqliteSink .*results.db, table results: .*{message}"):
        sink.open()
    assert sink._database._writer is None  # type: ignore[attr-defined]


@pytest.mark.parametrize("table", ["", "sqlite_master", "SQLite_x", "a\0b"])
def test_sqlite_sink__invalid_table_name__is_refused(path: Path, table: str) -> None:
    with pytest.raises(ValueError, match="table must be a name that SQLite does not reserve, got"):
        SqliteSink(path, table)


def test_open__invalid_path__is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(SinkUnavailableError, match=r"nowhere/x.db, table results: unable to open"):
        SqliteSink(tmp_path / "nowhere" / "x.db").open()
    (tmp_path / "text").write_text("no database at all, but long enough to look at" * 100)
    with pytest.raises(SinkUnavailableError, match="file is not a database"):
        SqliteSink(tmp_path / "text").open()


def test_write__disk_full__stores_nothing_of_the_batch(path: Path) -> None:
    sink = open_sink(path, columns=["id", "a"])
    sink.write([{"id": 0, "a": 0}])
    with sink._database.write_transaction(1) as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 2}")
    rows = [{"id": number, "a": "x" * 1000} for number in range(1, 200)]
    with pytest.raises(SinkFullError, match="database or disk is full"):
        sink.write(rows)
    assert read(path) == [(0, 0)]
    with sink._database.write_transaction(1) as connection:
        connection.execute("PRAGMA max_page_count = 100000")
    sink.write(rows)
    sink.close()
    assert len(read(path)) == 200


def test_write__file_locked_by_others__is_named_in_the_error(path: Path) -> None:
    sink = open_sink(path, timeout=0.01)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(SinkUnavailableError, match="locked"):
            sink.write([{"id": 1}])
    sink.write([{"id": 1}])
    sink.close()


def test_sqlite_sink__durable__uses_full_synchronous_mode(path: Path) -> None:
    for durable, mode in ((True, 2), (False, 1)):
        sink = open_sink(path, durable=durable)
        with sink._database.write_transaction(1) as connection:
            assert connection.execute("PRAGMA synchronous").fetchone() == (mode,)
        sink.close()


def test_fork__parent_and_child__both_write(path: Path) -> None:
    sink = open_sink(path)
    sink.write([{"id": 1}])
    child = os.fork()
    if child == 0:
        sink.write([{"id": 2}])
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    sink.write([{"id": 3}])
    sink.close()
    assert read(path) == [(1,), (2,), (3,)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": []}, "key must be 1 to 1000 names, got 0"),
        ({"columns": "id"}, "columns must be a list of strings, got 'id'"),
        ({"columns": [1]}, "columns must be a list of strings"),
        ({"columns": ["id", "id"]}, "columns must all be different"),
        ({"columns": ["a"]}, "key must be among the columns"),
        ({"columns": ["id", "\0"]}, "columns must have 1 to 200 characters each"),
    ],
)
def test_sqlite_sink__invalid_option__is_named_in_the_error(
    path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        SqliteSink(path, **options)
