"""Budgets: how much of a limit eight processes use if the cost of a call is known only when it ends."""

from __future__ import annotations

import asyncio
import math
import random
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from threading import Barrier
from typing import NamedTuple

import redis

from benchmarks import ours, server
from benchmarks.measure import Effort
from benchmarks.report import Goal, Section, Table
from comporta import LimitConfig, LimitReachedError, LimitStrategy, SlidingWindowLimiter

PROCESSES, CALLERS = 8, 4
_MEAN, _SPREAD = 800, 0.8
_ESTIMATE = 2 * _MEAN
_CLOCK_SECONDS = 0.25
"""A worker notes the time of a grant up to this much later than the server granted it."""


class Load(NamedTuple):
    """The limit and how long the processes use it: some whole windows."""

    capacity: int
    window: float
    windows: int

    @property
    def seconds(self) -> float:
        """The length of the run."""
        return self.window * self.windows


class Call(NamedTuple):
    """When a call was granted and when it was settled, and what it cost."""

    granted_at: float
    ended_at: float
    used: int

    @property
    def debt(self) -> int:
        """What the call used beyond its estimate."""
        return max(0, self.used - _ESTIMATE)


def real_cost(chance: random.Random) -> int:
    """Return a log-normal cost."""
    return max(1, round(chance.lognormvariate(math.log(_MEAN) - _SPREAD**2 / 2, _SPREAD)))


async def _use_budget(limiter: SlidingWindowLimiter, seed: int, until: float, window: float) -> list[Call]:
    chance, calls = random.Random(seed), []
    while (left := until - time.monotonic()) > 0:
        try:
            async with limiter.reserve(None, _ESTIMATE, timeout=left) as budget:
                granted_at, used = time.monotonic(), real_cost(chance)
                await asyncio.sleep(used / _MEAN * window / 60)
                budget.used = used
        except LimitReachedError:
            break
        calls.append(Call(granted_at, time.monotonic(), used))
    return calls


def _work(url: str, load: Load, number: int, all_ready: Barrier) -> list[Call]:
    rate = load.capacity / load.window
    config = LimitConfig(rate, load.capacity, load.window, LimitStrategy.SLIDING_WINDOW)
    limiter = SlidingWindowLimiter(config, ours.with_long_timeout(url), "tokens")

    async def run_callers() -> list[Call]:
        until = time.monotonic() + load.seconds
        tasks = [_use_budget(limiter, 100 * number + n, until, load.window) for n in range(CALLERS)]
        calls = [call for made in await asyncio.gather(*tasks) for call in made]
        await limiter.aclose()
        return calls

    all_ready.wait()
    return asyncio.run(run_callers())


def most_above(calls: list[Call], load: Load) -> int:
    """Return by how much any window was above the limit beyond the debt of the calls in flight."""
    worst = -load.capacity
    for last in calls:
        end = last.granted_at
        begin = end - load.window + _CLOCK_SECONDS
        within = sum(call.used for call in calls if begin < call.granted_at <= end)
        in_flight = (call for call in calls if call.granted_at <= end < call.ended_at + _CLOCK_SECONDS)
        debt = sum(call.debt for call in in_flight)
        worst = max(worst, within - load.capacity - debt)
    return worst


def _measure(url: str, load: Load) -> tuple[list[Call], int]:
    """Run the processes; return their calls and how many script calls the server served."""
    context = get_context("spawn")
    with (
        context.Manager() as manager,
        redis.Redis.from_url(url) as client,
        ProcessPoolExecutor(PROCESSES, context) as pool,
    ):
        all_ready = manager.Barrier(PROCESSES)
        jobs = [pool.submit(_work, url, load, number, all_ready) for number in range(PROCESSES)]
        calls = sorted(call for job in jobs for call in job.result())
        statistics = client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})
    return calls, statistics["calls"]


def run(effort: Effort) -> Section:
    """Let eight processes use one budget as fast as it allows."""
    load = Load(100_000, 6.0, 3) if effort.quick else Load(100_000, 60.0, 2)
    with server.start() as running:
        calls, served = _measure(running.url, load)
    used = sum(call.used for call in calls)
    due = load.capacity * load.windows
    above = most_above(calls, load)
    part = f"{100 * used / due:.1f} %"
    row = ["redis://", f"{len(calls):,}", f"{used:,}", f"{due:,}", part, f"{above:,}"]
    headings = ["", "calls", "used", "due", "used of due", "above limit and debt", "script calls per call"]
    limit = f"{load.capacity:,} in {load.window:g} s"
    return Section(
        "Budgets",
        f"Eight processes of {CALLERS} callers reserve {_ESTIMATE} for each call from a sliding window of "
        f"{limit} on a server, and settle a log-normal cost (mean {_MEAN}) when the call ends, for "
        f"{load.seconds:g} s. Debt is what the calls in flight use beyond their estimates.",
        [Table("Eight processes, one budget", headings, [[*row, f"{served / max(1, len(calls)):.1f}"]])],
        [
            Goal("budget of eight processes: at least 97 % used", part, used >= 0.97 * due),
            Goal("budget: above the limit by at most the debt in flight", f"{above:,}", above <= 0),
        ],
    )
