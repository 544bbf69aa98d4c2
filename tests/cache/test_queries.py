"""The queries for pages: degraded keys, partial results, current fetches, a short summary."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from comporta.cache.queries import _COUNT_ROWS, LIMIT_MAX
from comporta.cache.tables import CacheTables
from comporta.database.base import Database, Statement
from comporta.database.urls import open_database

HASHES = [f"{number:064x}" for number in range(4)]
NOW = 1_800_000_000.0


class FakeClock:
    """A clock that the test moves."""

    now = NOW

    def __call__(self) -> float:
        return self.now


def store(table: CacheTables, user: str, params_hash: str, failed: list[str]) -> None:
    covered = {"succeeded_ufs": ["SP"], "failed_ufs": failed, "total_requested": 1 + len(failed)}
    table.record_success(
        params_hash,
        None,
        user,
        params_hash,
        b'{"search": "pncp"}',
        b"[]",
        0,
        ["pncp"],
        json.dumps(covered).encode(),
    )


def test_list_degraded__failed_keys__lists_the_next_retry_first(database: Database) -> None:
    clock = FakeClock()
    table = CacheTables(database, clock)
    store(table, "ana", HASHES[0], ["MA"])
    store(table, "bob", HASHES[0], ["MA"])
    for _ in range(2):
        table.record_failure(HASHES[0], None, "ana", HASHES[0])
    table.record_failure(HASHES[1], None, "ana", HASHES[1], b'{"search": "pcp"}')
    store(table, "ana", HASHES[2], [])
    clock.now += 10
    rows = table.list_degraded(10)
    assert [(row.params_hash, row.fail_streak, row.has_value) for row in rows] == [
        (HASHES[1], 1, False),
        (HASHES[0], 2, True),
        (HASHES[0], 2, True),
    ]
    assert [round(row.retry_in) for row in rows] == [50, 290, 290]
    assert json.loads(rows[0].search_params) == {"search": "pcp"}
    assert rows[0].coverage is None
    assert json.loads(rows[1].coverage or b"")["failed_ufs"] == ["MA"]
    assert len(table.list_degraded(1)) == 1
    clock.now += 290
    assert table.list_degraded(10) == []


def test_list_recent_coverage__accessed_rows__come_with_their_coverage(database: Database) -> None:
    clock = FakeClock()
    table = CacheTables(database, clock)
    for number, failed in enumerate((["MA"], [], ["BA", "CE"])):
        store(table, "ana", HASHES[number], failed)
        table.record_accesses([("ana", HASHES[number], 1, NOW + number)])
    store(table, "ana", HASHES[3], ["AC"])  # not accessed yet
    table.record_failure("f" * 64, None, "ana", "f" * 64)  # without a result
    table.record_accesses([("ana", "f" * 64, 1, NOW)])
    rows = table.list_recent_coverage(10)
    assert [row.params_hash for row in rows] == [HASHES[2], HASHES[1], HASHES[0]]
    assert json.loads(rows[0].coverage)["failed_ufs"] == ["BA", "CE"]


def test_count_fetches_by_worker__two_workers__counts_active_leases(database: Database) -> None:
    clock = FakeClock()
    table = CacheTables(database, clock)
    for params_hash, owner in zip(HASHES, ("one:1", "one:1", "two:2"), strict=False):
        assert table.claim(params_hash, owner, 30).granted
    assert table.count_fetches_by_worker() == {"one:1": 2, "two:2": 1}
    clock.now += 31
    assert table.count_fetches_by_worker() == {}


@pytest.mark.parametrize("limit", [0, LIMIT_MAX + 1])
def test_queries__limit_out_of_range__raises(limit: int, database: Database) -> None:
    table = CacheTables(database)
    for query in (table.list_degraded, table.list_recent_coverage):
        with pytest.raises(ValueError, match=f"limit must be 1 to {LIMIT_MAX}, got {limit}"):
            query(limit)


def test_read_summary__healthy_and_degraded_keys__agrees_with_read_stats(database: Database) -> None:
    clock = FakeClock()
    table = CacheTables(database, clock)
    assert table.read_summary()["avg_fail_streak"] == 0.0
    for number in range(3):
        store(table, "ana", HASHES[number], [])
    for _ in range(2):
        table.record_failure(HASHES[0], None, "ana", HASHES[0])
    table.record_failure(HASHES[3], None, "ana", HASHES[3])
    assert table.claim(HASHES[2], "one:1", 30).granted
    for later in (10, 200, 600):  # both keys in backoff, one of them, and none
        clock.now += later
        summary, stats = table.read_summary(), table.read_stats()
        assert summary == {name: pytest.approx(stats[name]) for name in summary}
        assert summary["avg_fail_streak"] == 0.75


def test_read_summary__large_bodies__reads_only_indexes(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path}/cache.db")
    CacheTables(database).migrate()
    text = database.read(Statement(f"EXPLAIN QUERY PLAN {_COUNT_ROWS.sqlite}"), {})
    database.close()
    plan = " ".join(str(row) for row in text)
    assert plan.count("USING COVERING INDEX") == 1
    assert "USING INDEX idx_search_cache_degraded" in plan
