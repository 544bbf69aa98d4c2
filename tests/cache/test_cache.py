"""What ``fetch`` does with fresh, stale, missing and failing keys: on both databases, async and blocking."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.cache.conftest import MakeCache
from tests.cache.harness import FakeSource

from comporta import CacheUnavailableError, CircuitOpenError, Coverage, Loaded
from comporta.database.base import Statement
from comporta.events import latest_events
from comporta.testing import ManualClock

Q = {"ufs": ["SP", "RJ"], "q": "x"}
HALF = {"succeeded_ufs": ["SP"], "failed_ufs": ["RJ"], "total_requested": 2}


def test_fetch__miss__loads_once_and_stores_all_six_fields(
    make_cache: MakeCache, source: FakeSource, clock: ManualClock
) -> None:
    cache = make_cache()
    first = cache.fetch(Q, source)
    assert (first.value, first.freshness, first.source, first.next_retry) == (["a"], "fresh", "origin", None)
    clock.advance(7)
    again = cache.fetch(Q, source)
    assert (again.value, again.source, again.age) == (["a"], "memory", 7)
    assert source.calls == 1
    row = cache.row(first.params_hash)
    assert (row.last_success_at, row.last_attempt_at) == (first.fetched_at, first.fetched_at)
    assert (row.fail_streak, row.degraded_until, row.total_results, row.fetch_duration_ms) == (0, None, 1, 0)
    assert row.search_params == b'{"q":"x","ufs":["SP","RJ"]}'


def test_fetch__load_takes_a_second_and_a_half__stores_duration_and_coverage(
    make_cache: MakeCache, clock: ManualClock
) -> None:
    cache = make_cache()

    def load() -> Loaded:
        clock.advance(1.5)
        return Loaded(["sp"], HALF, ["pncp"])

    row = cache.row(cache.fetch(Q, load).params_hash)
    assert row.fetch_duration_ms == 1500
    assert row.coverage is not None
    assert json.loads(row.coverage) == HALF
    assert (row.fail_streak, row.degraded_until) == (0, None)
    assert row.last_success_at == row.last_attempt_at


def test_fetch__another_worker_and_user__reads_it_from_the_database(
    make_cache: MakeCache, source: FakeSource, clock: ManualClock
) -> None:
    make_cache().fetch(Q, source)
    clock.advance(10)
    result = make_cache().fetch(Q, source, user="bob")
    assert (result.source, result.age, result.user_id, source.calls) == ("database", 10, "ana", 1)


def test_fetch__scope_user__loads_once_per_user(make_cache: MakeCache, source: FakeSource) -> None:
    cache = make_cache(scope="user")
    cache.fetch(Q, source)
    assert cache.fetch(Q, source).source == "memory"
    assert cache.fetch(Q, source, user="bob").source == "origin"
    assert source.calls == 2


def test_fetch__stale__is_served_immediately_and_refreshed_in_background(
    make_cache: MakeCache, source: FakeSource, clock: ManualClock
) -> None:
    cache = make_cache()
    cache.fetch(Q, source)
    clock.advance(150)
    source.value = ["b"]
    source.may_return.clear()
    stale = cache.fetch(Q, source)
    assert (stale.value, stale.freshness, stale.age) == (["a"], "stale", 150)
    assert cache.fetch(Q, source).source == "memory"
    source.may_return.set()
    cache.settle()
    fresh = cache.fetch(Q, source)
    assert (fresh.value, fresh.freshness, source.calls) == (["b"], "fresh", 2)


def test_fetch__refresh_loader__loads_only_behind_a_cached_result(
    make_cache: MakeCache, source: FakeSource, clock: ManualClock
) -> None:
    cache = make_cache()
    assert cache.fetch(Q, source, refresh_loader=lambda: ["refreshed"]).value == ["a"]
    clock.advance(150)
    assert cache.fetch(Q, source, refresh_loader=lambda: ["refreshed"]).value == ["a"]
    cache.settle()
    assert cache.fetch(Q, source).value == ["refreshed"]
    assert source.calls == 1


def test_fetch__stale_in_two_workers__one_worker_refreshes(
    make_cache: MakeCache, source: FakeSource, clock: ManualClock
) -> None:
    one, two = make_cache(), make_cache()
    one.fetch(Q, source)
    clock.advance(150)
    source.may_return.clear()
    assert one.fetch(Q, source).freshness == "stale"
    one.wait_for(lambda: source.calls == 2)
    assert two.fetch(Q, source).freshness == "stale"
    two.settle()
    source.may_return.set()
    one.settle()
    assert source.calls == 2


def test_fetch__refresh_fails__serves_stale_and_no_worker_retries_in_backoff(
    make_cache: MakeCache, source: FakeSource, clock: ManualClock
) -> None:
    one, two = make_cache(), make_cache()
    one.fetch(Q, source)
    clock.advance(150)
    source.error = OSError("down")
    for streak, seconds in ((1, 60), (2, 300)):
        assert one.fetch(Q, source).value == ["a"]
        one.settle()
        assert source.calls == 1 + streak
        for cache in (one, two, one):
            result = cache.fetch(Q, source)
            assert (result.freshness, result.next_retry) == ("stale", seconds)
        one.settle()
        assert source.calls == 1 + streak
        row = one.row(result.params_hash)
        assert (row.fail_streak, row.results) == (streak, b'["a"]')
        clock.advance(seconds)
    source.error = None
    one.fetch(Q, source)
    one.settle()
    assert one.fetch(Q, source).freshness == "fresh"
    assert one.row(result.params_hash).fail_streak == 0
    assert [event.kind for event in latest_events()].count("cache_fetch_failed") == 2


def test_fetch__empty_and_failing__raises_without_calling_the_source(
    make_cache: MakeCache, source: FakeSource, clock: ManualClock
) -> None:
    source.error = OSError("down")
    with pytest.raises(OSError, match="down"):
        make_cache().fetch(Q, source)
    clock.advance(20)
    for user in ("ana", "bob"):
        with pytest.raises(CacheUnavailableError, match="tried again in 40 s") as refused:
            make_cache().fetch(Q, source, user=user)
        assert refused.value.retry_after == 40
    assert source.calls == 1
    clock.advance(41)
    source.error = None
    assert make_cache().fetch(Q, source).value == ["a"]


def test_fetch__empty_and_failing__the_refusal_has_the_error_of_the_source_as_its_cause(
    make_cache: MakeCache, source: FakeSource
) -> None:
    source.error = PermissionError(13, "denied", "/portal")
    cache = make_cache()
    with pytest.raises(PermissionError):
        cache.fetch(Q, source)
    for _ in range(2):
        with pytest.raises(CacheUnavailableError) as refused:
            cache.fetch(Q, source)
        cause = refused.value.__cause__
        assert isinstance(cause, PermissionError)
        assert (cause.errno, str(cause)) == (13, str(source.error))
        assert cause.__traceback__ is None
    with pytest.raises(CacheUnavailableError) as elsewhere:
        make_cache().fetch(Q, source)
    assert elsewhere.value.__cause__ is None


def test_fetch__expired__is_a_miss(make_cache: MakeCache, source: FakeSource, clock: ManualClock) -> None:
    cache = make_cache()
    cache.fetch(Q, source)
    clock.advance(1000)
    source.value = ["b"]
    assert cache.fetch(Q, source).value == ["b"]
    source.error = OSError("down")
    clock.advance(1000)
    with pytest.raises(OSError, match="down"):
        cache.fetch(Q, source)
    old = cache.get_from_cache("ana", Q)
    assert (old.freshness, old.value, old.fail_streak) == ("expired", ["b"], 1)


def test_fetch__forced__loads_although_fresh_or_in_backoff(
    make_cache: MakeCache, source: FakeSource, clock: ManualClock
) -> None:
    cache = make_cache()
    cache.fetch(Q, source)
    source.value = ["b"]
    assert cache.fetch(Q, source, force=True).value == ["b"]
    source.error = OSError("down")
    clock.advance(1)
    served = cache.fetch(Q, source, force=True)
    assert (served.value, served.next_retry) == (["b"], 60)
    source.error = None
    assert cache.fetch(Q, source, force=True).source == "origin"
    assert source.calls == 4


def test_fetch__refreshed_recently__is_not_refreshed_again(
    make_cache: MakeCache, source: FakeSource, clock: ManualClock
) -> None:
    cache = make_cache(fresh=10, refresh_every=600)
    cache.fetch(Q, source)
    clock.advance(11)
    cache.fetch(Q, source)
    cache.settle()
    assert source.calls == 2  # a fresh time shorter than refresh_every allows an earlier refresh
    other = make_cache(fresh=5, refresh_every=10)
    clock.advance(6)
    other.fetch(Q, source)
    other.settle()
    assert source.calls == 3


def test_fetch__loader_raises_refused_error__does_not_degrade_the_key(
    make_cache: MakeCache, source: FakeSource
) -> None:
    source.error = CircuitOpenError("pncp", "down", None, 3.0)
    for _ in range(2):
        with pytest.raises(CircuitOpenError):
            make_cache().fetch(Q, source)
    assert source.calls == 2
    assert not make_cache().is_cache_key_degraded("ana", Q)


def test_fetch__value_not_serializable__raises_without_counting_a_failure(
    make_cache: MakeCache, source: FakeSource
) -> None:
    source.value = object()
    cache = make_cache()
    for _ in range(2):
        with pytest.raises(TypeError, match="a cached value must be JSON serializable"):
            cache.fetch(Q, source)
    assert source.calls == 2


def test_fetch__slower_than_refresh_timeout__counts_as_a_failure(
    make_cache: MakeCache, source: FakeSource
) -> None:
    source.may_return.clear()
    cache = make_cache(refresh_timeout=0.05)
    with pytest.raises(TimeoutError):
        cache.fetch(Q, source)
    source.may_return.set()
    assert cache.is_cache_key_degraded("ana", Q)


def test_fetch__slower_than_soft_timeout__serves_stale_and_load_continues(
    make_cache: MakeCache, source: FakeSource, clock: ManualClock
) -> None:
    cache = make_cache(soft_timeout=0.01)
    cache.fetch(Q, source)
    source.value = ["b"]
    clock.advance(150)
    source.may_return.clear()
    assert cache.fetch(Q, source).value == ["a"]
    assert cache.fetch(Q, source, force=True).value == ["a"]
    source.may_return.set()
    cache.settle()
    assert cache.fetch(Q, source).value == ["b"]
    clock.advance(150)
    source.value = ["c"]
    assert cache.fetch(Q, source, soft_timeout=30.0).value == ["c"]
    assert source.calls == 3


def test_fetch__partial_result__reports_coverage_and_loads_only_missing_units(
    make_cache: MakeCache, source: FakeSource, clock: ManualClock
) -> None:
    cache, asked = make_cache(), []

    def load(missing: list[str] | None = None) -> Any:
        asked.append(missing)
        if missing is None:
            return Loaded(["sp"], HALF, ["pncp"])
        return Loaded(["rj"], None, ["pcp"])

    first = cache.fetch(Q, load)
    assert (str(first.coverage), first.sources) == ("1 of 2", ("pncp",))
    clock.advance(40)
    assert cache.fetch(Q, load).source == "memory"
    clock.advance(20)
    assert cache.fetch(Q, load).value == ["sp"]
    cache.settle()
    whole = cache.fetch(Q, load)
    assert (whole.value, whole.sources, whole.freshness) == (["sp", "rj"], ("pncp", "pcp"), "fresh")
    assert whole.coverage == Coverage(("SP", "RJ"))
    assert asked == [None, ["RJ"]]


def test_fetch__partial_with_merge_function__uses_it(make_cache: MakeCache, clock: ManualClock) -> None:
    cache = make_cache()

    def load(missing: list[str] | None = None) -> Any:
        return Loaded("sp", HALF) if missing is None else "rj"

    cache.fetch(Q, load)
    clock.advance(60)
    cache.fetch(Q, load)
    cache.settle()
    assert cache.fetch(Q, load).value == "sp"
    cache.fetch(Q, load, force=True, merge=lambda old, new: f"{old}+{new}")
    assert cache.fetch(Q, load).value == "sp+rj"


def test_fetch__worse_coverage_than_cached__does_not_replace_it(
    make_cache: MakeCache, source: FakeSource, clock: ManualClock
) -> None:
    cache = make_cache()
    cache.fetch(Q, source)
    clock.advance(150)
    source.value = Loaded(["half"], HALF)
    cached = cache.fetch(Q, source, force=True)
    assert (cached.value, cached.freshness, cached.next_retry) == (["a"], "stale", 60)
    assert cache.row(cached.params_hash).fail_streak == 1
    clock.advance(900)
    assert cache.fetch(Q, source).value == ["half"]  # the complete result is no longer usable


def test_fetch__too_many_refreshes__waits_for_a_later_call(
    make_cache: MakeCache, source: FakeSource, clock: ManualClock
) -> None:
    cache, other = make_cache(refreshes_max=1), FakeSource()
    cache.fetch({"q": 1}, source)
    cache.fetch({"q": 2}, other)
    clock.advance(150)
    source.may_return.clear()
    cache.fetch({"q": 1}, source)
    cache.wait_for(lambda: source.calls == 2)
    assert cache.fetch({"q": 2}, other).freshness == "stale"
    source.may_return.set()
    cache.settle()
    assert (source.calls, other.calls) == (2, 1)
    clock.advance(1)
    cache.fetch({"q": 2}, other)
    cache.settle()
    assert other.calls == 2


def test_fetch__breaker_open__does_not_refresh(
    make_cache: MakeCache, source: FakeSource, clock: ManualClock
) -> None:
    cache = make_cache(breaker_open=lambda: True)
    cache.fetch(Q, source)
    clock.advance(150)
    assert cache.fetch(Q, source).freshness == "stale"
    cache.settle()
    assert source.calls == 1


def test_fetch__fetcher_lost_its_lease__cannot_overwrite_its_successor(
    make_cache: MakeCache, source: FakeSource, clock: ManualClock
) -> None:
    one, two, quick = make_cache(), make_cache(), FakeSource(["new"])
    one.fetch(Q, source)
    clock.advance(150)
    source.value = ["late"]
    source.may_return.clear()
    one.fetch(Q, source)
    one.wait_for(lambda: source.calls == 2)
    clock.advance(11)  # the lease expires
    assert two.fetch(Q, quick, force=True).value == ["new"]
    source.may_return.set()
    one.settle()
    assert one.row(two.fetch(Q, quick).params_hash).results == b'["new"]'
    assert one.fetch(Q, source).value == ["new"]


def test_fetch__more_than_entries_per_user__evicts_cold_entries_first(
    make_cache: MakeCache, source: FakeSource, clock: ManualClock
) -> None:
    cache = make_cache(entries_per_user=2)
    names = []
    for n in range(4):
        clock.advance(1)
        names.append(cache.fetch({"q": n}, source).params_hash)
        if n == 0:
            for _ in range(12):
                cache.fetch({"q": 0}, source)
            cache.flush()
    kept = [n for n, name in enumerate(names) if cache.cache._core._tables.read("ana", name) is not None]
    assert kept == [0, 3]


def test_fetch__hits__are_counted_in_batches(make_cache: MakeCache, source: FakeSource) -> None:
    cache = make_cache()
    name = cache.fetch(Q, source).params_hash
    for _ in range(9):
        cache.fetch(Q, source, saved=True)
    assert cache.row(name).access_count == 0
    cache.flush()
    row = cache.row(name)
    assert (row.access_count, row.priority) == (9, "hot")


def test_fetch__hot_and_soon_stale__is_refreshed_ahead(
    make_cache: MakeCache, source: FakeSource, clock: ManualClock
) -> None:
    cache = make_cache()
    cache.fetch(Q, source)
    for _ in range(12):
        cache.fetch(Q, source)
    cache.flush()
    clock.advance(95)
    other = make_cache()
    result = other.fetch(Q, source)
    assert (result.freshness, result.priority) == ("fresh", "hot")
    other.settle()
    assert source.calls == 2


def test_refresh_due__marked_and_hot__are_refreshed(
    make_cache: MakeCache, source: FakeSource, clock: ManualClock
) -> None:
    cache, asked = make_cache(refreshes_max=1), []
    for n in range(3):
        name = cache.fetch({"q": n}, source).params_hash
        cache.cache._core._tables.mark_due(name)

    def load(params: dict[str, Any]) -> Any:
        asked.append(params["q"])
        return ["new"]

    assert cache.refresh_due(load) == 3
    assert sorted(asked) == [0, 1, 2]
    assert cache.fetch({"q": 1}, source).value == ["new"]
    assert cache.refresh_due(load) == 0


def test_stats__some_keys__are_counted(make_cache: MakeCache, source: FakeSource, clock: ManualClock) -> None:
    cache = make_cache()
    cache.fetch(Q, source)
    for _ in range(3):
        cache.fetch(Q, source)
    cache.record_cache_fetch_failure("ana", {"q": 2})
    cache.flush()
    stats = cache.stats()
    assert (stats["degraded_keys_count"], stats["avg_fail_streak"]) == (1, 0.5)
    assert stats["ages"]["fresh"] == 1
    assert stats["last_24_hours"] == {"answers": 4, "hit_rate": 0.75, "stale_rate": 0, "miss_rate": 0.25}
    assert stats["memory"] == {"entries": 1, "loading": 0}
    assert stats["unreadable"] is None


def test_stats__several_workers__sum_the_last_24_hours(
    make_cache: MakeCache, source: FakeSource, clock: ManualClock
) -> None:
    one, two = make_cache(), make_cache()
    one.fetch(Q, source)
    for _ in range(3):
        two.fetch(Q, source)
    one.flush()
    two.flush()
    want = {"answers": 4, "hit_rate": 0.75, "stale_rate": 0, "miss_rate": 0.25}
    assert one.stats()["last_24_hours"] == two.stats()["last_24_hours"] == want
    clock.advance(23 * 3600)
    assert make_cache().stats()["last_24_hours"]["answers"] == 4
    clock.advance(2 * 3600)
    assert one.stats()["last_24_hours"]["answers"] == 0
    one.fetch({"q": "other"}, source)
    one.flush()
    assert one.stats()["last_24_hours"]["miss_rate"] == 1
    [[hours]] = one.cache._core.database.read(Statement("SELECT COUNT(*) FROM search_cache_answers"), {})
    assert hours == 1
