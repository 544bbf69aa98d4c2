"""``comporta cache``: lists, shows, refreshes and removes entries."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tests.cli.cli_runner import run, run_json, run_process
from tests.support import wait_until

from comporta import HealthCache
from comporta.cache.params import hash_params

Q = {"q": "[b]x"}
NAME = hash_params(Q)[0]
OTHER = hash_params({"q": 2})[0]


@pytest.fixture
def cache(database_url: str) -> Iterator[HealthCache]:
    cache = HealthCache(database_url, state="memory://")
    yield cache
    cache.sync.close()


def test_list__empty_cache__reports_it(cache: HealthCache, database_url: str) -> None:
    assert run("cache", "list", "--database", database_url).stdout == "The cache is empty.\n"
    assert run("cache", "list", "--database", database_url, "--degraded").stdout == "No key is degraded.\n"
    assert run_json("cache", "list", "--database", database_url) == []


def test_list__entries__are_a_table_or_json(cache: HealthCache, database_url: str) -> None:
    cache.sync.save_to_cache("ana", Q, [1, 2])
    cache.sync.record_cache_fetch_failure("bob", {"q": 2})
    rows = run_json("cache", "list", "--database", database_url)
    assert {(row["user_id"], row["params_hash"]) for row in rows} == {("ana", NAME), ("bob", OTHER)}
    table = run("cache", "list", "--database", database_url).stdout
    assert NAME in table
    assert "in 59 s" in table or "in 1 min" in table
    [degraded] = run_json("cache", "list", "--database", database_url, "--degraded")
    assert (degraded["user_id"], degraded["fail_streak"]) == ("bob", 1)
    [row] = run_json("cache", "list", "--database", database_url, "--user", "ana")
    assert row["total_results"] == 2


def test_show__entry__has_its_health_and_its_value(cache: HealthCache, database_url: str) -> None:
    coverage = {"succeeded_ufs": ["SP"], "failed_ufs": [], "total_requested": 1}
    cache.sync.save_to_cache("ana", Q, ["value"], coverage=coverage, fetch_duration_ms=1500)
    cache.sync.record_cache_fetch_failure("ana", Q)
    arguments = ("ana", NAME, "--database", database_url)
    shown = json.loads(run("cache", "show", *arguments, "--json").stdout)
    assert (shown["coverage"], shown["search_params"]) == (coverage, Q)
    assert (shown["fetch_duration_ms"], shown["fail_streak"], shown["size_bytes"]) == (1500, 1, 9)
    table = run("cache", "show", *arguments).stdout
    assert "fail_streak" in table
    assert "[b]x" in table
    assert run("cache", "show", *arguments, "--value").stdout == '["value"]\n'


def test_refresh__key__is_fetched_by_the_next_refresh_due(cache: HealthCache, database_url: str) -> None:
    cache.sync.save_to_cache("ana", Q, ["old"])
    ran = run("cache", "refresh", NAME, "--database", database_url)
    assert ran.stdout.startswith("Marked 1 entry. ")
    marked = json.loads(run("cache", "refresh", NAME, "--database", database_url, "--json").stdout)
    assert marked == {"params_hash": NAME, "marked": 1}
    assert cache.sync.refresh_due(lambda params: [params["q"]]) == 1
    cached = cache.sync.get_from_cache("ana", Q)
    assert cached is not None
    assert cached.value == ["[b]x"]


def test_remove__key__is_removed_with_its_failures(cache: HealthCache, database_url: str) -> None:
    cache.sync.record_cache_fetch_failure("ana", Q)
    ran = run("cache", "remove", "ana", NAME, "--database", database_url, "--state", "memory://")
    assert ran.stdout.startswith("Removed. No worker shares memory://: workers may serve it from their local")
    assert not cache.sync.is_cache_key_degraded("ana", Q)


@pytest.mark.parametrize("command", [("show", "ana"), ("remove", "ana"), ("refresh",)])
def test_command__unknown_key__fails_with_one_sentence(
    cache: HealthCache, database_url: str, command: tuple[str, ...]
) -> None:
    ran = run("cache", *command, NAME, "--database", database_url)
    assert ran.exit_code == 1
    assert "there is no entry" in ran.stderr
    assert "run `comporta cache list`." in ran.stderr
    assert run("cache", *command, "x", "--database", database_url).exit_code == 2


def test_command__pending_migration__fails_with_one_sentence(empty_database_url: str) -> None:
    ran = run("cache", "list", "--database", empty_database_url)
    assert ran.exit_code == 1
    assert "comporta db migrate" in ran.stderr


def test_remove__key_in_a_local_cache__is_removed_there_too(database_url: str, shared_name: str) -> None:
    state = f"shared://{shared_name}"
    worker = HealthCache(database_url, state=state, name="held", local_ttl=3600)
    try:
        name = worker.sync.fetch("ana", Q, lambda: ["old"]).params_hash
        assert worker.sync.fetch("ana", Q, lambda: ["new"]).source == "memory"
        options = ("--database", database_url, "--state", state, "--name", "held")
        ran = run_process("cache", "remove", "ana", name, *options)
        assert ran.stdout == "Removed. The workers were notified.\n"
        wait_until(lambda: worker.sync.fetch("ana", Q, lambda: ["new"]).value != ["old"])
    finally:
        worker.sync.close()


def test_remove__unreachable_state__removes_and_reports_that_no_worker_was_notified(
    cache: HealthCache, database_url: str
) -> None:
    cache.sync.save_to_cache("ana", Q, ["old"])
    patient_url = f"{database_url}{'&' if '?' in database_url else '?'}timeout=30"
    options = ("--database", patient_url, "--state", "redis://127.0.0.1:1/0")
    ran = run("cache", "remove", "ana", NAME, *options)
    assert ran.stdout.startswith("Removed. The workers were not notified (")
    assert cache.sync.get_from_cache("ana", Q) is None
    cache.sync.save_to_cache("ana", Q, ["old"])
    result = json.loads(run("cache", "remove", "ana", NAME, *options, "--json").stdout)
    assert (result["user_id"], result["params_hash"], result["notified"]) == ("ana", NAME, False)
    assert result["reason"].startswith("The workers were not notified (")
