"""The PostgreSQL sink: one row for each key, in a table that it creates or finds."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from comporta import Pipeline
from comporta.errors import SinkColumnError, SinkFullError, SinkRowError, SinkUnavailableError
from comporta.pipeline.sinks import PostgresSink, Row, Sink
from comporta.testing import PostgresServer


@pytest.fixture
def url(postgres: PostgresServer) -> Iterator[str]:
    schema = f"t_{uuid.uuid4().hex}"
    postgres.command(f"CREATE SCHEMA {schema}")
    yield postgres.schema_url(schema)
    postgres.command(f"DROP SCHEMA {schema} CASCADE")


def write_rows(url: str, *batches: list[Row], **options: Any) -> None:
    sink: Sink = PostgresSink(url, **options)
    sink.open()
    try:
        for batch in batches:
            sink.write(batch)
    finally:
        sink.close()


def select(url: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(query).fetchall()


def test_write__same_key__replaces_the_row(url: str) -> None:
    write_rows(url, [{"id": 1, "name": "Ana"}, {"id": 2, "name": "Rui"}, {"id": 2, "name": "Eva"}])
    write_rows(url, [{"id": 1, "name": None}], [{"id": 3}])
    assert select(url, "SELECT * FROM results ORDER BY id") == [(1, None), (2, "Eva"), (3, None)]


def test_write__values_of_many_types__are_stored_as_such(url: str) -> None:
    row = {
        "id": 5,
        "yes": True,
        "big": 2**62,
        "half": 0.5,
        "price": Decimal("1.10"),
        "at": datetime(2026, 1, 2, 3, tzinfo=UTC),
        "on": date(2026, 1, 2),
        "clock": time(3, 4),
        "raw": b"\0\xff",
        "tags": ["a", float("nan")],
        "more": {"on": date(2026, 1, 2)},
        "text": "nul \0, surrogate \ud800",
        "none": None,
    }
    write_rows(url, [row])
    [stored] = select(url, "SELECT * FROM results")
    expected = {
        **row,
        "tags": ["a", "nan"],
        "more": {"on": "2026-01-02"},
        "text": "nul \ufffd, surrogate ?",
    }
    assert dict(zip(row, stored, strict=True)) == expected


def test_write__column_of_mixed_values__is_text_or_a_float(url: str) -> None:
    write_rows(url, [{"id": "a", "mixed": 1, "number": 1}, {"id": "b", "mixed": "x", "number": 0.5}])
    assert select(url, "SELECT mixed, number FROM results ORDER BY id") == [("1", 1.0), ("x", 0.5)]


@pytest.mark.parametrize("wrong", ["not a number", 2**70, object()])
def test_write__row_does_not_fit__is_named_and_the_batch_is_not_written(url: str, wrong: Any) -> None:
    write_rows(url, [{"id": 1, "n": 1}])
    with pytest.raises(SinkRowError, match="row 1 of the batch") as caught:
        write_rows(url, [{"id": 2, "n": 2}, {"id": 3, "n": wrong}])
    assert caught.value.index == 1
    assert select(url, "SELECT id FROM results") == [(1,)]


def test_write__constraint_of_the_table__names_the_row(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE results (id int PRIMARY KEY, n int CHECK (n > 0))")
    with pytest.raises(SinkRowError, match=r"row 0 of the batch: .*violates check constraint"):
        write_rows(url, [{"id": 1, "n": 0}])


def test_write__no_key_in_a_row__names_the_row(url: str) -> None:
    with pytest.raises(SinkColumnError, match=r"key .* must be among the columns"):
        write_rows(url, [{"name": "Ana"}])
    with pytest.raises(SinkRowError, match="row 1 of the batch has no value for the key 'id'"):
        write_rows(url, [{"id": 1}, {"id": None}])


def test_write__only_key_columns_and_a_schema__are_stored_once(url: str, postgres: PostgresServer) -> None:
    schema = f"t_{uuid.uuid4().hex}"
    postgres.command(f"CREATE SCHEMA {schema}")
    table = f"{schema}.Odd names"
    write_rows(url, [{"a": 1, "b": 2}, {"a": 1, "b": 2}], table=table, key=["a", "b"], columns=["a", "b"])
    write_rows(url, [{"a": 1, "b": 2}], table=table, key=["a", "b"])
    assert select(url, f'TABLE {schema}."Odd names"') == [(1, 2)]
    postgres.command(f"DROP SCHEMA {schema} CASCADE")


def test_open__unusable_table__is_refused(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE results (id int, name text)")
    with pytest.raises(SinkUnavailableError, match="no unique or exclusion constraint"):
        write_rows(url)
    with pytest.raises(SinkUnavailableError, match="expected a column 'age', got the columns"):
        write_rows(url, columns=["id", "age"])


def test_write__server_error__is_a_sink_error(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE results (id int PRIMARY KEY)")
        connection.execute(
            "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'disk full' USING ERRCODE = '53100'; END $$"
        )
        connection.execute("CREATE TRIGGER t BEFORE INSERT ON results EXECUTE FUNCTION full_disk()")
    with pytest.raises(SinkFullError, match="disk full"):
        write_rows(url, [{"id": 1}])


def test_write__batch_fails_but_no_row_alone__is_a_sink_error_and_nothing_is_written(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE results (id int PRIMARY KEY)")
        connection.execute("CREATE SEQUENCE calls")
        connection.execute(
            "CREATE FUNCTION fail_once() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "IF nextval('calls') = 1 THEN RAISE EXCEPTION 'once' USING ERRCODE = '23514'; END IF; "
            "RETURN NEW; END $$"
        )
        connection.execute(
            "CREATE TRIGGER t BEFORE INSERT ON results FOR EACH ROW EXECUTE FUNCTION fail_once()"
        )
    with pytest.raises(SinkUnavailableError, match="once"):
        write_rows(url, [{"id": 1}, {"id": 2}])
    assert select(url, "SELECT * FROM results") == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table": ""}, "table must be a name of 1 to 63 bytes"),
        ({"table": "a.b.c"}, "table must be a name of 1 to 63 bytes"),
        ({"table": "x" * 64}, "table must be a name of 1 to 63 bytes"),
        ({"columns": ["a"]}, "key must be among the columns"),
    ],
)
def test_sink__invalid_option__is_a_value_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PostgresSink("postgresql://localhost/x", **options)


def test_pipeline__run_twice__has_every_item_once(url: str, tmp_path: Path) -> None:
    for checkpoint in ("first", "second"):
        pipeline = Pipeline(
            range(500),
            lambda item: {"id": item, "square": item * item},
            PostgresSink(url, table="squares"),
            max_rows=100,
            checkpoint=tmp_path / checkpoint,
        )
        assert pipeline.sync.run().written == 500
    assert select(url, "SELECT count(*), sum(square) FROM squares") == [(500, sum(n * n for n in range(500)))]


def test_sinks__unknown_name__is_an_attribute_error() -> None:
    from comporta.pipeline import sinks  # noqa: PLC0415 - the module itself

    assert sinks.PostgresSink is PostgresSink
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        sinks.Nothing  # noqa: B018
