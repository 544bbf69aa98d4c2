"""A channel between one who brings items quickly, by fits, and one who takes them at an even pace."""

from __future__ import annotations

import asyncio

from benchmarks.pictures.drawing import Bars, Level, Note, Panel, Picture, Point, Shade, Steps
from benchmarks.pictures.simulated import SimulatedClock, counted, played
from comporta import Channel, ChannelClosedError

_ENDS, _STOPS, _GOES_ON = 24.0, 10.0, 14.0
_CAPACITY, _READ_SECONDS, _WORK_SECONDS = 50, 0.0231, 0.0473


class Seen:
    """When items went in and came out, and how many were inside."""

    def __init__(self) -> None:
        self.sent: list[float] = []
        self.received: list[float] = []
        self.size: list[Point] = []


def picture() -> Picture:
    """Play a producer that is twice as quick as its consumer."""
    seen = _played()
    stopped = Shade(_STOPS, _GOES_ON, "consumer stops")
    return Picture(
        "A channel of 50 items between a quick producer and a slow consumer",
        "It fills up once; from then on the producer goes at the consumer's pace, and nothing "
        "grows or is lost.",
        [
            Panel(
                "items that went in, in each half second",
                [stopped, Bars("send() returned", "blue", counted(seen.sent, 0.5, _ENDS), 0.5)],
                26,
                (0, 10, 20),
                70,
            ),
            Panel(
                "items inside",
                [
                    Shade(_STOPS, _GOES_ON, ""),
                    Steps("waiting to be received", "violet", seen.size, filled=True),
                    Level("capacity=50", "red", _CAPACITY),
                    Note(20.4, 30, "closed: the rest"),
                    Note(20.4, 15, "is still received"),
                ],
                64,
                (0, 50),
                80,
            ),
            Panel(
                f"items that came out, in each half second: {len(seen.received)} of {len(seen.sent)}",
                [
                    Shade(_STOPS, _GOES_ON, ""),
                    Bars("received", "green", counted(seen.received, 0.5, _ENDS), 0.5),
                ],
                26,
                (0, 10, 20),
                70,
            ),
        ],
        ends=_ENDS,
        every=2,
    )


def _played() -> Seen:
    clock, seen = SimulatedClock(), Seen()

    async def produce(channel: Channel[float]) -> None:
        while clock.seconds < 18:
            await asyncio.sleep(_READ_SECONDS)
            await channel.send(clock.seconds)
            seen.sent.append(clock.seconds)
        channel.close()

    async def consume(channel: Channel[float]) -> None:
        try:
            while True:
                await channel.receive()
                seen.received.append(clock.seconds)
                stands = _STOPS <= clock.seconds < _GOES_ON
                await asyncio.sleep(_GOES_ON - clock.seconds if stands else _WORK_SECONDS)
        except ChannelClosedError:
            pass

    async def watched(channel: Channel[float]) -> None:
        while clock.seconds < _ENDS:
            seen.size.append((clock.seconds, channel.statistics().size))
            await asyncio.sleep(0.1)

    async def scene() -> None:
        channel: Channel[float] = Channel(capacity=_CAPACITY)
        await asyncio.gather(produce(channel), consume(channel), watched(channel))

    played(scene(), clock)
    return seen
