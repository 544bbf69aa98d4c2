"""What must stay within its bounds whatever loaders, loops and users do."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import pytest
from tests.cache.conftest import Make
from tests.cache.faces import Source

from comporta import HealthCache, Loaded
from comporta.errors import CacheUnavailableError
from comporta.events import latest_events
from comporta.testing import ManualClock

Q = {"q": "x"}


def test_get__a_name_that_holds_another_users_key__is_refused(make: Make, source: Source) -> None:
    cache = make(scope="user")
    theirs = cache.fetch(Q, source, user="a:b")
    cache.fetch({"q": "other"}, source, user="a")
    with pytest.raises(ValueError, match="params_hash must be 64 digits"):
        cache.get_from_cache("a", f"b:{theirs.params_hash}")


def test_evict__ten_hot_answers__the_one_just_fetched_stays(make: Make, source: Source) -> None:
    cache = make(entries_per_user=2)
    for number in range(2):
        for _ in range(12):
            cache.fetch({"q": number}, source)
    cache.flush()
    new = cache.fetch(Q, source)
    assert cache.row(new.params_hash).has_value
    assert make().fetch(Q, source).source == "database"


@pytest.mark.parametrize("error", [asyncio.CancelledError(), SystemExit(3), StopIteration(), KeyError("x")])
def test_fetch__loader_raises_anything__is_called_once(
    make: Make, source: Source, error: BaseException
) -> None:
    cache = make()
    source.error = error
    with pytest.raises(Exception):  # noqa: B017, PT011 - whichever: what counts is the calls
        cache.fetch(Q, source)
    with pytest.raises(CacheUnavailableError):
        cache.fetch(Q, source)
    assert source.calls == 1


def test_fetch__coroutine_cancels_itself__is_a_failure(database_url: str) -> None:
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


def test_fetch__loop_of_the_load_was_closed__another_loop_starts_anew(database_url: str) -> None:
    cache = HealthCache(database_url, state="memory://", migrate=True, lease_seconds=0.2)
    begun = threading.Event()
    waits: list[Any] = []

    async def never() -> None:
        waits.append(asyncio.get_running_loop().create_future())
        begun.set()
        await waits[0]

    async def impatient() -> None:
        task = asyncio.create_task(cache.fetch("ana", Q, never))
        waits.append(task)
        while not begun.is_set():  # noqa: ASYNC110 - set from a loop that is gone
            await asyncio.sleep(0.01)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(impatient())
    loop.close()

    async def found() -> list[str]:
        return ["found"]

    async def main() -> Any:
        async with asyncio.timeout(60):
            return (await cache.fetch("ana", Q, found)).value

    assert asyncio.run(main()) == ["found"]
    cache.sync.close()


def test_fetch__loop_ended_before_a_refresh_began__the_next_loop_refreshes(
    database_url: str, clock: ManualClock
) -> None:
    cache = HealthCache(database_url, state="memory://", migrate=True, fresh=100, stale=1000, clock=clock)
    value = "a"

    async def search() -> list[str]:
        return [value]

    async def main() -> list[str]:
        async with asyncio.timeout(60):
            found: list[str] = (await cache.fetch("ana", Q, search)).value
            return found

    assert asyncio.run(main()) == ["a"]
    value = "b"
    clock.advance(150)
    for _ in range(4):
        assert asyncio.run(main()) == ["a"]
        clock.advance(2)
    assert len(cache._asking.loads.flights) == cache._asking.loads._refreshing == 0
    clock.advance(1000)
    assert asyncio.run(main()) == ["b"]
    cache.sync.close()


def test_fetch__loop_of_the_load_is_closed_while_another_thread_waits__that_one_starts_anew(
    database_url: str,
) -> None:
    cache = HealthCache(database_url, state="memory://", migrate=True, lease_seconds=0.2)
    loop = asyncio.new_event_loop()
    waits: list[Any] = []
    found: list[Any] = []

    async def never() -> None:
        waits.append(loop.create_future())
        await waits[0]

    async def until_begun() -> None:
        waiting = asyncio.create_task(cache.fetch("ana", Q, never))
        while not waits:  # noqa: ASYNC110 - two lines, for a loop that is to be closed
            await asyncio.sleep(0.01)
        waits.append(waiting)

    loop.run_until_complete(until_begun())
    thread = threading.Thread(target=lambda: found.append(cache.sync.fetch("ana", Q, lambda: ["found"])))
    thread.start()
    thread.join(0.1)
    loop.close()
    thread.join(30)
    assert [one.value for one in found] == [["found"]]
    cache.sync.close()


class Paused:
    """A load on an event loop that is stopped before it ends, and may be run again."""

    def __init__(self, cache: HealthCache) -> None:
        self.loop = asyncio.new_event_loop()
        self.calls = 0
        self._cache = cache
        self._go = asyncio.Event()
        self._fetch: asyncio.Task[Any] | None = None
        self.loop.run_until_complete(self._begin())

    async def _begin(self) -> None:
        self._fetch = asyncio.create_task(self._cache.fetch("ana", Q, self._load))
        while not self.calls:  # noqa: ASYNC110 - two lines, for a loop that is to be stopped
            await asyncio.sleep(0.01)

    async def _load(self) -> list[str]:
        self.calls += 1
        await self._go.wait()
        return ["paused"]

    def resume(self) -> Any:
        async def end() -> Any:
            self._go.set()
            assert self._fetch is not None
            return await self._fetch

        return self.loop.run_until_complete(end())


def test_fetch__loop_of_the_load_is_stopped__others_take_over_when_its_turn_ends(database_url: str) -> None:
    config: dict[str, Any] = {"state": "memory://", "migrate": True, "lease_seconds": 0.3}
    cache, elsewhere = HealthCache(database_url, **config), HealthCache(database_url, **config)
    paused = Paused(cache)
    assert elsewhere.sync.fetch("ana", Q, lambda: ["elsewhere"]).value == ["elsewhere"]
    assert cache.sync.fetch("ana", Q, lambda: ["here"], force=True).value == ["here"]
    assert paused.resume().value == ["here"]
    assert cache._asking.loads._refreshing == len(cache._asking.loads.flights) == 0
    found = elsewhere.sync.get_from_cache("ana", Q)
    assert found is not None
    paused.loop.close()
    for each in (cache, elsewhere):
        each.sync.close()


def test_fetch__loop_of_the_load_is_run_again_in_time__goes_on(database_url: str) -> None:
    cache = HealthCache(database_url, state="memory://", migrate=True, lease_seconds=30)
    paused = Paused(cache)
    assert paused.resume().value == ["paused"]
    assert paused.calls == 1
    paused.loop.close()
    cache.sync.close()


def test_refresh__loader_gives_garbage__is_said_and_backs_off(
    make: Make, source: Source, clock: ManualClock
) -> None:
    cache = make()
    cache.fetch(Q, source)
    source.value = object()
    for _ in range(5):
        clock.advance(150 if source.calls == 1 else 2)
        assert cache.fetch(Q, source).value == ["a"]
        cache.settle()
    assert source.calls == 2
    assert any("JSON can say" in event.text for event in latest_events())


def test_fetch__merge_fails__gives_the_turn_back(make: Make, clock: ManualClock) -> None:
    cache = make(refresh_every=30)
    covered = {"succeeded_ufs": ["SP"], "failed_ufs": ["RJ"], "total_requested": 2}

    def merge(old: Any, new: Any) -> Any:
        raise KeyError("x")

    cache.fetch(Q, lambda missing=None: Loaded(["SP"], covered), merge=merge)
    clock.advance(40)
    found = cache.fetch(Q, lambda missing=None: ["RJ"], merge=merge)
    cache.settle()
    assert cache.figures()["fetching"] == 0
    assert found.value == ["SP"]


def test_partial__what_is_missing_keeps_failing__does_not_make_the_rest_young(
    make: Make, clock: ManualClock
) -> None:
    cache = make(fresh=100, stale=1000, refresh_every=30)
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
        found = cache.fetch(Q, search)
        cache.settle()
    assert (found.age, found.freshness) == (124, "stale")
    assert asked == [None, ["RJ"], ["RJ"], ["RJ"], None]


def test_figures__stale_from_memory__counts_as_stale(make: Make, source: Source, clock: ManualClock) -> None:
    cache = make()
    cache.fetch(Q, source)
    clock.advance(150)
    source.error = OSError("down")
    cache.fetch(Q, source)
    cache.settle()
    for _ in range(8):
        assert cache.fetch(Q, source).freshness == "stale"
    cache.flush()
    told = cache.figures()["last_24_hours"]
    assert (told["answers"], told["stale_rate"], told["hit_rate"]) == (10, 0.9, 0.0)


def test_fork__child__asks_the_table_before_it_serves_from_memory(database_url: str) -> None:
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


def test_level__what_is_kept__holds_no_second_copy(make: Make, source: Source) -> None:
    source.value = ["x" * 10_000]
    make().fetch({"q": "y" * 5000}, source)
    cache = make(level_bytes=14_000)
    found = cache.fetch({"q": "y" * 5000}, source)
    assert found.source == "database"
    held = [getattr(found, name) for name in type(found).__slots__ if name != "value"]
    assert sum(len(each) for each in held if isinstance(each, bytes | str)) < 1000
    assert cache.figures()["memory"]["entries"] == 0


def test_refresh_due__users_kept_apart__loader_is_told_whose_it_is(make: Make, source: Source) -> None:
    cache = make(scope="user")
    for user in ("ana", "bob"):
        cache.save_to_cache(user, Q, [f"old of {user}"])
    table = cache.cache._asking._table
    entry = cache.get_from_cache("ana", Q)
    assert table.mark_due(entry.params_hash) == 2
    assert cache.refresh_due(lambda params, user_id: [f"new of {user_id}"]) == 2
    assert [cache.get_from_cache(user, Q).value for user in ("ana", "bob")] == [
        ["new of ana"],
        ["new of bob"],
    ]
    with pytest.raises(TypeError, match="user_id"):
        cache.refresh_due(lambda params: ["whose?"])


def test_fetch__second_caller_with_a_soft_timeout__waits_as_well(
    make: Make, source: Source, clock: ManualClock
) -> None:
    cache = make(soft_timeout=20.0)
    cache.fetch(Q, source)
    clock.advance(150)
    source.value = ["b"]
    source.asked.clear()
    source.go.clear()
    found: list[Any] = []
    both = [
        threading.Thread(target=lambda: found.append(cache.cache.sync.fetch("ana", Q, source))) for _ in "12"
    ]
    both[0].start()
    assert source.asked.wait(60)
    both[1].start()
    both[1].join(0.3)
    source.go.set()
    for thread in both:
        thread.join(30)
    assert [one.value for one in found] == [["b"], ["b"]]


def test_chores__rows_that_nobody_asks_for__are_forgotten_after_a_month(
    make: Make, source: Source, clock: ManualClock
) -> None:
    cache = make()
    cache.record_cache_fetch_failure("ana", Q)
    cache.fetch({"q": "saved"}, source, saved=True)
    cache.flush()
    clock.advance(29 * 86_400)
    chores = cache.cache._asking._chores
    chores._prune_at = chores._touch_at = 0.0
    chores.turn()
    assert cache.figures()["entries"] == 2
    clock.advance(2 * 86_400)
    chores._prune_at = chores._touch_at = 0.0
    chores.turn()
    assert cache.figures()["entries"] == 1


def test_chores__more_to_forget_than_at_once__go_on_at_the_next_turn(
    make: Make, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("comporta.cache.chores.PRUNED_AT_ONCE", 1)
    cache = make()
    for number in range(2):
        cache.record_cache_fetch_failure("ana", {"q": number})
    clock.advance(40 * 86_400)
    chores = cache.cache._asking._chores
    for _ in range(5):  # rows and records of two questions, one at a time, and then nothing
        chores._prune_at = chores._touch_at = 0.0
        chores.turn()
    assert cache.figures()["entries"] == 0
    assert chores._prune_at > 0


def test_fetch__another_user_does_not_keep_a_search__whose_it_is_still_does(
    make: Make, source: Source
) -> None:
    cache = make()
    cache.fetch(Q, source, saved=True)
    cache.fetch(Q, source, user="bob", saved=False)
    cache.flush()
    found = make().get_from_cache("ana", Q)
    assert found.priority == "warm"
    cache.fetch(Q, source, saved=False)
    cache.flush()
    assert make().get_from_cache("ana", Q).priority == "cold"
