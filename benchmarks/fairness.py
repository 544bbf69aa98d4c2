"""Fairness: how long interactive callers wait while batches of other processes use the rest of a limit.

Every load runs twice at the same time, with the same arrivals: beside 300 waiting batch callers, and alone.
An ideal bucket, which serves arrivals in order and lets a batch take every token above the headroom at once,
shows how much of a wait is due to the arrivals themselves.
"""

from __future__ import annotations

import asyncio
import random
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from threading import Barrier
from typing import NamedTuple

from benchmarks import ours, server
from benchmarks.measure import Effort
from benchmarks.report import Goal, Section, Table
from benchmarks.shared import shared_state
from comporta import LimitConfig, TokenBucketLimiter

_RATE, _BURST, _HEADROOM = 10, 10, 8
_LIMIT = LimitConfig(_RATE, _BURST, batch_headroom=_HEADROOM)
_LOADS = (0.3, 0.5, 0.7, 0.9)
_LOAD_MAX = 0.7
"""Up to this load interactive callers hardly wait; above it they wait little longer than alone."""

_WAIT_SECONDS_MAX, _MORE_SECONDS_MAX, _BATCH_PART_MIN = 0.15, 0.3, 0.95
_BATCH_PROCESSES, _BATCH_CALLERS = 3, 100


class IdealBucket:
    """A token bucket in which batches take every token above the headroom as soon as it is there."""

    def __init__(self) -> None:
        self._level, self._at = float(_BURST), 0.0
        self.batch_units = 0

    def wait(self, at: float) -> float:
        """Return how long a caller that arrives at this time waits."""
        self.advance(at)
        self._level -= 1
        return max(0.0, -self._level / _RATE)

    def advance(self, at: float) -> None:
        """Refill until this time, and let batches take what they may."""
        self._level += _RATE * (at - self._at)
        self._at = at
        taken = max(0, int(self._level - _HEADROOM))
        self.batch_units += taken
        self._level -= taken


class Result(NamedTuple):
    """The waits of one load in seconds, sorted, with and without batches, and the units of the batches."""

    load: float
    waits: list[float]
    waits_alone: list[float]
    batch_units: int

    @property
    def more(self) -> float:
        """How much longer the wait of the 99th percentile is with batches."""
        return percentile_99(self.waits) - percentile_99(self.waits_alone)


def arrivals(load: float, seconds: float) -> list[float]:
    """Return the times of a Poisson process with exactly this load."""
    chance = random.Random(f"{load}")
    return sorted(chance.uniform(0, seconds) for _ in range(round(_RATE * load * seconds)))


def run_ideal(load: float, seconds: float) -> tuple[list[float], int]:
    """Return the sorted waits of the same arrivals at an ideal bucket, and the units of the batches."""
    bucket = IdealBucket()
    waits = sorted(bucket.wait(at) for at in arrivals(load, seconds))
    bucket.advance(seconds)
    return waits, bucket.batch_units


def percentile_99(waits: list[float]) -> float:
    """Return the 99th percentile of sorted waits."""
    return waits[int(0.99 * len(waits))]


def _limiter(url: str) -> TokenBucketLimiter:
    return TokenBucketLimiter(_LIMIT, url, "fair")


def _key(load: float, *, has_batches: bool) -> str:
    return f"{load} {'with batches' if has_batches else 'alone'}"


def _run_batches(url: str, seconds: float, all_ready: Barrier) -> dict[float, int]:
    """Wait with many batch callers of each load all the time; return the units that they got."""
    limiter, units = _limiter(url), dict.fromkeys(_LOADS, 0)

    async def take(load: float) -> None:
        while await limiter.acquire(_key(load, has_batches=True), timeout=None, priority="batch"):
            units[load] += 1

    async def main() -> None:
        await limiter.peek("other")  # connects
        all_ready.wait()
        tasks = [asyncio.create_task(take(load)) for load in _LOADS for _ in range(_BATCH_CALLERS)]
        await asyncio.sleep(seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await limiter.aclose()

    asyncio.run(main())
    return units


def _run_interactive(
    url: str, seconds: float, all_ready: Barrier, *, has_batches: bool
) -> dict[float, list[float]]:
    """Take a unit at each arrival of each load; return the sorted waits."""
    limiter = _limiter(url)

    async def take(key: str) -> float:
        began = time.monotonic()
        await limiter.acquire(key, timeout=60, priority="interactive")
        return time.monotonic() - began

    async def take_all(load: float, began: float) -> list[float]:
        tasks = []
        for at in arrivals(load, seconds):
            await asyncio.sleep(max(0.0, began + at - time.monotonic()))
            tasks.append(asyncio.create_task(take(_key(load, has_batches=has_batches))))
        return sorted(await asyncio.gather(*tasks))

    async def main() -> list[list[float]]:
        await limiter.peek("other")
        all_ready.wait()
        began = time.monotonic()
        waits = await asyncio.gather(*(take_all(load, began) for load in _LOADS))
        await limiter.aclose()
        return waits

    return dict(zip(_LOADS, asyncio.run(main()), strict=True))


def measure(url: str, seconds: float) -> list[Result]:
    """Run all loads on one engine at the same time, each with keys of its own."""
    context, processes = get_context("spawn"), _BATCH_PROCESSES + 2
    with context.Manager() as manager, ProcessPoolExecutor(processes, context) as pool:
        all_ready = manager.Barrier(processes)
        batches = [pool.submit(_run_batches, url, seconds, all_ready) for _ in range(_BATCH_PROCESSES)]
        with_batches, alone = (
            pool.submit(_run_interactive, url, seconds, all_ready, has_batches=has_batches)
            for has_batches in (True, False)
        )
        units = [job.result() for job in batches]
        waits, waits_alone = with_batches.result(), alone.result()
    return [
        Result(load, waits[load], waits_alone[load], sum(each[load] for each in units)) for load in _LOADS
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _batch_part(result: Result, seconds: float) -> float:
    """Return which share the batches got of what an ideal bucket leaves them with the same arrivals."""
    return result.batch_units / run_ideal(result.load, seconds)[1]


def _row(engine: str, result: Result, seconds: float) -> list[str]:
    ideal = percentile_99(run_ideal(result.load, seconds)[0])
    waits = (percentile_99(result.waits), ideal, percentile_99(result.waits_alone))
    part = f"{100 * _batch_part(result, seconds):.1f} %"
    return [f"{engine}, {_percent(result.load)}", *(f"{wait:.3f} s" for wait in waits), part]


def _goals(engine: str, results: list[Result], seconds: float) -> list[Goal]:
    low = max(percentile_99(result.waits) for result in results if result.load <= _LOAD_MAX)
    more = max(result.more for result in results if result.load > _LOAD_MAX)
    part = min(_batch_part(result, seconds) for result in results)
    return [
        Goal(
            f"fairness, {engine}, up to {_percent(_LOAD_MAX)} interactive load: p99 wait at most "
            f"{_WAIT_SECONDS_MAX:g} s",
            f"{low:.3f} s",
            low <= _WAIT_SECONDS_MAX,
        ),
        Goal(
            f"fairness, {engine}, above that: p99 wait at most {_MORE_SECONDS_MAX:g} s longer than alone",
            f"{more:.3f} s",
            more <= _MORE_SECONDS_MAX,
        ),
        Goal(
            f"fairness, {engine}: batches get at least {_percent(_BATCH_PART_MIN)} of the rest",
            f"{100 * part:.1f} %",
            part >= _BATCH_PART_MIN,
        ),
    ]


def run(effort: Effort) -> Section:
    """Let interactive callers arrive at random beside 300 waiting batch callers of three processes."""
    seconds = 10.0 if effort.quick else 120.0
    rows, goals = [], []
    with shared_state() as state, server.start() as running:
        for engine, url in (("shared://", state), ("redis://", ours.with_long_timeout(running.url))):
            results = measure(url, seconds)
            rows += [_row(engine, result, seconds) for result in results]
            goals += _goals(engine, results, seconds)
    callers = _BATCH_PROCESSES * _BATCH_CALLERS
    return Section(
        "Fairness",
        f"Token bucket, {_RATE}/s with a burst of {_BURST} and a headroom of {_HEADROOM}. Interactive "
        f"callers of one process arrive at random for {seconds:g} s, at a share of the rate, beside {callers}"
        f" waiting batch callers in {_BATCH_PROCESSES} processes, and alone, at the same times. An ideal "
        "bucket serves the same arrivals in order and loses no time; the rest is what its batches get.",
        [
            Table(
                "Waits of interactive callers (99th percentile)",
                ["", "with batches", "ideal bucket", "alone", "batches got of the rest"],
                rows,
            )
        ],
        goals,
    )
