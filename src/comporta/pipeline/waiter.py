"""A waiter: a thread or a coroutine that waits until another one wakes it.

A waiter that is woken knows that there may be something to take, but not what. Nothing is handed to a waiter,
so nothing is lost when it is cancelled, times out or disappears with its event loop. A thread also looks by
itself every :data:`POLL_SECONDS`: where a signal handler raises, a wake-up may be started and not completed.

This module knows nothing about queues and their contents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from comporta.clock import MONOTONIC, Clock
from comporta.flow import missing_loop_error
from comporta.threads import AutoResetEvent

if TYPE_CHECKING:
    import asyncio

POLL_SECONDS = 1.0
"""A waiting thread wakes up at least this often."""


class PipelineWaiter:
    """A waiter, and the effect of waiting: until it is woken, or for ``timeout`` seconds.

    A thread may wake up earlier; a waiter never learns why it woke up.
    """

    __slots__ = ("_clock", "_event", "timeout", "woken")

    def __init__(self, clock: Clock = MONOTONIC) -> None:
        self._clock = clock
        self._event: AutoResetEvent | LoopEvent | None = None
        self.woken = False
        self.timeout: float | None = None

    def wake(self) -> bool:
        """Wake the waiter, now or when it starts to wait; false if its event loop is closed.

        This method first marks the waiter and then looks for its event. The waiter first stores its event and
        then looks for the mark. So a wake-up in between is seen, or sets the event, or both.
        """
        self.woken = True
        event = self._event
        if isinstance(event, LoopEvent):
            return event.set()
        if event is not None:
            event.set()
        return True

    @property
    def is_gone(self) -> bool:
        """Whether the waiter waits in an event loop that is closed."""
        return isinstance(self._event, LoopEvent) and self._event.is_loop_closed

    def reset(self) -> None:
        """Forget that the waiter was woken."""
        self._event = None
        self.woken = False

    def block(self) -> None:
        """Wait on this thread."""
        self._event = event = AutoResetEvent()
        if not self.woken:
            seconds = POLL_SECONDS if self.timeout is None else min(POLL_SECONDS, self.timeout)
            self._clock.wait(event, seconds)

    async def wait(self) -> None:
        """Wait on this event loop."""
        self._event = event = LoopEvent()
        if self.woken:
            return
        if self.timeout is None:
            await event.future
        elif self._clock is MONOTONIC:
            await event.wait_at_most(self.timeout)
        else:
            await self._clock.wait_async(event, self.timeout)  # type: ignore[arg-type]  # it needs no more


class LoopEvent:
    """The part of an ``asyncio.Event`` that a clock needs; unlike that, any thread may set it."""

    __slots__ = ("_loop", "future")

    def __init__(self) -> None:
        import asyncio  # noqa: PLC0415 - see clock.py

        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            raise missing_loop_error() from None
        self.future: asyncio.Future[None] = self._loop.create_future()

    @property
    def is_loop_closed(self) -> bool:
        return self._loop.is_closed()

    def is_set(self) -> bool:
        return self.future.done()

    def set(self) -> bool:
        import asyncio  # noqa: PLC0415 - see clock.py

        if asyncio._get_running_loop() is self._loop:  # the public function raises where no loop runs
            self._set_in_loop()
            return True
        try:
            self._loop.call_soon_threadsafe(self._set_in_loop)
        except RuntimeError:  # the loop is closed
            return False
        return True

    def _set_in_loop(self) -> None:
        if not self.future.done():
            self.future.set_result(None)

    async def wait(self) -> Any:
        await self.future

    async def wait_at_most(self, seconds: float) -> None:
        """Wait for the event or for ``seconds``; this timer costs a quarter of a cancelling time-out."""
        timer = self._loop.call_later(seconds, self._set_in_loop)
        try:
            await self.future
        finally:
            timer.cancel()
