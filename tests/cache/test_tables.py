"""The commands of the cache's tables, on both databases, blocking and async."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from comporta.cache.commands import ACCESS_ROWS_MAX, LEASE_SECONDS_MAX
from comporta.cache.rows import CacheRow, FetchClaim, KeyHealth
from comporta.cache.tables import CacheTables
from comporta.database import postgres as postgres_module
from comporta.database.base import Database, Statement
from comporta.database.postgres import PostgresDatabase
from comporta.testing import PostgresServer

START = 1_750_000_000.0
USER = "user-1"
HASH = "h"
PARAMS = b'{"uf":"SP"}'
DAY = 86_400
NOW = Statement("SELECT :now")
NO_ANSWERS = {"answers": 0, "hit_rate": 0.0, "stale_rate": 0.0, "miss_rate": 0.0}


class FakeClock:
    """A clock that the test moves."""

    now = START

    def __call__(self) -> float:
        return self.now


class TablesHarness:
    """The commands of ``CacheTables``, through the blocking or the async methods."""

    def __init__(self, table: CacheTables, clock: FakeClock, runner: asyncio.Runner | None) -> None:
        self.table = table
        self.clock = clock
        self._runner = runner

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if self._runner is None:
            blocking: Callable[..., Any] = getattr(self.table, method)
            return blocking
        return lambda *given, **named: self._run_async(method, *given, **named)

    def _run_async(self, method: str, *given: Any, **named: Any) -> Any:
        async def call() -> Any:
            return await getattr(self.table, f"{method}_async")(*given, **named)

        assert self._runner is not None
        return self._runner.run(call())

    def store(self, user: str = USER, token: int | None = None, key: str = HASH, **named: Any) -> bool:
        """Store a result; fields that a test does not pass have the same values everywhere."""
        fields: dict[str, Any] = {
            "search_params": PARAMS,
            "results": b"[1, 2]",
            "total_results": 2,
            "sources": ["pncp", "pcp"],
            "coverage": None,
            "fetch_duration_ms": None,
        }
        stored: bool = self.record_success(key, token, user, HASH, **(fields | named))
        return stored

    def row(self, user: str = USER) -> CacheRow:
        row = self.read(user, HASH)
        assert isinstance(row, CacheRow)
        return row


@pytest.fixture(params=["blocking", "async"])
def table(request: pytest.FixtureRequest, database: Database) -> Iterator[TablesHarness]:
    clock = FakeClock()
    if request.param == "blocking":
        yield TablesHarness(CacheTables(database, clock), clock, None)
        return
    with asyncio.Runner() as runner:
        yield TablesHarness(CacheTables(database, clock), clock, runner)


def test_read__no_row__returns_none(table: TablesHarness) -> None:
    assert table.read(USER, HASH) is None
    assert table.read_result(None, HASH) is None


def test_record_success__all_fields__are_read_back(table: TablesHarness) -> None:
    coverage = b'{"failed_ufs": ["MA"], "succeeded_ufs": ["SP"], "total_requested": 2}'
    assert table.store(coverage=coverage, fetch_duration_ms=1500)
    row = table.row()
    assert row == CacheRow(
        user_id=USER,
        params_hash=HASH,
        search_params=PARAMS,
        results=b"[1, 2]",
        total_results=2,
        sources=("pncp", "pcp"),
        fetched_at=START,
        created_at=START,
        last_success_at=START,
        last_attempt_at=START,
        fail_streak=0,
        degraded_until=None,
        coverage=row.coverage,
        fetch_duration_ms=1500,
        has_value=True,
        priority=None,
        access_count=0,
        last_accessed_at=None,
        now=START,
    )
    assert row.coverage is not None
    assert sorted(row.coverage) == sorted(coverage)  # jsonb reorders the fields


def test_record_success__3_mb_body_with_unicode__is_stored_byte_for_byte(table: TablesHarness) -> None:
    body = ('["\\u0000", "ção \U0001f30a", 1.0, 1e3, {"b": 1, "a": 2}, "' + "x" * 3_000_000 + '"]').encode()
    assert table.store(results=body, search_params='{"q":"\\u0000ç"}'.encode())
    assert table.row().results == body
    assert table.row().search_params == '{"q":"\\u0000ç"}'.encode()


def test_record_success__second_time__replaces_the_result_and_keeps_created_at(table: TablesHarness) -> None:
    table.store(coverage=b"{}", fetch_duration_ms=7)
    table.clock.now += 60
    table.store(results=b"[]", total_results=0, sources=[])
    row = table.row()
    assert (row.results, row.total_results, row.sources) == (b"[]", 0, ())
    assert (row.created_at, row.fetched_at) == (START, START + 60)
    assert (row.coverage, row.fetch_duration_ms) == (None, None)


def test_read_result__several_users__returns_the_freshest_row_with_a_value(table: TablesHarness) -> None:
    table.store("a", results=b"1")
    table.clock.now += 1
    table.store("b", results=b"2")
    table.clock.now += 1
    table.record_failure(HASH, None, "c", HASH)
    assert table.read_result(None, HASH).user_id == "b"


@pytest.mark.parametrize(("streak", "minutes"), [(1, 1), (2, 5), (3, 15), (4, 30), (7, 30)])
def test_record_failure__any_streak__sets_the_backoff(
    table: TablesHarness, streak: int, minutes: int
) -> None:
    table.store()
    for _ in range(streak):
        health = table.record_failure(HASH, None, USER, HASH)
    assert health == KeyHealth(streak, START + minutes * 60, START)
    row = table.row()
    assert (row.fail_streak, row.degraded_until) == health[:2]


def test_record_failure__after_a_success__keeps_the_result(table: TablesHarness) -> None:
    table.store()
    table.clock.now += 5
    table.record_failure(HASH, None, USER, HASH)
    row = table.row()
    assert (row.results, row.sources, row.last_success_at) == (b"[1, 2]", ("pncp", "pcp"), START)
    assert (row.fetched_at, row.last_attempt_at, row.has_value) == (START, START + 5, True)


def test_record_failure__before_the_first_success__stores_a_row_without_value(table: TablesHarness) -> None:
    table.record_failure(HASH, None, USER, HASH, PARAMS)
    row = table.row()
    assert (row.has_value, row.fail_streak, row.search_params) == (False, 1, PARAMS)
    assert (row.results, row.sources, row.last_success_at) == (b"null", (), None)
    assert table.read_result(None, HASH) is None
    table.store()
    assert table.row().has_value
    assert table.row().fail_streak == 0


def test_record_failure__shared_key__marks_all_rows_until_a_success(table: TablesHarness) -> None:
    table.store("a")
    table.store("b")
    table.clock.now += 1
    table.record_failure(HASH, None, "c", HASH)
    assert [table.row(user).fail_streak for user in "abc"] == [1, 1, 1]
    table.clock.now += 1
    table.store("a")
    assert [table.row(user).fail_streak for user in "abc"] == [0, 0, 0]
    assert [table.row(user).degraded_until for user in "abc"] == [None] * 3
    assert [table.row(user).last_attempt_at for user in "abc"] == [START + 2] * 3
    assert [table.row(user).last_success_at for user in "abc"] == [START + 2, START, None]


def test_record_failure__key_of_one_user__leaves_other_users_unchanged(table: TablesHarness) -> None:
    table.store("a", key="a:h")
    table.store("b", key="b:h")
    table.record_failure("a:h", None, "a", HASH)
    assert [table.row(user).fail_streak for user in "ab"] == [1, 0]
    assert table.claim("b:h", "me", 10).granted
    assert not table.claim("a:h", "me", 10).granted
    table.store("b", key="b:h")
    assert table.row("a").fail_streak == 1


def test_read_claim__unknown_key__has_token_zero(table: TablesHarness) -> None:
    assert table.read_claim(HASH) == FetchClaim(False, 0, None, "", None, 0, None, START)


def test_claim__free_key__is_granted_for_lease_seconds(table: TablesHarness) -> None:
    claim = table.claim(HASH, "me", 30)
    assert claim.granted
    assert claim == FetchClaim(True, claim.token, START + 30, "me", None, 0, None, START)
    assert table.read_claim(HASH) == claim._replace(granted=False)


def test_claim__lease_active__is_refused_and_names_the_owner(table: TablesHarness) -> None:
    first = table.claim(HASH, "me", 30)
    table.clock.now += 29
    refused = table.claim(HASH, "you", 30, forced=True)
    assert refused == first._replace(granted=False, now=START + 29)


def test_claim__lease_expired__is_granted_with_a_later_token(table: TablesHarness) -> None:
    first = table.claim(HASH, "me", 30)
    table.clock.now += 30
    second = table.claim(HASH, "you", 30)
    assert second.granted
    assert second.token > first.token
    assert second.owner == "you"


def test_claim__clock_set_back__ignores_a_lease_of_hours(table: TablesHarness) -> None:
    first = table.claim(HASH, "me", 30)
    table.clock.now -= LEASE_SECONDS_MAX + 60
    second = table.claim(HASH, "you", 30)
    assert second.granted
    assert second.token > first.token


def test_claim__clock_set_back__ignores_a_backoff_of_hours(table: TablesHarness) -> None:
    table.store()
    for _ in range(4):
        table.record_failure(HASH, None, USER, HASH)
    assert not table.claim(HASH, "me", 10).granted
    table.clock.now -= 3600
    assert table.read_claim(HASH).degraded_until is None
    assert table.row().degraded_until is None
    table.mark_due(HASH)
    assert [each.user_id for each in table.list_due(10, 0)] == [USER]
    assert table.claim(HASH, "me", 10).granted


def test_claim__clock_set_back__ignores_a_success_in_the_future(table: TablesHarness) -> None:
    table.store()
    table.clock.now -= 30  # within the tolerance for transactions that waited for the record
    assert not table.claim(HASH, "me", 10, not_within=600).granted
    table.clock.now -= 3600
    assert table.claim(HASH, "me", 10, not_within=600).granted


def test_claim__key_degraded__is_refused_unless_forced(table: TablesHarness) -> None:
    table.record_failure(HASH, None, USER, HASH)
    table.clock.now += 59
    refused = table.claim(HASH, "me", 10)
    assert not refused.granted
    assert (refused.fail_streak, refused.degraded_until) == (1, START + 60)
    forced = table.claim(HASH, "me", 10, forced=True)
    assert forced.granted
    table.release(HASH, forced.token)
    table.clock.now += 1
    assert table.claim(HASH, "me", 10).granted


def test_claim__just_succeeded__is_refused_within_not_within_unless_forced(table: TablesHarness) -> None:
    table.store()
    table.clock.now += 599
    refused = table.claim(HASH, "me", 10, not_within=600)
    assert not refused.granted
    assert refused.last_success_at == START
    forced = table.claim(HASH, "me", 10, forced=True, not_within=600)
    assert forced.granted
    table.release(HASH, forced.token)
    table.clock.now += 1
    assert table.claim(HASH, "me", 10, not_within=600).granted


def test_claim__many_threads__grants_one(database: Database) -> None:
    table = CacheTables(database)
    together = threading.Barrier(12)
    granted: list[int] = []

    def claims(number: int) -> None:
        together.wait()
        if table.claim(HASH, str(number), 60).granted:
            granted.append(number)

    threads = [threading.Thread(target=claims, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [str(number) for number in granted] == [table.read_claim(HASH).owner]


def test_record_failure__many_coroutines__counts_all(database: Database) -> None:
    table = CacheTables(database)

    async def fail_together() -> None:
        await asyncio.gather(*(table.record_failure_async(HASH, None, USER, HASH) for _ in range(40)))

    asyncio.run(fail_together())
    assert table.read_claim(HASH).fail_streak == 40


def test_renew__latest_token__extends_the_lease(table: TablesHarness) -> None:
    claim = table.claim(HASH, "me", 10)
    table.clock.now += 11  # late, but no other worker has claimed the key
    assert table.renew(HASH, claim.token, 10)
    assert table.read_claim(HASH).lease_until == START + 21


def test_renew__released_or_replaced__returns_false(table: TablesHarness) -> None:
    claim = table.claim(HASH, "me", 10)
    table.release(HASH, claim.token)
    assert not table.renew(HASH, claim.token, 10)
    later = table.claim(HASH, "you", 10)
    assert later.granted
    assert not table.renew(HASH, claim.token, 10)
    table.release(HASH, claim.token)
    assert table.read_claim(HASH).lease_until == later.lease_until


def test_record_success__with_the_token__ends_the_lease(table: TablesHarness) -> None:
    claim = table.claim(HASH, "me", 10)
    assert table.store(token=claim.token)
    assert table.read_claim(HASH).lease_until is None
    assert table.read_claim(HASH).last_success_at == START


def test_record_success__token_replaced__changes_nothing(table: TablesHarness) -> None:
    late = table.claim(HASH, "late", 10)
    table.clock.now += 10
    table.record_failure(HASH, None, "other", HASH)
    later = table.claim(HASH, "next", 10, forced=True)
    assert table.store(token=later.token, results=b"2")
    before = table.read_claim(HASH)
    assert not table.store(token=late.token, results=b"1")
    assert table.row().results == b"2"
    assert table.read_claim(HASH) == before


def test_record_success__token_replaced_and_no_row__inserts_none(table: TablesHarness) -> None:
    late = table.claim(HASH, "late", 10)
    table.clock.now += 10
    table.claim(HASH, "next", 10)
    assert not table.store(token=late.token)
    assert table.read(USER, HASH) is None


def test_record_failure__token_replaced__counts_nothing(table: TablesHarness) -> None:
    late = table.claim(HASH, "late", 10)
    table.clock.now += 10
    later = table.claim(HASH, "next", 10)
    assert table.record_failure(HASH, late.token, USER, HASH) == KeyHealth(0, None, START + 10)
    assert table.read(USER, HASH) is None
    assert table.read_claim(HASH).lease_until == later.lease_until


def test_record_success__without_token__keeps_another_workers_lease(table: TablesHarness) -> None:
    claim = table.claim(HASH, "me", 10)
    table.store()
    assert table.read_claim(HASH).lease_until == claim.lease_until
    assert table.store(token=claim.token)


def test_record_failure__with_or_without_token__ends_or_keeps_the_lease(table: TablesHarness) -> None:
    claim = table.claim(HASH, "me", 10)
    table.record_failure(HASH, None, USER, HASH)
    assert table.read_claim(HASH).lease_until == claim.lease_until
    assert table.record_failure(HASH, claim.token, USER, HASH).fail_streak == 2
    assert table.read_claim(HASH).lease_until is None


def test_claim__record_pruned__token_is_still_later(table: TablesHarness) -> None:
    first = table.claim(HASH, "me", 10)
    table.clock.now += 100
    assert table.prune(50) == 1
    second = table.claim(HASH, "you", 10)
    assert second.token > first.token
    assert not table.store(token=first.token)


def test_record_accesses__some__are_added_and_set_the_priority(table: TablesHarness) -> None:
    table.store()
    table.record_accesses([(USER, HASH, 2, START - 1), ("unknown", HASH, 5, START)])
    assert (table.row().access_count, table.row().priority) == (2, "cold")
    table.record_accesses([(USER, HASH, 1, START), (USER, HASH, 1, START - 5)])
    row = table.row()
    assert (row.access_count, row.priority, row.last_accessed_at) == (4, "warm", START)
    table.record_accesses([(USER, HASH, 6, START)])
    assert table.row().priority == "hot"
    table.record_accesses([])


def test_record_accesses__saved_search__is_never_cold(table: TablesHarness) -> None:
    table.store()
    table.record_accesses([(USER, HASH, 1, START, True)])
    assert table.row().priority == "warm"
    table.record_accesses([(USER, HASH, 1, START), (USER, HASH, 1, START, None)])
    assert table.row().priority == "hot"
    table.record_accesses([(USER, HASH, 0, START, False)])
    assert table.row().priority == "warm"
    table.record_accesses([(USER, HASH, 0, START, True), (USER, HASH, 0, START)])
    assert table.row().priority == "hot"


def test_record_accesses__hours_without_access__count_decays(table: TablesHarness) -> None:
    table.store()
    table.record_accesses([(USER, HASH, 100, START)])
    table.clock.now += DAY // 2
    table.record_accesses([(USER, HASH, 1, table.clock.now)])
    assert table.row().access_count == 51
    table.clock.now += DAY
    table.record_accesses([(USER, HASH, 1, table.clock.now)])
    assert table.row().access_count == 1


def test_record_accesses__too_many_rows__raises(table: TablesHarness) -> None:
    rows = [(USER, str(number), 1, START) for number in range(ACCESS_ROWS_MAX + 1)]
    with pytest.raises(ValueError, match="accesses must be of at most 500 rows, got 501"):
        table.record_accesses(rows)
    table.record_accesses(rows[1:])


def test_evict__too_many_rows__removes_empty_then_cold_then_warm_then_hot(table: TablesHarness) -> None:
    for name, accesses, seen in [("hot", 10, 0), ("warm", 3, 1), ("cold-new", 1, 3), ("cold-old", 1, 2)]:
        table.record_success(name, None, USER, name, PARAMS, b"1", 1, [])
        table.record_accesses([(USER, name, accesses, START + seen)])
    table.record_failure("empty", None, USER, "empty")
    table.store("another")
    table.clock.now += 10
    for keep, evicted_next in enumerate(["hot", "warm", "cold-new", "cold-old", "empty"][::-1], -4):
        assert evicted_next in {row.params_hash for row in table.list_rows(user_id=USER)}
        assert table.evict(USER, -keep) == 1
        assert evicted_next not in {row.params_hash for row in table.list_rows(user_id=USER)}
    assert table.evict(USER, 0) == 0
    assert table.read("another", HASH) is not None
    with pytest.raises(ValueError, match="keep must be at least 0, got -1"):
        table.evict(USER, -1)


def test_evict__hot_but_unused_for_a_day__counts_as_cold(table: TablesHarness) -> None:
    table.record_success("once", None, USER, "once", PARAMS, b"1", 1, [])
    table.record_accesses([(USER, "once", 50, START)])
    table.clock.now += DAY
    table.record_success("now", None, USER, "now", PARAMS, b"1", 1, [])
    table.record_accesses([(USER, "now", 1, table.clock.now)])
    assert table.evict(USER, 1) == 1
    assert [row.params_hash for row in table.list_rows()] == ["now"]


def test_remove__last_row_of_a_key__resets_its_failures(table: TablesHarness) -> None:
    table.store("a")
    table.record_failure(HASH, None, "b", HASH)
    assert table.remove("a", HASH)
    assert table.read_claim(HASH).fail_streak == 1
    assert table.remove("b", HASH)
    assert not table.remove("b", HASH)
    assert table.claim(HASH, "me", 10, not_within=600).granted


def test_remove__key_of_one_user__resets_that_key(table: TablesHarness) -> None:
    table.record_failure("a:h", None, "a", HASH)
    table.record_failure("b:h", None, "b", HASH)
    assert table.remove("a", HASH, "a:h")
    assert (table.read_claim("a:h").fail_streak, table.read_claim("b:h").fail_streak) == (0, 1)


def test_list_due__hot_and_old_enough__lists_the_oldest_first(table: TablesHarness) -> None:
    for number, name in enumerate("abc"):
        table.clock.now = START + number
        table.record_success(name, None, USER, name, PARAMS, b"1", 1, [])
        table.record_accesses([(USER, name, 10, table.clock.now)])
    table.store()
    table.clock.now = START + 101
    assert [row.params_hash for row in table.list_due(10, 100)] == ["a", "b"]
    assert [row.params_hash for row in table.list_due(1, 100)] == ["a"]
    [first, _] = table.list_due(10, 100)
    assert (first.search_params, first.fetched_at, first.requested) == (PARAMS, START, False)
    table.record_failure("a", None, USER, "a")
    assert [row.params_hash for row in table.list_due(10, 100)] == ["b"]


def test_mark_due__cold_key__is_due_until_the_next_attempt(table: TablesHarness) -> None:
    table.store("a")
    table.store("b")
    assert table.mark_due("none") == 0
    assert table.mark_due(HASH, "a") == 1
    assert [(row.user_id, row.requested) for row in table.list_due(10, 100)] == [("a", True)]
    assert table.mark_due(HASH) == 2
    table.store("a")
    assert table.list_due(10, 100) == []
    table.mark_due(HASH)
    table.record_failure(HASH, None, "a", HASH)
    table.clock.now += 3600
    assert table.list_due(10, 7200) == []


def test_mark_due__key_that_just_failed__is_due_immediately(table: TablesHarness) -> None:
    table.store("a")
    table.record_failure(HASH, None, "a", HASH)
    assert table.list_due(10, 100) == []
    table.mark_due(HASH)
    assert [(row.user_id, row.requested) for row in table.list_due(10, 100)] == [("a", True)]


def test_list_rows__some__lists_the_freshest_first(table: TablesHarness) -> None:
    table.store("a")
    table.clock.now += 1
    table.store("b")
    table.record_failure("other", None, "a", "other")
    assert [row.user_id for row in table.list_rows(limit=2)] == ["b", "a"]
    assert {row.params_hash for row in table.list_rows(user_id="a")} == {HASH, "other"}
    assert {row.user_id for row in table.list_rows(params_hash=HASH)} == {"a", "b"}
    [degraded] = table.list_rows(degraded=True)
    assert (degraded.params_hash, degraded.has_value, degraded.fail_streak) == ("other", False, 1)
    assert (degraded.priority, degraded.degraded_until, degraded.now) == ("cold", START + 61, START + 1)


def test_read_stats__empty__are_zero(table: TablesHarness) -> None:
    assert table.read_stats() == {
        "entries": 0,
        "degraded_keys_count": 0,
        "avg_fail_streak": 0.0,
        "max_fail_streak": 0,
        "fetching": 0,
        "priorities": {"hot": 0, "warm": 0, "cold": 0},
        "ages": {"fresh": 0, "stale": 0, "expired": 0, "without_value": 0},
        "last_24_hours": NO_ANSWERS,
    }


def test_read_stats__keys_in_every_state__are_counted(table: TablesHarness) -> None:
    for age_hours, name in [(30, "expired"), (7, "stale"), (1, "fresh")]:
        table.clock.now = START - age_hours * 3600
        table.record_success(name, None, USER, name, PARAMS, b"1", 1, [])
    table.clock.now = START
    table.record_accesses([(USER, "fresh", 10, START), (USER, "stale", 3, START)])
    table.claim("fresh", "me", 10)
    table.record_failure("empty", None, USER, "empty")
    table.record_failure("empty", None, USER, "empty")
    assert table.read_stats() == {
        "entries": 4,
        "degraded_keys_count": 1,
        "avg_fail_streak": 0.5,
        "max_fail_streak": 2,
        "fetching": 1,
        "priorities": {"hot": 1, "warm": 1, "cold": 2},
        "ages": {"fresh": 1, "stale": 1, "expired": 1, "without_value": 1},
        "last_24_hours": NO_ANSWERS,
    }


def test_list_top__keys_of_several_users__sums_and_sorts_by_accesses(table: TablesHarness) -> None:
    for user in ("a", "b"):
        table.store(user)
    table.record_success("rare", None, "a", "rare", PARAMS, b"1", 1, [])
    table.record_failure("rare", None, "a", "rare")
    table.record_accesses([("a", HASH, 2, START), ("b", HASH, 3, START), ("a", "rare", 1, START)])
    assert [key[:3] for key in table.list_top()] == [(HASH, 5, 2), ("rare", 1, 1)]
    assert [key.fail_streak for key in table.list_top()] == [0, 1]
    assert [key.params_hash for key in table.list_top(1)] == [HASH]
    assert table.list_top(1)[0].fetched_at == pytest.approx(START)
    table.clock.now += DAY
    assert [key.accesses for key in table.list_top()] == [0, 0]


def test_clear__in_batches__leaves_only_running_fetches(table: TablesHarness) -> None:
    for user in ("a", "b"):
        table.store(user)
    table.record_failure("failed", None, "a", "failed")
    table.claim("fetched", "me", 10)
    assert len(table.clear(2)) == 2
    assert len(table.clear(2)) == 1
    assert table.clear(2) == []
    assert table.list_rows() == []
    assert table.read_claim("failed").fail_streak == 0
    assert table.read_claim("fetched").owner == "me"


def test_prune__old_rows_and_records__are_deleted_except_saved_searches(table: TablesHarness) -> None:
    table.store("a")
    table.store("b")
    table.record_accesses([("b", HASH, 1, START, True)])
    table.clock.now += 100
    table.record_success("new", None, USER, "new", PARAMS, b"1", 1, [])
    assert table.prune(50) == 2
    assert {row.user_id for row in table.list_rows()} == {"b", USER}
    assert table.read_claim(HASH).token == 0
    assert table.read_claim("new").token > 0


def test_prune__claimed_and_released__is_deleted(table: TablesHarness) -> None:
    claim = table.claim(HASH, "me", 10)
    assert table.prune(0) == 0
    table.release(HASH, claim.token)
    assert table.prune(50) == 1
    assert table.read_claim(HASH).token == 0


@pytest.mark.parametrize(
    ("method", "args", "message"),
    [
        ("claim", (HASH, "me", 0), "lease_seconds must be 0.001 to 3600 seconds, got 0"),
        ("claim", (HASH, "me", float("nan")), "lease_seconds must be 0.001 to 3600 seconds, got nan"),
        ("renew", (HASH, 1, 3601), "lease_seconds must be 0.001 to 3600 seconds, got 3601"),
        ("list_due", (0, 1), "limit must be 1 to 10000, got 0"),
        ("list_due", (1, -1), r"age must be 0 to 1e\+09 seconds, got -1"),
        ("list_rows", (10_001,), "limit must be 1 to 10000, got 10001"),
    ],
)
def test_tables__number_out_of_range__raises_with_its_name(
    table: TablesHarness, method: str, args: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        getattr(table, method)(*args)


def test_tables__no_clock_given__use_the_database_clock(database: Database) -> None:
    [[now]] = database.read(NOW, {})
    table = CacheTables(database)
    claim = table.claim(HASH, "me", 10)
    assert claim.now == pytest.approx(now, abs=60)
    assert claim.lease_until == pytest.approx(claim.now + 10, abs=0.001)
    [[back]] = database.read(NOW, {"now": START})
    assert back == START


def test_tables__many_writers_of_the_same_rows__never_deadlock(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_module, "DEADLOCK_TRIES_MAX", 1)
    table, users = CacheTables(database), [f"user {n}" for n in range(30)]
    for user in users:
        table.record_success(HASH, None, user, HASH, PARAMS, b"1", 1, [])
    writes: list[Callable[[str], object]] = [
        lambda user: table.record_accesses(
            [(each, HASH, 1, START) for each in sorted(users, key=user.__add__)]
        ),
        lambda _: table.record_accesses([(each, HASH, 1, START) for each in reversed(users)]),
        lambda user: table.record_failure(HASH, None, user, HASH),
        lambda user: table.record_success(HASH, None, user, HASH, PARAMS, b"1", 1, []),
        lambda _: table.mark_due(HASH),
    ]
    with ThreadPoolExecutor(len(writes)) as pool:
        done = [pool.submit(write, user) for user in users for write in writes]
    assert [each.exception() for each in done if each.exception()] == []


def test_tables__many_writes_at_once__never_deadlock(
    postgres: PostgresServer, migrated_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deadlock costs the server a second. Without the patch, retries would hide it from this test."""
    monkeypatch.setattr("comporta.database.postgres.DEADLOCK_TRIES_MAX", 1)
    with closing(PostgresDatabase(migrated_postgres, timeout=30, connections=8)) as database:
        table, users, names = CacheTables(database), ["a", "b", "c"], [f"{n:064x}" for n in range(6)]

        def touch(user: str, name: str) -> None:
            table.record_accesses([(one, each, 1, 0.0) for one in users for each in (name, *names[:3])])

        writes: list[Callable[[str, str], object]] = [
            lambda user, name: table.record_success(name, None, user, name, b"{}", b"[]", 0, []),
            lambda user, name: table.record_failure(name, None, user, name),
            lambda user, name: table.evict(user, 2, name),
            lambda user, name: table.mark_due(name),
            lambda user, name: table.prune(0, 3),
            table.remove,
            touch,
            touch,
        ]

        def work(number: int) -> None:
            chance = random.Random(number)
            for _ in range(40):
                chance.choice(writes)(chance.choice(users), chance.choice(names))

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
