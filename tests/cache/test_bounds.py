"""The bounds of the cache's table: rows and bytes, evicting the least recently used."""

from __future__ import annotations

import pytest
from tests.cache.conftest import MakeCache
from tests.cache.harness import CacheHarness, FakeSource

from comporta.cache.migrations import MIGRATIONS
from comporta.cache.table_limit import TableLimit
from comporta.database.base import Database, Statement
from comporta.database.migrations import migrate
from comporta.database.urls import open_database
from comporta.testing import ManualClock

COUNT = Statement("SELECT COUNT(*), COALESCE(SUM(size_bytes), 0) FROM search_results_cache")
COUNT_FETCHES = Statement("SELECT COUNT(*) FROM search_fetches")


def cached_numbers(cache: CacheHarness, count: int, user: str | None = "ana") -> list[int]:
    return [n for n in range(count) if cache.get_from_cache(user, {"q": n}) is not None]


@pytest.mark.unmeasured
def test_fetch__200_keys_of_one_user__none_is_fetched_again(
    make_cache: MakeCache, source: FakeSource
) -> None:
    cache = make_cache()
    for _ in range(2):
        for number in range(200):
            cache.fetch({"q": number}, source)
        cache = make_cache()
    assert source.calls == 200


def test_fetch__more_rows_than_the_bound__evicts_the_least_recently_used(
    make_cache: MakeCache, source: FakeSource, clock: ManualClock
) -> None:
    cache = make_cache(table_entries=3, fresh=1000)
    for number in range(4):
        clock.advance(1)
        cache.fetch({"q": number}, source)
        cache.fetch({"q": 0}, source)
        cache.flush()
    assert cached_numbers(make_cache(), 4) == [0, 2, 3]


def test_fetch__more_bytes_than_the_bound__evicts_the_least_recently_used(
    make_cache: MakeCache, source: FakeSource, clock: ManualClock, database: Database
) -> None:
    source.value = "x" * 990
    cache = make_cache(table_bytes=3100)
    for number in range(5):
        clock.advance(1)
        cache.fetch({"q": number}, source)
    assert cached_numbers(make_cache(), 5) == [2, 3, 4]
    [[rows, size]] = database.read(COUNT, {})
    assert (rows, size) == (3, 3 * len('"' + source.value + '"{"q":0}'))


def test_fetch__rows_of_failures__count_against_the_bound(
    make_cache: MakeCache, source: FakeSource, clock: ManualClock, database: Database
) -> None:
    cache = make_cache(table_entries=3)
    for number in range(5):
        clock.advance(1)
        cache.record_cache_fetch_failure("ana", {"q": number})
    clock.advance(3600)
    cache.fetch({"q": "new"}, source)
    [[rows, _]], [[fetches]] = database.read(COUNT, {}), database.read(COUNT_FETCHES, {})
    assert (rows, fetches) == (3, 3)


def test_fetch__bound_was_lowered__each_result_evicts_some(
    make_cache: MakeCache, source: FakeSource, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("result_writer", "table_limit"):
        monkeypatch.setattr(f"comporta.cache.{module}.EVICTED_MAX", 4)
    first = make_cache()
    for number in range(10):
        first.fetch({"q": number}, source)
    cache = make_cache(table_entries=2)
    counts = []
    for number in range(3):
        cache.fetch({"new": number}, source)
        counts.append(database.read(COUNT, {})[0][0])
    assert counts == [7, 4, 2]


def test_table_limit__one_percent_stored__is_due_again() -> None:
    limit = TableLimit(1000, 10_000)
    assert [limit.record(0) for _ in range(12)] == [True] + 9 * [False] + [True, False]
    assert [limit.record(50), limit.record(50), limit.record(99)] == [False, True, False]
    limit.after_fork()
    assert limit.record(1)  # the bytes of the parent and of the child


def test_fetch__without_a_user__shares_the_row(make_cache: MakeCache, source: FakeSource) -> None:
    cache = make_cache()
    assert cache.fetch({"q": 1}, source, user=None, saved=True).user_id == "shared"
    assert cache.save_to_cache(None, {"q": 2}, ["b"])
    assert cache.record_cache_fetch_failure(None, {"q": 3}).fail_streak == 1
    assert cache.is_cache_key_degraded(None, {"q": 3})
    assert cached_numbers(make_cache(), 4, None) == [1, 2]
    assert make_cache().fetch({"q": 1}, source).source == "database"


def test_fetch__without_a_user_but_users_are_separate__raises(
    make_cache: MakeCache, source: FakeSource
) -> None:
    cache = make_cache(scope="user")
    with pytest.raises(ValueError, match="user_id is required if scope is 'user', got None"):
        cache.fetch({"q": 1}, source, user=None)
    for call in (cache.get_from_cache, cache.is_cache_key_degraded, cache.record_cache_fetch_failure):
        with pytest.raises(ValueError, match="user_id is required"):
            call(None, {"q": 1})


def test_migrations__rows_without_size__get_theirs(empty_database_url: str) -> None:
    database = open_database(empty_database_url)
    migrate(database, MIGRATIONS[:5])
    insert = Statement(
        "INSERT INTO search_results_cache (id, user_id, params_hash, search_params, results)"
        " VALUES (NEW_ID(), 'ana', 'h', JSON('{}'), JSON('\"é\"'))"
    )
    database.write([insert], {})
    migrate(database, MIGRATIONS)
    assert database.read(COUNT, {}) == [(1, 6)]
    database.close()
