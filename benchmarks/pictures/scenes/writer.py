"""Rows that come quickly, slowly, and faster than the sink can take them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from unittest.mock import patch

from benchmarks.pictures.drawing import Bars, Dots, Level, Note, Panel, Picture, Point, Shade, Steps, Ticks
from benchmarks.pictures.simulated import SimulatedClock, arrivals, counted, evenly, played
from comporta import BatchWriter
from comporta.pipeline.sinks.base import Row
from comporta.pipeline.writing import delivery, gathering

_ENDS, _SLOW = 30.0, 20.0
_MOMENTS = [*evenly(1, 5, 60), *evenly(7, 17, 6), *evenly(20, 25, 100)]
_ROWS, _ROOM = 50, 150


class SlowSink:
    """Keeps rows, after a moment; from some time on, after a second."""

    def __init__(self, clock: SimulatedClock) -> None:
        self._clock = clock
        self.batches: list[Point] = []

    async def open(self) -> None:
        """Do nothing."""

    async def write(self, rows: Sequence[Row]) -> None:
        """Take as long as it is told."""
        self.batches.append((self._clock.seconds, len(rows)))
        await asyncio.sleep(1.0 if self._clock.seconds >= _SLOW else 0.05)

    async def close(self) -> None:
        """Do nothing."""


def picture() -> Picture:
    """Play all rows through one writer."""
    batches, waiting, taken = _played()
    return Picture(
        "A batch writer: 50 rows, or 2 seconds after the first of them",
        "Quick rows go in full batches, slow ones every two seconds; a sink that cannot follow makes whoever "
        "writes wait.",
        [
            Panel(
                "rows in each half second",
                [
                    Shade(_SLOW, _ENDS, "the sink takes 1 s a batch"),
                    Bars("offered", "grey", counted(_MOMENTS, 0.5, _ENDS), 0.5),
                    Bars("taken by write()", "blue", counted(taken, 0.5, _ENDS), 0.5),
                ],
                75,
                (0, 25, 50),
                80,
            ),
            Panel(
                "rows that wait in the writer",
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


def _played() -> tuple[list[Point], list[Point], list[float]]:
    clock = SimulatedClock()
    sink = SlowSink(clock)
    waiting: list[Point] = []
    taken: list[float] = []

    async def scene() -> None:
        writer = BatchWriter(sink, max_rows=_ROWS, max_delay=2.0, capacity=_ROOM, retry=None)

        async def row() -> None:
            await writer.write({"id": len(taken)})
            taken.append(clock.seconds)

        async def watched() -> None:
            while clock.seconds < _ENDS:
                waiting.append((clock.seconds, writer.statistics().rows_waiting))
                await asyncio.sleep(0.05)

        async with writer:
            await asyncio.gather(arrivals(_MOMENTS, row), watched())

    # It has no store to get a clock from, and reads the system's.
    with (
        patch.object(gathering, "monotonic_ns", clock.now_ns),
        patch.object(delivery, "monotonic_ns", clock.now_ns),
    ):
        played(scene(), clock)
    return sink.batches, waiting, taken
