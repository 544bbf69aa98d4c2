"""How to compare on a noisy machine: in turns.

A busy neighbour halves the speed of whoever happens to run. So contenders take turns of a few
milliseconds, round after round; each round gives one quotient, and the median of those is the result. What
slows the machine down for a second slows all of them down in that second, and the quotient stays.
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
"""Makes about so many decisions and returns how many it made."""

_SETTLE_SECONDS_MAX = 1.0
_CHECKED = 100


@dataclass(frozen=True)
class Effort:
    """How long to measure: ``--quick`` gives a first impression, the whole run the figures."""

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
    """One way to decide, by one library; ``granted`` reads what ``decide`` returns."""

    library: str
    variant: str
    decide: Callable[[str], Any]
    granted: Callable[[Any], bool] = bool
    aclose: Callable[[], Coroutine[Any, Any, Any]] | None = None

    @property
    def name(self) -> str:
        """What it is called in a table."""
        return f"{self.library} {self.variant}".strip()


class Timings:
    """The speed of each contender in each round, in decisions per second."""

    def __init__(self, names: Iterable[str]) -> None:
        self.rates: dict[str, list[float]] = {name: [] for name in names}

    def speed(self, name: str) -> float:
        """The median speed: for people, not for comparing."""
        return median(self.rates[name])

    def ratio(self, name: str, other: str) -> float:
        """How many times as fast as the other, measured side by side."""
        return median(a / b for a, b in zip(self.rates[name], self.rates[other], strict=True))

    def closest(self, name: str, others: Iterable[str]) -> str:
        """The one of the others that comes closest."""
        return min(others, key=lambda other: self.ratio(name, other))


def in_turns(runs: Mapping[str, Run], effort: Effort, slot_seconds: float | None = None) -> Timings:
    """Let the contenders take turns; each starts as many rounds as any other."""
    slot = slot_seconds or effort.slot_seconds
    timings = Timings(runs)
    counts = {name: _count_for(run, slot) for name, run in runs.items()}
    gc.collect()
    gc.freeze()  # what one contender has piled up is not the others' to look through
    try:
        names = list(runs)
        for number in range(effort.rounds):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                timings.rates[name].append(_speed(runs[name], counts[name]))
    finally:
        gc.unfreeze()
    return timings


def calls(contender: Contender, keys: Iterator[str]) -> Run:
    """Ask for one key after the other, blocking."""
    decide = contender.decide

    def run(count: int) -> int:
        for key in islice(keys, count):
            decide(key)
        return count

    return run


class Loop:
    """An event loop for one contender alone: what it leaves running does not run in the others' turns."""

    def __init__(self, contender: Contender | Callable[[], Contender]) -> None:
        """Take a contender, or what makes one when the loop runs."""
        self._runner = asyncio.Runner()
        self._contender = contender if isinstance(contender, Contender) else self._made(contender)

    @property
    def name(self) -> str:
        """What its contender is called."""
        return self._contender.name

    def awaits(self, keys: Iterator[str], coroutines: int = 1) -> Run:
        """Ask for one key after the other, awaiting, from some coroutines at once."""
        decide = self._contender.decide

        async def ask(count: int) -> None:
            for key in islice(keys, count):
                await decide(key)

        async def ask_together(share: int) -> None:
            await asyncio.gather(*(ask(share) for _ in range(coroutines)))

        def run(count: int) -> int:
            share = max(1, count // coroutines)
            self._runner.run(ask(share) if coroutines == 1 else ask_together(share))
            return share * coroutines

        return run

    def _made(self, make: Callable[[], Contender]) -> Contender:
        async def made() -> Contender:
            return make()

        return self._runner.run(made())

    def check(self, keys: Iterator[str], *, admits: bool) -> None:
        """Do what :func:`check` does."""

        async def ask() -> int:
            answers = [await self._contender.decide(key) for key in islice(keys, _CHECKED)]
            return sum(map(self._contender.granted, answers))

        _check(self._contender, self._runner.run(ask()), admits=admits)

    def close(self) -> None:
        """Close the contender's connections and the loop."""
        if self._contender.aclose is not None:
            self._runner.run(self._contender.aclose())
        self._runner.close()


def check(contender: Contender, keys: Iterator[str], *, admits: bool) -> None:
    """Make sure that a contender does what is about to be timed: admit all, or refuse nearly all."""
    granted = sum(contender.granted(contender.decide(key)) for key in islice(keys, _CHECKED))
    _check(contender, granted, admits=admits)


def percentile(ordered: list[int], percent: float) -> int:
    """The value below which so many percent of an ordered list lie."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def _check(contender: Contender, granted: int, *, admits: bool) -> None:
    if granted != _CHECKED if admits else granted > _CHECKED // 2:
        raise RuntimeError(f"{contender.name} granted {granted} of {_CHECKED}: not what is to be timed")


def _count_for(run: Run, slot_seconds: float) -> int:
    """Return how many decisions fill a slot; finding out warms everything up.

    The best of three: one interruption would make all slots of a contender too short to tell.
    """
    count = 8
    while True:
        speed = max(_speed(run, count) for _ in range(3))
        if count / speed > slot_seconds / 4:
            return max(1, int(speed * slot_seconds))
        count *= 2


def _speed(run: Run, count: int) -> float:
    _settle()
    start = time.perf_counter_ns()
    made = run(count)
    return made * 1e9 / (time.perf_counter_ns() - start)


def _settle() -> None:
    """Wait until the last contender's timers have gone off (limits' memory storage starts some)."""
    deadline = time.monotonic() + _SETTLE_SECONDS_MAX
    while any(isinstance(t, threading.Timer) for t in threading.enumerate()) and time.monotonic() < deadline:
        time.sleep(0.001)
