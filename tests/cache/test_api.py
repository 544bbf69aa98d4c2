"""The methods for callers that fetch themselves, and invalid arguments of all methods."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.cache.conftest import MakeCache
from tests.cache.harness import FakeSource

from comporta import Coverage, HealthCache
from comporta.cache.params import hash_params
from comporta.database.base import Database, Statement
from comporta.errors import DatabaseSchemaError
from comporta.testing import ManualClock

Q = {"ufs": ["SP", "RJ", "MA"]}
NAME = hash_params(Q)[0]
COVERAGE = {"succeeded_ufs": ["SP", "RJ"], "failed_ufs": ["MA"], "total_requested": 3}


def test_save__results__are_returned_with_coverage_and_duration(
    make_cache: MakeCache, clock: ManualClock
) -> None:
    cache = make_cache()
    assert cache.get_from_cache("ana", Q) is None
    stored = cache.save_to_cache(
        "ana", Q, [{"id": 1}], ["pncp", "pcp"], coverage=COVERAGE, fetch_duration_ms=1500, total_results=40
    )
    assert stored is True
    for params in (Q, NAME):
        result = cache.get_from_cache("ana", params)
        assert result.value == [{"id": 1}]
        assert result.coverage == Coverage(("SP", "RJ"), ("MA",))
        assert (result.sources, result.total_results, result.fetch_duration_ms) == (("pncp", "pcp"), 40, 1500)
        assert (result.last_success_at, result.last_attempt_at) == (result.fetched_at, result.fetched_at)
        assert (result.fail_streak, result.degraded_until) == (0, None)
    assert cache.get_from_cache("ana", NAME).source == "memory"


def test_save__replaces_a_local_entry__is_visible_immediately(make_cache: MakeCache) -> None:
    cache = make_cache()
    cache.save_to_cache("ana", Q, ["a"])
    cache.get_from_cache("ana", Q)
    cache.save_to_cache("ana", Q, ["b"])
    assert cache.get_from_cache("ana", Q).value == ["b"]


def test_record_failure__several__follow_the_backoff_and_keep_results(
    make_cache: MakeCache, clock: ManualClock
) -> None:
    cache = make_cache()
    cache.save_to_cache("ana", Q, ["a"], ["pncp"])
    before = cache.row(NAME)
    for streak, minutes in ((1, 1), (2, 5), (3, 15), (4, 30), (5, 30)):
        clock.advance(1)
        health = cache.record_cache_fetch_failure("ana", NAME)
        assert (health.fail_streak, health.degraded_until - health.now) == (streak, 60 * minutes)
    row = cache.row(NAME)
    assert (row.results, row.sources, row.last_success_at) == (
        before.results,
        ("pncp",),
        before.last_success_at,
    )
    assert (row.fail_streak, row.last_attempt_at) == (5, health.now)


def test_degraded__until_the_backoff_ends__and_not_after(make_cache: MakeCache, clock: ManualClock) -> None:
    cache = make_cache()
    assert not cache.is_cache_key_degraded("ana", NAME)
    cache.record_cache_fetch_failure("ana", Q)
    assert cache.is_cache_key_degraded("ana", NAME)
    assert cache.is_cache_key_degraded("bob", Q)
    assert cache.get_from_cache("ana", Q) is None
    clock.advance(60)
    assert not cache.is_cache_key_degraded("ana", NAME)


def test_degraded__scope_user__applies_to_one_user(make_cache: MakeCache) -> None:
    cache = make_cache(scope="user")
    cache.record_cache_fetch_failure("ana", Q)
    assert cache.is_cache_key_degraded("ana", Q)
    assert not cache.is_cache_key_degraded("bob", Q)


def test_get__row_older_than_the_health_columns__fields_are_none(
    make_cache: MakeCache, database: Database
) -> None:
    old = "INSERT INTO search_results_cache (id, user_id, params_hash, search_params, results)"
    values = f"VALUES (NEW_ID(), 'ana', '{NAME}', JSON('{{}}'), JSON('[1]'))"
    database.write([Statement(f"{old} {values}")], {})
    result = make_cache(stale=3e8).get_from_cache("ana", NAME)
    assert result.value == [1]
    fields = ("last_success_at", "last_attempt_at", "degraded_until", "coverage", "fetch_duration_ms")
    assert [getattr(result, field) for field in fields] == [None] * 5


def test_get__invalid_stored_coverage__is_none(make_cache: MakeCache, database: Database) -> None:
    cache = make_cache()
    cache.save_to_cache("ana", Q, ["a"], coverage=COVERAGE)
    database.write([Statement("UPDATE search_results_cache SET coverage = JSON('{\"x\": 1}')")], {})
    assert cache.get_from_cache("ana", Q).coverage is None


@pytest.mark.parametrize(
    ("method", "args", "error", "message"),
    [
        ("fetch", ("", Q, dict), ValueError, "user_id must be 1 to 200 printable characters, got ''"),
        ("fetch", (5, Q, dict), TypeError, "user_id must be a str, got 5"),
        ("fetch", (["ana"], Q, dict), TypeError, r"user_id must be a str, got \['ana'\]"),
        ("get_from_cache", ({}, NAME), TypeError, r"user_id must be a str, got \{\}"),
        ("save_to_cache", ({}, Q, []), TypeError, r"user_id must be a str, got \{\}"),
        ("record_cache_fetch_failure", ([], Q), TypeError, r"user_id must be a str, got \[\]"),
        ("is_cache_key_degraded", ([], Q), TypeError, r"user_id must be a str, got \[\]"),
        ("fetch", ("ana", [1], dict), TypeError, r"params must be a mapping, got \[1\]"),
        ("fetch", ("ana", Q, None), TypeError, "loader must be a function, got None"),
        ("get_from_cache", ("ana", "nonsense"), ValueError, "params_hash must be 64 digits"),
        ("is_cache_key_degraded", ("", NAME), ValueError, "user_id must be"),
        ("record_cache_fetch_failure", ("ana", "x"), ValueError, "params_hash must be"),
        ("save_to_cache", ("ana", Q, object()), TypeError, "a cached value must be JSON serializable"),
        ("save_to_cache", ("ana", Q, [], "pncp"), TypeError, "sources must be a list of names, got 'pncp'"),
        ("save_to_cache", ("ana", Q, [], 5), TypeError, "sources must be a list of names, got 5"),
        ("save_to_cache", ("ana", Q, [], ["x"] * 101), ValueError, "sources must be at most 100 names"),
        ("refresh_due", (None,), TypeError, "loader must be a function, got None"),
        ("refresh_due", (dict, 0), ValueError, "limit must be 1 to 1000, got 0"),
    ],
)
def test_methods__bad_input__raises_with_field_and_value(
    make_cache: MakeCache, method: str, args: tuple[Any, ...], error: type[Exception], message: str
) -> None:
    cache = make_cache()
    with pytest.raises(error, match=message):
        cache.__getattr__(method)(*args)


def test_methods__bad_options__raise_with_field_and_value(make_cache: MakeCache, source: FakeSource) -> None:
    cache = make_cache()
    with pytest.raises(ValueError, match="fetch_duration_ms must be 0 to 2147483647, got -1"):
        cache.save_to_cache("ana", Q, [], fetch_duration_ms=-1)
    with pytest.raises(ValueError, match="total_results must be 0 to 2147483647, got -3"):
        cache.save_to_cache("ana", Q, [], total_results=-3)
    with pytest.raises(ValueError, match=r"only the fields .* got 'states': 1"):
        cache.save_to_cache("ana", Q, [], coverage={"succeeded_ufs": [], "states": 1})
    with pytest.raises(ValueError, match="soft_timeout must be 0 to"):
        cache.fetch(Q, source, soft_timeout=-1)


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        ({"fresh": -1}, ValueError, "fresh must be 0.001 to .* seconds, got -1"),
        ({"fresh": "6h"}, TypeError, "fresh must be a number of seconds, got '6h'"),
        ({"stale": 50}, ValueError, "stale must be 100 to .* seconds, got 50"),
        ({"stale": float("nan")}, ValueError, "stale must be .* got nan"),
        ({"scope": "all"}, ValueError, "scope must be one of 'params', 'user', got 'all'"),
        ({"lease_seconds": 0}, ValueError, "lease_seconds must be 0.05 to 3600 seconds, got 0"),
        ({"soft_timeout": -1}, ValueError, "soft_timeout must be"),
        ({"refresh_timeout": 0}, ValueError, "refresh_timeout must be"),
        ({"refreshes_max": True}, TypeError, "refreshes_max must be an int, got True"),
        ({"entries_per_user": 0}, ValueError, "entries_per_user must be 1 to 100000, got 0"),
        ({"local_entries": 0}, ValueError, "local_entries must be 1 to"),
        ({"name": "a b"}, ValueError, "name must be 1 to 100 of"),
        ({"name": 5}, ValueError, "name must be 1 to 100 of .* got 5"),
        ({"breaker_open": True}, TypeError, "breaker_open must be a function, got True"),
        ({"state": "http://x"}, ValueError, "state must start with one of"),
    ],
)
def test_cache__bad_config__raises_with_field_and_value(
    tmp_path: Path, config: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        HealthCache(f"sqlite:///{tmp_path}/x.db", **{"fresh": 100, "state": "memory://", **config})


def test_cache__migration_missing__raises_at_start(empty_database_url: str) -> None:
    with pytest.raises(DatabaseSchemaError, match="comporta db migrate"):
        HealthCache(empty_database_url, migrate=False, state="memory://")
    cache = HealthCache(empty_database_url, migrate=True, state="memory://")
    cache.sync.close()


def test_cache__as_context_manager__is_closed_at_exit(tmp_path: Path) -> None:
    async def main() -> Any:
        async with HealthCache(f"sqlite:///{tmp_path}/x.db", state="memory://") as cache:
            return await cache.fetch("ana", Q, dict)

    assert asyncio.run(main()).value == {}


def test_cache__database_of_wrong_type__raises() -> None:
    with pytest.raises(TypeError, match="database must be a URL or a database, got 5"):
        HealthCache(5, state="memory://")  # type: ignore[arg-type]  # deliberately wrong


def test_fetch__bad_options__raises(make_cache: MakeCache) -> None:
    cache = make_cache()
    with pytest.raises(TypeError, match="merge must be a function, got 5"):
        cache.fetch(Q, list, merge=5)
    with pytest.raises(TypeError, match="refresh_loader must be a function, got 5"):
        cache.fetch(Q, list, refresh_loader=5)
    for _ in range(2):  # once from the loader, once from memory
        with pytest.raises(TypeError, match="saved must be true, false or None, got 'yes'"):
            cache.fetch(Q, list, saved="yes")


def test_cache__other_name__keeps_its_entries_separate(make_cache: MakeCache) -> None:
    one, other = make_cache(), make_cache(name="other")
    assert one.fetch(Q, lambda: ["one"]).value == ["one"]
    assert other.get_from_cache("ana", Q) is None
    assert other.fetch(Q, lambda: ["other"]).value == ["other"]
    other.record_cache_fetch_failure("ana", Q)
    assert (one.is_cache_key_degraded("ana", Q), other.is_cache_key_degraded("ana", Q)) == (False, True)
    assert [make_cache(name=name).get_from_cache("ana", Q).value for name in ("cache", "other")] == [
        ["one"],
        ["other"],
    ]
    assert one.save_to_cache("ana", Q, ["saved"])
    assert make_cache(name="other").get_from_cache("ana", Q).value == ["other"]
