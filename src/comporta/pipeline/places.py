"""A place where one waits to be called: a thread or a coroutine, told from outside that it may look again.

Being called says that there may be something to find, never what: nothing is handed to one who waits, so
nothing is lost when it is cancelled, times out or goes with its event loop. A thread never rests for longer
than :data:`NAP_SECONDS` without looking: where signal handlers raise, a call may be begun and not made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from comporta.clock import MONOTONIC, Clock
from comporta.threads import Bell

if TYPE_CHECKING:
    import asyncio

NAP_SECONDS = 1.0
"""A thread that waits looks at least this often."""


class Place:
    """A place in some line. As an effect: rest on it until it is called, or for ``seconds``.

    A thread may look up sooner; none of those who rest is told why it is awake.
    """

    __slots__ = ("_bell", "_clock", "called", "seconds")

    def __init__(self, clock: Clock = MONOTONIC) -> None:
        self._clock = clock
        self._bell: Bell | LoopBell | None = None
        self.called = False
        self.seconds: float | None = None

    def call(self) -> bool:
        """Wake the holder, now or when it comes to rest; false if nothing can wake it any more.

        It is marked first, then looked for a bell; who comes to rest hangs up the bell first. So a call that
        comes in between is seen, or rings, or both.
        """
        self.called = True
        bell = self._bell
        if isinstance(bell, LoopBell):
            return bell.set()
        if bell is not None:
            bell.set()
        return True

    @property
    def gone(self) -> bool:
        """Whether the holder rests in an event loop that was closed over it."""
        return isinstance(self._bell, LoopBell) and self._bell.gone

    def renew(self) -> None:
        """Be as if never called."""
        self._bell = None
        self.called = False

    def block(self) -> None:
        """Hold the thread."""
        self._bell = bell = Bell()
        if not self.called:
            seconds = NAP_SECONDS if self.seconds is None else min(NAP_SECONDS, self.seconds)
            self._clock.wait(bell, seconds)

    async def wait(self) -> None:
        """Hold nothing."""
        self._bell = bell = LoopBell()
        if self.called:
            return
        if self.seconds is None:
            await bell.future
        elif self._clock is MONOTONIC:
            await bell.heard_within(self.seconds)
        else:
            await self._clock.wait_async(bell, self.seconds)  # type: ignore[arg-type]  # all that is asked


class LoopBell:
    """What is asked of an ``asyncio.Event``; but it can be rung from anywhere."""

    __slots__ = ("_loop", "future")

    def __init__(self) -> None:
        import asyncio  # noqa: PLC0415 - see clock.py

        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self._loop.create_future()

    @property
    def gone(self) -> bool:
        return self._loop.is_closed()

    def is_set(self) -> bool:
        return self.future.done()

    def set(self) -> bool:
        import asyncio  # noqa: PLC0415 - see clock.py

        if asyncio._get_running_loop() is self._loop:  # noqa: SLF001 - the public one raises where there is none
            self._ring()
            return True
        try:
            self._loop.call_soon_threadsafe(self._ring)
        except RuntimeError:  # its loop was closed over it
            return False
        return True

    def _ring(self) -> None:
        if not self.future.done():
            self.future.set_result(None)

    async def wait(self) -> Any:
        await self.future

    async def heard_within(self, seconds: float) -> None:
        """Wait for it, or so long: a timer that rings costs a quarter of a time-out that cancels."""
        timer = self._loop.call_later(seconds, self._ring)
        try:
            await self.future
        finally:
            timer.cancel()
