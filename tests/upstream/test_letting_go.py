"""Calls that end without a result: what they held is given back, and nobody is blamed."""

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
from tests.support import comes_true, redis_store
from tests.upstream.conftest import Make
from tests.upstream.faces import Response, Scripted, least

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
from comporta.stores.base import Busy
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock, Server

SENSITIVE = BreakerConfig(threshold=1, cooldown_seconds=10)


@pytest.fixture
def half_open(store: MemoryStore, clock: ManualClock) -> Upstream:
    """Give an upstream whose next call is the one probe, and that allows one call in flight."""
    upstream = Upstream(
        "pncp",
        "1000/s",
        breaker=SENSITIVE,
        max_concurrent=1,
        retry=Retry(draw=least, state=store),
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


async def begun(upstream: Upstream, function: Callable[..., Any]) -> asyncio.Task[Any]:
    """Return a task that is in the middle of its attempt."""
    started = asyncio.Event()

    async def call() -> Any:
        started.set()
        return await function()

    task = asyncio.create_task(upstream.call(call))
    await started.wait()
    return task


def test_cancelled__during_the_attempt__counts_as_nothing_and_holds_nothing(half_open: Upstream) -> None:
    async def main() -> None:
        task = await begun(half_open, asyncio.Event().wait)
        assert half_open.sync.get_state().calls_in_flight == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert_nothing_held(half_open)


def test_cancelled__while_waiting_to_try_again__holds_nothing(
    half_open: Upstream, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = asyncio.Event()

    async def for_ever(_: float) -> None:
        waiting.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(clock, "sleep_async", for_ever)
    first = Response(408)

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


def test_cancelled__while_the_result_is_told__the_response_is_closed_and_the_probe_given_back(
    half_open: Upstream, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    response, telling = Response(), asyncio.Event()
    assert half_open.breaker is not None
    ask_async = half_open.breaker.view.__class__.ask_async

    async def hangs(view: Any, step: Any) -> Any:
        if step._asked.verb == "succeed" and not telling.is_set():
            telling.set()
            await asyncio.Event().wait()
        return await ask_async(view, step)

    monkeypatch.setattr(half_open.breaker.view.__class__, "ask_async", hangs)

    async def answers() -> Response:
        return response

    async def main() -> None:
        task = asyncio.create_task(half_open.call(answers))
        await telling.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert response.closed == 1
    assert_nothing_held(half_open)


def test_cancelled__twice__the_rest_is_given_back_all_the_same(
    half_open: Upstream, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    giving, apply_async = asyncio.Event(), store.apply_async

    async def hangs(operation: Any) -> Any:
        if type(operation).__name__ == "GivePermit" and not giving.is_set():
            giving.set()
            await asyncio.Event().wait()
        return await apply_async(operation)

    monkeypatch.setattr(store, "apply_async", hangs)

    async def main() -> None:
        task = await begun(half_open, asyncio.Event().wait)
        task.cancel()
        await giving.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    state = half_open.sync.get_state()
    assert state.breaker is not None
    assert (state.breaker.phase, state.breaker.probes) == ("half_open", ())


def test_cancelled__while_the_breaker_is_asked_again__the_token_is_given_back(
    clock: ManualClock, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = Upstream("pncp", "1/s", breaker=SENSITIVE, state=store)
    assert upstream.breaker is not None
    upstream.sync.call(lambda: None)
    asked = asyncio.Event()

    class Hanging:
        async def wait(self) -> None:
            asked.set()
            await asyncio.Event().wait()

    def hangs() -> Iterator[Any]:
        yield Hanging()

    answers = iter([upstream.breaker.verbs.admitting, hangs])
    monkeypatch.setattr(upstream.breaker.verbs.__class__, "admitting", lambda _: next(answers)())
    monkeypatch.setattr(upstream.breaker, "standing_now", lambda: None)

    async def main() -> None:
        task = asyncio.create_task(upstream.call(asyncio.Event().wait))
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert upstream.limiter.sync.stats().tokens_available == 1


def test_closed__coroutine_thrown_away_in_the_middle__holds_nothing(half_open: Upstream) -> None:
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
    comes_true(lambda: upstream.sync.get_state().calls_in_flight == 0)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_interrupted__by_what_is_no_error__comes_out_and_holds_nothing(
    half_open: Upstream, clock: ManualClock, kind: type[BaseException]
) -> None:
    interruption = kind()
    with pytest.raises(kind) as raised:
        half_open.sync.call(Scripted(clock, interruption))
    assert raised.value is interruption
    report = last_call()
    assert report is not None
    assert report.outcome == "cancelled"
    comes_true(lambda: half_open.breaker is not None and not half_open.breaker.sync.get_state().probes)
    assert_nothing_held(half_open)


def test_raised__stop_iteration__comes_out_as_it_is(make: Make, clock: ManualClock) -> None:
    face, end = make(breaker=False, retry=False), StopIteration("the end")
    if face.runner is None:  # no coroutine can raise one
        with pytest.raises(StopIteration) as raised:
            face.call(Scripted(clock, end))
        assert raised.value is end
        assert end.__context__ is None


@pytest.mark.parametrize("failures", [1, 2, 4])
def test_raised__any_error__is_held_by_nobody_afterwards(
    make: Make, clock: ManualClock, failures: int
) -> None:
    class Weak(Exception):  # noqa: N818 - a name for a test
        pass

    face = make(breaker=False)
    gone: list[weakref.ref[Weak]] = []

    def fails() -> None:
        if len(gone) < failures:
            error = Weak()
            gone.append(weakref.ref(error))
            try:
                raise error
            finally:
                del error  # or this very frame would hold it

    def suppressed() -> None:
        with suppress(Weak):
            face.upstream.sync.call(fails)

    async def suppressed_async() -> None:  # in here: asyncio's own frames hold what a task raised
        async def awaited() -> None:
            fails()

        with suppress(Weak):
            await face.upstream.call(awaited)

    gc.collect()
    gc.disable()
    try:
        if face.runner is None:
            suppressed()
        else:
            face.runner.run(suppressed_async())
        left = [error() for error in gone if error() is not None]
    finally:
        gc.enable()
    assert left == []


def test_retry_predicate__raises__its_error_comes_out_and_nothing_is_held(
    half_open: Upstream, store: MemoryStore, clock: ManualClock
) -> None:
    def confused(_: Exception) -> bool:
        raise RuntimeError("confused")

    upstream = Upstream("other", "10/s", retry=Retry(on=confused, state=store), max_concurrent=1, state=store)
    with pytest.raises(RuntimeError, match="confused"):
        upstream.sync.call(Scripted(clock, OSError()))
    assert upstream.sync.get_state().calls_in_flight == 0


def test_timeout__attempt_takes_too_long__is_a_failure_and_is_tried_again(store: MemoryStore) -> None:
    upstream = Upstream(
        "pncp", "1000/s", timeout=0.01, retry=Retry(1, 0, jitter=(0, 0), state=store), state=store
    )
    calls = 0

    async def slow() -> None:
        nonlocal calls
        calls += 1
        await asyncio.sleep(600)

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await upstream.call(slow)

    asyncio.run(main())
    state = upstream.sync.get_state()
    assert state.breaker is not None
    assert (calls, state.breaker.failures) == (2, 2)


def test_threads__many_at_once__never_more_in_flight_than_allowed() -> None:
    upstream = Upstream("threads", "100000/s", max_concurrent=3, max_wait=30, state="memory://threads")
    inside = most = 0
    lock = threading.Lock()

    @upstream.guard
    def counted() -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        os.sched_yield()
        with lock:
            inside -= 1

    def work() -> None:
        for _ in range(20):
            counted()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 1 <= most <= 3
    assert upstream.sync.get_state().calls_in_flight == 0


def test_loops__several_one_after_the_other_and_at_once__share_one_upstream(valkey: Server) -> None:
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


def test_fork__in_the_middle_of_a_call__the_child_has_an_upstream_that_works() -> None:
    upstream = Upstream("forked", "1000/s", max_concurrent=2, state="memory://forked")

    def forks() -> int:
        child = os.fork()
        if not child:
            try:
                well = upstream.sync.call(lambda: "well") == "well"
            except BaseException:  # the child must end here, whatever happens
                well = False
            os._exit(0 if well else 1)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert upstream.sync.call(forks) == 0
    assert upstream.sync.get_state().calls_in_flight == 0


def test_breaker__of_another_name_and_state__is_the_one_that_is_asked(
    store: MemoryStore, clock: ManualClock
) -> None:
    shared = CircuitBreaker("everything", config=SENSITIVE, state=MemoryStore(clock))
    upstream = Upstream("pncp", "1000/s", breaker=shared, retry=False, state=store)
    with pytest.raises(OSError, match="gone"):
        upstream.sync.call(Scripted(clock, OSError("gone")))
    assert shared.is_degraded


def test_leaky_bucket__calls_wait_for_their_turn_or_are_told_when(
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


def test_limit__its_lock_is_taken__is_asked_the_slow_way(store: MemoryStore) -> None:
    def busy(*_: object) -> int:
        raise Busy

    upstream = Upstream("pncp", "10/s", state=store)
    object.__setattr__(upstream.parts, "take_now", busy)
    assert upstream.sync.call(lambda: "well") == "well"
    assert upstream.limiter.sync.stats().tokens_available == 9


def test_cancelled__many_at_any_moment_on_a_server__nothing_stays_held(valkey: Server) -> None:
    with redis_store(valkey) as store:
        upstream = Upstream("cancelled", "2000/s burst 1", max_concurrent=2, max_wait=30, state=store)

        async def fetch() -> None:
            await asyncio.sleep(0.001)

        async def main() -> None:
            tasks = [asyncio.create_task(upstream.call(fetch)) for _ in range(100)]
            for number, task in enumerate(tasks):
                await asyncio.sleep(0.0005 * (number % 3))
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            while (await upstream.get_state()).calls_in_flight:  # noqa: ASYNC110 - the server is who knows
                await asyncio.sleep(0.01)
            await upstream.call(fetch)
            await upstream.aclose()

        asyncio.run(asyncio.wait_for(main(), 30))
