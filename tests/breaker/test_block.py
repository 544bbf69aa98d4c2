"""Blocks and generators own their admissions, in whatever order they end."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator

import pytest
from tests.breaker.drivers import Driver
from tests.support import wait_until

from comporta import CircuitBreaker, CircuitOpenError
from comporta.breaker.block import _AsyncGeneratorBlock
from comporta.metrics import InMemoryMetrics, use_metrics
from comporta.stores.base import Store
from comporta.testing import ManualClock

MakeDriver = Callable[..., Driver]


def _breaker(store: Store, threshold: int = 1) -> CircuitBreaker:
    return CircuitBreaker("pncp", threshold, 10, state=store)


def _trip_and_wait(breaker: CircuitBreaker, clock: ManualClock) -> None:
    breaker.sync.record_failure("down")
    clock.advance(10)


def test_sync_block__stream_begun_before_the_opening_ends_first__does_not_close_the_circuit(
    store: Store, clock: ManualClock
) -> None:
    breaker = _breaker(store)

    def stream() -> Iterator[int]:
        with breaker.sync.admit():
            yield 1

    def probe() -> Iterator[int]:
        with breaker.sync.admit() as admission:
            assert admission.probe
            yield 1
            raise OSError("still down")

    early, probing = stream(), probe()
    next(early)
    _trip_and_wait(breaker, clock)
    next(probing)
    assert list(early) == []
    assert breaker.phase == "half_open"
    with pytest.raises(OSError, match="still down"):
        next(probing)
    assert breaker.phase == "open"
    assert breaker.sync.get_state().reason == "OSError: still down"


def test_async_block__tasks_that_share_a_context_interleave__each_records_its_own_result(
    store: Store, clock: ManualClock
) -> None:
    breaker = _breaker(store)

    async def stream() -> AsyncIterator[int]:
        async with breaker.admit():
            yield 1

    async def probe() -> AsyncIterator[int]:
        async with breaker.admit() as admission:
            assert admission.probe
            yield 1
            raise OSError("still down")

    async def main() -> None:
        early, probing = stream(), probe()
        await anext(early)
        await breaker.record_failure("down")
        clock.advance(10)
        await anext(probing)
        with pytest.raises(StopAsyncIteration):
            await anext(early)
        assert (await breaker.get_state()).phase == "half_open"
        with pytest.raises(OSError, match="still down"):
            await anext(probing)
        assert (await breaker.get_state()).phase == "open"
        await breaker.aclose()

    asyncio.run(main())


def test_block__entered_in_one_task_and_left_in_another__keeps_its_admission(
    store: Store, clock: ManualClock
) -> None:
    breaker = _breaker(store)

    async def main() -> None:
        await breaker.record_failure("down")
        clock.advance(10)
        block = breaker.admit()
        assert (await asyncio.create_task(block.__aenter__())).probe
        await asyncio.create_task(block.__aexit__(None, None, None))
        assert (await breaker.get_state()).phase == "closed"
        await breaker.aclose()

    asyncio.run(main())


def test_block__entered_twice__raises_naming_the_remedy() -> None:
    breaker = CircuitBreaker("pncp", state="memory://")
    block = breaker.sync.admit()
    with (
        block,
        pytest.raises(RuntimeError, match=r"'pncp' can be entered once: call admit\(\) for each"),
        block,
    ):
        raise AssertionError

    async def main() -> None:
        again = breaker.admit()
        async with again:
            with pytest.raises(RuntimeError, match="can be entered once"):
                await again.__aenter__()

    asyncio.run(main())


def test_generator__decorated__is_admitted_at_its_first_item_and_recorded_at_its_end(
    store: Store, clock: ManualClock
) -> None:
    breaker = _breaker(store)

    @breaker
    def pages(count: int) -> Generator[int, str, str]:
        """Yield pages."""
        for page in range(count):
            if (yield page) == "stop":
                return "stopped"
        return "done"

    assert (pages.__name__, pages.__doc__) == ("pages", "Yield pages.")
    assert list(pages(3)) == [0, 1, 2]
    _trip_and_wait(breaker, clock)
    probing = pages(3)
    assert not breaker.sync.get_state().probes
    next(probing)
    assert len(breaker.sync.get_state().probes) == 1
    refused = pages(1)
    with pytest.raises(CircuitOpenError):
        next(refused)
    with pytest.raises(StopIteration, match="stopped"):
        probing.send("stop")
    assert breaker.phase == "closed"


def test_generator__decorated_and_failing__counts_and_passes_the_error_on(store: Store) -> None:
    breaker = _breaker(store)

    @breaker
    def pages() -> Iterator[int]:
        yield 1
        raise OSError("reset by peer")

    with pytest.raises(OSError, match="reset by peer"):
        list(pages())
    assert breaker.sync.get_state().reason == "OSError: reset by peer"


@pytest.mark.parametrize("is_closed", [True, False])
def test_generator__probe_that_is_closed_or_dropped_between_items__counts_as_a_success(
    store: Store, clock: ManualClock, is_closed: bool
) -> None:
    breaker = _breaker(store)

    @breaker
    def pages() -> Iterator[int]:
        yield 1
        yield 2

    _trip_and_wait(breaker, clock)
    stream = pages()
    assert next(stream) == 1
    assert len(breaker.sync.get_state().probes) == 1
    if is_closed:
        stream.close()  # type: ignore[attr-defined]  # a generator
    del stream
    gc.collect()
    wait_until(lambda: breaker.sync.get_state().phase == "closed")


def test_generator__cleanup_of_a_closed_one_fails__counts_as_that_error(store: Store) -> None:
    breaker = _breaker(store, threshold=3)

    @breaker
    def pages() -> Generator[int, None, None]:
        try:
            yield 1
        finally:
            raise OSError("reset by peer")

    @breaker
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
        await breaker.aclose()

    stream = pages()
    next(stream)
    with pytest.raises(OSError, match="reset"):
        stream.close()
    wait_until(lambda: breaker.sync.get_state().failures == 1)
    asyncio.run(main())
    wait_until(lambda: breaker.sync.get_state().failures == 2)


def test_async_generator__decorated__passes_on_what_is_sent_and_thrown(store: Store) -> None:
    breaker = _breaker(store, threshold=2)

    @breaker
    async def pages() -> AsyncGenerator[int, int]:
        sent = 0
        while True:
            try:
                sent = yield sent
            except LookupError:
                sent = -1
            if sent > 5:
                return

    async def main() -> None:
        stream = pages()
        assert await anext(stream) == 0
        assert await stream.asend(4) == 4
        assert await stream.athrow(LookupError()) == -1
        with pytest.raises(StopAsyncIteration):
            await stream.asend(6)
        assert (await breaker.get_state()).failures == 0
        with pytest.raises(OSError, match="down"):
            await _started(pages()).__anext__()
        assert (await breaker.get_state()).failures == 1
        await breaker.aclose()

    def _started(stream: AsyncGenerator[int, int]) -> AsyncIterator[int]:
        async def fail() -> AsyncIterator[int]:
            await anext(stream)
            yield await stream.athrow(OSError("down"))

        return fail()

    asyncio.run(main())


def test_async_generator__decorated_and_exhausted__returns_every_item() -> None:
    breaker = CircuitBreaker("pncp", state="memory://")

    @breaker
    async def pages() -> AsyncIterator[int]:
        for page in range(3):
            yield page

    async def main() -> list[int]:
        return [page async for page in pages()]

    assert asyncio.run(main()) == [0, 1, 2]


def test_async_generator__probe_that_is_closed__is_a_success_and_closes_the_inner_one(
    store: Store, clock: ManualClock
) -> None:
    breaker = _breaker(store)
    closed: list[bool] = []

    @breaker
    async def pages() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            await asyncio.sleep(0)
            closed.append(True)

    async def main() -> None:
        await breaker.record_failure("down")
        clock.advance(10)
        stream = pages()
        await anext(stream)
        await stream.aclose()
        await breaker.aclose()

    asyncio.run(main())
    wait_until(lambda: breaker.sync.get_state().phase == "closed")
    assert closed == [True]


def test_async_generator__dropped_after_its_event_loop__counts_as_a_success(
    store: Store, clock: ManualClock
) -> None:
    breaker = _breaker(store)

    @breaker
    async def pages() -> AsyncIterator[int]:
        yield 1

    async def start(begun: AsyncIterator[int]) -> int:
        return await anext(begun)

    _trip_and_wait(breaker, clock)
    metrics = InMemoryMetrics()
    before = use_metrics(metrics)
    loop = asyncio.new_event_loop()
    stream = pages()
    assert loop.run_until_complete(start(stream)) == 1
    loop.run_until_complete(breaker.aclose())
    loop.close()
    del stream
    gc.collect()
    wait_until(lambda: metrics.value("breaker_calls", breaker="pncp", outcome="success") == 1)
    use_metrics(before)
    wait_until(lambda: breaker.sync.get_state().phase == "closed")


def test_async_generator__dropped_while_it_produces_an_item__gives_the_probe_back(
    store: Store, clock: ManualClock
) -> None:
    breaker = _breaker(store)

    async def enter() -> _AsyncGeneratorBlock:
        block = _AsyncGeneratorBlock(breaker._guard)
        await block.__aenter__()
        await store.aclose()
        return block

    _trip_and_wait(breaker, clock)
    block = asyncio.run(enter())
    assert len(breaker.sync.get_state().probes) == 1
    del block
    gc.collect()
    wait_until(lambda: not breaker.sync.get_state().probes)
    assert breaker.sync.get_state().phase == "half_open"
