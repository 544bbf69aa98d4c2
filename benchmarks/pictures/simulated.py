"""An event loop with simulated time, which passes only while all tasks sleep, and its clock.

A minute of waiting takes only as long as its computations and gives the same result every time. It still runs
the real code: coroutines, timeouts and wait queues, on a store with this clock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from math import ceil
from random import Random
from selectors import DefaultSelector, SelectorKey
from typing import Any, TypeVar
from unittest.mock import patch

from comporta.clock import MonotonicClock
from comporta.runtime import RUNTIME

T = TypeVar("T")

BEGINS_NS = 1_000_000_000_000
"""The time at which every scene begins: a multiple of every window and slice."""


class SimulatedClock(MonotonicClock):
    """The clock of a simulated event loop; it sleeps and waits through asyncio."""

    def __init__(self) -> None:
        self.ns = BEGINS_NS

    def now_ns(self) -> int:
        """Return the simulated time."""
        return self.ns

    @property
    def seconds(self) -> float:
        """The seconds since the scene began."""
        return (self.ns - BEGINS_NS) / 1e9


class _Selector(DefaultSelector):
    """Advances the simulated time instead of waiting."""

    clock: SimulatedClock

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("deadlock: all tasks wait, and none of them for a time")
        self.clock.ns += ceil(max(timeout, 0.0) * 1e9)
        return super().select(0)


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, clock: SimulatedClock) -> None:
        selector = _Selector()
        selector.clock = self._clock = clock
        super().__init__(selector)

    def time(self) -> float:
        return self._clock.ns / 1e9


def run_scene(scene: Coroutine[Any, Any, T], clock: SimulatedClock) -> T:
    """Run a scene to its end on simulated time."""
    with deterministic(), asyncio.Runner(loop_factory=lambda: _Loop(clock)) as runner:
        return runner.run(scene)


@contextmanager
def deterministic() -> Iterator[None]:
    """Use the same random numbers every time, and silence the log."""
    logger = logging.getLogger("comporta")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with patch.object(RUNTIME, "random_bytes", Random(7).randbytes):
            yield
    finally:
        logger.setLevel(level)


async def arrivals(moments: Sequence[float], arrive: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Start ``arrive()`` at each moment, whether or not the earlier ones have ended; return when all have."""
    loop = asyncio.get_running_loop()
    tasks = []
    for moment in moments:
        await asyncio.sleep(max(0.0, BEGINS_NS / 1e9 + moment - loop.time()))
        tasks.append(loop.create_task(arrive()))
    await asyncio.gather(*tasks)


def evenly(start: float, end: float, rate: float) -> list[float]:
    """Return moments at a rate, from ``start`` up to, but not including, ``end``.

    Each has a small and different delay: the order of events at the same moment is undefined and may change
    with the Python version.
    """
    return [
        start + number / rate + 0.0011 + 0.0013 * (number % 7)
        for number in range(round((end - start) * rate))
    ]


def counts_per_slot(moments: Sequence[float], slot: float, ends: float) -> list[float]:
    """Return the number of moments in each slot."""
    counts = [0.0] * round(ends / slot)
    for moment in moments:
        number = int(moment / slot + 1e-6)
        if number < len(counts):
            counts[number] += 1
    return counts
