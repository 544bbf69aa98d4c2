"""Keys in backoff with nothing to serve: refused from memory, until something changes anywhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.cache.conftest import MakeCache
from tests.cache.harness import CacheHarness, FakeSource
from tests.support import wait_until

from comporta import HealthCache
from comporta.cache.backoff_memory import Refusals
from comporta.cache.local import LocalCache
from comporta.cache.params import hash_params
from comporta.database.base import Database, Statement
from comporta.errors import CacheUnavailableError, DatabaseUnavailableError
from comporta.testing import ManualClock, Server

Q = {"q": "x"}
CLEAR_BY_HAND = Statement("UPDATE search_results_cache SET degraded_until = NULL, fail_streak = 0")


def catch_refusal(cache: CacheHarness, source: FakeSource) -> CacheUnavailableError:
    with pytest.raises(CacheUnavailableError) as caught:
        cache.fetch(Q, source)
    return caught.value


def fail(cache: CacheHarness, source: FakeSource) -> None:
    source.error = OSError("down")
    with pytest.raises(OSError, match="down"):
        cache.fetch(Q, source)
    source.error = None


def forbid_database(cache: CacheHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    def used(*_: object) -> None:
        raise AssertionError("the database was used")

    for name in ("try_read", "execute", "execute_async"):
        monkeypatch.setattr(cache.cache._core._tables, name, used)


@pytest.mark.parametrize("scope", ["params", "user"])
def test_fetch__key_in_backoff_with_nothing_cached__does_not_use_the_database(
    make_cache: MakeCache, source: FakeSource, monkeypatch: pytest.MonkeyPatch, clock: ManualClock, scope: str
) -> None:
    cache = make_cache(scope=scope)
    fail(cache, source)
    forbid_database(cache, monkeypatch)
    clock.advance(0.5)
    for _ in range(3):
        error = catch_refusal(cache, source)
        assert error.retry_after == pytest.approx(59.5, abs=0.01)
        assert source.calls == 1
        assert str(error.__cause__) == "down"
        assert "tried again in " in str(error)
    monkeypatch.undo()
    cache.flush()
    assert cache.stats()["last_24_hours"] == {"answers": 4, "hit_rate": 0, "stale_rate": 0, "miss_rate": 1}


def test_fetch__another_worker_failed__is_refused_from_memory_after_one_claim(
    make_cache: MakeCache, source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(make_cache(), source)
    cache = make_cache()
    catch_refusal(cache, source)
    forbid_database(cache, monkeypatch)
    assert catch_refusal(cache, source).__cause__ is None
    monkeypatch.undo()


def test_fetch__still_in_backoff_after_a_second__reads_the_key_without_writing(
    make_cache: MakeCache, source: FakeSource, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    cache = make_cache()
    fail(cache, source)

    def written(*_: object) -> None:
        raise AssertionError("the database was written")

    for name in ("write", "write_async"):
        monkeypatch.setattr(cache.cache._core.database, name, written)
    for _ in range(3):
        clock.advance(1)
        catch_refusal(cache, source)
    monkeypatch.undo()
    clock.advance(57)
    assert cache.fetch(Q, source).value == ["a"]


def test_fetch__backoff_cleared_by_hand__loads_within_a_second(
    make_cache: MakeCache, source: FakeSource, database: Database, clock: ManualClock
) -> None:
    cache = make_cache()
    fail(cache, source)
    catch_refusal(cache, source)
    database.write([CLEAR_BY_HAND], {})
    clock.advance(1)
    assert cache.fetch(Q, source).value == ["a"]


def test_fetch__forced_or_saved_meanwhile__is_served(make_cache: MakeCache, source: FakeSource) -> None:
    cache = make_cache(local_bytes=1)  # so that memory holds refusals only
    fail(cache, source)
    catch_refusal(cache, source)
    assert cache.fetch(Q, source, force=True).value == ["a"]
    assert cache.fetch(Q, source).source == "database"
    other = make_cache()
    other.record_cache_fetch_failure("ana", {"q": 2})
    with pytest.raises(CacheUnavailableError):
        other.fetch({"q": 2}, source)
    other.save_to_cache("ana", {"q": 2}, ["saved"])
    assert other.fetch({"q": 2}, source).value == ["saved"]


def test_fetch__success_in_another_worker__ends_the_refusal(
    database_url: str, valkey: Server, source: FakeSource
) -> None:
    one, two = (HealthCache(database_url, state=valkey.url, migrate=True) for _ in range(2))

    def down() -> None:
        raise OSError("down")

    def is_served() -> bool:
        try:
            return bool(one.sync.fetch("ana", Q, source).value == ["new"])
        except CacheUnavailableError:
            return False

    with pytest.raises(OSError, match="down"):
        one.sync.fetch("ana", Q, down)
    assert not is_served()
    two.sync.save_to_cache("ana", Q, ["new"])
    wait_until(is_served)
    assert source.calls == 0
    for each in (one, two):
        each.sync.close()


def test_fetch__crowd_of_callers_of_a_refused_key__reads_it_once_for_all(
    database: Database, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = 0

    def down() -> None:
        raise OSError("down")

    async def main() -> None:
        cache = HealthCache(database, migrate=False, state="memory://", clock=clock)

        async def is_refused() -> bool:
            with pytest.raises((CacheUnavailableError, OSError)) as caught:
                await cache.fetch("ana", Q, down)
            return isinstance(caught.value, CacheUnavailableError)

        assert not await is_refused()
        for name in ("try_read", "read_async", "write_async"):
            monkeypatch.setattr(database, name, counted(getattr(database, name)))
        cache._core._tables._try_read = database.try_read
        for seconds, reads_max in ((0, 0), (1, 4), (1, 8)):
            clock.advance(seconds)
            assert all(await asyncio.gather(*(is_refused() for _ in range(1000))))
            assert reads <= reads_max
        monkeypatch.undo()
        await cache.aclose()

    def counted(method: Callable[..., Any]) -> Callable[..., Any]:
        def count(*args: Any) -> Any:
            nonlocal reads
            reads += 1
            return method(*args)

        return count

    asyncio.run(main())


@pytest.mark.parametrize("scope", ["params", "user"])
def test_fetch__another_worker_stored_a_result_unheard__serves_it_within_a_second(
    make_cache: MakeCache, source: FakeSource, clock: ManualClock, scope: str
) -> None:
    cache, other = make_cache(scope=scope), make_cache(scope=scope)  # without a store that both share
    fail(cache, source)
    catch_refusal(cache, source)
    other.save_to_cache("ana", Q, ["stored"])
    clock.advance(1)
    assert cache.fetch(Q, source).value == ["stored"]
    assert cache.fetch(Q, source).source == "memory"
    assert source.calls == 1


def test_clear_local_cache__refused_key__is_read_again(
    make_cache: MakeCache, source: FakeSource, database: Database
) -> None:
    cache = make_cache()
    fail(cache, source)
    database.write([CLEAR_BY_HAND], {})
    cache.cache.clear_local_cache()
    assert cache.fetch(Q, source).value == ["a"]


def test_fetch__database_is_down__is_refused_by_the_backoff_of_this_process(
    make_cache: MakeCache, source: FakeSource, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    cache = make_cache()

    def down(*_: object) -> None:
        raise DatabaseUnavailableError("down")

    async def down_async(*_: object) -> None:
        raise DatabaseUnavailableError("down")

    for name, function in (("try_read", down), ("execute", down), ("execute_async", down_async)):
        monkeypatch.setattr(cache.cache._core._tables, name, function)
    fail(cache, source)
    for seconds in (0, 1, 1):
        clock.advance(seconds)
        assert catch_refusal(cache, source).retry_after == pytest.approx(60, abs=3)
    assert source.calls == 1
    monkeypatch.undo()


def test_fetch__fetcher_that_fails_has_lost_its_lease__key_is_not_refused(
    make_cache: MakeCache, source: FakeSource, clock: ManualClock
) -> None:
    one, two = make_cache(), make_cache()

    def fail_late() -> None:
        clock.advance(11)  # the lease expires
        two.cache.sync.fetch("ana", Q, lambda: ["new"])
        raise OSError("late")

    with pytest.raises(OSError, match="late"):
        one.fetch(Q, fail_late)
    assert one.fetch(Q, source).value == ["new"]


def test_refusals__more_keys_than_the_bound__forgets_the_oldest(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("comporta.cache.backoff_memory.REFUSALS_MAX", 2)
    local = LocalCache(1, 1, clock)
    refusals = Refusals(local)
    keys = [hash_params({"q": n})[0] for n in range(3)]
    for key in keys:
        refusals.record(key, 60, CacheUnavailableError("down", "n", 60), local.version)
    assert [refusals.get(key) is not None for key in keys] == [False, True, True]
    local.invalidate(keys[1][:16])
    assert [refusals.get(key) is not None for key in keys] == [False, False, True]
    refusals.after_fork()
    assert refusals.count == 0
