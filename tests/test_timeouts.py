"""Timeouts of many calls. Most tests also run with ``asyncio.timeout`` and expect the same behaviour."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

import pytest

from comporta.timeouts import Timeouts

LONG = 600.0
SHORT = 0.01

Bounded = Callable[[float], AbstractAsyncContextManager[object]]


@asynccontextmanager
async def by_hand(seconds: float) -> AsyncIterator[None]:
    entry = Timeouts(seconds).start()
    try:
        yield
    except BaseException as error:
        entry.finish(error)
        raise
    entry.finish()


@asynccontextmanager
async def by_context(seconds: float) -> AsyncIterator[None]:
    with Timeouts(seconds).context():
        yield


@pytest.fixture(params=[asyncio.timeout, by_hand, by_context], ids=["asyncio", "by hand", "by context"])
def bounded(request: pytest.FixtureRequest) -> Bounded:
    manager: Bounded = request.param
    return manager


async def forever() -> None:
    """Wait until cancelled."""
    await asyncio.Event().wait()


async def cancel_soon(work: asyncio.Task[object]) -> None:
    """Cancel a task as soon as it waits."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    work.cancel("from outside")


def test_timeout__finished_in_time__changes_nothing(bounded: Bounded) -> None:
    async def main() -> int:
        async with bounded(LONG):
            await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    assert asyncio.run(main()) == 0


def test_timeout__expired__raises_timeout_error_and_the_task_continues(bounded: Bounded) -> None:
    async def main() -> int:
        with pytest.raises(TimeoutError) as raised:
            async with bounded(SHORT):
                await forever()
        assert isinstance(raised.value.__cause__, asyncio.CancelledError)
        await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    assert asyncio.run(main()) == 0


def test_timeout__cancelled_from_outside__stays_a_cancellation(bounded: Bounded) -> None:
    async def work() -> None:
        async with bounded(LONG):
            await forever()

    async def main() -> None:
        task = asyncio.create_task(work())
        await cancel_soon(task)
        with pytest.raises(asyncio.CancelledError, match="from outside"):
            await task
        assert task.cancelled()

    asyncio.run(main())


def test_timeout__expired_and_cancelled_from_outside__stays_a_cancellation(bounded: Bounded) -> None:
    async def work(expired: asyncio.Event) -> None:
        async with bounded(SHORT):
            try:
                await forever()
            finally:
                expired.set()
                await asyncio.sleep(0)  # cancelled here for the second time

    async def main() -> None:
        expired = asyncio.Event()
        task = asyncio.create_task(work(expired))
        await expired.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_timeout__cancelled_before_it_started__converts_only_its_own_cancellation(bounded: Bounded) -> None:
    async def work() -> str:
        try:
            await forever()
        except asyncio.CancelledError:
            try:
                async with bounded(SHORT):
                    await forever()
            except TimeoutError:
                return "clean-up timed out"
        return "never"

    async def main() -> str:
        task = asyncio.create_task(work())
        await cancel_soon(task)
        return await task

    assert asyncio.run(main()) == "clean-up timed out"


@pytest.mark.parametrize("inner_first", [True, False])
def test_timeout__nested__the_right_one_expires(bounded: Bounded, inner_first: bool) -> None:
    inner, outer = (SHORT, LONG) if inner_first else (LONG, SHORT)
    seen = []

    async def main() -> None:
        try:
            async with bounded(outer):
                try:
                    async with bounded(inner):
                        await forever()
                except TimeoutError:
                    seen.append("inner")
                except asyncio.CancelledError:
                    seen.append("cancelled inside")
                    raise
        except TimeoutError:
            seen.append("outer")

    asyncio.run(main())
    assert seen == (["inner"] if inner_first else ["cancelled inside", "outer"])


def test_timeout__expired_and_swallowed_by_the_body__raises_nothing_and_leaves_nothing(
    bounded: Bounded,
) -> None:
    async def main() -> int:
        async with bounded(SHORT):
            with suppress(asyncio.CancelledError):
                await forever()
        await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    assert asyncio.run(main()) == 0


def test_timeout__expired_and_the_body_raises__the_bodys_error_is_raised(bounded: Bounded) -> None:
    async def main() -> None:
        async with bounded(SHORT):
            try:
                await forever()
            except asyncio.CancelledError:
                raise KeyError("from the body") from None

    with pytest.raises(KeyError, match="from the body"):
        asyncio.run(main())


def test_timeout__body_raises_in_time__its_error_is_raised(bounded: Bounded) -> None:
    async def main() -> None:
        async with bounded(LONG):
            raise KeyError("from the body")

    with pytest.raises(KeyError, match="from the body"):
        asyncio.run(main())


def test_timeout__result_before_a_blocked_loop_passes_the_deadline__is_in_time(
    bounded: Bounded,
) -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[int] = loop.create_future()

        def block_loop() -> None:
            threading.Event().wait(3 * SHORT)
            future.set_result(1)

        async with bounded(SHORT):
            loop.call_soon(block_loop)
            result = await future
        await asyncio.sleep(0)
        return result

    assert asyncio.run(main()) == 1


def test_timeouts__many_concurrent__each_ends_correctly_and_nothing_is_kept() -> None:
    timeouts = Timeouts(0.2)

    async def call(number: int) -> str:
        try:
            with timeouts.context():
                await (forever() if number % 3 == 0 else asyncio.sleep(0))
        except TimeoutError:
            return "over"
        return "done"

    async def main() -> list[str]:
        results = await asyncio.gather(*(call(number) for number in range(3000)))
        [queue] = timeouts._queues.values()
        assert not queue
        return results

    assert asyncio.run(main()) == ["over", "done", "done"] * 1000


def test_timeouts__later_calls__expire_later_in_order() -> None:
    timeouts = Timeouts(0.05)
    ended: list[int] = []

    async def call(number: int) -> None:
        with pytest.raises(TimeoutError), timeouts.context():
            await forever()
        ended.append(number)

    async def main() -> None:
        tasks, loop = [], asyncio.get_running_loop()
        for number in range(5):
            tasks.append(asyncio.create_task(call(number)))
            next_start = loop.time() + 0.005
            while loop.time() < next_start:  # noqa: ASYNC110 - the deadlines must differ
                await asyncio.sleep(0)
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert ended == [0, 1, 2, 3, 4]


def test_timeouts__long_call_before_many_short_ones__keeps_only_calls_in_progress() -> None:
    timeouts = Timeouts(LONG)

    async def main() -> None:
        first = timeouts.start()
        [queue] = timeouts._queues.values()
        for _ in range(10_000):
            timeouts.start().finish()
        assert list(queue) == [first]
        first.finish()
        assert len(timeouts._queues) == 1
        timers = [timer for timer in asyncio.get_running_loop()._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
        assert len(timers) == 1

    asyncio.run(main())


def test_timeouts__closed_loops__are_dropped() -> None:
    timeouts = Timeouts(LONG)

    async def main() -> None:
        with timeouts.context():
            await asyncio.sleep(0)

    for _ in range(5):
        asyncio.run(main())
    gc.collect()
    assert len(timeouts._queues) == 1


def test_timeouts__two_loops_alternating__have_a_queue_each() -> None:
    timeouts = Timeouts(LONG)

    async def main() -> None:
        with timeouts.context():
            await asyncio.sleep(0)

    with asyncio.Runner() as one, asyncio.Runner() as other:
        for _ in range(2):
            one.run(main())
            other.run(main())
        assert len(timeouts._queues) == 2


def test_timeouts__two_threads_with_a_loop_each__do_not_interfere() -> None:
    timeouts = Timeouts(0.02)
    expired: list[bool] = []

    async def main() -> None:
        for number in range(20):
            try:
                with timeouts.context():
                    await (forever() if number == 19 else asyncio.sleep(0))
            except TimeoutError:
                expired.append(number == 19)

    threads = [threading.Thread(target=lambda: asyncio.run(main())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert expired == [True] * 4


def test_timeouts__after_a_fork__the_child_starts_empty() -> None:
    timeouts = Timeouts(LONG)

    async def main() -> None:
        with timeouts.context():
            await asyncio.sleep(0)

    asyncio.run(main())
    timeouts._lock.acquire()  # another thread of the parent may hold the lock during the fork
    timeouts.after_fork()
    assert not timeouts._queues
    asyncio.run(main())


def test_start__outside_a_task__raises() -> None:
    async def main() -> None:
        raised: list[BaseException] = []
        entered = asyncio.Event()

        def enter() -> None:
            try:
                Timeouts(1).start()
            except RuntimeError as error:
                raised.append(error)
            entered.set()

        asyncio.get_running_loop().call_soon(enter)
        await entered.wait()
        assert "needs a running task" in str(raised[0])

    asyncio.run(main())
    with pytest.raises(RuntimeError):
        Timeouts(1).start()


def test_context__entered_twice__raises() -> None:
    async def main() -> None:
        limit = Timeouts(LONG).context()
        with limit, pytest.raises(RuntimeError, match="already entered"):
            limit.__enter__()

    asyncio.run(main())


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 1e12])
def test_seconds__out_of_range__raises_with_the_range(seconds: float) -> None:
    with pytest.raises(ValueError, match="timeout must be above 0 and at most 3"):
        Timeouts(seconds)


@pytest.mark.parametrize("seconds", ["1", None, True])
def test_seconds__not_a_number__raises(seconds: float) -> None:
    with pytest.raises(TypeError, match="timeout must be a number of seconds, got"):
        Timeouts(seconds)


def test_timeouts__loop_with_a_clock_of_its_own__follow_that_clock() -> None:
    class OffsetLoop(asyncio.SelectorEventLoop):
        def time(self) -> float:
            return super().time() + 1000

    async def main() -> None:
        loop, timeouts = asyncio.get_running_loop(), Timeouts(0.01)
        before = loop.time()
        entry = timeouts.start()
        assert before + 0.01 <= entry.deadline <= loop.time() + 0.01
        entry.finish()
        with pytest.raises(TimeoutError), timeouts.context():
            await asyncio.sleep(60)  # sleeps: until the timeout

    with asyncio.Runner(loop_factory=OffsetLoop) as runner:
        runner.run(main())
