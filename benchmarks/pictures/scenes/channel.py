"""A channel between a fast producer and a consumer with an even pace that stops for a while."""

from __future__ import annotations

import asyncio

from benchmarks.pictures.simulated import SimulatedClock, counts_per_slot, run_scene
from comporta import Channel, ChannelClosedError
from comporta.cli.sim_charts import Bars, Level, Note, Panel, Picture, Point, Shade, Steps

_ENDS, _STOPS, _GOES_ON = 24.0, 10.0, 14.0
_CAPACITY, _READ_SECONDS, _WORK_SECONDS = 50, 0.0231, 0.0473


class Observations:
    """When items were sent and received, and how many were in the channel."""

    def __init__(self) -> None:
        self.sent: list[float] = []
        self.received: list[float] = []
        self.size: list[Point] = []


def picture() -> Picture:
    """Simulate a producer that is twice as fast as its consumer."""
    observed = _run()
    stopped = Shade(_STOPS, _GOES_ON, "consumer stops")
    return Picture(
        "A channel of 50 items between a fast producer and a slow consumer",
        "It fills once; from then on the producer runs at the consumer's pace, and nothing grows or is lost.",
        [
            Panel(
                "items sent per half second",
                [stopped, Bars("send() returned", "blue", counts_per_slot(observed.sent, 0.5, _ENDS), 0.5)],
                26,
                (0, 10, 20),
                70,
            ),
            Panel(
                "items in the channel",
                [
                    Shade(_STOPS, _GOES_ON, ""),
                    Steps("waiting to be received", "violet", observed.size, filled=True),
                    Level("capacity=50", "red", _CAPACITY),
                    Note(20.4, 30, "closed: the rest"),
                    Note(20.4, 15, "is still received"),
                ],
                64,
                (0, 50),
                80,
            ),
            Panel(
                f"items received per half second: {len(observed.received)} of {len(observed.sent)}",
                [
                    Shade(_STOPS, _GOES_ON, ""),
                    Bars("received", "green", counts_per_slot(observed.received, 0.5, _ENDS), 0.5),
                ],
                26,
                (0, 10, 20),
                70,
            ),
        ],
        ends=_ENDS,
        every=2,
    )


def _run() -> Observations:
    clock, observed = SimulatedClock(), Observations()

    async def produce(channel: Channel[float]) -> None:
        while clock.seconds < 18:
            await asyncio.sleep(_READ_SECONDS)
            await channel.send(clock.seconds)
            observed.sent.append(clock.seconds)
        channel.close()

    async def consume(channel: Channel[float]) -> None:
        try:
            while True:
                await channel.receive()
                observed.received.append(clock.seconds)
                is_stopped = _STOPS <= clock.seconds < _GOES_ON
                await asyncio.sleep(_GOES_ON - clock.seconds if is_stopped else _WORK_SECONDS)
        except ChannelClosedError:
            pass

    async def observe(channel: Channel[float]) -> None:
        while clock.seconds < _ENDS:
            observed.size.append((clock.seconds, channel.statistics().size))
            await asyncio.sleep(0.1)

    async def scene() -> None:
        channel: Channel[float] = Channel(capacity=_CAPACITY)
        await asyncio.gather(produce(channel), consume(channel), observe(channel))

    run_scene(scene(), clock)
    return observed
