"""What open pages are told: the history when they come, then a document about once a second.

However many pages are open, a worker makes one document a second and all of them are sent the same bytes;
while none is open it makes none. A page that reads slowly is sent the newest one when it is ready for it, and
never those in between: nothing piles up. All of it lives on one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from starlette.responses import StreamingResponse

from comporta import events
from comporta.clock import MONOTONIC
from comporta.errors import StateError

PAGES_MAX: Final = 500
EVERY_SECONDS: Final = 1.0
HISTORY_SECONDS: Final = 2.0
"""How long a history is good for others: after a restart all pages come back at once."""

MEDIA_TYPE: Final = "text/event-stream"
RETRY: Final = b"retry: 1000\n\n"
NO_HISTORY: Final = b'{"slot_seconds":10,"at":0,"series":{}}'
_SILENCE = b": nothing new\n\n"


def event(kind: str, data: bytes) -> bytes:
    """Return one event; JSON has no line ends of its own."""
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), data)


class Shared:
    """Bytes that are made once in so many seconds at the most, however many want them."""

    def __init__(self, make: Callable[[], Awaitable[bytes]], seconds: float) -> None:
        self._make = make
        self._seconds_ns = seconds * 1e9
        self._made = b""
        self._at_ns: int | None = None
        self._making: asyncio.Task[bytes] | None = None

    async def get(self) -> bytes:
        """Return them; who gives up waiting does not keep the others from having them."""
        if self._at_ns is not None and MONOTONIC.now_ns() - self._at_ns < self._seconds_ns:
            return self._made
        if self._making is None:
            self._making = asyncio.create_task(self._remade())
        return await asyncio.shield(self._making)

    async def aclose(self) -> None:
        """Make no more."""
        if self._making is not None:
            self._making.cancel()
            await asyncio.gather(self._making, return_exceptions=True)

    async def _remade(self) -> bytes:
        try:
            self._made = await self._make()
            self._at_ns = MONOTONIC.now_ns()
            return self._made
        finally:
            self._making = None


class Live:
    """The pages that are open at this worker; ``leaving`` ends all of their streams."""

    def __init__(
        self, document: Shared, history: Shared, leaving: asyncio.Event, pages_max: int = PAGES_MAX
    ) -> None:
        self.pages = 0
        self._pages_max = pages_max
        self._document = document
        self._history = history
        self._leaving = leaving
        self._tasks: list[asyncio.Task[None]] = []
        self._number = 0
        self._latest = _SILENCE
        self._failed: set[str] = set()
        self._news = asyncio.Event()

    @property
    def full(self) -> bool:
        """Whether there is no room for another page."""
        return self.pages >= min(self._pages_max, PAGES_MAX)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Be one of the pages: documents are made as long as there is one."""
        self.pages += 1
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._tell()), asyncio.create_task(self._end())]
        try:
            yield
        finally:
            self.pages -= 1
            if not self.pages:
                for task in self._tasks:
                    task.cancel()
                self._tasks = []
                self._number = 0  # who comes next is not told what is old by then

    async def told(self) -> AsyncIterator[bytes]:
        """Give what one page is told; somebody must be watching."""
        yield RETRY + event("history", await self._past())
        seen = 0
        while not self._leaving.is_set():
            if self._number == seen:
                await self._news.wait()
            else:
                seen = self._number
                yield self._latest
        yield event("end", b"{}")

    async def _past(self) -> bytes:
        try:
            return await self._history.get()
        except StateError:
            return NO_HISTORY  # it is where all can see it, or nowhere
        except Exception as error:  # without it a page still shows how things are now
            self._say("history", error)
            return NO_HISTORY

    async def _tell(self) -> None:
        while not self._leaving.is_set():
            self._ring(await self._next())
            await MONOTONIC.wait_async(self._leaving, EVERY_SECONDS)

    async def _end(self) -> None:
        """Have all look up when it is over, whatever the next document waits for."""
        await self._leaving.wait()
        self._ring(_SILENCE)

    async def _next(self) -> bytes:
        try:
            made = event("document", await self._document.get())
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            return _SILENCE  # whoever made it was: the next one may do
        except Exception as error:  # pages say how old theirs is; the next one may do
            self._say("document", error)
            return _SILENCE
        self._failed.discard("document")
        return made

    def _say(self, what: str, error: Exception) -> None:
        """Say that something cannot be had, once until it can."""
        if what not in self._failed:
            events.publish("dashboard_failed", "dashboard", f"no {what}: {error!r:.200}", "error")
        self._failed.add(what)

    def _ring(self, told: bytes) -> None:
        self._number += 1
        self._latest = told
        news, self._news = self._news, asyncio.Event()
        news.set()


def _is_cancelled() -> bool:
    """Whether it is this task that somebody wants to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class PageStream(StreamingResponse):
    """One page's stream; it counts from its first byte to its last, however it ends."""

    def __init__(self, live: Live) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(live.told(), 200, headers, MEDIA_TYPE)
        self._live = live

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Send until the worker or the page leaves."""
        with self._live.watched():
            await super().__call__(scope, receive, send)
