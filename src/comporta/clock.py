"""Where time comes from.

Everything that decides takes ``now_us`` as an argument; only the stores and the drivers of flows hold
a clock, so that a test can move time by hand. Processes of one machine share the monotonic clock;
workers on Redis share the server's (``TIME`` inside the script), and this one only times their waits.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio

    from comporta.threads import Bell

SECOND_US = 1_000_000
"""Microseconds in a second; every instant and duration inside comporta is an integer of these."""


class Clock(Protocol):
    """Reads and passes time; :class:`comporta.testing.ManualClock` is the one tests move by hand."""

    def now_ns(self) -> int:
        """Return nanoseconds since some fixed moment, never going back.

        Whoever decides drops the last three digits; this is the one figure the system gives cheaply.
        """

    def sleep(self, seconds: float) -> None:
        """Let time pass, holding the thread."""

    async def sleep_async(self, seconds: float) -> None:
        """Let time pass, holding nothing."""

    def wait(self, bell: Bell, seconds: float | None) -> None:
        """Let time pass, holding the thread, but no longer than until the bell rings."""

    async def wait_async(self, event: asyncio.Event, seconds: float | None) -> None:
        """Let time pass, holding nothing, but no longer than until the event."""


class MonotonicClock:
    """The machine's monotonic clock: one for all its processes, untouched by NTP and operators."""

    now_ns = staticmethod(time.monotonic_ns)

    @staticmethod
    def sleep(seconds: float) -> None:
        """Hold the thread."""
        time.sleep(seconds)

    @staticmethod
    async def sleep_async(seconds: float) -> None:
        """Give the event loop back meanwhile."""
        import asyncio  # noqa: PLC0415 - costs 40 ms, and blocking programs never need it

        await asyncio.sleep(seconds)

    @staticmethod
    def wait(bell: Bell, seconds: float | None) -> None:
        """Wait on the bell itself."""
        bell.wait(seconds)

    @staticmethod
    async def wait_async(event: asyncio.Event, seconds: float | None) -> None:
        """Wait on the event itself."""
        import asyncio  # noqa: PLC0415 - see above

        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            pass


MONOTONIC = MonotonicClock()


def to_us(seconds: float) -> int:
    """Convert what users write (float seconds) into what comporta counts (whole microseconds)."""
    return round(seconds * SECOND_US)


def to_seconds(microseconds: int) -> float:
    """Convert what comporta counts into what users read."""
    return microseconds / SECOND_US
