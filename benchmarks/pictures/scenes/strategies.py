"""The same bursts through each of the four strategies."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from benchmarks.pictures.simulated import SimulatedClock, arrivals, counts_per_slot, evenly, run_scene
from comporta import LimitConfig, LimitStrategy
from comporta.cli.sim_charts import Bars, Key, Mark, Note, Panel, Picture, Point, Shade, Steps
from comporta.limits.limiter import BaseLimiter
from comporta.stores.memory import MemoryStore

_ENDS, _SLOT = 14.0, 0.25
_MOMENTS = [*evenly(0.1, 3, 2), *evenly(3, 6, 16), 9.0, *evenly(10.6, 11.4, 40)]
_WINDOW = 2.0
_STRATEGIES = {
    "token bucket, 5/s burst 10": LimitConfig(5, 10),
    "leaky bucket, 5/s, ten may wait": LimitConfig(5, 10, strategy=LimitStrategy.LEAKY_BUCKET),
    "fixed window, 10 in 2 s": LimitConfig(5, 10, window=_WINDOW, strategy=LimitStrategy.FIXED_WINDOW),
    "sliding window, 10 in 2 s": LimitConfig(5, 10, window=_WINDOW, strategy=LimitStrategy.SLIDING_WINDOW),
}
_NOTES = {
    LimitStrategy.TOKEN_BUCKET: (6.0, "a burst of ten, then 5 a second"),
    LimitStrategy.LEAKY_BUCKET: (6.0, "evenly: each waits its turn"),
    LimitStrategy.FIXED_WINDOW: (11.3, "two windows: 19"),
    LimitStrategy.SLIDING_WINDOW: (11.3, "never over 10"),
}


def picture() -> Picture:
    """Simulate the load with each strategy."""
    panels = [panel for title, config in _STRATEGIES.items() for panel in _panels(title, config)]
    return Picture(
        "Four strategies under the same bursts",
        "All allow about 5 a second. Each bar is a quarter of a second; below the bars is the remaining "
        "capacity.",
        panels,
        ends=_ENDS,
        every=1,
    )


def _panels(title: str, config: LimitConfig) -> Iterator[Panel]:
    granted, left = _run(config)
    start, words = _NOTES[config.strategy]
    marks: list[Mark] = [
        Bars("requested", "grey", counts_per_slot(_MOMENTS, _SLOT, _ENDS), _SLOT),
        Bars("granted", "blue", counts_per_slot(granted, _SLOT, _ENDS), _SLOT),
        Key("remaining", "green"),
        Note(start, 7, words),
    ]
    if config.strategy is LimitStrategy.FIXED_WINDOW:
        marks[:0] = [Shade(start, start + _WINDOW, "", "grey") for start in _windows(granted)]
    yield Panel(f"{title}: {len(granted)} of {len(_MOMENTS)} granted", marks, 10, (0, 5, 10), 70)
    yield Panel("", [Steps("", "green", left, filled=True)], 10, (0, 10), 30)


def _run(config: LimitConfig) -> tuple[list[float], list[Point]]:
    clock = SimulatedClock()
    limiter = BaseLimiter(config, MemoryStore(clock), "search")
    granted: list[float] = []
    left: list[Point] = []
    timeout = 2.0 if config.strategy is LimitStrategy.LEAKY_BUCKET else 0.0

    async def request() -> None:
        if await limiter.acquire(timeout=timeout):
            granted.append(clock.seconds)

    async def observe() -> None:
        while clock.seconds < _ENDS:
            left.append((clock.seconds, limiter.sync.peek().remaining))
            await asyncio.sleep(0.05)

    async def scene() -> None:
        await asyncio.gather(arrivals(_MOMENTS, request), observe())

    run_scene(scene(), clock)
    return granted, left


def _windows(granted: list[float]) -> Iterator[float]:
    """Yield the start of each window: the first grant after the end of the previous one."""
    ends = 0.0
    for moment in granted:
        if moment >= ends:
            yield moment
            ends = moment + _WINDOW
