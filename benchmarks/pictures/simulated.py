"""An event loop whose time passes only while everybody sleeps, and a clock that tells it.

So a minute of waiting takes as long as what is decided in it, comes out the same each time, and is still the
real code: coroutines, time-outs and lines of waiters, on a store that is given this clock.
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

from comporta import chance
from comporta.clock import MonotonicClock

T = TypeVar("T")

BEGINS_NS = 1_000_000_000_000
"""The moment that every scene begins with: a whole number of every window and slice."""


class SimulatedClock(MonotonicClock):
    """The time of a simulated loop; sleeping and waiting are those of asyncio."""

    def __init__(self) -> None:
        self.ns = BEGINS_NS

    def now_ns(self) -> int:
        """Return where the simulation is."""
        return self.ns

    @property
    def seconds(self) -> float:
        """How long the scene lasts by now."""
        return (self.ns - BEGINS_NS) / 1e9


class _Selector(DefaultSelector):
    """Passes the time instead of waiting for it."""

    clock: SimulatedClock

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("everybody waits, and nobody for a moment: the scene cannot go on")
        self.clock.ns += ceil(max(timeout, 0.0) * 1e9)
        return super().select(0)


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, clock: SimulatedClock) -> None:
        selector = _Selector()
        selector.clock = self._clock = clock
        super().__init__(selector)

    def time(self) -> float:
        return self._clock.ns / 1e9


def played(scene: Coroutine[Any, Any, T], clock: SimulatedClock) -> T:
    """Play a scene to its end, on the time of its clock."""
    with the_same_each_time(), asyncio.Runner(loop_factory=lambda: _Loop(clock)) as runner:
        return runner.run(scene)


@contextmanager
def the_same_each_time() -> Iterator[None]:
    """Draw the same chances each time, and have nobody told meanwhile what is drawn afterwards."""
    logger = logging.getLogger("comporta")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with patch.object(chance, "urandom", Random(7).randbytes):
            yield
    finally:
        logger.setLevel(level)


async def arrivals(moments: Sequence[float], arrive: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Start ``arrive()`` at each moment, whatever became of the others; return when all are done."""
    loop = asyncio.get_running_loop()
    tasks = []
    for moment in moments:
        await asyncio.sleep(max(0.0, BEGINS_NS / 1e9 + moment - loop.time()))
        tasks.append(loop.create_task(arrive()))
    await asyncio.gather(*tasks)


def evenly(start: float, end: float, rate: float) -> list[float]:
    """Return moments at a rate, from a start up to, but without, an end.

    Each is a little late, and not by the same: when two things happen at one moment nobody promises which is
    the first, and the next Python may see it otherwise.
    """
    return [
        start + number / rate + 0.0011 + 0.0013 * (number % 7)
        for number in range(round((end - start) * rate))
    ]


def counted(moments: Sequence[float], slot: float, ends: float) -> list[float]:
    """Return how many moments fall into each slot."""
    counts = [0.0] * round(ends / slot)
    for moment in moments:
        number = int(moment / slot + 1e-6)
        if number < len(counts):
            counts[number] += 1
    return counts
