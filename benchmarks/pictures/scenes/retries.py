"""What an upstream is asked for while everything fails: retries with a budget, and without."""

from __future__ import annotations

from contextlib import suppress

from benchmarks.pictures.drawing import Bars, Mark, Note, Panel, Picture, Shade
from benchmarks.pictures.simulated import SimulatedClock, arrivals, counted, evenly, played
from comporta import Budget, Retry
from comporta.stores.memory import MemoryStore

_ENDS, _FAILS, _HEALS, _RATE = 80.0, 20.0, 50.0, 20.0


def picture() -> Picture:
    """Play the same load under both."""
    return Picture(
        "Three retries for each call, while everything fails",
        "Without a budget an upstream in trouble gets four times its usual load; with one, over a minute, a "
        "fifth more.",
        [
            _panel("no budget", None, "each call is tried four times"),
            _panel("Budget(0.2)", Budget(), "a fifth of the calls of the last minute, then 4/s"),
        ],
        ends=_ENDS,
        every=10,
    )


def _panel(title: str, budget: Budget | None, said: str) -> Panel:
    calls = evenly(0, _ENDS, _RATE)
    first, retries = counted(calls, 1, _ENDS), counted(_retries(calls, budget), 1, _ENDS)
    marks: list[Mark] = [
        Shade(_FAILS, _HEALS, "every try fails"),
        Bars("first tries", "blue", first),
        Bars("retries", "orange", retries, below=first),
        Note(60, 60, said) if budget is None else Note(29, 40, said),
    ]
    return Panel(f"{title}: {sum(retries):.0f} retries", marks, 100, (0, 20, 40, 80), 120)


def _retries(calls: list[float], budget: Budget | None) -> list[float]:
    clock = SimulatedClock()
    retry = Retry(budget=budget, state=MemoryStore(clock), clock=clock)
    retries: list[float] = []

    async def call() -> None:
        begun = clock.seconds

        async def attempt() -> None:
            if clock.seconds > begun:
                retries.append(clock.seconds)
            if _FAILS <= clock.seconds < _HEALS:
                raise OSError

        with suppress(OSError):
            await retry.call(attempt)

    played(arrivals(calls, call), clock)
    return retries
