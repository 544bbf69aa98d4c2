"""Wrong clocks, and workers that start, die and are cut off from the others."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.faults.catalog import BLOCKING, fault
from tests.faults.environment import NO_DEADLINE, RECOVERY_SECONDS_MAX, RELIABLE, FaultEnvironment

from comporta import BaseLimiter, LimitConfig, LimitStrategy
from comporta.stores.failover.store import FailoverStore
from comporta.stores.failover.worker_registry import REGISTRY_KEY, RecordHeartbeat, RemoveWorker, Worker
from comporta.stores.records import ABSENT, DeleteRecord, ReadRecord, WriteRecord
from comporta.stores.redis.store import RedisStore
from comporta.testing import ManualClock
from comporta.testing.redis_server import wait_until

HUNDRED_PER_MINUTE = LimitConfig(1, 100, 60, LimitStrategy.SLIDING_WINDOW)
HOUR = 3600.0

_WORKER = """
import sys, time
from comporta import LimitConfig, BaseLimiter
limiter = BaseLimiter(LimitConfig(0.001, 100_000), sys.argv[1], "tested").sync
assert limiter.acquire("k")
print("ready", flush=True)
time.sleep(60)
"""


@fault("the clocks of workers differ")
def _(env: FaultEnvironment) -> None:
    """One worker's clock is 5 s ahead and one's behind: by their clocks there would be two windows."""
    callers = [env.caller(HUNDRED_PER_MINUTE, options=f"?timeout={5 + number}") for number in range(2)]
    granted = 0
    for _ in range(75):
        for caller, ahead in zip(callers, (5.0, -5.0), strict=True):
            with _clock_shifted(ahead):
                granted += caller.acquire()
    assert granted == 100


@fault("a worker's clock jumps")
def _(env: FaultEnvironment) -> None:
    caller = env.caller(options=RELIABLE)
    for jump in (0.0, -HOUR, HOUR, -HOUR):
        with _clock_shifted(jump):
            assert [caller.acquire() for _ in range(10)] == [True] * 10
    assert env.charged() == 40
    refilled = float(env.server.command("HGET", "rate_limiter:tested:k", "last_refill"))
    assert abs(refilled - float(env.server.command("TIME")[0])) < 60, "the script uses the server's clock"
    assert caller.fallback is None


@fault("the server's clock jumps", BLOCKING)
def _(env: FaultEnvironment) -> None:
    """The scripts get the time from a manual clock, because a test cannot set the machine's clock."""
    for strategy in LimitStrategy:
        clock = ManualClock(time.time())
        store = FailoverStore.wrap(RedisStore(env.server.url, 5, clock), env.address)
        limiter = BaseLimiter(LimitConfig(10, 10, 1, strategy), store, strategy.value).sync
        for jump in (-HOUR, HOUR, -HOUR):
            while limiter.acquire("k"):
                pass
            clock.advance(jump)
            assert sum(limiter.acquire("k") for _ in range(20)) <= 10, "at most one burst"
            assert limiter.decide("k").retry_after <= 1, "and callers do not wait long"
            clock.advance(1.1)
            assert limiter.acquire("k")
        store.close()
    worker = str(Worker("ahead", 1, 1, 1))
    moment_us = (time.time() + HOUR) * 1e6
    env.server.command("ZADD", REGISTRY_KEY, f"{moment_us:.0f}", worker)
    env.wait_until_served(env.caller(options=RELIABLE))
    wait_until(
        lambda: float(env.server.command("ZSCORE", REGISTRY_KEY, worker) or 0) < moment_us - 1e9,
        "a heartbeat from the future counts from now",
        RECOVERY_SECONDS_MAX,
    )


@fault("a worker is killed", BLOCKING)
def _(env: FaultEnvironment) -> None:
    caller = env.caller(options=RELIABLE)
    env.wait_until_served(caller)
    with _worker(env.proxy.url):
        wait_until(lambda: _workers(env) == 2, "both are counted", RECOVERY_SECONDS_MAX)
    wait_until(lambda: _workers(env) == 1, "the dead one is no longer counted", RECOVERY_SECONDS_MAX)
    for key in env.server.command("KEYS", "*"):
        assert env.server.command("PTTL", key) > 0, f"{key} would never expire"


@fault("a worker that counted as dead wakes up", BLOCKING)
def _(env: FaultEnvironment) -> None:
    """What it does then affects no other worker: each worker's token is unique."""
    store = RedisStore(env.server.url, 5)
    late, successor = Worker.new(), Worker.new()
    assert store.apply(WriteRecord("lease", "k", b"late", 0.001, ABSENT))
    wait_until(
        lambda: store.apply(ReadRecord("lease", "k")) is None, "its lease has expired", RECOVERY_SECONDS_MAX
    )
    assert store.apply(WriteRecord("lease", "k", b"successor", 60, ABSENT))
    assert not store.apply(DeleteRecord("lease", "k", b"late"))
    assert store.apply(ReadRecord("lease", "k")) == b"successor"
    assert store.apply(RecordHeartbeat(successor)).worker_count == 1
    assert store.apply(RemoveWorker(late)) == 1
    assert store.apply(RecordHeartbeat(late)).worker_count == 2
    store.close()


@fault("a worker starts during an outage")
def _(env: FaultEnvironment) -> None:
    env.server.kill()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMPORTA_WORKERS", "4")
        caller = env.caller(LimitConfig(0.001, 100), options=NO_DEADLINE)
    assert not caller.acquire()
    assert caller.fallback is not None
    assert caller.fallback.worker_count == 4
    assert caller.decide().limit == 25
    env.server.start()
    env.wait_for_recovery(caller)
    assert caller.decide().limit == 100


@fault("some workers are cut off from the server and others are not")
def _(env: FaultEnvironment) -> None:
    cut_off = env.caller(LimitConfig(0.001, 100), options=NO_DEADLINE)
    connected = env.caller_at(env.server.url + RELIABLE, LimitConfig(0.001, 100), "tested", prompt=False)
    assert cut_off.acquire()
    assert connected.acquire()
    wait_until(lambda: _workers(env) == 2, "both are counted", RECOVERY_SECONDS_MAX)
    count_known = lambda: cut_off.limiter.store.worker_count == 2  # noqa: E731 - a condition
    wait_until(count_known, "a heartbeat brought the worker count", RECOVERY_SECONDS_MAX)
    env.proxy.refuse_connections()
    env.proxy.reset_connections()
    assert not cut_off.acquire()
    assert cut_off.decide().limit == 50
    assert connected.decide().limit == 100
    assert connected.fallback is None
    env.proxy.heal()
    env.wait_for_recovery(cut_off)
    assert cut_off.decide().limit == 100


def _workers(env: FaultEnvironment) -> int:
    return int(env.server.command("ZCARD", REGISTRY_KEY))


@contextmanager
def _clock_shifted(seconds: float) -> Iterator[None]:
    """Shift this worker's clock by some seconds."""
    with pytest.MonkeyPatch.context() as patch:
        real, real_ns = time.time, time.time_ns
        patch.setattr(time, "time", lambda: real() + seconds)
        patch.setattr(time, "time_ns", lambda: real_ns() + int(seconds * 1e9))
        yield


@contextmanager
def _worker(url: str) -> Iterator[None]:
    """Run another process that uses the same limit, and kill it at the end."""
    command = [sys.executable, "-c", _WORKER, url + RELIABLE]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as worker:
        try:
            assert worker.stdout is not None
            assert worker.stdout.readline() == b"ready\n"
            yield
        finally:
            worker.kill()
