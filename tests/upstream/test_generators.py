"""Decorated generator functions: one attempt lasts until the generator ends."""

from __future__ import annotations

import asyncio
import gc
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from typing import Any

import pytest
from tests.support import wait_until
from tests.upstream.drivers import lowest

from comporta import BreakerConfig, CircuitOpenError, LimitReachedError, Retry, Upstream, last_call
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock

SENSITIVE = BreakerConfig(threshold=1, cooldown_seconds=10)


@pytest.fixture
def upstream(store: MemoryStore) -> Upstream:
    return Upstream(
        "pages", "1000/s", max_concurrent=1, max_wait=0, retry=Retry(draw=lowest, state=store), state=store
    )


def in_flight(upstream: Upstream) -> int | None:
    return upstream.sync.get_state().calls_in_flight


def failures(upstream: Upstream) -> int:
    breaker = upstream.sync.get_state().breaker
    assert breaker is not None
    return breaker.failures


async def collect(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


def test_generator__runs_to_its_end__is_one_call_and_returns_its_value(upstream: Upstream) -> None:
    @upstream.guard
    def pages(count: int) -> Generator[int, None, str]:
        yield from range(count)
        return "end"

    values: list[str] = []

    def outer() -> Generator[int, None, None]:
        values.append((yield from pages(3)))

    assert inspect.isgeneratorfunction(pages)
    assert list(outer()) == [0, 1, 2]
    report = last_call()
    assert report is not None
    assert (values, report.attempts, report.outcome) == (["end"], 1, "ok")
    assert list(pages(0)) == []
    assert in_flight(upstream) == 0


def test_async_generator__runs_to_its_end__is_one_call(upstream: Upstream) -> None:
    @upstream.guard
    async def pages(count: int) -> AsyncIterator[int]:
        for number in range(count):
            await asyncio.sleep(0)
            yield number

    assert inspect.isasyncgenfunction(pages)
    assert asyncio.run(collect(pages(3))) == [0, 1, 2]
    assert asyncio.run(collect(pages(0))) == []
    assert (in_flight(upstream), failures(upstream)) == (0, 0)


def test_generator__in_progress__holds_its_permit(upstream: Upstream) -> None:
    @upstream.guard
    def pages() -> Iterator[int]:
        yield 1
        yield 2

    first = pages()
    assert next(first) == 1
    assert in_flight(upstream) == 1
    with pytest.raises(LimitReachedError):
        next(pages())
    assert list(first) == [2]
    assert list(pages()) == [1, 2]


def test_generator__fails_before_its_first_item__is_retried(upstream: Upstream) -> None:
    starts = 0

    @upstream.guard
    def pages() -> Iterator[int]:
        nonlocal starts
        starts += 1
        if starts < 3:
            raise OSError("not yet")
        yield starts

    @upstream.guard
    async def pages_async() -> AsyncIterator[int]:
        nonlocal starts
        starts += 1
        if starts < 3:
            raise OSError("not yet")
        yield starts

    assert list(pages()) == [3]
    starts = 0
    assert asyncio.run(collect(pages_async())) == [3]


def test_generator__fails_after_its_first_item__counts_and_is_not_retried(upstream: Upstream) -> None:
    starts = 0

    @upstream.guard
    def pages() -> Iterator[int]:
        nonlocal starts
        starts += 1
        yield 1
        raise OSError("gone")

    @upstream.guard
    async def pages_async() -> AsyncIterator[int]:
        nonlocal starts
        starts += 1
        yield 1
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        list(pages())
    report = last_call()
    assert report is not None
    assert (report.outcome, report.reason) == ("failure", "OSError: gone")
    with pytest.raises(OSError, match="gone"):
        asyncio.run(collect(pages_async()))
    assert (starts, failures(upstream), in_flight(upstream)) == (2, 2, 0)


def test_generator__closed_or_dropped__runs_its_cleanup_and_counts_as_a_success(
    store: MemoryStore, clock: ManualClock
) -> None:
    upstream = Upstream("pages", "1000/s", max_concurrent=1, breaker=SENSITIVE, state=store)
    assert upstream.breaker is not None
    closed = 0

    @upstream.guard
    def pages() -> Generator[int, None, None]:
        nonlocal closed
        try:
            yield 1
            yield 2
        finally:
            closed += 1

    for number, is_closed in enumerate((True, False), 1):
        upstream.breaker.sync.record_failure()
        clock.advance(11)
        generator = pages()
        assert next(generator) == 1
        assert upstream.sync.get_state().breaker.phase == "half_open"  # type: ignore[union-attr]
        if is_closed:
            generator.close()
        del generator
        gc.collect()
        wait_until(lambda: in_flight(upstream) == 0)
        wait_until(lambda: upstream.sync.get_state().breaker.phase == "closed")  # type: ignore[union-attr]
        assert closed == number


def test_generators__cleanup_of_a_closed_one_fails__count_as_that_error(upstream: Upstream) -> None:
    @upstream.guard
    def pages() -> Generator[int, None, None]:
        try:
            yield 1
        finally:
            raise OSError("reset by peer")

    @upstream.guard
    async def pages_async() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            raise OSError("reset by peer")

    async def main() -> None:
        stream = pages_async()
        await anext(stream)
        with pytest.raises(OSError, match="reset"):
            await stream.aclose()

    stream = pages()
    next(stream)
    with pytest.raises(OSError, match="reset"):
        stream.close()
    wait_until(lambda: failures(upstream) == 1)
    asyncio.run(main())
    wait_until(lambda: failures(upstream) == 2)
    wait_until(lambda: in_flight(upstream) == 0)


def test_async_generator__closed__runs_its_cleanup_and_releases(upstream: Upstream) -> None:
    closed = False

    @upstream.guard
    async def pages() -> AsyncGenerator[int, None]:
        nonlocal closed
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(0)
            closed = True

    async def main() -> None:
        generator = pages()
        assert await anext(generator) == 1
        await generator.aclose()

    asyncio.run(main())
    assert closed
    wait_until(lambda: in_flight(upstream) == 0)


def test_generator__caller_sends_and_throws__reaches_the_function(upstream: Upstream) -> None:
    @upstream.guard
    def echo() -> Generator[Any, Any, None]:
        received = yield "ready"
        while True:
            try:
                received = yield received
            except KeyError as error:
                received = error

    @upstream.guard
    async def echo_async() -> AsyncGenerator[Any, Any]:
        received = yield "ready"
        while True:
            try:
                received = yield received
            except KeyError as error:
                received = error

    thrown = KeyError("thrown")
    generator = echo()
    assert [next(generator), generator.send("sent"), generator.throw(thrown)] == ["ready", "sent", thrown]
    generator.close()
    wait_until(lambda: in_flight(upstream) == 0)

    async def main() -> list[Any]:
        generator = echo_async()
        items = [await anext(generator), await generator.asend("sent"), await generator.athrow(thrown)]
        await generator.aclose()
        return items

    assert asyncio.run(main()) == ["ready", "sent", thrown]


def test_async_generator__next_item_is_late__is_a_timeout_and_counts(store: MemoryStore) -> None:
    upstream = Upstream("pages", "1000/s", max_concurrent=1, timeout=0.05, retry=False, state=store)

    @upstream.guard
    async def pages() -> AsyncIterator[int]:
        yield 1
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError, match=r"took longer than the time-out of 0\.05 s"):
        asyncio.run(collect(pages()))
    assert (failures(upstream), in_flight(upstream)) == (1, 0)


def test_async_generator__cancelled__counts_as_neither(upstream: Upstream) -> None:
    @upstream.guard
    async def pages() -> AsyncIterator[int]:
        yield 1
        await asyncio.Event().wait()

    async def main() -> None:
        generator = pages()
        assert await anext(generator) == 1
        task = asyncio.ensure_future(anext(generator))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert (failures(upstream), in_flight(upstream)) == (0, 0)


def test_generator__circuit_is_open__raises_at_its_first_item(store: MemoryStore) -> None:
    upstream = Upstream("pages", "1000/s", breaker=SENSITIVE, state=store)
    assert upstream.breaker is not None
    upstream.breaker.sync.record_failure()

    @upstream.guard
    def pages() -> Iterator[int]:
        yield 1

    generator = pages()
    with pytest.raises(CircuitOpenError):
        next(generator)


def test_generator__on_refusal_and_retry_if__are_for_calls_with_a_single_result() -> None:
    asked: list[object] = []

    def ask(result: object) -> bool:
        asked.append(result)
        return False

    upstream = Upstream(
        "g",
        "1/hour",
        max_wait=0,
        retry=Retry(retry_if=ask),
        state=MemoryStore(),
        on_refusal="cached",
    )

    @upstream.guard
    def numbers() -> Iterator[int]:
        yield from range(2)

    assert list(numbers()) == [0, 1]
    with pytest.raises(LimitReachedError):
        list(numbers())
    assert asked == []
