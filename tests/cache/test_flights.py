"""Many callers, one load: whoever comes, whoever goes away."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cache.faces import PATIENCE_SECONDS, Face, Source

from comporta import CacheUnavailableError, HealthCache
from comporta.cache import flights
from comporta.cache.flights import Call, Flight, Flights, Landing, Launch
from comporta.database.base import Database
from comporta.flow import Flow, run_async

Q = {"q": 1}


@pytest.fixture
def cache(database: Database) -> Any:
    made = HealthCache(database, migrate=False, state="memory://")
    yield made
    made.sync.close()


def test_fetch__many_coroutines__one_load(cache: HealthCache) -> None:
    calls = 0

    async def load() -> list[int]:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0.02)
        return [1]

    async def main() -> list[Any]:
        return await asyncio.gather(*(cache.fetch(f"user{n % 7}", Q, load) for n in range(200)))

    assert [found.value for found in asyncio.run(main())] == [[1]] * 200
    assert calls == 1


def test_fetch__many_threads__one_load(cache: HealthCache, source: Source) -> None:
    source.go.clear()
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda: found.append(cache.sync.fetch("ana", Q, source))) for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    assert source.asked.wait(PATIENCE_SECONDS)
    source.go.set()
    for thread in threads:
        thread.join()
    assert [each.value for each in found] == [["a"]] * 20
    assert source.calls == 1


def test_fetch__fails_with_many_waiting__all_are_told(cache: HealthCache) -> None:
    calls = 0

    async def load() -> None:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0.2)
        raise OSError("down")

    async def main() -> list[Any]:
        return await asyncio.gather(*(cache.fetch("ana", Q, load) for _ in range(50)), return_exceptions=True)

    assert {repr(error) for error in asyncio.run(main())} == {"OSError('down')"}
    assert calls == 1


def test_fetch__first_caller_is_cancelled__the_others_are_served(cache: HealthCache) -> None:
    calls = 0

    async def main() -> list[Any]:
        begun, go = asyncio.Event(), asyncio.Event()

        async def load() -> list[int]:
            nonlocal calls
            calls += 1
            begun.set()
            await go.wait()
            return [1]

        tasks = [asyncio.create_task(cache.fetch("ana", Q, load)) for _ in range(10)]
        await begun.wait()
        tasks[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        go.set()
        return await asyncio.gather(*tasks[1:])

    assert [found.value for found in asyncio.run(main())] == [[1]] * 9
    assert calls == 1


def test_fetch__loop_of_the_load_is_closed__another_thread_starts_anew(
    cache: HealthCache, source: Source
) -> None:
    begun = threading.Event()

    async def load() -> None:
        begun.set()
        await asyncio.sleep(3600)

    async def main() -> None:
        task = asyncio.create_task(cache.fetch("ana", Q, load))
        while not waiting():  # noqa: ASYNC110 - for a thread
            await asyncio.sleep(0.005)
        task.cancel()

    def waiting() -> bool:
        flight = cache._asking.loads.flights._by_key.get(next(iter(cache._asking.loads.flights._by_key), ""))
        return flight is not None and len(flight._wakes) == 2

    found: list[Any] = []

    def wait() -> None:
        assert begun.wait(PATIENCE_SECONDS)
        found.append(cache.sync.fetch("ana", Q, source))

    thread = threading.Thread(target=wait)
    thread.start()
    asyncio.run(main())
    thread.join()
    assert found[0].value == ["a"]
    assert not cache._asking._table.look(found[0].params_hash).lease_until


def test_fetch__too_much_under_way__is_refused(
    cache: HealthCache, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flights, "FLIGHTS_MAX", 0)
    with pytest.raises(CacheUnavailableError, match="too much is being fetched"):
        cache.sync.fetch("ana", Q, source)


def test_fetch__no_thread_to_be_had__is_raised_and_the_next_one_works(
    cache: HealthCache, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    cache.sync.save_to_cache("ana", {"q": 2}, [])
    with monkeypatch.context() as patched:
        patched.setattr("comporta.threads.start_new_thread", none)
        with pytest.raises(RuntimeError, match="no thread can be had to fetch"):
            cache.sync.fetch("ana", Q, source)
    assert cache.sync.fetch("ana", Q, source).value == ["a"]


def test_call__loader_to_be_awaited_in_the_blocking_face__is_a_mistake(cache: HealthCache) -> None:
    async def load() -> None: ...

    with pytest.raises(TypeError, match="loader must be a plain function here"):
        cache.sync.fetch("ana", Q, load)


def test_call__function_that_returns_something_to_await__is_awaited() -> None:
    async def load() -> str:
        return "x"

    def begin() -> Any:
        return load()

    assert asyncio.run(Call(begin, 5).wait()) == "x"


def test_call__plain_function_that_fails__fails_in_both_worlds() -> None:
    def fail() -> None:
        raise OSError("down")

    with pytest.raises(OSError, match="down"):
        Call(fail, 5).block()
    with pytest.raises(OSError, match="down"):
        asyncio.run(Call(fail, 5).wait())


def test_flight__landed__stays_as_it_landed() -> None:
    flight = Flight()
    assert not Landing(flight, 0).block()
    assert not asyncio.run(Landing(flight, 0).wait())
    flight.land("one")
    flight.land("two")
    assert Landing(flight).block()
    assert asyncio.run(Landing(flight).wait())
    assert flight.result == "one"
    flight.deaf(print)


def test_flight__waiters_loop_is_closed__lands_all_the_same() -> None:
    flight = Flight()
    loop = asyncio.new_event_loop()
    flight.listen(lambda: loop.call_soon_threadsafe(print))
    loop.close()
    flight.land("one")
    assert flight.landed


def _never_begun() -> Flow[None]:
    yield from ()
    raise AssertionError("it was not to begin")


def test_flight__cancelled_before_its_first_step__is_given_up() -> None:
    async def main() -> bool:
        under_way, flight = Flights(1.0), Flight()
        await Launch(under_way, _never_begun(), flight).wait()
        assert flight.task is not None
        flight.task.cancel()
        return await Landing(flight, PATIENCE_SECONDS).wait()

    assert asyncio.run(main())


def test_flight__loop_closed_before_its_first_step__is_given_up_by_the_next_who_comes() -> None:
    under_way, loop = Flights(1.0), asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # a task that is never done is what this is about
    flight, _ = under_way.join("k")
    assert flight is not None
    flight.task = loop.create_task(run_async(_never_begun()))
    loop.close()
    successor, starts = under_way.join("k")
    assert flight.landed
    assert starts
    assert successor is not flight


def test_close__something_under_way__is_ended_and_given_back(database: Database) -> None:
    cache = HealthCache(database, migrate=False, state="memory://", fresh=0.001, refresh_every=0)

    async def main() -> str:
        begun = asyncio.Event()

        async def load() -> None:
            begun.set()
            await asyncio.sleep(3600)

        await cache.save_to_cache("ana", Q, [])
        await asyncio.sleep(0.01)
        name = (await cache.fetch("ana", Q, load)).params_hash
        await begun.wait()
        start = time.monotonic()
        await cache.aclose()
        assert time.monotonic() - start < PATIENCE_SECONDS
        return name

    name = asyncio.run(main())
    assert cache._asking._table.look(name).lease_until is None


def test_close__threads__are_waited_for(database: Database, source: Source) -> None:
    cache = HealthCache(database, migrate=False, state="memory://", fresh=0.001, refresh_every=0)
    cache.sync.save_to_cache("ana", Q, [])
    time.sleep(0.01)
    source.go.clear()
    cache.sync.fetch("ana", Q, source)
    assert source.asked.wait(PATIENCE_SECONDS)
    threading.Timer(0.05, source.go.set).start()
    cache.sync.close()
    asyncio.run(cache.aclose())
    assert len(cache._asking.loads.flights) == 0
    assert source.calls == 1


def test_flights__after_a_fork__are_the_parents() -> None:
    made = Flights(1.0)
    made.join("a")
    made.after_fork()
    assert len(made) == 0


def test_fetch__turn_of_a_long_load__is_renewed(tmp_path: Path, source: Source) -> None:
    one = Face(HealthCache(f"sqlite:///{tmp_path}/x.db", state="memory://", lease_seconds=1.5), None)
    two = Face(HealthCache(f"sqlite:///{tmp_path}/x.db", state="memory://", lease_seconds=1.5), None)
    source.go.clear()
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda face=face: found.append(face.fetch(Q, source))) for face in (one, two)
    ]
    threads[0].start()
    assert source.asked.wait(PATIENCE_SECONDS)
    threads[1].start()
    time.sleep(1.6)
    source.go.set()
    for thread in threads:
        thread.join()
    assert [each.value for each in found] == [["a"], ["a"]]
    assert source.calls == 1
    one.close()
    two.close()
