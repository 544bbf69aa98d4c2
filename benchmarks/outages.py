"""How long the first caller after a fault waits for its answer, and those who come after.

The first one pays the deadline of a call at the most; from then on decisions are made in the process. The
peers are set up with their defaults, which are redis-py's: they ask again, for seconds.
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
from comporta.stores.failover import FailoverStore
from comporta.stores.redis import RedisStore
from comporta.testing import Server

KILLED, STOPPED, REFUSED = "killed", "stopped", "nobody listens"
_PER_SECOND = 1_000_000
_AFTER = 1000
_FIRST_MS_MAX = 60
_NEXT_MS_MAX = 1
_PEERS = (f"{peers.LIMITS} fixed", f"{peers.THROTTLED} token bucket")
_PATIENCE_SECONDS = 10
_START_SECONDS_MAX = 60

Ask = Callable[[BaseLimiter], Coroutine[Any, Any, Any]]


def run(effort: Effort) -> Section:
    """Provoke each fault many times, blocking and awaiting, and once for each peer."""
    repeats, rows, firsts, nexts = 2 * effort.rounds, [], [], []
    with server.start() as running:
        for fault in (KILLED, STOPPED, REFUSED):
            for face, ask in (("blocking", _block), ("awaiting", _await)):
                first, after = _ours(running, fault, ask, repeats)
                firsts += first
                nexts += after if fault == STOPPED else []
                rows.append([f"comporta {face}, {fault}", *_figures(first), *_figures(after)])
    rows += [
        [f"{peer}, {fault}", _peers(peer, fault), *[""] * 5] for peer in _PEERS for fault in (KILLED, STOPPED)
    ]
    return Section(
        "Outages",
        "One process; the server is killed, stopped (SIGSTOP) or not there at all. The first decision after "
        f"that, {repeats} times, each with a new limiter, and the {_AFTER:,} decisions that follow it. The "
        f"peers with their defaults, blocking, once, and given up after {_PATIENCE_SECONDS} s.",
        [Table("From the fault to the answer", _HEAD, rows)],
        [
            _goal("first decision after a fault", firsts, _FIRST_MS_MAX),
            _goal(f"the next {_AFTER:,} decisions of a server that hangs", nexts, _NEXT_MS_MAX),
        ],
    )


_HEAD = ["", "first: median", "99 %", "slowest", "next: median", "99 %", "slowest"]


def _ours(running: Server, fault: str, ask: Ask, repeats: int) -> tuple[list[int], list[int]]:
    """Return how long the first decisions took, and those that followed, in order of length."""
    first, after = [], []
    with asyncio.Runner() as runner:
        for _ in range(repeats):
            with _struck(running, fault, lambda limiter: runner.run(ask(limiter))) as limiter:
                times = runner.run(_timed(limiter, ask, 1 + _AFTER))
                assert limiter.fallback is not None
                first.append(times[0])
                after += times[1:]
            runner.run(limiter.aclose())
    return sorted(first), sorted(after)


@contextmanager
def _struck(running: Server, fault: str, ask: Callable[[BaseLimiter], object]) -> Iterator[BaseLimiter]:
    """Give a new limiter whose server was in order until just now, and mend it afterwards."""
    store = RedisStore(running.url)
    limiter = BaseLimiter(limit(_PER_SECOND), FailoverStore.of(store, running.url))
    if fault != REFUSED:
        ask(limiter)
        while limiter.fallback is not None:  # the machine was busy
            time.sleep(0.001)
    if fault == STOPPED:
        running.freeze()
    else:
        running.kill()
    try:
        yield limiter
    finally:
        running.thaw() if fault == STOPPED else running.start()


async def _timed(limiter: BaseLimiter, ask: Ask, count: int) -> list[int]:
    now, times = time.perf_counter_ns, []
    for _ in range(count):
        start = now()
        await ask(limiter)
        times.append(now() - start)
    return times


async def _block(limiter: BaseLimiter) -> None:
    limiter.sync.acquire("user:1")


async def _await(limiter: BaseLimiter) -> None:
    await limiter.acquire("user:1")


def _peers(name: str, fault: str) -> str:
    """Return how long a peer's first decision took, and what became of it; it may have to be killed."""
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
            return ours.recv() if ours.poll(_PATIENCE_SECONDS) else f"none in {_PATIENCE_SECONDS} s"
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
        outcome = "answered"
    except Exception as error:
        outcome = type(error).__name__
    pipe.send(f"{_shown(time.perf_counter_ns() - start)}, {outcome}")


def _goal(promise: str, times: list[int], milliseconds: int) -> Goal:
    slow = percentile(sorted(times), 99)
    return Goal(
        f"outages: {promise} under {milliseconds} ms (99 %)", _shown(slow), slow < milliseconds * 1_000_000
    )


def _figures(times: list[int]) -> list[str]:
    return [_shown(percentile(times, 50)), _shown(percentile(times, 99)), _shown(times[-1])]


def _shown(nanoseconds: int) -> str:
    if nanoseconds < 1_000_000:
        return f"{nanoseconds / 1e3:,.1f} µs"
    return f"{nanoseconds / 1e6:,.1f} ms" if nanoseconds < 1_000_000_000 else f"{nanoseconds / 1e9:,.1f} s"
