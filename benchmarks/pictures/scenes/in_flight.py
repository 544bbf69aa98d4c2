"""Calls in flight to an upstream that turns slow, with a limit on them and without."""

from __future__ import annotations

import asyncio

from benchmarks.pictures.drawing import Bars, Level, Panel, Picture, Point, Shade, Steps
from benchmarks.pictures.simulated import SimulatedClock, arrivals, counted, evenly, played
from comporta import ConcurrencyLimit, LimitReachedError
from comporta.stores.memory import MemoryStore

_ENDS, _SLOW, _QUICK, _RATE = 40.0, 10.0, 22.0, 10.0
_MOST, _PATIENCE = 8, 2.0


class Seen:
    """How many calls were with the upstream, how many waited, and what became of them."""

    def __init__(self) -> None:
        self.present: list[Point] = []
        self.waiting: list[Point] = []
        self.done: list[float] = []
        self.refused: list[float] = []


def picture() -> Picture:
    """Play the same arrivals with and without the limit."""
    without, kept = _played(None), _played(_MOST)
    done = counted(kept.done, 1, _ENDS)
    refused = counted(kept.refused, 1, _ENDS)
    return Picture(
        "Ten calls a second to an upstream that turns slow, eight in flight at the most",
        "Without the limit calls pile up at the upstream; with it they wait outside, two "
        "seconds at the most.",
        [
            Panel(
                "calls at the upstream at once",
                [
                    Shade(_SLOW, _QUICK, "answers take 4 s instead of 0.2 s"),
                    Steps("without a limit", "grey", without.present, filled=True),
                    Steps("max_concurrent=8", "blue", kept.present, filled=True),
                    Level("", "red", _MOST),
                ],
                48,
                (0, 8, 40),
                110,
            ),
            Panel(
                "waiting for a permit",
                [Shade(_SLOW, _QUICK, ""), Steps("callers", "violet", kept.waiting, filled=True)],
                24,
                (0, 20),
                60,
            ),
            Panel(
                "calls that ended, in each second",
                [
                    Shade(_SLOW, _QUICK, ""),
                    Bars("done", "blue", done),
                    Bars("refused after 2 s: LimitReachedError", "orange", refused, below=done),
                ],
                30,
                (0, 10, 20, 30),
                80,
            ),
        ],
        ends=_ENDS,
        every=5,
    )


def _played(most: int | None) -> Seen:
    clock, seen = SimulatedClock(), Seen()
    limit = ConcurrencyLimit("pncp", most or 10_000, hold_seconds=60, state=MemoryStore(clock))
    present = waiting = 0

    async def call() -> None:
        nonlocal present, waiting
        waiting += 1
        try:
            async with limit.slot(timeout=_PATIENCE):
                waiting, present = waiting - 1, present + 1
                await asyncio.sleep(4.0 if _SLOW <= clock.seconds < _QUICK else 0.2)
                present -= 1
            seen.done.append(clock.seconds)
        except LimitReachedError:
            waiting -= 1
            seen.refused.append(clock.seconds)

    async def watched() -> None:
        while clock.seconds < _ENDS:
            seen.present.append((clock.seconds, present))
            seen.waiting.append((clock.seconds, waiting))
            await asyncio.sleep(0.1)

    async def scene() -> None:
        await asyncio.gather(arrivals(evenly(0.05, _ENDS, _RATE), call), watched())

    played(scene(), clock)
    return seen
