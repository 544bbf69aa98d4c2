"""A total limit and one for each partition, while the calls of one partition fail."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from benchmarks.pictures.simulated import SimulatedClock, counts_per_slot, run_scene
from comporta import HierarchicalThrottle
from comporta.cli.sim_charts import Bars, Level, Note, Panel, Picture, Point, Shade, Steps
from comporta.stores.memory import MemoryStore

_ENDS, _FAILS, _HEALS = 90.0, 15.0, 30.0
_WHOLE, _EACH, _CALLERS = 35, 20, 40


class Partition:
    """The calls of one partition, and its limit."""

    def __init__(self) -> None:
        self.well: list[float] = []
        self.failed: list[float] = []
        self.limit: list[Point] = []


def picture() -> Picture:
    """Simulate both partitions on one throttle."""
    north, south = _run()
    every = counts_per_slot([*north.well, *north.failed, *south.well, *south.failed], 1, _ENDS)
    return Picture(
        "A limit of 35/s in total, 20/s for each partition, and one partition fails",
        "Only the failing partition slows down; the other one uses the rest, up to its own limit.",
        [
            Panel("north, whose calls succeed", [*_marks(north)], 24, (0, 10, 20), 80),
            Panel(
                "south",
                [
                    Shade(_FAILS, _HEALS, "every call fails"),
                    *_marks(south),
                    Note(31, 17, "then it recovers by 2/s every 5 s"),
                ],
                24,
                (0, 10, 20),
                80,
            ),
            Panel(
                "both together",
                [Bars("calls per second", "blue", every), Level("total limit", "red", _WHOLE)],
                42,
                (0, 35),
                70,
            ),
        ],
        ends=_ENDS,
        every=10,
    )


def _marks(partition: Partition) -> tuple[Bars, Bars, Steps]:
    well, failed = counts_per_slot(partition.well, 1, _ENDS), counts_per_slot(partition.failed, 1, _ENDS)
    return (
        Bars("succeeded", "blue", well),
        Bars("failed", "orange", failed, below=well),
        Steps("its limit", "red", partition.limit, dashed=True),
    )


def _run() -> tuple[Partition, Partition]:
    clock = SimulatedClock()
    throttle = HierarchicalThrottle(_WHOLE, _EACH, state=MemoryStore(clock))
    north, south = Partition(), Partition()

    async def caller(name: str, partition: Partition) -> None:
        """Call continuously, as fast as the throttle allows."""

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

    run_scene(scene(), clock)
    return north, south
