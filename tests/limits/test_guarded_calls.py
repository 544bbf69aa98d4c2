"""Blocks and decorators that a limit guards, asking without taking, and taking what there is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.limits.faces import Bench, Face
from tests.stores.manual_heartbeat import manual_failover
from tests.support import command, redis_store

from comporta import BaseLimiter, LimitConfig, LimitReachedError, LimitStrategy
from comporta.errors import StateTypeError, StateUnavailableError
from comporta.limits.acquire_up_to import AcquireUpTo
from comporta.limits.operation import LimitDemand
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock, Server

CONFIGS = [LimitConfig(1, 5, 5, strategy) for strategy in LimitStrategy]


def _enter(limiter: Face, *args: Any, **kwargs: Any) -> str:
    block = limiter.target.limit(*args, **kwargs)

    async def entered() -> str:
        async with block:
            return "ran"

    if limiter.runner is not None:
        return limiter.runner.run(entered())
    with limiter.target.sync.limit(*args, **kwargs):
        return "ran"


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_limit__block__takes_before_it_begins_and_raises_when_refused(
    bench: Bench, config: LimitConfig
) -> None:
    limiter = bench.limiter(config)
    assert _enter(limiter, "k", cost=5) == "ran"
    with pytest.raises(LimitReachedError, match=r"pncp: the limit of .* had no capacity for 1 in time") as e:
        _enter(limiter, "k")
    assert e.value.name == "pncp"
    assert e.value.retry_after == limiter.peek("k").retry_after > 0
    bench.clock.advance(e.value.retry_after)
    assert _enter(limiter, "k") == "ran"
    assert _enter(limiter, "other") == "ran"


def test_limit__block_with_a_timeout__waits(bench: Bench) -> None:
    limiter = bench.limiter("1/s")
    assert [_enter(limiter, timeout=5) for _ in range(3)] == ["ran"] * 3


def test_limit__decorated_function__takes_from_the_key_of_its_arguments(bench: Bench) -> None:
    limiter = bench.limiter("2/s")
    target: BaseLimiter = limiter.target

    @target.sync.limit(lambda user, *, page=1: f"user:{user}")
    def fetch(user: int, *, page: int = 1) -> int:
        """Fetch."""
        return user + page

    @target.limit(lambda user: f"user:{user}")
    async def fetch_async(user: int) -> int:
        return user

    assert fetch(1) == 2
    assert fetch(1, page=2) == 3
    with pytest.raises(LimitReachedError):
        fetch(1)
    assert fetch.__doc__ == "Fetch."
    if limiter.runner is not None:
        assert limiter.runner.run(fetch_async(2)) == 2
        with pytest.raises(LimitReachedError):
            limiter.runner.run(fetch_async(1))
    assert limiter.peek("user:1").remaining == 0


def test_limit__decorated_generator_function__is_refused() -> None:
    def items() -> Any:
        yield 1

    with pytest.raises(TypeError, match="a generator function cannot be decorated"):
        BaseLimiter("1/s").limit()(items)


def test_limit__function_as_key_of_a_block__is_refused() -> None:
    limiter = BaseLimiter("1/s")
    with pytest.raises(TypeError, match=r"key of a block must be a LimitKey, a str or None, got <function"):
        limiter.sync.limit(lambda: "k").__enter__()


@pytest.mark.unmeasured
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_peek__cost__says_what_decide_would_decide_and_takes_nothing(
    bench: Bench, config: LimitConfig
) -> None:
    limiter = bench.limiter(config)
    for cost, pause in ((1, 0), (3, 0.5), (2, 0), (5, 1), (1, 3), (4, 10)):
        bench.clock.advance(pause)
        peeked = limiter.peek("k", cost)
        assert limiter.peek("k", cost=cost) == peeked
        decided = limiter.decide("k", cost)
        assert (peeked.allowed, peeked.retry_after) == (decided.allowed, decided.retry_after)
        assert peeked.limit == 5


def test_peek__paused_limit__says_how_long(bench: Bench) -> None:
    limiter = bench.limiter("5/s")
    limiter.pause(7)
    decision = limiter.peek("k", 2)
    assert not decision.allowed
    assert (decision.retry_after, decision.paused, decision.remaining) == (7, 7, 5)


@pytest.mark.parametrize("cost", [0, 6, True, 1.5])
def test_peek__cost_that_no_limit_grants__is_refused(cost: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="cost must be"):
        BaseLimiter("5/s").sync.peek(cost=cost)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_acquire_up_to__any_strategy__grants_what_there_is(bench: Bench, config: LimitConfig) -> None:
    limiter = bench.limiter(config)
    assert limiter.acquire_up_to("k", 3) == 3
    rest = 0 if config.strategy is LimitStrategy.LEAKY_BUCKET else 2  # its next turn is 3 s away
    assert limiter.acquire_up_to("k", 10**9) == rest
    assert limiter.acquire_up_to("k", 1) == 0
    assert limiter.acquire_up_to("other", 7) == 5
    bench.clock.advance(10)
    assert limiter.acquire_up_to("k") == 1


def test_acquire_up_to__overridden_and_paused__obeys_the_override(bench: Bench) -> None:
    limiter = bench.limiter("5/s")
    limiter.set_limit("3/s")
    assert limiter.acquire_up_to("k", 10) == 3
    limiter.pause(1)
    assert limiter.acquire_up_to("other", 10) == 0
    limiter.resume()
    assert limiter.acquire_up_to("other", 10) == 3


@pytest.mark.parametrize("cost", [0, -1, 10**9 + 1, "2"])
def test_acquire_up_to__impossible_cost__is_refused(cost: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"cost must be (an int|1 to 1000000000)"):
        BaseLimiter("5/s").sync.acquire_up_to("k", cost)


def test_acquire_up_to__callers_wait__leaves_them_what_there_is() -> None:
    async def main() -> list[Any]:
        limiter = BaseLimiter("20/s burst 1")
        assert await limiter.acquire("k")
        waiter = asyncio.create_task(limiter.acquire("k", timeout=5))
        await asyncio.sleep(0)  # sleeps: lets the waiter start
        assert limiter._flows.wait_queue.waiters_by_key
        return [await limiter.acquire_up_to("k", 1), await waiter]

    assert asyncio.run(main()) == [0, True]


def test_up_to_and_peek__outage__use_the_local_share() -> None:
    clock = ManualClock()
    store, primary = manual_failover(clock)
    limiter = BaseLimiter("10/s burst 4", store, "n").sync
    assert limiter.acquire_up_to("k", 2) == 2
    primary.error = StateUnavailableError("gone")
    assert limiter.acquire_up_to("k", 4) == 0
    assert not limiter.peek("k")
    clock.advance(10)
    assert limiter.peek("k").allowed
    assert limiter.acquire_up_to("k", 9) == 4
    store.close()


def test_up_to_and_peek__key_of_another_program__name_it(valkey: Server) -> None:
    with redis_store(valkey, ManualClock(1_800_000_000)) as store:
        limiter = BaseLimiter("10/s", store, "n").sync
        command(valkey, "SET", "rate_limiter:n:k", "mine")
        with pytest.raises(StateTypeError, match="'rate_limiter:n:k' does not hold the state of a limit"):
            limiter.acquire_up_to("k", 2)
        with pytest.raises(StateTypeError, match="'rate_limiter:n:k' does not hold the state of a limit"):
            limiter.peek("k")


def test_acquire_up_to__undone__releases_what_was_granted() -> None:
    store, demand = MemoryStore(ManualClock()), LimitDemand(CONFIGS[0].build_strategy(), "n", "k", 9)
    granted = store.apply(AcquireUpTo(demand))
    assert granted == 5
    undo = AcquireUpTo(demand).undo(granted)
    assert undo is not None
    store.apply(undo)
    assert store.apply(AcquireUpTo(demand)) == 5
    assert AcquireUpTo(demand).undo(0) is None


def test_set_limit__another_strategy__is_refused_in_words(bench: Bench) -> None:
    limiter = bench.limiter(LimitConfig(1, 5, 5, LimitStrategy.SLIDING_WINDOW))
    with pytest.raises(
        ValueError,
        match=r"strategy of a running limit cannot change: 'pncp' counts by sliding_window, got token_b",
    ):
        limiter.set_limit(LimitConfig(1, 5))
    limiter.set_limit("7/minute")
    assert limiter.peek("k").limit == 7
