"""B5: what an operator or another program writes into ``search_results_cache`` counts."""

from __future__ import annotations

import pytest
from tests.cache.conftest import MakeCache
from tests.cache.harness import FakeSource

from comporta.cache.params import hash_params
from comporta.database.base import Database, Statement
from comporta.errors import CacheUnavailableError
from comporta.testing import ManualClock

Q = {"q": "x"}
HASH = hash_params(Q)[0]
INSERT = Statement(
    "INSERT INTO search_results_cache (id, user_id, params_hash, search_params, results, degraded_until)"
    " VALUES (NEW_ID(), 'ana', :hash, JSON('{}'), JSON('[]'), AT(:until))"
)
EXPIRE = Statement("UPDATE search_results_cache SET fetched_at = AT(0)")


def set_backoff(database: Database, until: float | None, streak: int = 0, user: str = "ana") -> None:
    backoff = "NULL" if until is None else "AT(:until)"
    text = f"UPDATE search_results_cache SET degraded_until = {backoff}, fail_streak = :streak"  # noqa: S608
    database.write(
        [Statement(f"{text} WHERE user_id = :user")], {"until": until, "streak": streak, "user": user}
    )


@pytest.mark.parametrize("scope", ["params", "user"])
def test_is_degraded__degraded_until_set_by_hand__is_true_until_then(
    make_cache: MakeCache, source: FakeSource, database: Database, clock: ManualClock, scope: str
) -> None:
    cache = make_cache(scope=scope)
    cache.fetch(Q, source)
    assert not cache.is_cache_key_degraded("ana", HASH)
    set_backoff(database, clock.now_ns() / 1e9 + 300)
    assert cache.is_cache_key_degraded("ana", HASH)
    assert cache.is_cache_key_degraded("bob", HASH) == (scope == "params")
    clock.advance(301)
    assert not cache.is_cache_key_degraded("ana", HASH)


def test_is_degraded__row_was_written_by_another_program__is_true(
    make_cache: MakeCache, source: FakeSource, database: Database, clock: ManualClock
) -> None:
    until = clock.now_ns() / 1e9 + 60
    database.write([INSERT, EXPIRE], {"hash": HASH, "until": until})
    cache = make_cache()
    assert cache.is_cache_key_degraded("ana", HASH)
    with pytest.raises(CacheUnavailableError) as refused:
        cache.fetch(Q, source)
    assert refused.value.retry_after == pytest.approx(60, abs=0.01)
    assert cache.fetch(Q, source, force=True).value == ["a"]


@pytest.mark.parametrize(("streak", "minutes"), [(0, 1), (1, 5), (2, 15), (3, 30), (9, 30)])
def test_record_failure__streak_set_by_hand__continues_it(
    make_cache: MakeCache, database: Database, clock: ManualClock, streak: int, minutes: int
) -> None:
    cache = make_cache()
    cache.save_to_cache("ana", Q, ["a"])
    set_backoff(database, clock.now_ns() / 1e9 + 60, streak)
    for user, more, seconds in (("ana", 1, minutes * 60), ("bob", 2, None)):
        health = cache.record_cache_fetch_failure(user, HASH)
        assert health.fail_streak == streak + more
        assert seconds is None or health.degraded_until - health.now == pytest.approx(seconds, abs=0.01)
    assert cache.row(HASH).fail_streak == streak + 2


def test_is_degraded__cleared_by_hand__is_false_and_fetch_loads(
    make_cache: MakeCache, source: FakeSource, database: Database
) -> None:
    cache = make_cache()
    for user in ("ana", "bob"):
        cache.record_cache_fetch_failure(user, Q)
    set_backoff(database, None)
    assert cache.is_cache_key_degraded("ana", Q)  # the row of the other user still says so
    set_backoff(database, None, user="bob")
    assert not cache.is_cache_key_degraded("ana", Q)
    assert cache.fetch(Q, source).value == ["a"]


def test_is_degraded__row_of_the_failure_was_removed__is_still_true(
    make_cache: MakeCache, source: FakeSource, database: Database
) -> None:
    cache = make_cache()
    cache.record_cache_fetch_failure("ana", Q)
    database.write([Statement("DELETE FROM search_results_cache")], {})
    assert cache.is_cache_key_degraded("ana", Q)
    with pytest.raises(CacheUnavailableError):
        cache.fetch(Q, source)


def test_fetch__stale_result_in_backoff_is_cleared_by_hand__refreshes_within_a_second(
    make_cache: MakeCache, source: FakeSource, database: Database, clock: ManualClock
) -> None:
    cache = make_cache()
    cache.fetch(Q, source)
    clock.advance(101)
    source.error = OSError("down")
    cache.fetch(Q, source)
    cache.settle()
    assert cache.fetch(Q, source).next_retry == pytest.approx(60, abs=0.01)
    assert source.calls == 2
    source.error, source.value = None, ["new"]
    set_backoff(database, None)
    clock.advance(1)
    cache.fetch(Q, source)
    cache.settle()
    assert cache.fetch(Q, source).value == ["new"]


def test_fetch__stale_result_put_into_backoff_by_hand__shows_it_within_a_second(
    make_cache: MakeCache, source: FakeSource, database: Database, clock: ManualClock
) -> None:
    cache = make_cache(breaker_open=lambda: True)  # so that nothing refreshes it
    cache.fetch(Q, source)
    clock.advance(101)
    assert cache.fetch(Q, source).next_retry is None
    set_backoff(database, clock.now_ns() / 1e9 + 300, streak=2)
    clock.advance(1)
    result = cache.fetch(Q, source)
    assert result.next_retry == pytest.approx(299, abs=0.01)
    assert result.fail_streak == 2
    set_backoff(database, None)
    clock.advance(1)
    assert cache.fetch(Q, source).next_retry is None
