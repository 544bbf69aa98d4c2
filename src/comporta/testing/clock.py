"""A clock for tests that stands still until the test moves it."""

from __future__ import annotations

import asyncio
import threading

from comporta.threads import AutoResetEvent


class ManualClock:
    """A clock whose time moves only with ``advance``, or when code under test sleeps or waits on it."""

    def __init__(self, seconds: float = 1_000_000.0) -> None:
        self._lock = threading.Lock()
        self._now_ns = round(seconds * 1e9)

    def now_ns(self) -> int:
        """Return the current time of this clock in nanoseconds."""
        return self._now_ns

    def unix_offset_us(self) -> int:
        """Return 0: this clock shows Unix time."""
        return 0

    def advance(self, seconds: float) -> None:
        """Move the time forward; a negative value moves it back, as a server's clock may."""
        with self._lock:
            self._now_ns += round(seconds * 1e9)

    def sleep(self, seconds: float) -> None:
        """Advance the time instead of sleeping."""
        self.advance(seconds)

    async def sleep_async(self, seconds: float) -> None:
        """Let other tasks of the event loop run once, then advance the time."""
        await asyncio.sleep(0)
        self.advance(seconds)

    def wait(self, event: AutoResetEvent, seconds: float | None) -> None:
        """Advance the time, unless the event is already set."""
        if not event.is_set() and seconds is not None:
            self.advance(seconds)

    async def wait_async(self, event: asyncio.Event, seconds: float | None) -> None:
        """Let other tasks of the event loop run once, then advance the time unless the event is set."""
        await asyncio.sleep(0)
        self.wait(event, seconds)  # type: ignore[arg-type]  # only is_set() is called
