"""Troubles between a caller and the server."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.faults.rows import outage, row
from tests.faults.stage import LASTING, LIVELY, PATIENT, RETURN_SECONDS, Caller, Stage

from comporta import BaseLimiter
from comporta.stores import keeper, workers
from comporta.testing.servers import wait_until

OURS = "rate_limiter:tested"
"""In the requests of the caller that is watched, and not in what the keeper asks meanwhile."""

UNREACHED = "cannot be (reached|used)"
NO_ANSWER = "did not answer in time; it may have been carried out|still connecting"

LOST = 100


@outage("the server is killed", UNREACHED)
def _(stage: Stage) -> Iterator[None]:
    stage.server.kill()
    yield
    stage.server.start()


@outage("nothing listens", UNREACHED)
def _(stage: Stage) -> Iterator[None]:
    stage.proxy.refuse()
    stage.proxy.cut()
    yield
    stage.proxy.heal()


@outage("connections are reset as soon as they are made", UNREACHED)
def _(stage: Stage) -> Iterator[None]:
    stage.proxy.reset_on_accept()
    stage.proxy.cut()
    yield
    stage.proxy.heal()


@outage("the server hangs", NO_ANSWER, options="")
def _(stage: Stage) -> Iterator[None]:
    stage.server.freeze()
    yield
    stage.server.thaw()


@outage("packets vanish", NO_ANSWER, carried_out={0}, options="")
def _(stage: Stage) -> Iterator[None]:
    stage.proxy.blackhole("requests")
    yield
    stage.proxy.heal()


@outage("answers take 200 ms", NO_ANSWER, options="")
def _(stage: Stage) -> Iterator[None]:
    stage.proxy.delay(0.1)
    yield
    stage.proxy.heal()


@outage("a connection is reset in the middle of a reply", UNREACHED, carried_out={1}, lasting=False)
def _(stage: Stage) -> Iterator[None]:
    stage.proxy.cut_replies(to=OURS)
    yield


@outage("a connection is reset in the middle of a request", UNREACHED, carried_out={0}, lasting=False)
def _(stage: Stage) -> Iterator[None]:
    stage.proxy.cut_requests(to=OURS)
    yield


@outage("a reply stops half way", NO_ANSWER, carried_out={1}, lasting=False, options="")
def _(stage: Stage) -> Iterator[None]:
    stage.proxy.stall_replies(to=OURS)
    yield


@outage("garbage comes in the place of a reply", UNREACHED, carried_out={1}, lasting=False)
def _(stage: Stage) -> Iterator[None]:
    stage.proxy.garble_replies(to=OURS)
    yield


@row("replies are lost")
def _(stage: Stage) -> None:
    tested = stage.caller()
    stage.settle(tested)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keeper, "PROBE_LONGEST_SECONDS", 0.01)  # so that a hundred times take seconds,
        patch.setattr(workers, "GATHER_US", 1000)  # and as there are no others, nobody waits for them
        for number in range(LOST):
            stage.back(tested)
            before = stage.taken()
            stage.proxy.lose_replies(to=OURS)
            _lose(stage, tested, number + 1)
            assert stage.taken() == before + number + 1, "carried out once"


@row("a reply comes one byte at a time")
def _(stage: Stage) -> None:
    tested = stage.caller(options=PATIENT)
    stage.proxy.slice_packets(1)
    assert [tested.decide().remaining for _ in range(5)] == [99_999, 99_998, 99_997, 99_996, 99_995]
    assert stage.taken() == 5
    assert tested.fallback is None


@row("the server's name cannot be resolved")
def _(stage: Stage) -> None:
    tested = stage.caller_at("redis://nowhere.invalid:6379/0", LASTING, "tested")
    lively = stage.caller_at("redis://nowhere.invalid:6379/0", LIVELY, "lively")
    assert not tested.acquire()
    assert tested.fallback is not None
    assert "nothing was sent" in tested.fallback.why
    wait_until(lively.acquire, "the share grants something", 30)


@row("very many callers at once")
def _(stage: Stage) -> None:
    tested = stage.caller(options=PATIENT)
    if stage.runner is None:
        with ThreadPoolExecutor(64) as threads:
            answers = list(threads.map(lambda _: tested.acquire(), range(640)))
    else:
        answers = stage.runner.run(_gathered(tested.limiter, 5000))
    assert all(answers)
    assert stage.taken() == len(answers)
    assert tested.fallback is None


@row("callers are cancelled", faces=("awaiting",))
def _(stage: Stage) -> None:
    tested = stage.caller(options=PATIENT)
    stage.settle(tested)
    stage.proxy.delay(0.01)
    assert stage.runner is not None
    stage.runner.run(_cancelled(tested.limiter, asked=256, gone=224))


def _lose(stage: Stage, caller: Caller, cost: int) -> None:
    """Ask until a reply was lost; before that a caller may have been on its own."""
    before = stage.proxy.replies_lost
    granted = []

    def lost() -> bool:
        granted.append(caller.acquire(cost=cost))
        return stage.proxy.replies_lost > before

    wait_until(lost, "a reply is lost", RETURN_SECONDS)
    assert not any(granted), "what was lost is not granted"


async def _gathered(limiter: BaseLimiter, count: int) -> list[bool]:
    return await asyncio.gather(*(limiter.acquire("k") for _ in range(count)))


async def _cancelled(limiter: BaseLimiter, asked: int, gone: int) -> None:
    """Cancel most of those who ask, at chosen moments; each of the others gets the answer that is its own."""
    moments = random.Random(1)
    asking = [asyncio.create_task(_both(limiter, number)) for number in range(asked)]
    for task in moments.sample(asking, gone):
        await asyncio.sleep(moments.uniform(0, 0.0005))
        task.cancel()
    await asyncio.wait(asking)
    kept = {number: task.result() for number, task in enumerate(asking) if not task.cancelled()}
    assert asked - gone <= len(kept) < asked
    assert all(remaining == LASTING.capacity - number - 1 for number, remaining in kept.items())
    async with asyncio.timeout(30):  # by then what the others were granted is given back
        while (await limiter.peek("own")).remaining != LASTING.capacity - len(kept):
            pass


async def _both(limiter: BaseLimiter, number: int) -> int:
    remaining = (await limiter.decide(f"own-{number}", number + 1)).remaining
    await limiter.acquire("own")
    return remaining
