"""The load on a failing upstream: retries with a budget, and without."""

from __future__ import annotations

from contextlib import suppress

from benchmarks.pictures.simulated import SimulatedClock, arrivals, counts_per_slot, evenly, run_scene
from comporta import Budget, Retry
from comporta.cli.sim_charts import Bars, Mark, Note, Panel, Picture, Shade
from comporta.stores.memory import MemoryStore

_ENDS, _FAILS, _HEALS, _RATE = 80.0, 20.0, 50.0, 20.0


def picture() -> Picture:
    """Simulate the same load both ways."""
    return Picture(
        "Three retries for each call, while every call fails",
        "Without a budget a failing upstream gets four times its usual load; with one, a fifth more, over a "
        "minute.",
        [
            _panel("no budget", None, "four attempts for each call"),
            _panel("Budget(0.2)", Budget(), "a fifth of the calls of the last minute, then 4/s"),
        ],
        ends=_ENDS,
        every=10,
    )


def _panel(title: str, budget: Budget | None, note: str) -> Panel:
    calls = evenly(0, _ENDS, _RATE)
    first, retries = counts_per_slot(calls, 1, _ENDS), counts_per_slot(_retries(calls, budget), 1, _ENDS)
    marks: list[Mark] = [
        Shade(_FAILS, _HEALS, "every attempt fails"),
        Bars("first attempts", "blue", first),
        Bars("retries", "orange", retries, below=first),
        Note(60, 60, note) if budget is None else Note(29, 40, note),
    ]
    return Panel(f"{title}: {sum(retries):.0f} retries", marks, 100, (0, 20, 40, 80), 120)


def _retries(calls: list[float], budget: Budget | None) -> list[float]:
    clock = SimulatedClock()
    retry = Retry(budget=budget, state=MemoryStore(clock), clock=clock)
    retries: list[float] = []

    async def call() -> None:
        began = clock.seconds

        async def attempt() -> None:
            if clock.seconds > began:
                retries.append(clock.seconds)
            if _FAILS <= clock.seconds < _HEALS:
                raise OSError

        with suppress(OSError):
            await retry.call(attempt)

    run_scene(arrivals(calls, call), clock)
    return retries
