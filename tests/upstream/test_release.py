"""Calls that end without a result: everything they held is released, and nothing is counted."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from typing import Any

import pytest
from tests.support import redis_store, wait_until
from tests.upstream.conftest import Make
from tests.upstream.drivers import Response, Scripted, lowest

from comporta import (
    BreakerConfig,
    CircuitBreaker,
    LimitConfig,
    LimitReachedError,
    LimitStrategy,
    Retry,
    Upstream,
    last_call,
)
from comporta.stores.bound_limit import WouldBlock
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock, Server

SENSITIVE = BreakerConfig(threshold=1, cooldown_seconds=10)


@pytest.fixture
def half_open(store: MemoryStore, clock: ManualClock) -> Upstream:
    """Give an upstream that allows one call in flight and whose next call is the probe."""
    upstream = Upstream(
        "pncp",
        "1000/s",
        breaker=SENSITIVE,
        max_concurrent=1,
        retry=Retry(draw=lowest, state=store),
        state=store,
    )
    assert upstream.breaker is not None
    upstream.breaker.sync.record_failure()
    clock.advance(11)
    return upstream


def assert_nothing_held(upstream: Upstream) -> None:
    state = upstream.sync.get_state()
    assert state.breaker is not None
    assert (state.breaker.phase, state.breaker.probes) == ("half_open", ())
    assert state.calls_in_flight == 0
    assert upstream.sync.call(lambda: "well") == "well"
    assert upstream.sync.get_state().breaker.phase == "closed"  # type: ignore[union-attr]


async def start_call(upstream: Upstream, function: Callable[..., Any]) -> asyncio.Task[Any]:
    """Return a task that is inside its attempt."""
    started = asyncio.Event()

    async def call() -> Any:
        started.set()
        return await function()

    task = asyncio.create_task(upstream.call(call))
    await started.wait()
    return task


def test_cancelled__during_the_attempt__counts_as_neither_and_holds_nothing(half_open: Upstream) -> None:
    async def main() -> None:
        task = await start_call(half_open, asyncio.Event().wait)
        assert half_open.sync.get_state().calls_in_flight == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert_nothing_held(half_open)


def test_cancelled__during_the_delay_before_a_retry__holds_nothing(
    half_open: Upstream, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = asyncio.Event()

    async def forever(_: float) -> None:
        waiting.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(clock, "sleep_async", forever)
    first = Response(429)

    async def answers() -> Response:
        return first

    async def main() -> None:
        task = asyncio.create_task(half_open.call(answers))
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert first.closed == 1
    assert half_open.sync.get_state().calls_in_flight == 0


def test_cancelled__while_reporting__closes_the_response_and_releases_the_probe(
    half_open: Upstream, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    response, reporting = Response(), asyncio.Event()
    assert half_open.breaker is not None
    apply_async = half_open.breaker._view.__class__.apply_async

    async def hangs(view: Any, operation: Any) -> Any:
        if operation._request.command == "succeed" and not reporting.is_set():
            reporting.set()
            await asyncio.Event().wait()
        return await apply_async(view, operation)

    monkeypatch.setattr(half_open.breaker._view.__class__, "apply_async", hangs)

    async def answers() -> Response:
        return response

    async def main() -> None:
        task = asyncio.create_task(half_open.call(answers))
        await reporting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert response.closed == 1
    assert_nothing_held(half_open)


def test_cancelled__twice__still_releases_the_rest(
    clock: ManualClock, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a permit that expires this soon is not held back, so that its release is an operation
    half_open = Upstream(
        "pncp", "1000/s", breaker=SENSITIVE, max_concurrent=1, permit_ttl=0.5, retry=False, state=store
    )
    assert half_open.breaker is not None
    half_open.breaker.sync.record_failure()
    clock.advance(11)
    releasing, apply_async = asyncio.Event(), store.apply_async

    async def hangs(operation: Any) -> Any:
        if type(operation).__name__ == "ReleasePermits" and not releasing.is_set():
            releasing.set()
            await asyncio.Event().wait()
        return await apply_async(operation)

    monkeypatch.setattr(store, "apply_async", hangs)

    async def main() -> None:
        task = await start_call(half_open, asyncio.Event().wait)
        task.cancel()
        await releasing.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    state = half_open.sync.get_state()
    assert state.breaker is not None
    assert (state.breaker.phase, state.breaker.probes) == ("half_open", ())


def test_cancelled__during_readmission__returns_the_token(
    clock: ManualClock, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = Upstream("pncp", "1/s", breaker=SENSITIVE, state=store)
    assert upstream.breaker is not None
    upstream.sync.call(lambda: None)
    readmitting = asyncio.Event()

    class Hanging:
        async def wait(self) -> None:
            readmitting.set()
            await asyncio.Event().wait()

    def hangs() -> Iterator[Any]:
        yield Hanging()

    answers = iter([upstream.breaker._flows.admit_flow, hangs])
    monkeypatch.setattr(upstream.breaker._flows.__class__, "admit_flow", lambda _: next(answers)())
    monkeypatch.setattr(upstream.breaker._guard.__class__, "shared_admission", lambda _: None)

    async def main() -> None:
        task = asyncio.create_task(upstream.call(asyncio.Event().wait))
        await readmitting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert upstream.limiter.sync.stats().tokens_available == 1


def test_closed__abandoned_coroutine__holds_nothing(half_open: Upstream) -> None:
    class Stuck:
        def __await__(self) -> Generator[None, None, None]:
            yield

    async def never() -> None:
        await Stuck()

    upstream = Upstream("plain", "1000/s", timeout=None, max_concurrent=1, state=half_open.store)
    coroutine = upstream.call(never)
    coroutine.send(None)
    assert upstream.sync.get_state().calls_in_flight == 1
    coroutine.close()
    wait_until(lambda: upstream.sync.get_state().calls_in_flight == 0)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_interrupted__by_a_base_exception__raises_it_and_holds_nothing(
    half_open: Upstream, clock: ManualClock, kind: type[BaseException]
) -> None:
    interruption = kind()
    with pytest.raises(kind) as raised:
        half_open.sync.call(Scripted(clock, interruption))
    assert raised.value is interruption
    report = last_call()
    assert report is not None
    assert report.outcome == "cancelled"
    wait_until(lambda: half_open.breaker is not None and not half_open.breaker.sync.get_state().probes)
    assert_nothing_held(half_open)


def test_raised__stop_iteration__reaches_the_caller(make: Make, clock: ManualClock) -> None:
    driver, end = make(breaker=False, retry=False), StopIteration("the end")
    if driver.runner is None:  # a coroutine cannot raise it
        with pytest.raises(StopIteration) as raised:
            driver.call(Scripted(clock, end))
        assert raised.value is end
        assert end.__context__ is None


@pytest.mark.parametrize("failures", [1, 2, 4])
def test_raised__any_error__is_not_referenced_afterwards(
    make: Make, clock: ManualClock, failures: int
) -> None:
    class Weak(Exception):  # noqa: N818 - a name for a test
        pass

    driver = make(breaker=False)
    gone: list[weakref.ref[Weak]] = []

    def fails() -> None:
        if len(gone) < failures:
            error = Weak()
            gone.append(weakref.ref(error))
            try:
                raise error
            finally:
                del error  # or this frame would reference it

    def suppressed() -> None:
        with suppress(Weak):
            driver.upstream.sync.call(fails)

    async def suppressed_async() -> None:  # in here, because asyncio references what a task raised
        async def awaited() -> None:
            fails()

        with suppress(Weak):
            await driver.upstream.call(awaited)

    gc.collect()
    gc.disable()
    try:
        if driver.runner is None:
            suppressed()
        else:
            driver.runner.run(suppressed_async())
        left = [error() for error in gone if error() is not None]
    finally:
        gc.enable()
    assert left == []


def test_retry_predicate__raises__its_error_is_raised_and_nothing_is_held(
    half_open: Upstream, store: MemoryStore, clock: ManualClock
) -> None:
    def confused(_: Exception) -> bool:
        raise RuntimeError("confused")

    upstream = Upstream("other", "10/s", retry=Retry(on=confused, state=store), max_concurrent=1, state=store)
    with pytest.raises(RuntimeError, match="confused"):
        upstream.sync.call(Scripted(clock, OSError()))
    assert upstream.sync.get_state().calls_in_flight == 0


def test_timeout__attempt_takes_too_long__counts_as_a_failure_and_is_retried(store: MemoryStore) -> None:
    upstream = Upstream(
        "pncp", "1000/s", timeout=0.01, retry=Retry(1, 0, jitter=(0, 0), state=store), state=store
    )
    calls = 0

    async def slow() -> None:
        nonlocal calls
        calls += 1
        await asyncio.Event().wait()

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await upstream.call(slow)

    asyncio.run(main())
    state = upstream.sync.get_state()
    assert state.breaker is not None
    assert (calls, state.breaker.failures) == (2, 2)


def test_threads__many_concurrent_calls__never_exceed_max_concurrent() -> None:
    upstream = Upstream("threads", "100000/s", max_concurrent=3, max_wait=30, state="memory://threads")
    inside = most = 0
    lock = threading.Lock()

    @upstream.guard
    def count_in_flight() -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        os.sched_yield()
        with lock:
            inside -= 1

    def work() -> None:
        for _ in range(20):
            count_in_flight()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 1 <= most <= 3
    assert upstream.sync.get_state().calls_in_flight == 0


def test_loops__several_sequential_and_concurrent__share_one_upstream(valkey: Server) -> None:
    with redis_store(valkey) as store:
        upstream = Upstream("loops", "100000/s", max_concurrent=5, max_wait=30, state=store)

        async def fetch() -> int:
            await asyncio.sleep(0)
            return 1

        async def main() -> int:
            try:
                return sum(await asyncio.gather(*(upstream.call(fetch) for _ in range(20))))
            finally:
                await upstream.aclose()

        done: list[int] = []
        threads = [threading.Thread(target=lambda: done.append(asyncio.run(main()))) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        done.append(asyncio.run(main()))
        assert done == [20] * 4
        assert upstream.sync.get_state().calls_in_flight == 0


def test_fork__during_a_call__the_childs_upstream_works() -> None:
    upstream = Upstream("forked", "1000/s", max_concurrent=2, state="memory://forked")

    def forks() -> int:
        child = os.fork()
        if not child:
            try:
                well = upstream.sync.call(lambda: "well") == "well"
            except BaseException:  # the child must end here in any case
                well = False
            os._exit(0 if well else 1)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert upstream.sync.call(forks) == 0
    assert upstream.sync.get_state().calls_in_flight == 0


def test_breaker__with_another_name_and_state__is_used(store: MemoryStore, clock: ManualClock) -> None:
    shared = CircuitBreaker("everything", config=SENSITIVE, state=MemoryStore(clock))
    upstream = Upstream("pncp", "1000/s", breaker=shared, retry=False, state=store)
    with pytest.raises(OSError, match="gone"):
        upstream.sync.call(Scripted(clock, OSError("gone")))
    assert shared.is_degraded


def test_leaky_bucket__several_calls__wait_their_turn_or_are_refused_with_retry_after(
    store: MemoryStore, clock: ManualClock
) -> None:
    limit = LimitConfig(1, 100, strategy=LimitStrategy.LEAKY_BUCKET)
    upstream, scripted = Upstream("leaky", limit, max_wait=2, state=store), Scripted(clock)
    for _ in range(3):
        upstream.sync.call(scripted)
    assert scripted.at == [0, 1, 2]
    slow = Upstream("slow", LimitConfig(0.01, 9, strategy=LimitStrategy.LEAKY_BUCKET), state=store)
    slow.sync.call(scripted)
    with pytest.raises(LimitReachedError) as raised:
        slow.sync.call(scripted)
    assert raised.value.retry_after == pytest.approx(100)


def test_limit__fast_path_would_block__uses_the_slow_path(store: MemoryStore) -> None:
    def busy(*_: object) -> int:
        raise WouldBlock

    upstream = Upstream("pncp", "10/s", state=store)
    object.__setattr__(upstream._policies, "try_acquire", busy)
    assert upstream.sync.call(lambda: "well") == "well"
    assert upstream.limiter.sync.stats().tokens_available == 9


def test_cancelled__many_calls_at_random_times_on_a_server__hold_nothing(valkey: Server) -> None:
    with redis_store(valkey) as store:
        upstream = Upstream("cancelled", "2000/s burst 1", max_concurrent=2, max_wait=30, state=store)

        async def fetch() -> None:
            await asyncio.sleep(0)

        async def main() -> None:
            tasks = [asyncio.create_task(upstream.call(fetch)) for _ in range(100)]
            for number, task in enumerate(tasks):
                for _ in range(number % 7):
                    await asyncio.sleep(0)
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            while (await upstream.get_state()).calls_in_flight:
                pass  # each turn reads from the server
            await upstream.call(fetch)
            await upstream.aclose()

        asyncio.run(asyncio.wait_for(main(), 30))
