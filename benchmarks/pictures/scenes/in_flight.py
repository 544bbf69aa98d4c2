"""Calls in flight to an upstream that becomes slow, with a concurrency limit and without."""

from __future__ import annotations

import asyncio

from benchmarks.pictures.simulated import SimulatedClock, arrivals, counts_per_slot, evenly, run_scene
from comporta import ConcurrencyLimit, LimitReachedError
from comporta.cli.sim_charts import Bars, Level, Panel, Picture, Point, Shade, Steps
from comporta.stores.memory import MemoryStore

_ENDS, _SLOW, _QUICK, _RATE = 40.0, 10.0, 22.0, 10.0
_MOST, _WAIT_SECONDS = 8, 2.0


class Observations:
    """Calls in flight, waiting callers, and the outcomes of calls."""

    def __init__(self) -> None:
        self.in_flight: list[Point] = []
        self.waiting: list[Point] = []
        self.done: list[float] = []
        self.refused: list[float] = []


def picture() -> Picture:
    """Simulate the same arrivals with and without the limit."""
    without, limited = _run(None), _run(_MOST)
    done = counts_per_slot(limited.done, 1, _ENDS)
    refused = counts_per_slot(limited.refused, 1, _ENDS)
    return Picture(
        "Ten calls a second to an upstream that becomes slow, at most eight in flight",
        "Without the limit, calls pile up at the upstream; with it, callers wait for at most 2 s.",
        [
            Panel(
                "calls in flight",
                [
                    Shade(_SLOW, _QUICK, "responses take 4 s instead of 0.2 s"),
                    Steps("without a limit", "grey", without.in_flight, filled=True),
                    Steps("max_concurrent=8", "blue", limited.in_flight, filled=True),
                    Level("", "red", _MOST),
                ],
                48,
                (0, 8, 40),
                110,
            ),
            Panel(
                "waiting for a permit",
                [Shade(_SLOW, _QUICK, ""), Steps("callers", "violet", limited.waiting, filled=True)],
                24,
                (0, 20),
                60,
            ),
            Panel(
                "calls that ended per second",
                [
                    Shade(_SLOW, _QUICK, ""),
                    Bars("succeeded", "blue", done),
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


def _run(most: int | None) -> Observations:
    clock, observed = SimulatedClock(), Observations()
    limit = ConcurrencyLimit("pncp", most or 10_000, permit_ttl=60, state=MemoryStore(clock))
    in_flight = waiting = 0

    async def call() -> None:
        nonlocal in_flight, waiting
        waiting += 1
        try:
            async with limit.slot(timeout=_WAIT_SECONDS):
                waiting, in_flight = waiting - 1, in_flight + 1
                await asyncio.sleep(4.0 if _SLOW <= clock.seconds < _QUICK else 0.2)
                in_flight -= 1
            observed.done.append(clock.seconds)
        except LimitReachedError:
            waiting -= 1
            observed.refused.append(clock.seconds)

    async def observe() -> None:
        while clock.seconds < _ENDS:
            observed.in_flight.append((clock.seconds, in_flight))
            observed.waiting.append((clock.seconds, waiting))
            await asyncio.sleep(0.1)

    async def scene() -> None:
        await asyncio.gather(arrivals(evenly(0.05, _ENDS, _RATE), call), observe())

    run_scene(scene(), clock)
    return observed
