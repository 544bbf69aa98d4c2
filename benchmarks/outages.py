"""How long the first decision after a fault takes, and the decisions that follow.

The first one takes at most the deadline of a call; the following ones are local. The peers use their
defaults, which are redis-py's: they retry for seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from benchmarks import peers, server
from benchmarks.measure import Effort, percentile
from benchmarks.ours import limit
from benchmarks.report import Goal, Section, Table
from comporta import BaseLimiter
from comporta.stores.failover.store import FailoverStore
from comporta.stores.redis.store import RedisStore
from comporta.testing import Server

KILLED, STOPPED, REFUSED = "killed", "stopped", "not running"
_PER_SECOND = 1_000_000
_AFTER = 1000
_FIRST_MS_MAX = 60
_NEXT_MS_MAX = 1
_PEERS = (f"{peers.LIMITS} fixed", f"{peers.THROTTLED} token bucket")
_WAIT_SECONDS_MAX = 10
_START_SECONDS_MAX = 60

Decide = Callable[[BaseLimiter], Coroutine[Any, Any, Any]]


def run(effort: Effort) -> Section:
    """Cause each fault many times, blocking and asynchronous, and once for each peer."""
    repeats, rows, firsts, nexts = 2 * effort.rounds, [], [], []
    with server.start() as running:
        for fault in (KILLED, STOPPED, REFUSED):
            for api, decide in (("blocking", _block), ("awaiting", _await)):
                first, after = _ours(running, fault, decide, repeats)
                firsts += first
                nexts += after if fault == STOPPED else []
                rows.append([f"comporta {api}, {fault}", *_percentiles(first), *_percentiles(after)])
    rows += [
        [f"{peer}, {fault}", _peers(peer, fault), *[""] * 5] for peer in _PEERS for fault in (KILLED, STOPPED)
    ]
    return Section(
        "Outages",
        "One process; the server is killed, stopped (SIGSTOP) or not running from the start. The first "
        f"decision after the fault, {repeats} times, each with a new limiter, and the {_AFTER:,} decisions "
        f"that follow. The peers with their defaults, blocking, once, for at most {_WAIT_SECONDS_MAX} s.",
        [Table("From the fault to the decision", _HEAD, rows)],
        [
            _goal("first decision after a fault", firsts, _FIRST_MS_MAX),
            _goal(f"the next {_AFTER:,} decisions of a server that hangs", nexts, _NEXT_MS_MAX),
        ],
    )


_HEAD = ["", "first: median", "99 %", "slowest", "next: median", "99 %", "slowest"]


def _ours(running: Server, fault: str, decide: Decide, repeats: int) -> tuple[list[int], list[int]]:
    """Return the durations of the first decisions, and of those that follow, sorted."""
    first, after = [], []
    with asyncio.Runner() as runner:
        for _ in range(repeats):
            with _with_fault(running, fault, lambda limiter: runner.run(decide(limiter))) as limiter:
                times = runner.run(_measure(limiter, decide, 1 + _AFTER))
                assert limiter.fallback is not None
                first.append(times[0])
                after += times[1:]
            runner.run(limiter.aclose())
    return sorted(first), sorted(after)


@contextmanager
def _with_fault(
    running: Server, fault: str, decide: Callable[[BaseLimiter], object]
) -> Iterator[BaseLimiter]:
    """Yield a new limiter whose server has just failed, and repair the server afterwards."""
    store = RedisStore(running.url)
    limiter = BaseLimiter(limit(_PER_SECOND), FailoverStore.wrap(store, running.url))
    if fault != REFUSED:
        decide(limiter)
        while limiter.fallback is not None:  # the machine was busy, and the limiter fell back
            time.sleep(0.001)
    if fault == STOPPED:
        running.freeze()
    else:
        running.kill()
    try:
        yield limiter
    finally:
        running.thaw() if fault == STOPPED else running.start()


async def _measure(limiter: BaseLimiter, decide: Decide, count: int) -> list[int]:
    now, times = time.perf_counter_ns, []
    for _ in range(count):
        start = now()
        await decide(limiter)
        times.append(now() - start)
    return times


async def _block(limiter: BaseLimiter) -> None:
    limiter.sync.acquire("user:1")


async def _await(limiter: BaseLimiter) -> None:
    await limiter.acquire("user:1")


def _peers(name: str, fault: str) -> str:
    """Return the duration and the outcome of a peer's first decision, or that there was none in time."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    with server.start() as running:
        process = context.Process(target=_peer, args=(theirs, running.url, name), daemon=True)
        process.start()
        try:
            if not ours.poll(_START_SECONDS_MAX):
                raise RuntimeError(f"{name} did not start")
            ours.recv()
            running.freeze() if fault == STOPPED else running.kill()
            ours.send("go")
            return ours.recv() if ours.poll(_WAIT_SECONDS_MAX) else f"none in {_WAIT_SECONDS_MAX} s"
        finally:
            process.kill()
            process.join()


def _peer(pipe: Connection, url: str, name: str) -> None:
    [contender] = [each for each in peers.on_redis(url, _PER_SECOND) if each.name == name]
    contender.decide("user:1")
    pipe.send("ready")
    pipe.recv()
    start = time.perf_counter_ns()
    try:
        contender.decide("user:1")
        outcome = "decided"
    except Exception as error:
        outcome = type(error).__name__
    pipe.send(f"{_duration_text(time.perf_counter_ns() - start)}, {outcome}")


def _goal(promise: str, times: list[int], milliseconds: int) -> Goal:
    slow = percentile(sorted(times), 99)
    return Goal(
        f"outages: {promise} under {milliseconds} ms (99 %)",
        _duration_text(slow),
        slow < milliseconds * 1_000_000,
    )


def _percentiles(times: list[int]) -> list[str]:
    return [
        _duration_text(percentile(times, 50)),
        _duration_text(percentile(times, 99)),
        _duration_text(times[-1]),
    ]


def _duration_text(nanoseconds: int) -> str:
    if nanoseconds < 1_000_000:
        return f"{nanoseconds / 1e3:,.1f} µs"
    return f"{nanoseconds / 1e6:,.1f} ms" if nanoseconds < 1_000_000_000 else f"{nanoseconds / 1e9:,.1f} s"
