"""A bound on awaits: what ``asyncio.timeout`` does, done for many at once.

Every behaviour is asked of both, so that ours is held to theirs.
"""

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
    entry = Timeouts(seconds).enter()
    try:
        yield
    except BaseException as error:
        entry.leave(error)
        raise
    entry.leave()


@asynccontextmanager
async def by_context(seconds: float) -> AsyncIterator[None]:
    with Timeouts(seconds).limit():
        yield


@pytest.fixture(params=[asyncio.timeout, by_hand, by_context], ids=["asyncio", "by hand", "by context"])
def bounded(request: pytest.FixtureRequest) -> Bounded:
    made: Bounded = request.param
    return made


async def cancelled_soon(work: asyncio.Task[object]) -> None:
    """Cancel a task once it waits."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    work.cancel("from outside")


def test_timeout__done_in_time__changes_nothing(bounded: Bounded) -> None:
    async def main() -> int:
        async with bounded(LONG):
            await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    assert asyncio.run(main()) == 0


def test_timeout__over__is_a_timeout_error_and_the_task_goes_on(bounded: Bounded) -> None:
    async def main() -> int:
        with pytest.raises(TimeoutError) as raised:
            async with bounded(SHORT):
                await asyncio.sleep(LONG)
        assert isinstance(raised.value.__cause__, asyncio.CancelledError)
        await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    assert asyncio.run(main()) == 0


def test_timeout__cancelled_from_outside__stays_a_cancellation(bounded: Bounded) -> None:
    async def work() -> None:
        async with bounded(LONG):
            await asyncio.sleep(LONG)

    async def main() -> None:
        task = asyncio.create_task(work())
        await cancelled_soon(task)
        with pytest.raises(asyncio.CancelledError, match="from outside"):
            await task
        assert task.cancelled()

    asyncio.run(main())


def test_timeout__over_and_cancelled_from_outside_at_once__the_outside_wins(bounded: Bounded) -> None:
    async def work(waits: asyncio.Event) -> None:
        async with bounded(SHORT):
            try:
                await asyncio.sleep(LONG)
            finally:
                waits.set()
                await asyncio.sleep(0)  # cancelled here for the second time

    async def main() -> None:
        waits = asyncio.Event()
        task = asyncio.create_task(work(waits))
        await waits.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_timeout__cancelled_before_it_began__only_its_own_is_turned(bounded: Bounded) -> None:
    async def work() -> str:
        try:
            await asyncio.sleep(LONG)
        except asyncio.CancelledError:
            try:
                async with bounded(SHORT):
                    await asyncio.sleep(LONG)
            except TimeoutError:
                return "clean-up timed out"
        return "never"

    async def main() -> str:
        task = asyncio.create_task(work())
        await cancelled_soon(task)
        return await task

    assert asyncio.run(main()) == "clean-up timed out"


@pytest.mark.parametrize("inner_first", [True, False])
def test_timeout__one_inside_another__the_right_one_is_over(bounded: Bounded, inner_first: bool) -> None:
    inner, outer = (SHORT, LONG) if inner_first else (LONG, SHORT)
    seen = []

    async def main() -> None:
        try:
            async with bounded(outer):
                try:
                    async with bounded(inner):
                        await asyncio.sleep(LONG)
                except TimeoutError:
                    seen.append("inner")
                except asyncio.CancelledError:
                    seen.append("cancelled inside")
                    raise
        except TimeoutError:
            seen.append("outer")

    asyncio.run(main())
    assert seen == (["inner"] if inner_first else ["cancelled inside", "outer"])


def test_timeout__over_but_the_body_swallows_it__nothing_is_raised_and_nothing_stays(
    bounded: Bounded,
) -> None:
    async def main() -> int:
        async with bounded(SHORT):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(LONG)
        await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    assert asyncio.run(main()) == 0


def test_timeout__over_and_the_body_fails_otherwise__its_own_error_is_seen(bounded: Bounded) -> None:
    async def main() -> None:
        async with bounded(SHORT):
            try:
                await asyncio.sleep(LONG)
            except asyncio.CancelledError:
                raise KeyError("mine") from None

    with pytest.raises(KeyError, match="mine"):
        asyncio.run(main())


def test_timeout__body_fails_in_time__its_error_passes(bounded: Bounded) -> None:
    async def main() -> None:
        async with bounded(LONG):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        asyncio.run(main())


def test_timeout__the_answer_came_first_but_the_loop_was_held_past_the_deadline__is_in_time(
    bounded: Bounded,
) -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[int] = loop.create_future()

        def held() -> None:
            threading.Event().wait(3 * SHORT)
            future.set_result(1)

        async with bounded(SHORT):
            loop.call_soon(held)
            found = await future
        await asyncio.sleep(0)
        return found

    assert asyncio.run(main()) == 1


def test_timeouts__many_at_once__each_ends_as_it_should_and_nothing_is_kept() -> None:
    timeouts = Timeouts(0.2)

    async def call(number: int) -> str:
        try:
            with timeouts.limit():
                await asyncio.sleep(LONG if number % 3 == 0 else 0)
        except TimeoutError:
            return "over"
        return "done"

    async def main() -> list[str]:
        found = await asyncio.gather(*(call(number) for number in range(3000)))
        [line] = timeouts._lines.values()
        assert not line
        return found

    assert asyncio.run(main()) == ["over", "done", "done"] * 1000


def test_timeouts__calls_that_come_later__are_over_later_in_order() -> None:
    timeouts = Timeouts(0.05)
    ended: list[int] = []

    async def call(number: int) -> None:
        with pytest.raises(TimeoutError), timeouts.limit():
            await asyncio.sleep(LONG)
        ended.append(number)

    async def main() -> None:
        tasks = []
        for number in range(5):
            tasks.append(asyncio.create_task(call(number)))
            await asyncio.sleep(0.01)
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert ended == [0, 1, 2, 3, 4]


def test_timeouts__a_long_call_before_many_short_ones__holds_only_what_is_under_way() -> None:
    timeouts = Timeouts(LONG)

    async def main() -> None:
        first = timeouts.enter()
        [line] = timeouts._lines.values()
        for _ in range(10_000):
            timeouts.enter().leave()
        assert list(line) == [first]
        first.leave()
        assert len(timeouts._lines) == 1
        timers = [timer for timer in asyncio.get_running_loop()._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
        assert len(timers) == 1

    asyncio.run(main())


def test_timeouts__loops_that_were_closed__are_forgotten() -> None:
    timeouts = Timeouts(LONG)

    async def main() -> None:
        with timeouts.limit():
            await asyncio.sleep(0)

    for _ in range(5):
        asyncio.run(main())
    gc.collect()
    assert len(timeouts._lines) == 1


def test_timeouts__two_loops_by_turns__keep_a_line_each() -> None:
    timeouts = Timeouts(LONG)

    async def main() -> None:
        with timeouts.limit():
            await asyncio.sleep(0)

    with asyncio.Runner() as one, asyncio.Runner() as other:
        for _ in range(2):
            one.run(main())
            other.run(main())
        assert len(timeouts._lines) == 2


def test_timeouts__two_threads_with_a_loop_each__do_not_meet() -> None:
    timeouts = Timeouts(0.02)
    found: list[bool] = []

    async def main() -> None:
        for number in range(20):
            try:
                with timeouts.limit():
                    await asyncio.sleep(LONG if number == 19 else 0)
            except TimeoutError:
                found.append(number == 19)

    threads = [threading.Thread(target=lambda: asyncio.run(main())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 4


def test_timeouts__after_a_fork__the_child_starts_anew() -> None:
    timeouts = Timeouts(LONG)

    async def main() -> None:
        with timeouts.limit():
            await asyncio.sleep(0)

    asyncio.run(main())
    timeouts._lock.acquire()  # as another thread of the parent may have
    timeouts.after_fork()
    assert not timeouts._lines
    asyncio.run(main())


def test_enter__outside_a_task__says_so() -> None:
    async def main() -> None:
        raised: list[BaseException] = []

        def enter() -> None:
            try:
                Timeouts(1).enter()
            except RuntimeError as error:
                raised.append(error)

        asyncio.get_running_loop().call_soon(enter)
        await asyncio.sleep(0.001)
        assert "there is none" in str(raised[0])

    asyncio.run(main())
    with pytest.raises(RuntimeError):
        Timeouts(1).enter()


def test_limit__entered_twice__says_so() -> None:
    async def main() -> None:
        limit = Timeouts(LONG).limit()
        with limit, pytest.raises(RuntimeError, match="once"):
            limit.__enter__()

    asyncio.run(main())


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 1e12])
def test_seconds__out_of_range__are_refused_with_the_range(seconds: float) -> None:
    with pytest.raises(ValueError, match="timeout must be above 0 and at most 3"):
        Timeouts(seconds)


@pytest.mark.parametrize("seconds", ["1", None, True])
def test_seconds__no_number__are_refused(seconds: float) -> None:
    with pytest.raises(TypeError, match="timeout must be a number of seconds, got"):
        Timeouts(seconds)
