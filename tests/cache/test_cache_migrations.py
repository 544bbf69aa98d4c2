"""The cache's migrations: on rows that are older, and the query plans that their indexes enable."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from comporta.cache.migrations import MIGRATIONS
from comporta.cache.sql import COUNT_DEGRADED
from comporta.cache.tables import CacheTables
from comporta.database.base import Database, Statement
from comporta.database.migrations import migrate, status
from comporta.database.urls import open_database
from comporta.errors import DatabaseSchemaError

OLD_ROWS = {
    "sqlite": """
        WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000)
        INSERT INTO search_results_cache (id, user_id, params_hash, search_params, results, total_results)
        SELECT i, 'user-' || i, 'hash-' || i, '{"b": 1, "a": 2}', '[' || i || ']', 1 FROM n
    """,
    "postgresql": """
        INSERT INTO search_results_cache (user_id, params_hash, search_params, results, total_results)
        SELECT CAST(lpad(CAST(i AS text), 32, '0') AS uuid), 'hash-' || i, '{"b": 1, "a": 2}',
            CAST('[' || i || ']' AS jsonb), 1
        FROM generate_series(1, 100000) AS i
    """,
}
DEGRADE_SOME = Statement(
    "UPDATE search_results_cache SET degraded_until = AT(:now + 60), fail_streak = 1"
    " WHERE params_hash IN ('hash-7', 'hash-8', 'hash-9')"
)


@pytest.fixture
def empty(empty_database_url: str) -> Iterator[Database]:
    database = open_database(empty_database_url)
    yield database
    database.close()


def run(database: Database, text: str) -> list[tuple[Any, ...]]:
    with database.transaction(60) as execute:
        return execute(text)


def user(database: Database, number: int) -> str:
    if database.dialect == "sqlite":
        return f"user-{number}"
    return f"00000000-0000-0000-0000-{number:012}"


def plan(database: Database) -> str:
    """Return the query plan for counting degraded keys."""
    explain = {"sqlite": "EXPLAIN QUERY PLAN ", "postgresql": "EXPLAIN "}[database.dialect]
    text = getattr(COUNT_DEGRADED, database.dialect).replace(":now", "0").replace("%(now)s", "NULL")
    return str(run(database, explain + text))


def test_migrations__100_000_old_rows__are_readable_and_indexed(
    empty: Database,
) -> None:
    migrate(empty, MIGRATIONS[:1])
    run(empty, OLD_ROWS[empty.dialect])
    before = time.time()
    assert [done.number for done in migrate(empty, MIGRATIONS)] == [2, 3, 4, 5, 6, 7]
    table = CacheTables(empty)
    row = table.read(user(empty, 5), "hash-5")
    assert row is not None
    assert (row.results, row.total_results, row.sources) == (b"[5]", 1, ("pncp",))
    assert row.search_params in (b'{"b": 1, "a": 2}', b'{"a": 2, "b": 1}')
    assert row.fetched_at == pytest.approx(before, abs=300)
    assert (row.last_success_at, row.last_attempt_at, row.degraded_until) == (None, None, None)
    assert (row.coverage, row.fetch_duration_ms, row.priority) == (None, None, None)
    assert (row.fail_streak, row.has_value, row.access_count) == (0, True, 0)
    empty.write([DEGRADE_SOME], {})
    run(empty, "ANALYZE search_results_cache")
    assert "idx_search_cache_degraded" in plan(empty)
    assert table.read_stats()["degraded_keys_count"] == 3
    assert len(table.list_rows(degraded=True)) == 3


def test_migrations__failures_from_before__still_count(empty: Database) -> None:
    migrate(empty, MIGRATIONS[:3])
    for number, streak in [(1, 2), (2, 0)]:
        timestamp = "0" if empty.dialect == "sqlite" else "to_timestamp(0)"
        run(
            empty,
            "INSERT INTO search_results_cache"  # noqa: S608 - constants of this test
            " (user_id, params_hash, search_params, results, fail_streak, last_attempt_at, id) VALUES"
            f" ('{user(empty, number)}', 'h', '{{}}', '1', {streak}, {timestamp},"
            f" '00000000-0000-0000-0000-00000000000{number}')",
        )
    migrate(empty, MIGRATIONS)
    assert CacheTables(empty).record_failure("h", None, user(empty, 1), "h").fail_streak == 3


def test_migrations__null_in_the_first_columns__reads_as_zero_or_empty(empty: Database) -> None:
    CacheTables(empty).migrate()
    number = "00000000-0000-0000-0000-000000000001"
    run(
        empty,
        "INSERT INTO search_results_cache (id, user_id, params_hash, search_params, results, total_results,"  # noqa: S608 - see above
        f" sources_json, fetched_at, created_at) VALUES ('{number}', 'u', 'h', '{{}}', '1', NULL, NULL, NULL,"
        " NULL)",
    )
    row = CacheTables(empty).read("u", "h")
    assert row is not None
    assert (row.total_results, row.sources, row.fetched_at, row.created_at) == (0, (), 0.0, 0.0)


def test_check_applied__some_missing__names_them_and_the_command(empty: Database) -> None:
    table = CacheTables(empty)
    with pytest.raises(DatabaseSchemaError, match=r"migrations 1 \(the results of .*\), 2 .*db migrate"):
        table.check()
    with pytest.raises(DatabaseSchemaError, match="run `comporta db migrate`"):
        table.read("u", "h")
    migrate(empty, MIGRATIONS[:3])
    with pytest.raises(DatabaseSchemaError, match=r"migrations 4 \(who fetches\), 5 .* were not run"):
        table.check()
    with pytest.raises(DatabaseSchemaError, match="run `comporta db migrate`"):
        table.read("u", "h")
    with pytest.raises(DatabaseSchemaError, match="run `comporta db migrate`"):
        table.claim("h", "me", 10)
    table.migrate()
    table.check()
    assert all(each.applied_at for each in status(empty, MIGRATIONS))


def test_migration__fails__leaves_no_changes(empty: Database) -> None:
    bad = MIGRATIONS[0]._replace(
        number=9,
        name="it's bad",
        **{empty.dialect: ("CREATE TABLE half (n INTEGER)", "INSERT INTO nowhere VALUES (1)")},
    )
    with pytest.raises(DatabaseSchemaError):
        migrate(empty, [bad])
    with pytest.raises(DatabaseSchemaError):
        run(empty, "SELECT * FROM half")
    good = bad._replace(sqlite=(), postgresql=())
    assert migrate(empty, [good]) == [good]
    assert migrate(empty, [good]) == []
    [done] = status(empty, [good])
    assert done.applied_at == pytest.approx(time.time(), abs=300)
