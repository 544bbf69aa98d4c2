"""A clock that stands still until it is told to move."""

from __future__ import annotations

import asyncio
import threading

from comporta.threads import Bell


class ManualClock:
    """Time moved by hand: with ``advance``, or by whoever sleeps on it."""

    def __init__(self, seconds: float = 1_000_000.0) -> None:
        self._lock = threading.Lock()
        self._now_ns = round(seconds * 1e9)

    def now_ns(self) -> int:
        """Return the time it was moved to."""
        return self._now_ns

    def advance(self, seconds: float) -> None:
        """Move time; below 0 it goes back, as a server's clock may."""
        with self._lock:
            self._now_ns += round(seconds * 1e9)

    def sleep(self, seconds: float) -> None:
        """Sleep by moving time."""
        self.advance(seconds)

    async def sleep_async(self, seconds: float) -> None:
        """Sleep by moving time, after the others of this tick had their turn."""
        await asyncio.sleep(0)
        self.advance(seconds)

    def wait(self, bell: Bell, seconds: float | None) -> None:
        """Move time, unless it is ringing already."""
        if not bell.is_set() and seconds is not None:
            self.advance(seconds)

    async def wait_async(self, event: asyncio.Event, seconds: float | None) -> None:
        """Move time, unless the event is there after the others of this tick had their turn."""
        await asyncio.sleep(0)
        self.wait(event, seconds)  # type: ignore[arg-type]  # only is_set() is asked
