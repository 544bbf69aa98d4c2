"""From a source to the event loop, a handful at a time, whatever kind of source it is.

What may block is read on a thread of its own. It is a daemon: a file on a dead network or a terminal that
nobody types on must not keep a program from ending. Entries cross in a deque, and the loop is woken once
for as many as are there: one crossing each would be ten times slower.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Sequence
from contextlib import suppress
from itertools import count, islice
from threading import Lock, Thread
from typing import Any

from comporta.pipeline.sources import Entry, Items, Source

AHEAD_MAX = 512
"""How many entries are read ahead of whoever takes them."""

_POLL_SECONDS = 1.0


class Reading(AsyncIterator[list[Entry]]):
    """The entries of a source, by handfuls. ``stop`` ends it: what was read is still given, then no more."""

    def stop(self) -> None:
        """Read no further."""
        raise NotImplementedError


class FromMemory(Reading):
    """Items that are all there: nothing to wait for."""

    def __init__(self, items: Sequence[Any]) -> None:
        self._entries: Iterator[Entry] = Items(items).entries()

    async def __anext__(self) -> list[Entry]:
        found = list(islice(self._entries, AHEAD_MAX))
        if not found:
            raise StopAsyncIteration
        return found

    def stop(self) -> None:
        """Read no further."""
        self._entries = iter(())


class FromAwaited(Reading):
    """Items that are awaited one by one."""

    def __init__(self, items: AsyncIterable[Any]) -> None:
        self._items = aiter(items)
        self._positions = count()
        self._next: asyncio.Task[Any] | None = None
        self._stopped = False

    async def __anext__(self) -> list[Entry]:
        if self._stopped:
            raise StopAsyncIteration
        self._next = asyncio.ensure_future(anext(self._items))
        try:
            item = await self._next
        except asyncio.CancelledError:
            if self._stopped:
                raise StopAsyncIteration from None
            raise
        position = next(self._positions)
        return [Entry(position, position, item)]

    def stop(self) -> None:
        """Wait for no further item."""
        self._stopped = True
        if self._next is not None:
            self._next.cancel()


class FromThread(Reading):
    """What may block, read on a thread. What it raises comes out here, after what it read before."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._loop = asyncio.get_running_loop()
        self._read: deque[Entry] = deque()
        self._ended = self._stopped = False
        self._error: BaseException | None = None
        self._some = asyncio.Event()
        self._wake_sent = False
        self._room = Lock()  # a bell: locked while there is no room
        self._thread = Thread(target=self._run, name="comporta-source", daemon=True)
        self._thread.start()

    async def __anext__(self) -> list[Entry]:
        while not self._read and not self._ended:
            self._some.clear()
            self._wake_sent = False
            if not self._read and not self._ended:
                await self._some.wait()
        if not self._read:
            if self._error is not None:
                raise self._error
            raise StopAsyncIteration
        return self._taken()

    def stop(self) -> None:
        """Have the thread end as soon as it can; one that waits for its source is not waited for."""
        self._stopped = self._ended = True
        self._some.set()
        self._ring()

    def _taken(self) -> list[Entry]:
        found = [self._read.popleft() for _ in range(len(self._read))]
        self._ring()
        return found

    def _ring(self) -> None:
        with suppress(RuntimeError):  # nobody waits
            self._room.release()

    def _run(self) -> None:
        try:
            for entry in self._source.entries():
                self._read.append(entry)
                self._tell()
                while len(self._read) >= AHEAD_MAX and not self._stopped:
                    self._room.acquire(timeout=_POLL_SECONDS)
                if self._stopped:
                    break
        except BaseException as error:
            self._error = error
        self._ended = True
        self._wake_sent = False
        self._tell()

    def _tell(self) -> None:
        """Wake the loop, unless it was told already and has not looked yet."""
        if not self._wake_sent:
            self._wake_sent = True
            with suppress(RuntimeError):  # the loop is closed: nobody wants to know
                self._loop.call_soon_threadsafe(self._some.set)
