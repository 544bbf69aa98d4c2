"""What people see of the cache's table: keys in trouble, answers that are not whole, who fetches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from comporta.cache.looks import _ENTRIES, LOOKS_MAX
from comporta.cache.table import CacheTable
from comporta.database.base import Database, Statement
from comporta.database.urls import open_database

HASHES = [f"{number:064x}" for number in range(4)]
NOW = 1_800_000_000.0


class Hand:
    """A clock moved by hand."""

    now = NOW

    def __call__(self) -> float:
        return self.now


def keep(table: CacheTable, user: str, params_hash: str, failed: list[str]) -> None:
    covered = {"succeeded_ufs": ["SP"], "failed_ufs": failed, "total_requested": 1 + len(failed)}
    table.succeed(
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


def test_unwell__keys_that_failed__come_with_their_next_try_the_first_first(database: Database) -> None:
    hand = Hand()
    table = CacheTable(database, hand)
    keep(table, "ana", HASHES[0], ["MA"])
    keep(table, "bob", HASHES[0], ["MA"])
    for _ in range(2):
        table.fail(HASHES[0], None, "ana", HASHES[0])
    table.fail(HASHES[1], None, "ana", HASHES[1], b'{"search": "pcp"}')
    keep(table, "ana", HASHES[2], [])
    hand.now += 10
    found = table.unwell(10)
    assert [(row.params_hash, row.fail_streak, row.has_value) for row in found] == [
        (HASHES[1], 1, False),
        (HASHES[0], 2, True),
        (HASHES[0], 2, True),
    ]
    assert [round(row.retry_in) for row in found] == [50, 290, 290]
    assert json.loads(found[0].search_params) == {"search": "pcp"}
    assert found[0].coverage is None
    assert json.loads(found[1].coverage or b"")["failed_ufs"] == ["MA"]
    assert len(table.unwell(1)) == 1
    hand.now += 290
    assert table.unwell(10) == []


def test_partial__rows_that_were_asked_for__come_with_what_they_hold(database: Database) -> None:
    hand = Hand()
    table = CacheTable(database, hand)
    for number, failed in enumerate((["MA"], [], ["BA", "CE"])):
        keep(table, "ana", HASHES[number], failed)
        table.touch([("ana", HASHES[number], 1, NOW + number)])
    keep(table, "ana", HASHES[3], ["AC"])  # nobody asked for it yet
    table.fail("f" * 64, None, "ana", "f" * 64)  # and this one holds nothing
    table.touch([("ana", "f" * 64, 1, NOW)])
    found = table.partial(10)
    assert [row.params_hash for row in found] == [HASHES[2], HASHES[1], HASHES[0]]
    assert json.loads(found[0].coverage)["failed_ufs"] == ["BA", "CE"]


def test_fetchers__two_workers_at_keys__are_counted_until_their_leases_end(database: Database) -> None:
    hand = Hand()
    table = CacheTable(database, hand)
    for params_hash, owner in zip(HASHES, ("one:1", "one:1", "two:2"), strict=False):
        assert table.claim(params_hash, owner, 30).granted
    assert table.fetchers() == {"one:1": 2, "two:2": 1}
    hand.now += 31
    assert table.fetchers() == {}


@pytest.mark.parametrize("limit", [0, LOOKS_MAX + 1])
def test_looks__too_many_rows__are_refused(limit: int, database: Database) -> None:
    table = CacheTable(database)
    for look in (table.unwell, table.partial):
        with pytest.raises(ValueError, match=f"limit must be 1 to {LOOKS_MAX}, got {limit}"):
            look(limit)


def test_brief__keys_well_and_unwell__says_what_all_figures_say(database: Database) -> None:
    hand = Hand()
    table = CacheTable(database, hand)
    assert table.brief()["avg_fail_streak"] == 0.0
    for number in range(3):
        keep(table, "ana", HASHES[number], [])
    for _ in range(2):
        table.fail(HASHES[0], None, "ana", HASHES[0])
    table.fail(HASHES[3], None, "ana", HASHES[3])
    assert table.claim(HASHES[2], "one:1", 30).granted
    for later in (10, 200, 600):  # while both are left alone, one of them, and none
        hand.now += later
        brief, whole = table.brief(), table.figures()
        assert brief == {name: pytest.approx(whole[name]) for name in brief}
        assert brief["avg_fail_streak"] == 0.75


def test_brief__of_a_table_with_large_bodies__reads_indices_and_not_the_rows(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path}/cache.db")
    CacheTable(database).migrate()
    text = database.read(Statement(f"EXPLAIN QUERY PLAN {_ENTRIES.sqlite}"), {})
    database.close()
    plan = " ".join(str(row) for row in text)
    assert plan.count("USING COVERING INDEX") == 1
    assert "USING INDEX idx_search_cache_degraded" in plan
