"""Clocks, and the conversion between seconds and microseconds.

Code that makes decisions takes ``now_us`` as an argument. Only stores and the drivers of flows hold a clock,
so that a test can replace it. The processes of one machine share its monotonic clock. Workers on Redis share
the server's clock (``TIME`` inside the script), and use their machine's clock only for waiting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from comporta.flow import running_loop
from comporta.runtime import RUNTIME, follow

if TYPE_CHECKING:
    import asyncio

    from comporta.threads import AutoResetEvent

SECOND_US = 1_000_000
"""Microseconds in a second. Inside comporta every time and duration is an integer of microseconds."""


class Clock(Protocol):
    """A source of time. :class:`comporta.testing.ManualClock` is a clock that tests advance by hand."""

    def now_ns(self) -> int:
        """Return the nanoseconds since a fixed moment, which never decrease.

        Callers divide by 1000: the nanosecond reading is the cheapest that the system offers.
        """

    def unix_offset_us(self) -> int:
        """Return the microseconds to add to this clock's time to get Unix time; the value may change."""

    def sleep(self, seconds: float) -> None:
        """Block the thread for ``seconds``."""

    async def sleep_async(self, seconds: float) -> None:
        """Suspend the task for ``seconds``."""

    def wait(self, event: AutoResetEvent, seconds: float | None) -> None:
        """Block the thread until the event is set, for at most ``seconds``."""

    async def wait_async(self, event: asyncio.Event, seconds: float | None) -> None:
        """Suspend the task until the event is set, for at most ``seconds``."""


class MonotonicClock:
    """The machine's monotonic clock, which all its processes share and which NTP and operators cannot set.

    ``now_ns`` is the machine's own function, so that reading the clock costs no call of Python code.
    """

    now_ns: Callable[[], int]

    def __init__(self) -> None:
        follow(self._adopt_runtime)

    def _adopt_runtime(self) -> None:
        self.now_ns = RUNTIME.monotonic_ns

    def unix_offset_us(self) -> int:
        """Return how far Unix time is ahead; setting the machine's time changes it at once."""
        return (RUNTIME.unix_ns() - self.now_ns()) // 1000

    @staticmethod
    def sleep(seconds: float) -> None:
        """Block the thread for ``seconds``."""
        RUNTIME.sleep(seconds)

    @staticmethod
    async def sleep_async(seconds: float) -> None:
        """Suspend the task for ``seconds``."""
        import asyncio  # noqa: PLC0415 - the import costs 40 ms, and blocking programs never need it

        running_loop()
        await asyncio.sleep(seconds)

    @staticmethod
    def wait(event: AutoResetEvent, seconds: float | None) -> None:
        """Block the thread until the event is set, for at most ``seconds``."""
        event.wait(seconds)

    @staticmethod
    async def wait_async(event: asyncio.Event, seconds: float | None) -> None:
        """Suspend the task until the event is set, for at most ``seconds``."""
        import asyncio  # noqa: PLC0415 - see sleep_async

        try:
            # The name keeps the timeout, and through it the task, until this coroutine has ended. Without it,
            # Python 3.11 crashes if the garbage collector closes this coroutine after its event loop was
            # closed: the task is destroyed in the middle, and with it a coroutine that is being closed.
            async with asyncio.timeout(seconds) as _timeout:
                await event.wait()
        except TimeoutError:
            pass


MONOTONIC = MonotonicClock()


def to_us(seconds: float) -> int:
    """Convert float seconds, as users write them, into whole microseconds."""
    return round(seconds * SECOND_US)


def to_seconds(microseconds: int) -> float:
    """Convert microseconds into float seconds."""
    return microseconds / SECOND_US
