"""What the table does, on both databases and through both faces."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from comporta.cache.requests import LEASE_SECONDS_MAX, TOUCHES_MAX
from comporta.cache.table import CacheTable, Claim, Entry, Health
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


class Hands:
    """A clock moved by hand."""

    now = START

    def __call__(self) -> float:
        return self.now


class Face:
    """A table asked in one of two ways."""

    def __init__(self, table: CacheTable, clock: Hands, runner: asyncio.Runner | None) -> None:
        self.table = table
        self.clock = clock
        self._runner = runner

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        if self._runner is None:
            blocking: Callable[..., Any] = getattr(self.table, verb)
            return blocking
        return lambda *given, **named: self._awaited(verb, *given, **named)

    def _awaited(self, verb: str, *given: Any, **named: Any) -> Any:
        async def waits() -> Any:
            return await getattr(self.table, f"{verb}_async")(*given, **named)

        assert self._runner is not None
        return self._runner.run(waits())

    def keep(self, user: str = USER, token: int | None = None, key: str = HASH, **named: Any) -> bool:
        """Keep an answer; what a test says nothing about is the same everywhere."""
        given: dict[str, Any] = {
            "search_params": PARAMS,
            "results": b"[1, 2]",
            "total_results": 2,
            "sources": ["pncp", "pcp"],
            "coverage": None,
            "fetch_duration_ms": None,
        }
        kept: bool = self.succeed(key, token, user, HASH, **(given | named))
        return kept

    def entry(self, user: str = USER) -> Entry:
        found = self.read(user, HASH)
        assert isinstance(found, Entry)
        return found


@pytest.fixture(params=["blocking", "awaiting"])
def table(request: pytest.FixtureRequest, database: Database) -> Iterator[Face]:
    clock = Hands()
    if request.param == "blocking":
        yield Face(CacheTable(database, clock), clock, None)
        return
    with asyncio.Runner() as runner:
        yield Face(CacheTable(database, clock), clock, runner)


def test_read__nothing_kept__is_none(table: Face) -> None:
    assert table.read(USER, HASH) is None
    assert table.read_shared(HASH) is None


def test_succeed__all_given__is_read_back(table: Face) -> None:
    coverage = b'{"failed_ufs": ["MA"], "succeeded_ufs": ["SP"], "total_requested": 2}'
    assert table.keep(coverage=coverage, fetch_duration_ms=1500)
    entry = table.entry()
    assert entry == Entry(
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
        coverage=entry.coverage,
        fetch_duration_ms=1500,
        has_value=True,
        priority=None,
        access_count=0,
        last_accessed_at=None,
        now=START,
    )
    assert entry.coverage is not None
    assert sorted(entry.coverage) == sorted(coverage)  # jsonb orders the names in its own way


def test_succeed__body_of_three_megabytes_and_odd_signs__is_kept_to_the_byte(table: Face) -> None:
    body = ('["\\u0000", "ção \U0001f30a", 1.0, 1e3, {"b": 1, "a": 2}, "' + "x" * 3_000_000 + '"]').encode()
    assert table.keep(results=body, search_params='{"q":"\\u0000ç"}'.encode())
    assert table.entry().results == body
    assert table.entry().search_params == '{"q":"\\u0000ç"}'.encode()


def test_succeed__again__replaces_the_answer_and_keeps_the_birthday(table: Face) -> None:
    table.keep(coverage=b"{}", fetch_duration_ms=7)
    table.clock.now += 60
    table.keep(results=b"[]", total_results=0, sources=[])
    entry = table.entry()
    assert (entry.results, entry.total_results, entry.sources) == (b"[]", 0, ())
    assert (entry.created_at, entry.fetched_at) == (START, START + 60)
    assert (entry.coverage, entry.fetch_duration_ms) == (None, None)


def test_read_shared__several_users__is_the_freshest_with_a_value(table: Face) -> None:
    table.keep("a", results=b"1")
    table.clock.now += 1
    table.keep("b", results=b"2")
    table.clock.now += 1
    table.fail(HASH, None, "c", HASH)
    assert table.read_shared(HASH).user_id == "b"


@pytest.mark.parametrize(("streak", "minutes"), [(1, 1), (2, 5), (3, 15), (4, 30), (7, 30)])
def test_fail__so_often__backs_off_so_long(table: Face, streak: int, minutes: int) -> None:
    table.keep()
    for _ in range(streak):
        health = table.fail(HASH, None, USER, HASH)
    assert health == Health(streak, START + minutes * 60, START)
    entry = table.entry()
    assert (entry.fail_streak, entry.degraded_until) == health[:2]


def test_fail__after_a_success__leaves_the_answer_alone(table: Face) -> None:
    table.keep()
    table.clock.now += 5
    table.fail(HASH, None, USER, HASH)
    entry = table.entry()
    assert (entry.results, entry.sources, entry.last_success_at) == (b"[1, 2]", ("pncp", "pcp"), START)
    assert (entry.fetched_at, entry.last_attempt_at, entry.has_value) == (START, START + 5, True)


def test_fail__before_the_first_success__is_remembered_without_a_value(table: Face) -> None:
    table.fail(HASH, None, USER, HASH, PARAMS)
    entry = table.entry()
    assert (entry.has_value, entry.fail_streak, entry.search_params) == (False, 1, PARAMS)
    assert (entry.results, entry.sources, entry.last_success_at) == (b"null", (), None)
    assert table.read_shared(HASH) is None
    table.keep()
    assert table.entry().has_value
    assert table.entry().fail_streak == 0


def test_fail__key_of_all_users__hurts_all_their_rows_and_a_success_heals_them(table: Face) -> None:
    table.keep("a")
    table.keep("b")
    table.clock.now += 1
    table.fail(HASH, None, "c", HASH)
    assert [table.entry(user).fail_streak for user in "abc"] == [1, 1, 1]
    table.clock.now += 1
    table.keep("a")
    assert [table.entry(user).fail_streak for user in "abc"] == [0, 0, 0]
    assert [table.entry(user).degraded_until for user in "abc"] == [None] * 3
    assert [table.entry(user).last_attempt_at for user in "abc"] == [START + 2] * 3
    assert [table.entry(user).last_success_at for user in "abc"] == [START + 2, START, None]


def test_fail__key_of_one_user__leaves_the_others_alone(table: Face) -> None:
    table.keep("a", key="a:h")
    table.keep("b", key="b:h")
    table.fail("a:h", None, "a", HASH)
    assert [table.entry(user).fail_streak for user in "ab"] == [1, 0]
    assert table.claim("b:h", "me", 10).granted
    assert not table.claim("a:h", "me", 10).granted
    table.keep("b", key="b:h")
    assert table.entry("a").fail_streak == 1


def test_look__key_nobody_knows__says_so(table: Face) -> None:
    assert table.look(HASH) == Claim(False, 0, None, "", None, 0, None, 0.0)


def test_claim__free_key__is_granted_for_so_long(table: Face) -> None:
    claim = table.claim(HASH, "me", 30)
    assert claim.granted
    assert claim == Claim(True, claim.token, START + 30, "me", None, 0, None, START)
    assert table.look(HASH) == claim._replace(granted=False)


def test_claim__lease_runs__is_refused_and_tells_whose_it_is(table: Face) -> None:
    first = table.claim(HASH, "me", 30)
    table.clock.now += 29
    refused = table.claim(HASH, "you", 30, forced=True)
    assert refused == first._replace(granted=False, now=START + 29)


def test_claim__lease_over__is_granted_with_a_later_token(table: Face) -> None:
    first = table.claim(HASH, "me", 30)
    table.clock.now += 30
    second = table.claim(HASH, "you", 30)
    assert second.granted
    assert second.token > first.token
    assert second.owner == "you"


def test_claim__clock_set_back__does_not_wait_for_a_lease_of_hours(table: Face) -> None:
    first = table.claim(HASH, "me", 30)
    table.clock.now -= LEASE_SECONDS_MAX + 60
    second = table.claim(HASH, "you", 30)
    assert second.granted
    assert second.token > first.token


def test_claim__clock_set_back__does_not_wait_for_a_backoff_of_hours(table: Face) -> None:
    table.keep()
    for _ in range(4):
        table.fail(HASH, None, USER, HASH)
    assert not table.claim(HASH, "me", 10).granted
    table.clock.now -= 3600
    assert table.look(HASH).degraded_until is None
    assert table.entry().degraded_until is None
    table.mark_due(HASH)
    assert [each.user_id for each in table.due(10, 0)] == [USER]
    assert table.claim(HASH, "me", 10).granted


def test_claim__clock_set_back__does_not_wait_for_a_success_to_come(table: Face) -> None:
    table.keep()
    table.clock.now -= 30  # no more than who waited for the record is behind
    assert not table.claim(HASH, "me", 10, not_within=600).granted
    table.clock.now -= 3600
    assert table.claim(HASH, "me", 10, not_within=600).granted


def test_claim__key_degraded__is_refused_until_then_unless_forced(table: Face) -> None:
    table.fail(HASH, None, USER, HASH)
    table.clock.now += 59
    refused = table.claim(HASH, "me", 10)
    assert not refused.granted
    assert (refused.fail_streak, refused.degraded_until) == (1, START + 60)
    forced = table.claim(HASH, "me", 10, forced=True)
    assert forced.granted
    table.release(HASH, forced.token)
    table.clock.now += 1
    assert table.claim(HASH, "me", 10).granted


def test_claim__just_succeeded__is_refused_for_so_long_unless_forced(table: Face) -> None:
    table.keep()
    table.clock.now += 599
    refused = table.claim(HASH, "me", 10, not_within=600)
    assert not refused.granted
    assert refused.last_success_at == START
    forced = table.claim(HASH, "me", 10, forced=True, not_within=600)
    assert forced.granted
    table.release(HASH, forced.token)
    table.clock.now += 1
    assert table.claim(HASH, "me", 10, not_within=600).granted


def test_claim__many_threads__one_is_granted(database: Database) -> None:
    table = CacheTable(database)
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
    assert [str(number) for number in granted] == [table.look(HASH).owner]


def test_fail__many_coroutines__all_count(database: Database) -> None:
    table = CacheTable(database)

    async def fail_together() -> None:
        await asyncio.gather(*(table.fail_async(HASH, None, USER, HASH) for _ in range(40)))

    asyncio.run(fail_together())
    assert table.look(HASH).fail_streak == 40


def test_renew__latest_token__prolongs_the_lease(table: Face) -> None:
    claim = table.claim(HASH, "me", 10)
    table.clock.now += 11  # late, but nobody came
    assert table.renew(HASH, claim.token, 10)
    assert table.look(HASH).lease_until == START + 21


def test_renew__released_or_replaced__says_no(table: Face) -> None:
    claim = table.claim(HASH, "me", 10)
    table.release(HASH, claim.token)
    assert not table.renew(HASH, claim.token, 10)
    later = table.claim(HASH, "you", 10)
    assert later.granted
    assert not table.renew(HASH, claim.token, 10)
    table.release(HASH, claim.token)
    assert table.look(HASH).lease_until == later.lease_until


def test_succeed__with_the_token__ends_the_lease(table: Face) -> None:
    claim = table.claim(HASH, "me", 10)
    assert table.keep(token=claim.token)
    assert table.look(HASH).lease_until is None
    assert table.look(HASH).last_success_at == START


def test_succeed__replaced_meanwhile__changes_nothing(table: Face) -> None:
    late = table.claim(HASH, "late", 10)
    table.clock.now += 10
    table.fail(HASH, None, "other", HASH)
    later = table.claim(HASH, "next", 10, forced=True)
    assert table.keep(token=later.token, results=b"2")
    before = table.look(HASH)
    assert not table.keep(token=late.token, results=b"1")
    assert table.entry().results == b"2"
    assert table.look(HASH) == before


def test_succeed__replaced_and_no_row_yet__makes_none(table: Face) -> None:
    late = table.claim(HASH, "late", 10)
    table.clock.now += 10
    table.claim(HASH, "next", 10)
    assert not table.keep(token=late.token)
    assert table.read(USER, HASH) is None


def test_fail__replaced_meanwhile__counts_for_nothing(table: Face) -> None:
    late = table.claim(HASH, "late", 10)
    table.clock.now += 10
    later = table.claim(HASH, "next", 10)
    assert table.fail(HASH, late.token, USER, HASH) == Health(0, None, START + 10)
    assert table.read(USER, HASH) is None
    assert table.look(HASH).lease_until == later.lease_until


def test_succeed__without_a_token__leaves_the_lease_of_another(table: Face) -> None:
    claim = table.claim(HASH, "me", 10)
    table.keep()
    assert table.look(HASH).lease_until == claim.lease_until
    assert table.keep(token=claim.token)


def test_fail__with_and_without_the_token__ends_or_leaves_the_lease(table: Face) -> None:
    claim = table.claim(HASH, "me", 10)
    table.fail(HASH, None, USER, HASH)
    assert table.look(HASH).lease_until == claim.lease_until
    assert table.fail(HASH, claim.token, USER, HASH).fail_streak == 2
    assert table.look(HASH).lease_until is None


def test_token__record_forgotten_meanwhile__is_still_later(table: Face) -> None:
    first = table.claim(HASH, "me", 10)
    table.clock.now += 100
    assert table.prune(50) == 1
    second = table.claim(HASH, "you", 10)
    assert second.token > first.token
    assert not table.keep(token=first.token)


def test_touch__some_accesses__are_added_and_rank_the_key(table: Face) -> None:
    table.keep()
    table.touch([(USER, HASH, 2, START - 1), ("nobody", HASH, 5, START)])
    assert (table.entry().access_count, table.entry().priority) == (2, "cold")
    table.touch([(USER, HASH, 1, START), (USER, HASH, 1, START - 5)])
    entry = table.entry()
    assert (entry.access_count, entry.priority, entry.last_accessed_at) == (4, "warm", START)
    table.touch([(USER, HASH, 6, START)])
    assert table.entry().priority == "hot"
    table.touch([])


def test_touch__saved_search__is_never_cold(table: Face) -> None:
    table.keep()
    table.touch([(USER, HASH, 1, START, True)])
    assert table.entry().priority == "warm"
    table.touch([(USER, HASH, 1, START), (USER, HASH, 1, START, None)])
    assert table.entry().priority == "hot"
    table.touch([(USER, HASH, 0, START, False)])
    assert table.entry().priority == "warm"
    table.touch([(USER, HASH, 0, START, True), (USER, HASH, 0, START)])
    assert table.entry().priority == "hot"


def test_touch__hours_without_access__the_count_fades(table: Face) -> None:
    table.keep()
    table.touch([(USER, HASH, 100, START)])
    table.clock.now += DAY // 2
    table.touch([(USER, HASH, 1, table.clock.now)])
    assert table.entry().access_count == 51
    table.clock.now += DAY
    table.touch([(USER, HASH, 1, table.clock.now)])
    assert table.entry().access_count == 1


def test_touch__too_many_at_once__is_refused(table: Face) -> None:
    rows = [(USER, str(number), 1, START) for number in range(TOUCHES_MAX + 1)]
    with pytest.raises(ValueError, match="touches must be at most 500 rows, got 501"):
        table.touch(rows)
    table.touch(rows[1:])


def test_evict__too_many_rows__takes_empty_then_cold_then_warm_then_hot(table: Face) -> None:
    for name, accesses, seen in [("hot", 10, 0), ("warm", 3, 1), ("cold-new", 1, 3), ("cold-old", 1, 2)]:
        table.succeed(name, None, USER, name, PARAMS, b"1", 1, [])
        table.touch([(USER, name, accesses, START + seen)])
    table.fail("empty", None, USER, "empty")
    table.keep("another")
    table.clock.now += 10
    for keep, next_to_go in enumerate(["hot", "warm", "cold-new", "cold-old", "empty"][::-1], -4):
        assert next_to_go in {row.params_hash for row in table.rows(user_id=USER)}
        assert table.evict(USER, -keep) == 1
        assert next_to_go not in {row.params_hash for row in table.rows(user_id=USER)}
    assert table.evict(USER, 0) == 0
    assert table.read("another", HASH) is not None
    with pytest.raises(ValueError, match="keep must be at least 0, got -1"):
        table.evict(USER, -1)


def test_evict__hot_but_not_for_a_day__counts_as_cold(table: Face) -> None:
    table.succeed("once", None, USER, "once", PARAMS, b"1", 1, [])
    table.touch([(USER, "once", 50, START)])
    table.clock.now += DAY
    table.succeed("now", None, USER, "now", PARAMS, b"1", 1, [])
    table.touch([(USER, "now", 1, table.clock.now)])
    assert table.evict(USER, 1) == 1
    assert [row.params_hash for row in table.rows()] == ["now"]


def test_rm__last_row_of_a_key__forgets_its_failures(table: Face) -> None:
    table.keep("a")
    table.fail(HASH, None, "b", HASH)
    assert table.rm("a", HASH)
    assert table.look(HASH).fail_streak == 1
    assert table.rm("b", HASH)
    assert not table.rm("b", HASH)
    assert table.claim(HASH, "me", 10, not_within=600).granted


def test_rm__key_of_one_user__is_named(table: Face) -> None:
    table.fail("a:h", None, "a", HASH)
    table.fail("b:h", None, "b", HASH)
    assert table.rm("a", HASH, "a:h")
    assert (table.look("a:h").fail_streak, table.look("b:h").fail_streak) == (0, 1)


def test_due__hot_and_of_that_age__comes_oldest_first(table: Face) -> None:
    for number, name in enumerate("abc"):
        table.clock.now = START + number
        table.succeed(name, None, USER, name, PARAMS, b"1", 1, [])
        table.touch([(USER, name, 10, table.clock.now)])
    table.keep()
    table.clock.now = START + 101
    assert [row.params_hash for row in table.due(10, 100)] == ["a", "b"]
    assert [row.params_hash for row in table.due(1, 100)] == ["a"]
    [first, _] = table.due(10, 100)
    assert (first.search_params, first.fetched_at, first.wanted) == (PARAMS, START, False)
    table.fail("a", None, USER, "a")
    assert [row.params_hash for row in table.due(10, 100)] == ["b"]


def test_mark_due__cold_key__is_due_until_somebody_tries(table: Face) -> None:
    table.keep("a")
    table.keep("b")
    assert table.mark_due("none") == 0
    assert table.mark_due(HASH, "a") == 1
    assert [(row.user_id, row.wanted) for row in table.due(10, 100)] == [("a", True)]
    assert table.mark_due(HASH) == 2
    table.keep("a")
    assert table.due(10, 100) == []
    table.mark_due(HASH)
    table.fail(HASH, None, "a", HASH)
    table.clock.now += 3600
    assert table.due(10, 7200) == []


def test_mark_due__key_that_just_failed__is_due_at_once(table: Face) -> None:
    table.keep("a")
    table.fail(HASH, None, "a", HASH)
    assert table.due(10, 100) == []
    table.mark_due(HASH)
    assert [(row.user_id, row.wanted) for row in table.due(10, 100)] == [("a", True)]


def test_rows__some__are_listed_freshest_first(table: Face) -> None:
    table.keep("a")
    table.clock.now += 1
    table.keep("b")
    table.fail("other", None, "a", "other")
    assert [row.user_id for row in table.rows(limit=2)] == ["b", "a"]
    assert {row.params_hash for row in table.rows(user_id="a")} == {HASH, "other"}
    assert {row.user_id for row in table.rows(params_hash=HASH)} == {"a", "b"}
    [degraded] = table.rows(degraded=True)
    assert (degraded.params_hash, degraded.has_value, degraded.fail_streak) == ("other", False, 1)
    assert (degraded.priority, degraded.degraded_until, degraded.now) == ("cold", START + 61, START + 1)


def test_figures__empty__are_zero(table: Face) -> None:
    assert table.figures() == {
        "entries": 0,
        "degraded_keys_count": 0,
        "avg_fail_streak": 0.0,
        "max_fail_streak": 0,
        "fetching": 0,
        "priorities": {"hot": 0, "warm": 0, "cold": 0},
        "ages": {"fresh": 0, "stale": 0, "expired": 0, "without_value": 0},
        "last_24_hours": NO_ANSWERS,
    }


def test_figures__keys_of_all_kinds__are_counted(table: Face) -> None:
    for age_hours, name in [(30, "expired"), (7, "stale"), (1, "fresh")]:
        table.clock.now = START - age_hours * 3600
        table.succeed(name, None, USER, name, PARAMS, b"1", 1, [])
    table.clock.now = START
    table.touch([(USER, "fresh", 10, START), (USER, "stale", 3, START)])
    table.claim("fresh", "me", 10)
    table.fail("empty", None, USER, "empty")
    table.fail("empty", None, USER, "empty")
    assert table.figures() == {
        "entries": 4,
        "degraded_keys_count": 1,
        "avg_fail_streak": 0.5,
        "max_fail_streak": 2,
        "fetching": 1,
        "priorities": {"hot": 1, "warm": 1, "cold": 2},
        "ages": {"fresh": 1, "stale": 1, "expired": 1, "without_value": 1},
        "last_24_hours": NO_ANSWERS,
    }


def test_top__keys_of_several_users__are_added_up_the_most_wanted_first(table: Face) -> None:
    for user in ("a", "b"):
        table.keep(user)
    table.succeed("rare", None, "a", "rare", PARAMS, b"1", 1, [])
    table.fail("rare", None, "a", "rare")
    table.touch([("a", HASH, 2, START), ("b", HASH, 3, START), ("a", "rare", 1, START)])
    assert [key[:3] for key in table.top()] == [(HASH, 5, 2), ("rare", 1, 1)]
    assert [key.fail_streak for key in table.top()] == [0, 1]
    assert [key.params_hash for key in table.top(1)] == [HASH]
    assert table.top(1)[0].fetched_at == pytest.approx(START)
    table.clock.now += DAY
    assert [key.accesses for key in table.top()] == [0, 0]


def test_clear__some_at_a_time__leaves_nothing_but_a_fetch_under_way(table: Face) -> None:
    for user in ("a", "b"):
        table.keep(user)
    table.fail("failed", None, "a", "failed")
    table.claim("fetched", "me", 10)
    assert len(table.clear(2)) == 2
    assert len(table.clear(2)) == 1
    assert table.clear(2) == []
    assert table.rows() == []
    assert table.look("failed").fail_streak == 0
    assert table.look("fetched").owner == "me"


def test_prune__old_rows_and_records__go_but_saved_searches(table: Face) -> None:
    table.keep("a")
    table.keep("b")
    table.touch([("b", HASH, 1, START, True)])
    table.clock.now += 100
    table.succeed("new", None, USER, "new", PARAMS, b"1", 1, [])
    assert table.prune(50) == 2
    assert {row.user_id for row in table.rows()} == {"b", USER}
    assert table.look(HASH).token == 0
    assert table.look("new").token > 0


def test_prune__claimed_and_given_back__goes(table: Face) -> None:
    claim = table.claim(HASH, "me", 10)
    assert table.prune(0) == 0
    table.release(HASH, claim.token)
    assert table.prune(50) == 1
    assert table.look(HASH).token == 0


@pytest.mark.parametrize(
    ("verb", "given", "said"),
    [
        ("claim", (HASH, "me", 0), "lease_seconds must be 0.001 to 3600 seconds, got 0"),
        ("claim", (HASH, "me", float("nan")), "lease_seconds must be 0.001 to 3600 seconds, got nan"),
        ("renew", (HASH, 1, 3601), "lease_seconds must be 0.001 to 3600 seconds, got 3601"),
        ("due", (0, 1), "limit must be 1 to 10000, got 0"),
        ("due", (1, -1), r"age must be 0 to 1e\+09 seconds, got -1"),
        ("rows", (10_001,), "limit must be 1 to 10000, got 10001"),
    ],
)
def test_table__number_out_of_range__says_which(
    table: Face, verb: str, given: tuple[Any, ...], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        getattr(table, verb)(*given)


def test_table__no_clock_given__goes_by_the_databases(database: Database) -> None:
    [[now]] = database.read(NOW, {})
    table = CacheTable(database)
    claim = table.claim(HASH, "me", 10)
    assert claim.now == pytest.approx(now, abs=60)
    assert claim.lease_until == pytest.approx(claim.now + 10, abs=0.001)
    [[back]] = database.read(NOW, {"now": START})
    assert back == START


def test_table__many_change_the_same_rows__nobody_meets_in_a_deadlock(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_module, "DEADLOCK_TRIES_MAX", 1)
    table, users = CacheTable(database), [f"user {n}" for n in range(30)]
    for user in users:
        table.succeed(HASH, None, user, HASH, PARAMS, b"1", 1, [])
    verbs: list[Callable[[str], object]] = [
        lambda user: table.touch([(each, HASH, 1, START) for each in sorted(users, key=user.__add__)]),
        lambda _: table.touch([(each, HASH, 1, START) for each in reversed(users)]),
        lambda user: table.fail(HASH, None, user, HASH),
        lambda user: table.succeed(HASH, None, user, HASH, PARAMS, b"1", 1, []),
        lambda _: table.mark_due(HASH),
    ]
    with ThreadPoolExecutor(len(verbs)) as threads:
        done = [threads.submit(verb, user) for user in users for verb in verbs]
    assert [each.exception() for each in done if each.exception()] == []


def test_writes__many_at_once__never_meet_in_a_deadlock(
    postgres: PostgresServer, migrated: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would cost the server a second; run again, they would not be seen here otherwise."""
    monkeypatch.setattr("comporta.database.postgres.DEADLOCK_TRIES_MAX", 1)
    with closing(PostgresDatabase(migrated["postgresql"], timeout=30, connections=8)) as database:
        table, users, names = CacheTable(database), ["a", "b", "c"], [f"{n:064x}" for n in range(6)]

        def touch(user: str, name: str) -> None:
            table.touch([(one, each, 1, 0.0) for one in users for each in (name, *names[:3])])

        writes: list[Callable[[str, str], object]] = [
            lambda user, name: table.succeed(name, None, user, name, b"{}", b"[]", 0, []),
            lambda user, name: table.fail(name, None, user, name),
            lambda user, name: table.evict(user, 2, name),
            lambda user, name: table.mark_due(name),
            lambda user, name: table.prune(0, 3),
            table.rm,
            touch,
            touch,
        ]

        def work(number: int) -> None:
            chance = random.Random(number)
            for _ in range(40):
                chance.choice(writes)(chance.choice(users), chance.choice(names))

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
