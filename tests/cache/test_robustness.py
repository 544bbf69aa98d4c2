"""A cache stays correct and bounded when loaders, event loops and users misbehave."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import pytest
from tests.cache.conftest import MakeCache
from tests.cache.harness import FakeSource, waiter_count
from tests.support import wait_until

from comporta import HealthCache, Loaded
from comporta.errors import CacheUnavailableError
from comporta.events import latest_events
from comporta.testing import ManualClock

Q = {"q": "x"}


def test_get__hash_contains_another_users_key__raises(make_cache: MakeCache, source: FakeSource) -> None:
    cache = make_cache(scope="user")
    theirs = cache.fetch(Q, source, user="a:b")
    cache.fetch({"q": "other"}, source, user="a")
    with pytest.raises(ValueError, match="params_hash must be 64 digits"):
        cache.get_from_cache("a", f"b:{theirs.params_hash}")


def test_evict__only_hot_entries__keeps_the_one_just_fetched(
    make_cache: MakeCache, source: FakeSource
) -> None:
    cache = make_cache(entries_per_user=2)
    for number in range(2):
        for _ in range(12):
            cache.fetch({"q": number}, source)
    cache.flush()
    new = cache.fetch(Q, source)
    assert cache.row(new.params_hash).has_value
    assert make_cache().fetch(Q, source).source == "database"


@pytest.mark.parametrize("error", [asyncio.CancelledError(), SystemExit(3), StopIteration(), KeyError("x")])
def test_fetch__loader_raises_any_exception__is_called_once(
    make_cache: MakeCache, source: FakeSource, error: BaseException
) -> None:
    cache = make_cache()
    source.error = error
    with pytest.raises(Exception):  # noqa: B017, PT011 - any error; the number of calls matters
        cache.fetch(Q, source)
    with pytest.raises(CacheUnavailableError):
        cache.fetch(Q, source)
    assert source.calls == 1


def test_fetch__loader_cancels_itself__counts_as_a_failure(database_url: str) -> None:
    calls = 0

    async def search() -> list[str]:
        nonlocal calls
        calls += 1
        raise asyncio.CancelledError

    async def main() -> None:
        async with HealthCache(database_url, state="memory://", migrate=True) as cache:
            for _ in range(2):
                with pytest.raises(Exception):  # noqa: B017, PT011 - see above
                    await cache.fetch("ana", Q, search)

    asyncio.run(main())
    assert calls == 1


def test_fetch__loop_of_the_load_was_closed__another_loop_fetches_again(database_url: str) -> None:
    cache = HealthCache(database_url, state="memory://", migrate=True, lease_seconds=0.2)
    references: list[Any] = []

    async def start_load() -> None:
        started = asyncio.Event()

        async def never_returns() -> None:
            references.append(asyncio.get_running_loop().create_future())
            started.set()
            await references[-1]

        references.append(asyncio.create_task(cache.fetch("ana", Q, never_returns)))
        await started.wait()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(start_load())
    loop.close()

    async def load() -> list[str]:
        return ["loaded"]

    async def main() -> Any:
        async with asyncio.timeout(60):
            return (await cache.fetch("ana", Q, load)).value

    assert asyncio.run(main()) == ["loaded"]
    cache.sync.close()


def test_fetch__loop_ended_before_refresh_started__the_next_loop_refreshes(
    database_url: str, clock: ManualClock
) -> None:
    cache = HealthCache(database_url, state="memory://", migrate=True, fresh=100, stale=1000, clock=clock)
    value = "a"

    async def search() -> list[str]:
        return [value]

    async def main() -> list[str]:
        async with asyncio.timeout(60):
            results: list[str] = (await cache.fetch("ana", Q, search)).value
            return results

    assert asyncio.run(main()) == ["a"]
    value = "b"
    clock.advance(150)
    for _ in range(4):
        assert asyncio.run(main()) == ["a"]
        clock.advance(2)
    assert len(cache._core.fetcher.single_flight) == cache._core.fetcher._refresh_count == 0
    clock.advance(1000)
    assert asyncio.run(main()) == ["b"]
    cache.sync.close()


def test_fetch__loop_closed_while_another_thread_waits__that_thread_fetches(
    database_url: str,
) -> None:
    cache = HealthCache(database_url, state="memory://", migrate=True, lease_seconds=0.2)
    loop = asyncio.new_event_loop()
    references: list[Any] = []
    results: list[Any] = []

    async def start_load() -> None:
        started = asyncio.Event()

        async def never_returns() -> None:
            references.append(loop.create_future())
            started.set()
            await references[-1]

        references.append(asyncio.create_task(cache.fetch("ana", Q, never_returns)))
        await started.wait()

    loop.run_until_complete(start_load())
    thread = threading.Thread(target=lambda: results.append(cache.sync.fetch("ana", Q, lambda: ["loaded"])))
    thread.start()
    wait_until(lambda: waiter_count(cache) == 2)
    loop.close()
    thread.join(30)
    assert [result.value for result in results] == [["loaded"]]
    cache.sync.close()


class StoppedLoad:
    """A load whose event loop is stopped before it ends, and can run again."""

    def __init__(self, cache: HealthCache) -> None:
        self.loop = asyncio.new_event_loop()
        self.calls = 0
        self._cache = cache
        self._started = asyncio.Event()
        self._may_return = asyncio.Event()
        self._fetch: asyncio.Task[Any] | None = None
        self.loop.run_until_complete(self._start())

    async def _start(self) -> None:
        self._fetch = asyncio.create_task(self._cache.fetch("ana", Q, self._load))
        await self._started.wait()

    async def _load(self) -> list[str]:
        self.calls += 1
        self._started.set()
        await self._may_return.wait()
        return ["resumed"]

    def resume(self) -> Any:
        async def end() -> Any:
            self._may_return.set()
            assert self._fetch is not None
            return await self._fetch

        return self.loop.run_until_complete(end())


def test_fetch__loop_of_the_load_is_stopped__others_take_over_after_its_lease(database_url: str) -> None:
    config: dict[str, Any] = {"state": "memory://", "migrate": True, "lease_seconds": 0.3}
    cache, elsewhere = HealthCache(database_url, **config), HealthCache(database_url, **config)
    stopped = StoppedLoad(cache)
    assert elsewhere.sync.fetch("ana", Q, lambda: ["elsewhere"]).value == ["elsewhere"]
    assert cache.sync.fetch("ana", Q, lambda: ["here"], force=True).value == ["here"]
    assert stopped.resume().value == ["here"]
    assert cache._core.fetcher._refresh_count == len(cache._core.fetcher.single_flight) == 0
    result = elsewhere.sync.get_from_cache("ana", Q)
    assert result is not None
    stopped.loop.close()
    for each in (cache, elsewhere):
        each.sync.close()


def test_fetch__loop_of_the_load_runs_again_in_time__continues(database_url: str) -> None:
    cache = HealthCache(database_url, state="memory://", migrate=True, lease_seconds=30)
    stopped = StoppedLoad(cache)
    assert stopped.resume().value == ["resumed"]
    assert stopped.calls == 1
    stopped.loop.close()
    cache.sync.close()


def test_refresh__loader_returns_invalid_value__publishes_an_event_and_backs_off(
    make_cache: MakeCache, source: FakeSource, clock: ManualClock
) -> None:
    cache = make_cache()
    cache.fetch(Q, source)
    source.value = object()
    for _ in range(5):
        clock.advance(150 if source.calls == 1 else 2)
        assert cache.fetch(Q, source).value == ["a"]
        cache.settle()
    assert source.calls == 2
    assert any("JSON serializable" in event.text for event in latest_events())


def test_fetch__merge_raises__releases_the_lease(make_cache: MakeCache, clock: ManualClock) -> None:
    cache = make_cache(refresh_every=30)
    covered = {"succeeded_ufs": ["SP"], "failed_ufs": ["RJ"], "total_requested": 2}

    def merge(old: Any, new: Any) -> Any:
        raise KeyError("x")

    cache.fetch(Q, lambda missing=None: Loaded(["SP"], covered), merge=merge)
    clock.advance(40)
    result = cache.fetch(Q, lambda missing=None: ["RJ"], merge=merge)
    cache.settle()
    assert cache.stats()["fetching"] == 0
    assert result.value == ["SP"]


def test_partial__missing_units_keep_failing__age_stays_that_of_the_oldest_part(
    make_cache: MakeCache, clock: ManualClock
) -> None:
    cache = make_cache(fresh=100, stale=1000, refresh_every=30)
    covered = {"succeeded_ufs": ["SP"], "failed_ufs": ["RJ"], "total_requested": 2}
    asked: list[Any] = []

    def search(missing: list[str] | None = None) -> Loaded:
        asked.append(missing)
        if missing is None:
            return Loaded(["SP"], covered)
        return Loaded([], {"succeeded_ufs": [], "failed_ufs": missing})

    cache.fetch(Q, search)
    for _ in range(4):
        clock.advance(31)
        result = cache.fetch(Q, search)
        cache.settle()
    assert (result.age, result.freshness) == (124, "stale")
    assert asked == [None, ["RJ"], ["RJ"], ["RJ"], None]


def test_stats__stale_hit_from_memory__counts_as_stale(
    make_cache: MakeCache, source: FakeSource, clock: ManualClock
) -> None:
    cache = make_cache()
    cache.fetch(Q, source)
    clock.advance(150)
    source.error = OSError("down")
    cache.fetch(Q, source)
    cache.settle()
    for _ in range(8):
        assert cache.fetch(Q, source).freshness == "stale"
    cache.flush()
    rates = cache.stats()["last_24_hours"]
    assert (rates["answers"], rates["stale_rate"], rates["hit_rate"]) == (10, 0.9, 0.0)


def test_fork__child__reads_the_table_before_serving_from_memory(database_url: str) -> None:
    cache = HealthCache(database_url, state="memory://", migrate=True).sync
    cache.fetch("ana", Q, lambda: ["a"])
    pid = os.fork()
    if not pid:
        source = "none"
        try:
            source = cache.fetch("ana", Q, lambda: ["b"]).source
        finally:
            os._exit(0 if source == "database" else 1)
    assert os.waitpid(pid, 0)[1] == 0
    cache.close()


def test_cached__from_the_database__holds_no_second_copy_of_the_body(
    make_cache: MakeCache, source: FakeSource
) -> None:
    source.value = ["x" * 10_000]
    make_cache().fetch({"q": "y" * 5000}, source)
    cache = make_cache(local_bytes=9_000)
    result = cache.fetch({"q": "y" * 5000}, source)
    assert result.source == "database"
    held = [getattr(result, name) for name in type(result).__slots__ if name != "value"]
    assert sum(len(each) for each in held if isinstance(each, bytes | str)) < 1000
    assert cache.stats()["memory"]["entries"] == 0


def test_refresh_due__scope_user__passes_user_id_to_the_loader(
    make_cache: MakeCache, source: FakeSource
) -> None:
    cache = make_cache(scope="user")
    for user in ("ana", "bob"):
        cache.save_to_cache(user, Q, [f"old of {user}"])
    table = cache.cache._core._tables
    entry = cache.get_from_cache("ana", Q)
    assert table.mark_due(entry.params_hash) == 2
    assert cache.refresh_due(lambda params, user_id: [f"new of {user_id}"]) == 2
    assert [cache.get_from_cache(user, Q).value for user in ("ana", "bob")] == [
        ["new of ana"],
        ["new of bob"],
    ]
    with pytest.raises(TypeError, match="user_id"):
        cache.refresh_due(lambda params: ["whose?"])


def test_fetch__second_caller_with_soft_timeout__waits_too(
    make_cache: MakeCache, source: FakeSource, clock: ManualClock
) -> None:
    cache = make_cache(soft_timeout=20.0)
    cache.fetch(Q, source)
    clock.advance(150)
    source.value = ["b"]
    source.called.clear()
    source.may_return.clear()
    results: list[Any] = []
    both = [
        threading.Thread(target=lambda: results.append(cache.cache.sync.fetch("ana", Q, source)))
        for _ in "12"
    ]
    both[0].start()
    assert source.called.wait(60)
    both[1].start()
    both[1].join(0.3)
    source.may_return.set()
    for thread in both:
        thread.join(30)
    assert [one.value for one in results] == [["b"], ["b"]]


def test_prune__unused_rows__are_deleted_after_30_days(
    make_cache: MakeCache, source: FakeSource, clock: ManualClock
) -> None:
    cache = make_cache()
    cache.record_cache_fetch_failure("ana", Q)
    cache.fetch({"q": "saved"}, source, saved=True)
    cache.flush()
    clock.advance(29 * 86_400)
    chores = cache.cache._core._maintenance
    chores._prune_at = chores._flush_at = 0.0
    chores.run_once()
    assert cache.stats()["entries"] == 2
    clock.advance(2 * 86_400)
    chores._prune_at = chores._flush_at = 0.0
    chores.run_once()
    assert cache.stats()["entries"] == 1


def test_prune__more_rows_than_the_batch__continues_on_the_next_run(
    make_cache: MakeCache, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("comporta.cache.maintenance.PRUNE_ROWS_MAX", 1)
    cache = make_cache()
    for number in range(2):
        cache.record_cache_fetch_failure("ana", {"q": number})
    clock.advance(40 * 86_400)
    chores = cache.cache._core._maintenance
    for _ in range(5):  # rows and records of two questions, one at a time, and then nothing
        chores._prune_at = chores._flush_at = 0.0
        chores.run_once()
    assert cache.stats()["entries"] == 0
    assert chores._prune_at > 0


def test_fetch__another_user_unsaves_a_search__owner_keeps_it_saved(
    make_cache: MakeCache, source: FakeSource
) -> None:
    cache = make_cache()
    cache.fetch(Q, source, saved=True)
    cache.fetch(Q, source, user="bob", saved=False)
    cache.flush()
    result = make_cache().get_from_cache("ana", Q)
    assert result.priority == "warm"
    cache.fetch(Q, source, saved=False)
    cache.flush()
    assert make_cache().get_from_cache("ana", Q).priority == "cold"
