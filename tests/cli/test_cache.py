"""``comporta cache``: what is kept, shown, marked and removed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from tests.cli.running import listed, run, run_for_real

from comporta import HealthCache
from comporta.cache.params import hashed

Q = {"q": "[b]x"}
NAME = hashed(Q)[0]
OTHER = hashed({"q": 2})[0]


@pytest.fixture
def cache(database_url: str) -> Iterator[HealthCache]:
    made = HealthCache(database_url, state="memory://")
    yield made
    made.sync.close()


def test_ls__nothing__says_so(cache: HealthCache, database_url: str) -> None:
    assert run("cache", "ls", "--database", database_url).stdout == "Nothing is kept yet.\n"
    assert run("cache", "ls", "--database", database_url, "--degraded").stdout == "No key is left alone.\n"
    assert listed("cache", "ls", "--database", database_url) == []


def test_ls__some__are_a_table_or_json(cache: HealthCache, database_url: str) -> None:
    cache.sync.save_to_cache("ana", Q, [1, 2])
    cache.sync.record_cache_fetch_failure("bob", {"q": 2})
    rows = listed("cache", "ls", "--database", database_url)
    assert {(row["user_id"], row["params_hash"]) for row in rows} == {("ana", NAME), ("bob", OTHER)}
    told = run("cache", "ls", "--database", database_url).stdout
    assert NAME in told
    assert "in 59 s" in told or "in 1 min" in told
    [degraded] = listed("cache", "ls", "--database", database_url, "--degraded")
    assert (degraded["user_id"], degraded["fail_streak"]) == ("bob", 1)
    [row] = listed("cache", "ls", "--database", database_url, "--user", "ana")
    assert row["total_results"] == 2


def test_show__a_key__tells_how_it_fares(cache: HealthCache, database_url: str) -> None:
    coverage = {"succeeded_ufs": ["SP"], "failed_ufs": [], "total_requested": 1}
    cache.sync.save_to_cache("ana", Q, ["value"], coverage=coverage, fetch_duration_ms=1500)
    cache.sync.record_cache_fetch_failure("ana", Q)
    where = ("ana", NAME, "--database", database_url)
    shown = json.loads(run("cache", "show", *where, "--json").stdout)
    assert (shown["coverage"], shown["search_params"]) == (coverage, Q)
    assert (shown["fetch_duration_ms"], shown["fail_streak"], shown["size_bytes"]) == (1500, 1, 9)
    told = run("cache", "show", *where).stdout
    assert "fail_streak" in told
    assert "[b]x" in told
    assert run("cache", "show", *where, "--value").stdout == '["value"]\n'


def test_refresh__a_key__is_fetched_by_whoever_looks_for_what_is_due(
    cache: HealthCache, database_url: str
) -> None:
    cache.sync.save_to_cache("ana", Q, ["old"])
    ran = run("cache", "refresh", NAME, "--database", database_url)
    assert ran.stdout.startswith("Marked: 1 ")
    marked = json.loads(run("cache", "refresh", NAME, "--database", database_url, "--json").stdout)
    assert marked == {"params_hash": NAME, "marked": 1}
    assert cache.sync.refresh_due(lambda params: [params["q"]]) == 1
    found = cache.sync.get_from_cache("ana", Q)
    assert found is not None
    assert found.value == ["[b]x"]


def test_rm__a_key__is_gone_with_its_failures(cache: HealthCache, database_url: str) -> None:
    cache.sync.record_cache_fetch_failure("ana", Q)
    ran = run("cache", "rm", "ana", NAME, "--database", database_url, "--state", "memory://")
    assert ran.stdout.startswith("Removed. Nobody shares memory://: workers that hold it in memory forget")
    assert not cache.sync.is_cache_key_degraded("ana", Q)


@pytest.mark.parametrize("verb", [("show", "ana"), ("rm", "ana"), ("refresh",)])
def test_command__no_such_key__is_one_sentence(
    cache: HealthCache, database_url: str, verb: tuple[str, ...]
) -> None:
    ran = run("cache", *verb, NAME, "--database", database_url)
    assert ran.exit_code == 1
    assert "nothing is kept" in ran.stderr
    assert "`comporta cache ls` lists what is." in ran.stderr
    assert run("cache", *verb, "x", "--database", database_url).exit_code == 2


def test_command__a_migration_is_missing__is_one_sentence(empty_database_url: str) -> None:
    ran = run("cache", "ls", "--database", empty_database_url)
    assert ran.exit_code == 1
    assert "comporta db migrate" in ran.stderr


def test_rm__a_key_that_a_worker_holds_in_memory__is_forgotten_there(
    database_url: str, shared_name: str
) -> None:
    state = f"shared://{shared_name}"
    worker = HealthCache(database_url, state=state, name="held", level_seconds=3600)
    try:
        name = worker.sync.fetch("ana", Q, lambda: ["old"]).params_hash
        assert worker.sync.fetch("ana", Q, lambda: ["new"]).source == "memory"
        where = ("--database", database_url, "--state", state, "--name", "held")
        ran = run_for_real("cache", "rm", "ana", name, *where)
        assert ran.stdout == "Removed. Workers that hold it in memory forget it now.\n"
        deadline = time.monotonic() + 30
        while worker.sync.fetch("ana", Q, lambda: ["new"]).value == ["old"]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        worker.sync.close()


def test_rm__state_out_of_reach__removes_and_says_who_was_not_told(
    cache: HealthCache, database_url: str
) -> None:
    cache.sync.save_to_cache("ana", Q, ["old"])
    where = ("--database", database_url, "--state", "redis://127.0.0.1:1/0")
    ran = run("cache", "rm", "ana", NAME, *where)
    assert ran.stdout.startswith("Removed. The workers could not be told (")
    assert cache.sync.get_from_cache("ana", Q) is None
    cache.sync.save_to_cache("ana", Q, ["old"])
    told = json.loads(run("cache", "rm", "ana", NAME, *where, "--json").stdout)
    assert (told["user_id"], told["params_hash"], told["told"]) == ("ana", NAME, False)
    assert told["why"].startswith("The workers could not be told (")
