"""A 429 that one worker hears, and what all three do."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from benchmarks.pictures.drawing import Dots, Mark, Note, Panel, Picture, Point, Shade, Steps, Ticks
from benchmarks.pictures.simulated import SimulatedClock, played
from comporta import LimitConfig, Upstream
from comporta.stores.memory import MemoryStore

_ENDS, _WORKERS, _CALLERS = 16.0, 3, 4
_REFUSED_AT, _PAUSE = 4.0, 5
_LIMIT = LimitConfig(12, 3)


class Answer(NamedTuple):
    """What an HTTP client returns, as far as anybody looks."""

    status_code: int
    headers: Mapping[str, str]


class Seen:
    """When each worker called, who was refused, and the limit in force."""

    def __init__(self) -> None:
        self.calls: list[list[float]] = [[] for _ in range(_WORKERS)]
        self.refused: list[Point] = []
        self.limit: list[Point] = []


def picture() -> Picture:
    """Play three workers on one state."""
    seen = _played()
    [(moment, height)] = seen.refused
    lanes: list[Mark] = [Shade(moment, moment + _PAUSE, "Retry-After: 5, for the whole fleet")]
    lanes += [
        Ticks("a call" if not number else "", "blue", calls, _height(number) + 0.3, _height(number) - 0.3, 2)
        for number, calls in enumerate(seen.calls)
    ]
    lanes += [
        Dots("429", "red", seen.refused, 6),
        Note(moment + 0.1, height, "HTTP 429, Retry-After: 5", color="red"),
        Note(moment + 0.1, height - 1, "had not heard it itself, and stops", color="soft"),
    ]
    labels = [(_height(number), f"worker {number + 1}") for number in range(_WORKERS)]
    return Picture(
        "One worker is told to wait, and all of them do",
        "Three workers under one limit of 12/s. A 429 pauses the limit itself, in the state they share; they "
        "come back a little apart.",
        [
            Panel("calls to the upstream", lanes, _WORKERS + 0.5, (), 150, labels),
            Panel(
                "the limit in force",
                [Steps("requests a second", "green", seen.limit, filled=True)],
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


def _played() -> Seen:
    clock, seen = SimulatedClock(), Seen()
    store = MemoryStore(clock)
    # Each asks by an object of its own, as processes do; what they share is the state.
    workers = [Upstream("pncp", _LIMIT, max_wait=30, timeout=None, state=store) for _ in range(_WORKERS)]

    async def caller(number: int) -> None:
        """Call without end, as fast as the rules let it."""

        async def request() -> Answer:
            if not seen.refused and number == 1 and clock.seconds >= _REFUSED_AT:
                seen.refused.append((clock.seconds, _height(number)))
                return Answer(429, {"Retry-After": str(_PAUSE)})
            seen.calls[number].append(clock.seconds)
            await asyncio.sleep(0.05)
            return Answer(200, {})

        while clock.seconds < _ENDS:
            await workers[number].call(request)

    async def watched() -> None:
        while clock.seconds < _ENDS:
            state = await workers[0].get_state()
            seen.limit.append((clock.seconds, 0.0 if state.limiter.paused else _rate(workers[0])))
            await asyncio.sleep(0.1)

    async def scene() -> None:
        callers = [caller(number) for _ in range(_CALLERS) for number in range(_WORKERS)]
        await asyncio.gather(watched(), *callers)

    played(scene(), clock)
    return seen


def _rate(upstream: Upstream) -> float:
    degradation = upstream.parts.degradation
    return _LIMIT.rate if degradation is None else degradation.current
