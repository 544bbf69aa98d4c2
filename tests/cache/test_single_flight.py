"""Single future: many callers share one load, whichever of them is cancelled."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cache.harness import PATIENCE_SECONDS, CacheHarness, FakeSource, waiter_count
from tests.support import wait_until

from comporta import CachePendingError, CacheUnavailableError, HealthCache
from comporta.cache import single_flight
from comporta.cache.params import hash_params
from comporta.cache.single_flight import CallLoader, SharedFuture, SingleFlight, StartLoad, WaitForFuture
from comporta.database.base import Database
from comporta.flow import Flow, run_async
from comporta.testing import ManualClock

Q = {"q": 1}


@pytest.fixture
def cache(database: Database) -> Any:
    made = HealthCache(database, migrate=False, state="memory://")
    yield made
    made.sync.close()


def test_fetch__many_coroutines__loads_once(cache: HealthCache) -> None:
    calls = 0

    async def load() -> list[int]:
        nonlocal calls
        calls += 1
        await asyncio.to_thread(wait_until, lambda: waiter_count(cache) == 200)
        return [1]

    async def main() -> list[Any]:
        return await asyncio.gather(*(cache.fetch(f"user{n % 7}", Q, load) for n in range(200)))

    assert [result.value for result in asyncio.run(main())] == [[1]] * 200
    assert calls == 1


def test_fetch__many_threads__loads_once(cache: HealthCache, source: FakeSource) -> None:
    source.may_return.clear()
    results: list[Any] = []
    threads = [
        threading.Thread(target=lambda: results.append(cache.sync.fetch("ana", Q, source))) for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    assert source.called.wait(PATIENCE_SECONDS)
    source.may_return.set()
    for thread in threads:
        thread.join()
    assert [each.value for each in results] == [["a"]] * 20
    assert source.calls == 1


def test_fetch__load_fails_with_many_waiting__all_get_the_error(cache: HealthCache) -> None:
    calls = 0

    async def load() -> None:
        nonlocal calls
        calls += 1
        await asyncio.to_thread(wait_until, lambda: waiter_count(cache) == 50)
        raise OSError("down")

    async def main() -> list[Any]:
        return await asyncio.gather(*(cache.fetch("ana", Q, load) for _ in range(50)), return_exceptions=True)

    assert {repr(error) for error in asyncio.run(main())} == {"OSError('down')"}
    assert calls == 1


def test_fetch__first_caller_cancelled__serves_the_others(cache: HealthCache) -> None:
    calls = 0

    async def main() -> list[Any]:
        started, go = asyncio.Event(), asyncio.Event()

        async def load() -> list[int]:
            nonlocal calls
            calls += 1
            started.set()
            await go.wait()
            return [1]

        tasks = [asyncio.create_task(cache.fetch("ana", Q, load)) for _ in range(10)]
        await started.wait()
        tasks[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        go.set()
        return await asyncio.gather(*tasks[1:])

    assert [result.value for result in asyncio.run(main())] == [[1]] * 9
    assert calls == 1


def test_fetch__loop_of_the_load_is_closed__another_thread_fetches(
    cache: HealthCache, source: FakeSource
) -> None:
    started = threading.Event()

    async def load() -> None:
        started.set()
        await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.create_task(cache.fetch("ana", Q, load))
        await asyncio.to_thread(wait_until, lambda: waiter_count(cache) == 2)
        task.cancel()

    results: list[Any] = []

    def wait() -> None:
        assert started.wait(PATIENCE_SECONDS)
        results.append(cache.sync.fetch("ana", Q, source))

    thread = threading.Thread(target=wait)
    thread.start()
    asyncio.run(main())
    thread.join()
    assert results[0].value == ["a"]
    assert not cache._core._tables.read_claim(results[0].params_hash).lease_until


def test_fetch__too_many_loads__raises(
    cache: HealthCache, source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(single_flight, "LOADS_MAX", 0)
    with pytest.raises(CacheUnavailableError, match="too many fetches are running"):
        cache.sync.fetch("ana", Q, source)


def test_fetch__load_longer_than_timeout__raises_and_the_load_continues(
    cache: HealthCache, source: FakeSource
) -> None:
    source.may_return.clear()
    with pytest.raises(CachePendingError, match=r"did not end within 0\.01 s and continues") as raised:
        cache.sync.fetch("ana", Q, source, timeout=0.01)
    assert raised.value.retry_after > 0
    source.may_return.set()
    assert cache.sync.fetch("ana", Q, source, timeout=PATIENCE_SECONDS).value == ["a"]
    assert source.calls == 1


def test_fetch__forced_load_longer_than_timeout__returns_the_cached_result(
    cache: HealthCache, source: FakeSource
) -> None:
    cache.sync.save_to_cache("ana", Q, ["old"])
    source.may_return.clear()
    assert cache.sync.fetch("ana", Q, source, force=True, timeout=0.01).value == ["old"]
    source.may_return.set()


def test_fetch__timeout_invalid__raises_naming_the_range(cache: HealthCache, source: FakeSource) -> None:
    with pytest.raises(ValueError, match=r"^timeout must be 0 to .* seconds, got -1"):
        cache.sync.fetch("ana", Q, source, timeout=-1)


def test_fetch__no_thread_available__raises_and_the_next_call_works(
    cache: HealthCache, source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    cache.sync.save_to_cache("ana", {"q": 2}, [])
    with monkeypatch.context() as patched:
        patched.setattr("comporta.runtime.start_new_thread", none)
        with pytest.raises(RuntimeError, match="could not start a thread for the loader"):
            cache.sync.fetch("ana", Q, source)
    assert cache.sync.fetch("ana", Q, source).value == ["a"]


def test_call_loader__async_loader_in_sync_cache__raises(cache: HealthCache) -> None:
    async def load() -> None: ...

    with pytest.raises(TypeError, match="loader must be a plain function in cache"):
        cache.sync.fetch("ana", Q, load)


def test_call_loader__function_returning_an_awaitable__is_awaited() -> None:
    async def load() -> str:
        return "x"

    def begin() -> Any:
        return load()

    assert asyncio.run(CallLoader(begin, 5).wait()) == "x"


def test_call_loader__plain_function_fails__raises_sync_and_async() -> None:
    def fail() -> None:
        raise OSError("down")

    with pytest.raises(OSError, match="down"):
        CallLoader(fail, 5).block()
    with pytest.raises(OSError, match="down"):
        asyncio.run(CallLoader(fail, 5).wait())


def test_future__completed__ignores_a_second_completion() -> None:
    future = SharedFuture()
    assert not WaitForFuture(future, 0).block()
    assert not asyncio.run(WaitForFuture(future, 0).wait())
    future.complete("one")
    future.complete("two")
    assert WaitForFuture(future).block()
    assert asyncio.run(WaitForFuture(future).wait())
    assert future.result == "one"
    future.remove_callback(print)


def test_future__waiters_loop_is_closed__completes_anyway() -> None:
    future = SharedFuture()
    loop = asyncio.new_event_loop()
    future.add_callback(lambda: loop.call_soon_threadsafe(print))
    loop.close()
    future.complete("one")
    assert future.is_done


def _never_started_flow() -> Flow[None]:
    yield from ()
    raise AssertionError("the flow must not start")


def test_load__cancelled_before_its_first_step__is_abandoned() -> None:
    async def main() -> bool:
        flights, future = SingleFlight(1.0), SharedFuture()
        await StartLoad(flights, _never_started_flow(), future).wait()
        assert future.task is not None
        future.task.cancel()
        return await WaitForFuture(future, PATIENCE_SECONDS).wait()

    assert asyncio.run(main())


def test_load__loop_closed_before_its_first_step__next_caller_abandons_it() -> None:
    flights, loop = SingleFlight(1.0), asyncio.new_event_loop()
    loop.set_exception_handler(
        lambda *_: None
    )  # the loop would report the pending task that this test is about
    future, _ = flights.join("k")
    assert future is not None
    future.task = loop.create_task(run_async(_never_started_flow()))
    loop.close()
    successor, starts = flights.join("k")
    assert future.is_done
    assert starts
    assert successor is not future


def test_close__load_running__cancels_it_and_releases_the_lease(
    database: Database, clock: ManualClock
) -> None:
    cache = HealthCache(database, migrate=False, state="memory://", fresh=1, refresh_every=0, clock=clock)

    async def main() -> str:
        started = asyncio.Event()

        async def load() -> None:
            started.set()
            await asyncio.Event().wait()

        await cache.save_to_cache("ana", Q, [])
        clock.advance(2)
        name = (await cache.fetch("ana", Q, load)).params_hash
        await started.wait()
        start = time.monotonic()
        await cache.aclose()
        assert time.monotonic() - start < PATIENCE_SECONDS
        return name

    name = asyncio.run(main())
    assert cache._core._tables.read_claim(name).lease_until is None


def test_close__loads_running_in_threads__waits_for_them(
    database: Database, clock: ManualClock, source: FakeSource
) -> None:
    cache = HealthCache(database, migrate=False, state="memory://", fresh=1, refresh_every=0, clock=clock)
    cache.sync.save_to_cache("ana", Q, [])
    clock.advance(2)
    source.may_return.clear()
    cache.sync.fetch("ana", Q, source)
    assert source.called.wait(PATIENCE_SECONDS)
    threading.Timer(0.05, source.may_return.set).start()
    cache.sync.close()
    asyncio.run(cache.aclose())
    assert len(cache._core.fetcher.single_flight) == 0
    assert source.calls == 1


def test_single_flight__after_a_fork__is_empty() -> None:
    made = SingleFlight(1.0)
    made.join("a")
    made.after_fork()
    assert len(made) == 0


def test_fetch__long_load__renews_its_lease(tmp_path: Path, source: FakeSource) -> None:
    one, two = (
        CacheHarness(HealthCache(f"sqlite:///{tmp_path}/x.db", state="memory://", lease_seconds=60), None)
        for _ in range(2)
    )
    source.may_return.clear()
    results: list[Any] = []
    threads = [
        threading.Thread(target=lambda cache=cache: results.append(cache.fetch(Q, source)))
        for cache in (one, two)
    ]
    threads[0].start()
    assert source.called.wait(PATIENCE_SECONDS)
    threads[1].start()
    tables, key = one.cache._core._tables, hash_params(Q)[0]
    first_end = tables.read_claim(key).lease_until
    assert first_end is not None
    make_renewal_due(one.cache, key)
    wait_until(lambda: (tables.read_claim(key).lease_until or 0) > first_end)
    source.may_return.set()
    for thread in threads:
        thread.join()
    assert [each.value for each in results] == [["a"], ["a"]]
    assert source.calls == 1
    one.close()
    two.close()


def make_renewal_due(cache: HealthCache, key: str) -> None:
    """Let the maintenance thread renew a lease now instead of after a third of its 60 s."""
    work = cache._core._maintenance
    with work._lock:
        lease = work._leases[key]
        assert lease.renew_at <= time.monotonic() + 20
        work._leases[key] = lease._replace(renew_at=0.0)
    assert work._thread is not None
    work._thread.wake.set()
