"""A 429 that one worker receives, and the pause of all three."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from benchmarks.pictures.simulated import SimulatedClock, run_scene
from comporta import LimitConfig, Upstream
from comporta.cli.sim_charts import Dots, Mark, Note, Panel, Picture, Point, Shade, Steps, Ticks
from comporta.stores.memory import MemoryStore

_ENDS, _WORKERS, _CALLERS = 16.0, 3, 4
_REFUSED_AT, _PAUSE = 4.0, 5
_LIMIT = LimitConfig(12, 3)


class Answer(NamedTuple):
    """The parts of an HTTP response that the policies read."""

    status_code: int
    headers: Mapping[str, str]


class Observations:
    """The calls of each worker, the refusal, and the limit in force."""

    def __init__(self) -> None:
        self.calls: list[list[float]] = [[] for _ in range(_WORKERS)]
        self.refused: list[Point] = []
        self.limit: list[Point] = []


def picture() -> Picture:
    """Simulate three workers on one store."""
    observed = _run()
    [(moment, height)] = observed.refused
    lanes: list[Mark] = [Shade(moment, moment + _PAUSE, "Retry-After: 5, for the whole fleet")]
    lanes += [
        Ticks("a call" if not number else "", "blue", calls, _height(number) + 0.3, _height(number) - 0.3, 2)
        for number, calls in enumerate(observed.calls)
    ]
    lanes += [
        Dots("429", "red", observed.refused, 6),
        Note(moment + 0.1, height, "HTTP 429, Retry-After: 5", color="red"),
        Note(moment + 0.1, height - 1, "received no 429, and pauses too", color="soft"),
    ]
    labels = [(_height(number), f"worker {number + 1}") for number in range(_WORKERS)]
    return Picture(
        "One worker receives a 429, and all workers pause",
        "Three workers share one limit of 12/s. A 429 pauses the limit itself, in the shared store; they "
        "resume slightly apart.",
        [
            Panel("calls to the upstream", lanes, _WORKERS + 0.5, (), 150, labels),
            Panel(
                "the limit in force",
                [Steps("requests a second", "green", observed.limit, filled=True)],
                14,
                (0, 12),
                60,
            ),
        ],
        ends=_ENDS,
        every=1,
    )


def _height(worker: int) -> float:
    return _WORKERS - worker - 0.5


def _run() -> Observations:
    clock, observed = SimulatedClock(), Observations()
    store = MemoryStore(clock)
    # Each worker has its own object, like a process; they share the store.
    workers = [Upstream("pncp", _LIMIT, max_wait=30, timeout=None, state=store) for _ in range(_WORKERS)]

    async def caller(number: int) -> None:
        """Call continuously, as fast as the policies allow."""

        async def request() -> Answer:
            if not observed.refused and number == 1 and clock.seconds >= _REFUSED_AT:
                observed.refused.append((clock.seconds, _height(number)))
                return Answer(429, {"Retry-After": str(_PAUSE)})
            observed.calls[number].append(clock.seconds)
            await asyncio.sleep(0.05)
            return Answer(200, {})

        while clock.seconds < _ENDS:
            await workers[number].call(request)

    async def observe() -> None:
        while clock.seconds < _ENDS:
            state = await workers[0].get_state()
            observed.limit.append((clock.seconds, 0.0 if state.limiter.paused else _rate(workers[0])))
            await asyncio.sleep(0.1)

    async def scene() -> None:
        callers = [caller(number) for _ in range(_CALLERS) for number in range(_WORKERS)]
        await asyncio.gather(observe(), *callers)

    run_scene(scene(), clock)
    return observed


def _rate(upstream: Upstream) -> float:
    degradation = upstream.degradation
    return _LIMIT.rate if degradation is None else degradation.current
