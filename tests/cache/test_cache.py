"""What a cache does with what is fresh, stale, missing or failing: on both databases, through both faces."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cache.conftest import Make
from tests.cache.faces import Source

from comporta import CacheUnavailableError, CircuitOpenError, Coverage, Loaded
from comporta.database.base import Statement
from comporta.events import latest_events
from comporta.testing import ManualClock

Q = {"ufs": ["SP", "RJ"], "q": "x"}
HALF = {"succeeded_ufs": ["SP"], "failed_ufs": ["RJ"], "total_requested": 2}


def test_fetch__miss__is_loaded_once_and_kept_with_all_six_fields(
    make: Make, source: Source, clock: ManualClock
) -> None:
    cache = make()
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


def test_fetch__another_worker_and_another_user__find_it_in_the_table(
    make: Make, source: Source, clock: ManualClock
) -> None:
    make().fetch(Q, source)
    clock.advance(10)
    found = make().fetch(Q, source, user="bob")
    assert (found.source, found.age, found.user_id, source.calls) == ("database", 10, "ana", 1)


def test_fetch__users_kept_apart__each_has_its_own(make: Make, source: Source) -> None:
    cache = make(scope="user")
    cache.fetch(Q, source)
    assert cache.fetch(Q, source).source == "memory"
    assert cache.fetch(Q, source, user="bob").source == "origin"
    assert source.calls == 2


def test_fetch__stale__is_served_at_once_and_refreshed_behind(
    make: Make, source: Source, clock: ManualClock
) -> None:
    cache = make()
    cache.fetch(Q, source)
    clock.advance(150)
    source.value = ["b"]
    source.go.clear()
    stale = cache.fetch(Q, source)
    assert (stale.value, stale.freshness, stale.age) == (["a"], "stale", 150)
    assert cache.fetch(Q, source).source == "memory"
    source.go.set()
    cache.settle()
    fresh = cache.fetch(Q, source)
    assert (fresh.value, fresh.freshness, source.calls) == (["b"], "fresh", 2)


def test_fetch__stale_in_two_workers__one_refreshes(make: Make, source: Source, clock: ManualClock) -> None:
    one, two = make(), make()
    one.fetch(Q, source)
    clock.advance(150)
    source.go.clear()
    assert one.fetch(Q, source).freshness == "stale"
    one.wait_for(lambda: source.calls == 2)
    assert two.fetch(Q, source).freshness == "stale"
    two.settle()
    source.go.set()
    one.settle()
    assert source.calls == 2


def test_fetch__refresh_fails__stale_is_served_and_nobody_tries_until_told(
    make: Make, source: Source, clock: ManualClock
) -> None:
    one, two = make(), make()
    one.fetch(Q, source)
    clock.advance(150)
    source.error = OSError("down")
    for streak, seconds in ((1, 60), (2, 300)):
        assert one.fetch(Q, source).value == ["a"]
        one.settle()
        assert source.calls == 1 + streak
        for cache in (one, two, one):
            found = cache.fetch(Q, source)
            assert (found.freshness, found.next_retry) == ("stale", seconds)
        one.settle()
        assert source.calls == 1 + streak
        row = one.row(found.params_hash)
        assert (row.fail_streak, row.results) == (streak, b'["a"]')
        clock.advance(seconds)
    source.error = None
    one.fetch(Q, source)
    one.settle()
    assert one.fetch(Q, source).freshness == "fresh"
    assert one.row(found.params_hash).fail_streak == 0
    assert [event.kind for event in latest_events()].count("cache_fetch_failed") == 2


def test_fetch__nothing_and_failing__is_refused_without_asking_the_source(
    make: Make, source: Source, clock: ManualClock
) -> None:
    source.error = OSError("down")
    with pytest.raises(OSError, match="down"):
        make().fetch(Q, source)
    clock.advance(20)
    for user in ("ana", "bob"):
        with pytest.raises(CacheUnavailableError, match="tried again in 40 s") as refused:
            make().fetch(Q, source, user=user)
        assert refused.value.retry_after == 40
    assert source.calls == 1
    clock.advance(41)
    source.error = None
    assert make().fetch(Q, source).value == ["a"]


def test_fetch__expired__is_a_miss(make: Make, source: Source, clock: ManualClock) -> None:
    cache = make()
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


def test_fetch__forced__asks_though_it_is_fresh_or_left_alone(
    make: Make, source: Source, clock: ManualClock
) -> None:
    cache = make()
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


def test_fetch__refreshed_lately__is_not_refreshed_again(
    make: Make, source: Source, clock: ManualClock
) -> None:
    cache = make(fresh=10, refresh_every=600)
    cache.fetch(Q, source)
    clock.advance(11)
    cache.fetch(Q, source)
    cache.settle()
    assert source.calls == 2  # what is fresh for less than that needs it sooner
    other = make(fresh=5, refresh_every=10)
    clock.advance(6)
    other.fetch(Q, source)
    other.settle()
    assert source.calls == 3


def test_fetch__source_refuses__is_not_held_against_the_key(make: Make, source: Source) -> None:
    source.error = CircuitOpenError("pncp", "down", None, 3.0)
    for _ in range(2):
        with pytest.raises(CircuitOpenError):
            make().fetch(Q, source)
    assert source.calls == 2
    assert not make().is_cache_key_degraded("ana", Q)


def test_fetch__value_that_json_cannot_say__is_an_error_and_no_failure(make: Make, source: Source) -> None:
    source.value = object()
    cache = make()
    for _ in range(2):
        with pytest.raises(TypeError, match="a value to keep must be what JSON can say"):
            cache.fetch(Q, source)
    assert source.calls == 2


def test_fetch__slower_than_allowed__is_a_failure(make: Make, source: Source) -> None:
    source.go.clear()
    cache = make(refresh_timeout=0.05)
    with pytest.raises(TimeoutError):
        cache.fetch(Q, source)
    source.go.set()
    assert cache.is_cache_key_degraded("ana", Q)


def test_fetch__slower_than_one_likes__stale_is_served_and_the_load_goes_on(
    make: Make, source: Source, clock: ManualClock
) -> None:
    cache = make(soft_timeout=0.01)
    cache.fetch(Q, source)
    source.value = ["b"]
    clock.advance(150)
    source.go.clear()
    assert cache.fetch(Q, source).value == ["a"]
    assert cache.fetch(Q, source, force=True).value == ["a"]
    source.go.set()
    cache.settle()
    assert cache.fetch(Q, source).value == ["b"]
    clock.advance(150)
    source.value = ["c"]
    assert cache.fetch(Q, source, soft_timeout=30.0).value == ["c"]
    assert source.calls == 3


def test_fetch__partial_answer__says_so_and_lacks_are_fetched_alone(
    make: Make, source: Source, clock: ManualClock
) -> None:
    cache, asked = make(), []

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


def test_fetch__partial_joined_by_hand__is_as_told(make: Make, clock: ManualClock) -> None:
    cache = make()

    def load(missing: list[str] | None = None) -> Any:
        return Loaded("sp", HALF) if missing is None else "rj"

    cache.fetch(Q, load)
    clock.advance(60)
    cache.fetch(Q, load)
    cache.settle()
    assert cache.fetch(Q, load).value == "sp"
    cache.fetch(Q, load, force=True, merge=lambda old, new: f"{old}+{new}")
    assert cache.fetch(Q, load).value == "sp+rj"


def test_fetch__less_than_there_is__does_not_take_its_place(
    make: Make, source: Source, clock: ManualClock
) -> None:
    cache = make()
    cache.fetch(Q, source)
    clock.advance(150)
    source.value = Loaded(["half"], HALF)
    found = cache.fetch(Q, source, force=True)
    assert (found.value, found.freshness, found.next_retry) == (["a"], "stale", 60)
    assert cache.row(found.params_hash).fail_streak == 1
    clock.advance(900)
    assert cache.fetch(Q, source).value == ["half"]  # the whole one is no longer usable


def test_fetch__too_many_refreshes__wait_for_another_call(
    make: Make, source: Source, clock: ManualClock
) -> None:
    cache, other = make(refreshes_max=1), Source()
    cache.fetch({"q": 1}, source)
    cache.fetch({"q": 2}, other)
    clock.advance(150)
    source.go.clear()
    cache.fetch({"q": 1}, source)
    cache.wait_for(lambda: source.calls == 2)
    assert cache.fetch({"q": 2}, other).freshness == "stale"
    source.go.set()
    cache.settle()
    assert (source.calls, other.calls) == (2, 1)
    clock.advance(1)
    cache.fetch({"q": 2}, other)
    cache.settle()
    assert other.calls == 2


def test_fetch__breaker_open__refreshes_nothing(make: Make, source: Source, clock: ManualClock) -> None:
    cache = make(breaker_open=lambda: True)
    cache.fetch(Q, source)
    clock.advance(150)
    assert cache.fetch(Q, source).freshness == "stale"
    cache.settle()
    assert source.calls == 1


def test_fetch__late_fetcher__cannot_write_over_its_successor(
    make: Make, source: Source, clock: ManualClock
) -> None:
    one, two, quick = make(), make(), Source(["new"])
    one.fetch(Q, source)
    clock.advance(150)
    source.value = ["late"]
    source.go.clear()
    one.fetch(Q, source)
    one.wait_for(lambda: source.calls == 2)
    clock.advance(11)  # the turn ends by its deadline
    assert two.fetch(Q, quick, force=True).value == ["new"]
    source.go.set()
    one.settle()
    assert one.row(two.fetch(Q, quick).params_hash).results == b'["new"]'
    assert one.fetch(Q, source).value == ["new"]


def test_fetch__more_than_a_user_may_keep__cold_go_first(
    make: Make, source: Source, clock: ManualClock
) -> None:
    cache = make(entries_per_user=2)
    names = []
    for n in range(4):
        clock.advance(1)
        names.append(cache.fetch({"q": n}, source).params_hash)
        if n == 0:
            for _ in range(12):
                cache.fetch({"q": 0}, source)
            cache.flush()
    kept = [n for n, name in enumerate(names) if cache.cache._asking._table.read("ana", name) is not None]
    assert kept == [0, 3]


def test_fetch__hits__are_counted_in_batches(make: Make, source: Source) -> None:
    cache = make()
    name = cache.fetch(Q, source).params_hash
    for _ in range(9):
        cache.fetch(Q, source, saved=True)
    assert cache.row(name).access_count == 0
    cache.flush()
    row = cache.row(name)
    assert (row.access_count, row.priority) == (9, "hot")


def test_fetch__hot_and_soon_stale__is_refreshed_ahead(
    make: Make, source: Source, clock: ManualClock
) -> None:
    cache = make()
    cache.fetch(Q, source)
    for _ in range(12):
        cache.fetch(Q, source)
    cache.flush()
    clock.advance(95)
    other = make()
    found = other.fetch(Q, source)
    assert (found.freshness, found.priority) == ("fresh", "hot")
    other.settle()
    assert source.calls == 2


def test_refresh_due__marked_and_hot__are_refreshed(make: Make, source: Source, clock: ManualClock) -> None:
    cache, asked = make(refreshes_max=1), []
    for n in range(3):
        name = cache.fetch({"q": n}, source).params_hash
        cache.cache._asking._table.mark_due(name)

    def load(params: dict[str, Any]) -> Any:
        asked.append(params["q"])
        return ["new"]

    assert cache.refresh_due(load) == 3
    assert sorted(asked) == [0, 1, 2]
    assert cache.fetch({"q": 1}, source).value == ["new"]
    assert cache.refresh_due(load) == 0


def test_figures__some_keys__are_told(make: Make, source: Source, clock: ManualClock) -> None:
    cache = make()
    cache.fetch(Q, source)
    for _ in range(3):
        cache.fetch(Q, source)
    cache.record_cache_fetch_failure("ana", {"q": 2})
    cache.flush()
    figures = cache.figures()
    assert (figures["degraded_keys_count"], figures["avg_fail_streak"]) == (1, 0.5)
    assert figures["ages"]["fresh"] == 1
    assert figures["last_24_hours"] == {"answers": 4, "hit_rate": 0.75, "stale_rate": 0, "miss_rate": 0.25}
    assert figures["memory"] == {"entries": 1, "loading": 0}
    assert figures["unreadable"] is None


def test_figures__several_workers__are_those_of_all_in_a_day(
    make: Make, source: Source, clock: ManualClock
) -> None:
    one, two = make(), make()
    one.fetch(Q, source)
    for _ in range(3):
        two.fetch(Q, source)
    one.flush()
    two.flush()
    want = {"answers": 4, "hit_rate": 0.75, "stale_rate": 0, "miss_rate": 0.25}
    assert one.figures()["last_24_hours"] == two.figures()["last_24_hours"] == want
    clock.advance(23 * 3600)
    assert make().figures()["last_24_hours"]["answers"] == 4
    clock.advance(2 * 3600)
    assert one.figures()["last_24_hours"]["answers"] == 0
    one.fetch({"q": "other"}, source)
    one.flush()
    assert one.figures()["last_24_hours"]["miss_rate"] == 1
    [[hours]] = one.cache._asking.database.read(Statement("SELECT COUNT(*) FROM search_cache_answers"), {})
    assert hours == 1
