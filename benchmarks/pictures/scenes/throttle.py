"""A limit for all and one for each partition, while the calls of one partition fail."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from benchmarks.pictures.drawing import Bars, Level, Note, Panel, Picture, Point, Shade, Steps
from benchmarks.pictures.simulated import SimulatedClock, counted, played
from comporta import HierarchicalThrottle
from comporta.stores.memory import MemoryStore

_ENDS, _FAILS, _HEALS = 90.0, 15.0, 30.0
_WHOLE, _EACH, _CALLERS = 35, 20, 40


class Partition:
    """What became of one partition's calls."""

    def __init__(self) -> None:
        self.well: list[float] = []
        self.failed: list[float] = []
        self.limit: list[Point] = []


def picture() -> Picture:
    """Play both partitions on one throttle."""
    north, south = _played()
    every = counted([*north.well, *north.failed, *south.well, *south.failed], 1, _ENDS)
    return Picture(
        "A limit of 35/s for all, 20/s for each partition, and one partition fails",
        "Only the partition that fails is slowed down; the other one takes what it leaves, up to "
        "its own limit.",
        [
            Panel("north, whose calls go well", [*_marks(north)], 24, (0, 10, 20), 80),
            Panel(
                "south",
                [
                    Shade(_FAILS, _HEALS, "every call fails"),
                    *_marks(south),
                    Note(31, 17, "then it climbs back, 2/s every 5 s"),
                ],
                24,
                (0, 10, 20),
                80,
            ),
            Panel(
                "both together",
                [Bars("calls in each second", "blue", every), Level("limit for all", "red", _WHOLE)],
                42,
                (0, 35),
                70,
            ),
        ],
        ends=_ENDS,
        every=10,
    )


def _marks(partition: Partition) -> tuple[Bars, Bars, Steps]:
    well, failed = counted(partition.well, 1, _ENDS), counted(partition.failed, 1, _ENDS)
    return (
        Bars("done", "blue", well),
        Bars("failed", "orange", failed, below=well),
        Steps("its limit", "red", partition.limit, dashed=True),
    )


def _played() -> tuple[Partition, Partition]:
    clock = SimulatedClock()
    throttle = HierarchicalThrottle(_WHOLE, _EACH, state=MemoryStore(clock))
    north, south = Partition(), Partition()

    async def caller(name: str, partition: Partition) -> None:
        """Call without end, as soon as the throttle lets it."""

        async def call() -> None:
            if partition is south and _FAILS <= clock.seconds < _HEALS:
                partition.failed.append(clock.seconds)
                raise OSError
            partition.well.append(clock.seconds)

        while True:
            with suppress(OSError):
                await throttle.execute(name, 1, call)

    async def scene() -> None:
        tasks = [
            asyncio.create_task(caller(name, partition))
            for _ in range(_CALLERS)
            for name, partition in (("north", north), ("south", south))
        ]
        while clock.seconds < _ENDS:
            for name, partition in (("north", north), ("south", south)):
                partition.limit.append((clock.seconds, await throttle.current_limit(name)))
            await asyncio.sleep(0.25)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    played(scene(), clock)
    return north, south
