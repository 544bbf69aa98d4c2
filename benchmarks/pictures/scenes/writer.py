"""Rows that arrive fast, slowly, and faster than the sink can write them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from unittest.mock import patch

from benchmarks.pictures.simulated import SimulatedClock, arrivals, counts_per_slot, evenly, run_scene
from comporta import BatchWriter
from comporta.cli.sim_charts import Bars, Dots, Level, Note, Panel, Picture, Point, Shade, Steps, Ticks
from comporta.pipeline.sinks.base import Row
from comporta.runtime import RUNTIME

_ENDS, _SLOW = 30.0, 20.0
_MOMENTS = [*evenly(1, 5, 60), *evenly(7, 17, 6), *evenly(20, 25, 100)]
_ROWS, _ROOM = 50, 150


class SlowSink:
    """A sink that takes 50 ms per batch, and 1 s after a certain time."""

    def __init__(self, clock: SimulatedClock) -> None:
        self._clock = clock
        self.batches: list[Point] = []

    async def open(self) -> None:
        """Do nothing."""

    async def write(self, rows: Sequence[Row]) -> None:
        """Record a batch and take the time for it."""
        self.batches.append((self._clock.seconds, len(rows)))
        await asyncio.sleep(1.0 if self._clock.seconds >= _SLOW else 0.05)

    async def close(self) -> None:
        """Do nothing."""


def picture() -> Picture:
    """Simulate all rows through one writer."""
    batches, waiting, accepted = _run()
    return Picture(
        "A batch writer: 50 rows, or 2 seconds after the first of them",
        "Fast rows are written in full batches, slow ones every two seconds; a slow sink makes write() wait.",
        [
            Panel(
                "rows per half second",
                [
                    Shade(_SLOW, _ENDS, "the sink takes 1 s per batch"),
                    Bars("offered", "grey", counts_per_slot(_MOMENTS, 0.5, _ENDS), 0.5),
                    Bars("accepted by write()", "blue", counts_per_slot(accepted, 0.5, _ENDS), 0.5),
                ],
                75,
                (0, 25, 50),
                80,
            ),
            Panel(
                "rows in the writer",
                [Steps("rows", "violet", waiting, filled=True), Level("capacity=150", "red", _ROOM)],
                200,
                (0, 50, 150),
                80,
            ),
            Panel(
                "batches, and their rows",
                [
                    *(Ticks("", "green", [moment], size) for moment, size in batches),
                    Dots("a batch", "green", batches),
                    Note(1.7, 64, "at 50 rows"),
                    Note(9, 26, "2 s after their first row"),
                    Note(20.9, 64, "one after the other"),
                ],
                72,
                (0, 50),
                90,
            ),
        ],
        ends=_ENDS,
        every=5,
    )


def _run() -> tuple[list[Point], list[Point], list[float]]:
    clock = SimulatedClock()
    sink = SlowSink(clock)
    waiting: list[Point] = []
    accepted: list[float] = []

    async def scene() -> None:
        writer = BatchWriter(sink, max_rows=_ROWS, max_delay=2.0, capacity=_ROOM, retry=None)

        async def row() -> None:
            await writer.write({"id": len(accepted)})
            accepted.append(clock.seconds)

        async def observe() -> None:
            while clock.seconds < _ENDS:
                waiting.append((clock.seconds, writer.statistics().rows_waiting))
                await asyncio.sleep(0.05)

        async with writer:
            await asyncio.gather(arrivals(_MOMENTS, row), observe())

    # The writer has no store with a clock, and reads the system clock.
    with (
        patch.object(RUNTIME, "monotonic_ns", clock.now_ns),
    ):
        run_scene(scene(), clock)
    return sink.batches, waiting, accepted
