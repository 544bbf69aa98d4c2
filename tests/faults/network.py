"""Faults of the network between a caller and the server."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.faults.catalog import fault, outage
from tests.faults.environment import (
    FAST_REFILL,
    RECOVERY_SECONDS_MAX,
    RELIABLE,
    SLOW_REFILL,
    Caller,
    FaultEnvironment,
)

from comporta import BaseLimiter
from comporta.stores.failover import recovery
from comporta.testing.redis_server import wait_until

TESTED_KEY = "rate_limiter:tested"
"""Occurs in the requests of the tested caller and not in those of its heartbeat."""

UNREACHABLE = "cannot be (reached|used)"
NO_ANSWER = "did not answer in time; the operation may have been carried out|still connecting"

LOST_REPLIES = 100


@outage("the server is killed", UNREACHABLE)
def _(env: FaultEnvironment) -> Iterator[None]:
    env.server.kill()
    yield
    env.server.start()


@outage("no server listens", UNREACHABLE)
def _(env: FaultEnvironment) -> Iterator[None]:
    env.proxy.refuse_connections()
    env.proxy.reset_connections()
    yield
    env.proxy.heal()


@outage("connections are reset as soon as they are made", UNREACHABLE)
def _(env: FaultEnvironment) -> Iterator[None]:
    env.proxy.reset_on_accept()
    env.proxy.reset_connections()
    yield
    env.proxy.heal()


@outage("the server hangs", NO_ANSWER, options="")
def _(env: FaultEnvironment) -> Iterator[None]:
    env.server.freeze()
    yield
    env.server.thaw()


@outage("packets are dropped", NO_ANSWER, carried_out={0}, options="")
def _(env: FaultEnvironment) -> Iterator[None]:
    env.proxy.blackhole("requests")
    yield
    env.proxy.heal()


@outage("replies take 200 ms", NO_ANSWER, options="")
def _(env: FaultEnvironment) -> Iterator[None]:
    env.proxy.delay(0.1)
    yield
    env.proxy.heal()


@outage("a connection is reset in the middle of a reply", UNREACHABLE, carried_out={1}, lasting=False)
def _(env: FaultEnvironment) -> Iterator[None]:
    env.proxy.truncate_replies(matching=TESTED_KEY)
    yield


@outage("a connection is reset in the middle of a request", UNREACHABLE, carried_out={0}, lasting=False)
def _(env: FaultEnvironment) -> Iterator[None]:
    env.proxy.truncate_requests(matching=TESTED_KEY)
    yield


@outage("a reply stops halfway", NO_ANSWER, carried_out={1}, lasting=False, options="")
def _(env: FaultEnvironment) -> Iterator[None]:
    env.proxy.stall_replies(matching=TESTED_KEY)
    yield


@outage("a malformed reply arrives", UNREACHABLE, carried_out={1}, lasting=False)
def _(env: FaultEnvironment) -> Iterator[None]:
    env.proxy.garble_replies(matching=TESTED_KEY)
    yield


@fault("replies are lost")
def _(env: FaultEnvironment) -> None:
    caller = env.caller()
    env.wait_until_served(caller)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recovery, "PROBE_SECONDS_MAX", 0.01)  # so that 100 outages take seconds
        for number in range(LOST_REPLIES):
            env.wait_for_recovery(caller)
            before = env.charged()
            env.proxy.lose_replies(matching=TESTED_KEY)
            _lose(env, caller, number + 1)
            assert env.charged() == before + number + 1, "carried out once"


@fault("a reply arrives one byte at a time")
def _(env: FaultEnvironment) -> None:
    caller = env.caller(options=RELIABLE)
    env.proxy.slice_packets(1)
    assert [caller.decide().remaining for _ in range(5)] == [99_999, 99_998, 99_997, 99_996, 99_995]
    assert env.charged() == 5
    assert caller.fallback is None


@fault("the server's name cannot be resolved")
def _(env: FaultEnvironment) -> None:
    caller = env.caller_at("redis://nowhere.invalid:6379/0", SLOW_REFILL, "tested")
    fast = env.caller_at("redis://nowhere.invalid:6379/0", FAST_REFILL, "fast")
    assert not caller.acquire()
    assert caller.fallback is not None
    assert "nothing was sent" in caller.fallback.reason
    wait_until(fast.acquire, "the share grants something", 30)


@fault("many callers at once")
def _(env: FaultEnvironment) -> None:
    caller = env.caller(options=RELIABLE)
    if env.runner is None:
        with ThreadPoolExecutor(64) as threads:
            results = list(threads.map(lambda _: caller.acquire(), range(640)))
    else:
        results = env.runner.run(_acquire_many(caller.limiter, 5000))
    assert all(results)
    assert env.charged() == len(results)
    assert caller.fallback is None


@fault("callers are cancelled", faces=("awaiting",))
def _(env: FaultEnvironment) -> None:
    caller = env.caller(options=RELIABLE)
    env.wait_until_served(caller)
    env.proxy.delay(0.01)
    assert env.runner is not None
    env.runner.run(_cancel_some(caller.limiter, calls=256, cancelled=224))


def _lose(env: FaultEnvironment, caller: Caller, cost: int) -> None:
    """Call until a reply was lost; before that the caller may have been in fallback."""
    before = env.proxy.replies_lost
    granted = []

    def has_lost_reply() -> bool:
        granted.append(caller.acquire(cost=cost))
        return env.proxy.replies_lost > before

    wait_until(has_lost_reply, "a reply is lost", RECOVERY_SECONDS_MAX)
    assert not any(granted), "a lost reply grants nothing"


async def _acquire_many(limiter: BaseLimiter, count: int) -> list[bool]:
    return await asyncio.gather(*(limiter.acquire("k") for _ in range(count)))


async def _cancel_some(limiter: BaseLimiter, calls: int, cancelled: int) -> None:
    """Cancel most calls at random moments; each of the others gets its own answer."""
    moments = random.Random(1)
    tasks = [asyncio.create_task(_decide_and_acquire(limiter, number)) for number in range(calls)]
    for task in moments.sample(tasks, cancelled):
        await asyncio.sleep(moments.uniform(0, 0.0005))  # sleeps: cancels at a random moment
        task.cancel()
    await asyncio.wait(tasks)
    completed = {number: task.result() for number, task in enumerate(tasks) if not task.cancelled()}
    assert calls - cancelled <= len(completed) < calls
    assert all(remaining == SLOW_REFILL.capacity - number - 1 for number, remaining in completed.items())
    async with asyncio.timeout(30):  # by then what cancelled calls were granted is given back
        while (await limiter.peek("own")).remaining != SLOW_REFILL.capacity - len(completed):
            pass


async def _decide_and_acquire(limiter: BaseLimiter, number: int) -> int:
    remaining = (await limiter.decide(f"own-{number}", number + 1)).remaining
    await limiter.acquire("own")
    return remaining
