"""Clocks that are wrong, and workers that come, go, and are cut off from the others."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.faults.rows import BLOCKING, row
from tests.faults.stage import PATIENT, RETURN_SECONDS, UNHURRIED, Stage

from comporta import BaseLimiter, LimitConfig, LimitStrategy
from comporta.stores.failover import FailoverStore
from comporta.stores.records import ABSENT, Delete, Read, Write
from comporta.stores.redis import RedisStore
from comporta.stores.workers import WORKERS, Beat, Leave, Worker
from comporta.testing import ManualClock
from comporta.testing.servers import wait_until

HUNDRED_A_MINUTE = LimitConfig(1, 100, 60, LimitStrategy.SLIDING_WINDOW)
HOUR = 3600.0

_WORKER = """
import sys, time
from comporta import LimitConfig, BaseLimiter
limiter = BaseLimiter(LimitConfig(0.001, 100_000), sys.argv[1], "tested").sync
assert limiter.acquire("k")
print("ready", flush=True)
time.sleep(60)
"""


@row("the clocks of workers differ")
def _(stage: Stage) -> None:
    """Two workers, one five seconds ahead and one behind: a window that went by their clocks would be two."""
    callers = [stage.caller(HUNDRED_A_MINUTE, options=f"?timeout={5 + number}") for number in range(2)]
    granted = 0
    for _ in range(75):
        for caller, ahead in zip(callers, (5.0, -5.0), strict=True):
            with _clock_off(ahead):
                granted += caller.acquire()
    assert granted == 100


@row("a worker's clock jumps")
def _(stage: Stage) -> None:
    tested = stage.caller(options=PATIENT)
    for jump in (0.0, -HOUR, HOUR, -HOUR):
        with _clock_off(jump):
            assert [tested.acquire() for _ in range(10)] == [True] * 10
    assert stage.taken() == 40
    refilled = float(stage.server.command("HGET", "rate_limiter:tested:k", "last_refill"))
    assert abs(refilled - float(stage.server.command("TIME")[0])) < 60, "the time is the server's"
    assert tested.fallback is None


@row("the server's clock jumps", BLOCKING)
def _(stage: Stage) -> None:
    """The scripts are told the time here, because no test can set a clock that others use."""
    for strategy in LimitStrategy:
        clock = ManualClock(time.time())
        store = FailoverStore.of(RedisStore(stage.server.url, 5, clock), stage.address)
        limiter = BaseLimiter(LimitConfig(10, 10, 1, strategy), store, strategy.value).sync
        for jump in (-HOUR, HOUR, -HOUR):
            while limiter.acquire("k"):
                pass
            clock.advance(jump)
            assert sum(limiter.acquire("k") for _ in range(20)) <= 10, "one burst at the most"
            assert limiter.decide("k").retry_after <= 1, "and nobody is shut out"
            clock.advance(1.1)
            assert limiter.acquire("k")
        store.close()
    worker = str(Worker("ahead", 1, 1, 1))
    moment_us = (time.time() + HOUR) * 1e6
    stage.server.command("ZADD", WORKERS, f"{moment_us:.0f}", worker)
    stage.settle(stage.caller(options=PATIENT))
    wait_until(
        lambda: float(stage.server.command("ZSCORE", WORKERS, worker) or 0) < moment_us - 1e9,
        "a sign of life from the future counts from now",
        RETURN_SECONDS,
    )


@row("a worker is killed", BLOCKING)
def _(stage: Stage) -> None:
    tested = stage.caller(options=PATIENT)
    stage.settle(tested)
    with _worker(stage.proxy.url):
        wait_until(lambda: _workers(stage) == 2, "both are counted", RETURN_SECONDS)
    wait_until(lambda: _workers(stage) == 1, "the dead one is not counted any more", RETURN_SECONDS)
    for key in stage.server.command("KEYS", "*"):
        assert stage.server.command("PTTL", key) > 0, f"{key} would stay for ever"


@row("a worker wakes up that was taken for dead", BLOCKING)
def _(stage: Stage) -> None:
    """What it does then concerns itself alone: everybody has a token that no other has."""
    store = RedisStore(stage.server.url, 5)
    zombie, heir = Worker.here(), Worker.here()
    assert store.apply(Write("lease", "k", b"zombie", 0.001, ABSENT))
    wait_until(lambda: store.apply(Read("lease", "k")) is None, "its lease has ended", RETURN_SECONDS)
    assert store.apply(Write("lease", "k", b"heir", 60, ABSENT))
    assert not store.apply(Delete("lease", "k", b"zombie"))
    assert store.apply(Read("lease", "k")) == b"heir"
    assert store.apply(Beat(heir)) == 1
    assert store.apply(Leave(zombie)) == 1
    assert store.apply(Beat(zombie)) == 2
    store.close()


@row("a worker starts while the server is away")
def _(stage: Stage) -> None:
    stage.server.kill()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMPORTA_WORKERS", "4")
        tested = stage.caller(LimitConfig(0.001, 100), options=UNHURRIED)
    assert not tested.acquire()
    assert tested.fallback is not None
    assert tested.fallback.workers == 4
    assert tested.decide().limit == 25
    stage.server.start()
    stage.back(tested)
    assert tested.decide().limit == 100


@row("some workers are cut off from the server, others are not")
def _(stage: Stage) -> None:
    cut_off = stage.caller(LimitConfig(0.001, 100), options=UNHURRIED)
    within = stage.caller_at(stage.server.url + PATIENT, LimitConfig(0.001, 100), "tested", prompt=False)
    assert cut_off.acquire()
    assert within.acquire()
    wait_until(lambda: _workers(stage) == 2, "both are counted", RETURN_SECONDS)
    assert cut_off.acquire(), "with this reply it hears of the other"
    stage.proxy.refuse()
    stage.proxy.cut()
    assert not cut_off.acquire()
    assert cut_off.decide().limit == 50
    assert within.decide().limit == 100
    assert within.fallback is None
    stage.proxy.heal()
    stage.back(cut_off)
    assert cut_off.decide().limit == 100


def _workers(stage: Stage) -> int:
    return int(stage.server.command("ZCARD", WORKERS))


@contextmanager
def _clock_off(seconds: float) -> Iterator[None]:
    """Have this worker's clock go wrong by so much."""
    with pytest.MonkeyPatch.context() as patch:
        right, right_ns = time.time, time.time_ns
        patch.setattr(time, "time", lambda: right() + seconds)
        patch.setattr(time, "time_ns", lambda: right_ns() + int(seconds * 1e9))
        yield


@contextmanager
def _worker(url: str) -> Iterator[None]:
    """Have another process use the same limit, and kill it."""
    command = [sys.executable, "-c", _WORKER, url + PATIENT]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as worker:
        try:
            assert worker.stdout is not None
            assert worker.stdout.readline() == b"ready\n"
            yield
        finally:
            worker.kill()
