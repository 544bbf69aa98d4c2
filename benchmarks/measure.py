"""Compare contenders on a noisy machine by letting them take turns.

A busy neighbour can halve the speed of the contender that runs at that moment. So contenders take turns of a
few milliseconds, round after round; each round gives one ratio, and the median of these ratios is the result.
A disturbance of a second slows all contenders down in that second, and the ratio stays the same.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from statistics import median
from typing import Any

Run = Callable[[int], int]
"""Makes about the given number of decisions and returns how many it made."""

_SETTLE_SECONDS_MAX = 1.0
_CHECKED = 100


@dataclass(frozen=True)
class Effort:
    """How long to measure: ``--quick`` for a first impression, a full run for the published results."""

    quick: bool
    rounds: int
    slot_seconds: float
    repeats: int
    seconds: float

    @classmethod
    def of(cls, *, quick: bool) -> Effort:
        """Return the effort for a run."""
        return cls(quick, 5, 0.01, 5, 1.0) if quick else cls(quick, 25, 0.02, 15, 3.0)


@dataclass(frozen=True)
class Contender:
    """One way to decide with one library; ``granted`` interprets the result of ``decide``."""

    library: str
    variant: str
    decide: Callable[[str], Any]
    granted: Callable[[Any], bool] = bool
    aclose: Callable[[], Coroutine[Any, Any, Any]] | None = None

    @property
    def name(self) -> str:
        """The name of the contender in a table."""
        return f"{self.library} {self.variant}".strip()


class Timings:
    """The speed of each contender in each round, in decisions per second."""

    def __init__(self, names: Iterable[str]) -> None:
        self.rates: dict[str, list[float]] = {name: [] for name in names}

    def speed(self, name: str) -> float:
        """Return the median speed, for display only."""
        return median(self.rates[name])

    def ratio(self, name: str, other: str) -> float:
        """Return how many times as fast as the other it is, measured side by side."""
        return median(a / b for a, b in zip(self.rates[name], self.rates[other], strict=True))

    def closest(self, name: str, others: Iterable[str]) -> str:
        """Return the fastest of the others."""
        return min(others, key=lambda other: self.ratio(name, other))


def in_turns(
    runs: Mapping[str, Run],
    effort: Effort,
    slot_seconds: float | None = None,
    *,
    clock_ns: Callable[[], int] = time.perf_counter_ns,
) -> Timings:
    """Time the contenders in turns; each goes first in a round equally often.

    With ``clock_ns=time.process_time_ns`` only the CPU time of this process counts.
    """
    slot = slot_seconds or effort.slot_seconds
    timings = Timings(runs)
    counts = {name: _count_for(run, slot) for name, run in runs.items()}
    gc.collect()
    gc.freeze()  # the collector must not scan the objects of one contender in the turn of another
    try:
        names = list(runs)
        for number in range(effort.rounds):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                timings.rates[name].append(_speed(runs[name], counts[name], clock_ns))
    finally:
        gc.unfreeze()
    return timings


def calls(contender: Contender, keys: Iterator[str]) -> Run:
    """Return a run that decides for one key after the other, blocking."""
    decide = contender.decide

    def run(count: int) -> int:
        for key in islice(keys, count):
            decide(key)
        return count

    return run


class Loop:
    """An event loop for one contender, so that its background tasks do not run in the turns of others."""

    def __init__(self, contender: Contender | Callable[[], Contender]) -> None:
        """Take a contender, or a function that creates one on the running loop."""
        self._runner = asyncio.Runner()
        self._contender = contender if isinstance(contender, Contender) else self._create(contender)

    @property
    def name(self) -> str:
        """The name of the contender."""
        return self._contender.name

    def awaits(self, keys: Iterator[str], coroutines: int = 1) -> Run:
        """Return a run that decides for one key after the other, from concurrent coroutines."""
        decide = self._contender.decide

        async def decide_all(count: int) -> None:
            for key in islice(keys, count):
                await decide(key)

        async def decide_concurrently(share: int) -> None:
            await asyncio.gather(*(decide_all(share) for _ in range(coroutines)))

        def run(count: int) -> int:
            share = max(1, count // coroutines)
            self._runner.run(decide_all(share) if coroutines == 1 else decide_concurrently(share))
            return share * coroutines

        return run

    def _create(self, make: Callable[[], Contender]) -> Contender:
        async def create() -> Contender:
            return make()

        return self._runner.run(create())

    def check(self, keys: Iterator[str], *, admits: bool) -> None:
        """Check the contender, as :func:`check` does."""

        async def count_granted() -> int:
            results = [await self._contender.decide(key) for key in islice(keys, _CHECKED)]
            return sum(map(self._contender.granted, results))

        _check(self._contender, self._runner.run(count_granted()), admits=admits)

    def close(self) -> None:
        """Close the contender's connections and the loop."""
        if self._contender.aclose is not None:
            self._runner.run(self._contender.aclose())
        self._runner.close()


def check(contender: Contender, keys: Iterator[str], *, admits: bool) -> None:
    """Raise unless the contender admits every decision, or refuses most of them, as the benchmark intends."""
    granted = sum(contender.granted(contender.decide(key)) for key in islice(keys, _CHECKED))
    _check(contender, granted, admits=admits)


def percentile(ordered: list[int], percent: float) -> int:
    """Return a percentile of a sorted list."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def _check(contender: Contender, granted: int, *, admits: bool) -> None:
    if granted != _CHECKED if admits else granted > _CHECKED // 2:
        raise RuntimeError(
            f"{contender.name} granted {granted} of {_CHECKED}: this is not the case to measure"
        )


def _count_for(run: Run, slot_seconds: float) -> int:
    """Return how many decisions fill a slot. Measuring this also warms everything up.

    It takes the best of three: one interruption would make all slots of a contender too short.
    """
    count = 8
    while True:
        speed = max(_speed(run, count) for _ in range(3))
        if count / speed > slot_seconds / 4:
            return max(1, int(speed * slot_seconds))
        count *= 2


def _speed(run: Run, count: int, clock_ns: Callable[[], int] = time.perf_counter_ns) -> float:
    _settle()
    start_ns = clock_ns()
    made = run(count)
    return made * 1e9 / (clock_ns() - start_ns)


def _settle() -> None:
    """Wait until the timers of the previous contender have fired (limits' memory storage starts some)."""
    deadline = time.monotonic() + _SETTLE_SECONDS_MAX
    while any(isinstance(t, threading.Timer) for t in threading.enumerate()) and time.monotonic() < deadline:
        time.sleep(0.001)
