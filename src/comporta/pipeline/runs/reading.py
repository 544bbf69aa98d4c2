"""From a source to the event loop, a handful at a time, whatever kind of source it is.

What may block is read on a thread of its own. It is a daemon: a file on a dead network or a terminal that
nobody types on must not keep a program from ending.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count, islice
from threading import Thread
from typing import Any

from comporta.errors import ChannelClosedError
from comporta.pipeline.calls import Call
from comporta.pipeline.channel import Channel
from comporta.pipeline.runs.sources import Entry, FileSource, Items, Source, source_of

HANDFUL_MAX = 512
"""How many entries are taken at a time, at the most."""

_LAST_SECONDS = 0.2
"""How long one waits, at the end, for an entry that a thread may have in hand."""


class Reading(AsyncIterator[list[Entry]]):
    """The entries of a source, by handfuls. ``stop`` ends it: what was read is still given, then no more."""

    def __init__(self, total: int | None, *, rereadable: bool) -> None:
        self.total = total
        self.rereadable = rereadable

    @abstractmethod
    def stop(self) -> None:
        """Read no further."""

    def close(self) -> None:
        """Give nothing any more."""


class FromMemory(Reading):
    """Items that are all there: nothing to wait for."""

    def __init__(self, items: Sequence[Any]) -> None:
        super().__init__(len(items), rereadable=True)
        self._entries: Iterator[Entry] = Items(items).entries()

    async def __anext__(self) -> list[Entry]:
        found = list(islice(self._entries, HANDFUL_MAX))
        if not found:
            raise StopAsyncIteration
        return found

    def stop(self) -> None:
        """Read no further."""
        self._entries = iter(())


class FromChannel(Reading):
    """What others send, as it comes."""

    def __init__(self, channel: Channel[Any], total: int | None = None, *, rereadable: bool = False) -> None:
        super().__init__(total, rereadable=rereadable)
        self._channel = channel
        self._positions = count()
        self._stopped = asyncio.Event()
        self._last: int | None = None

    async def __anext__(self) -> list[Entry]:
        found: list[Any] = []
        with suppress(ChannelClosedError):
            found = await self._received()
        if found:
            return [self._entry(item) for item in found]
        raise StopAsyncIteration

    def stop(self) -> None:
        """Take what is there, and wait for no more: those who go on sending would keep a run from ending."""
        if self._last is None:
            standing = self._channel.statistics()
            self._last = standing.size + standing.waiting_senders
        self._stopped.set()

    async def _received_last(self) -> list[Any]:
        """Receive of what was there when it was stopped."""
        most = min(HANDFUL_MAX, self._last or 0)
        found = await self._channel.receive_many(most, _LAST_SECONDS) if most else []
        self._last = (self._last or 0) - len(found)
        return found

    def _entry(self, item: Any) -> Entry:
        position = next(self._positions)
        return Entry(position, position, item)

    async def _received(self) -> list[Any]:
        """Receive some; none, once it is stopped and there is nothing."""
        if self._stopped.is_set():
            return await self._received_last()
        receiving = asyncio.ensure_future(self._channel.receive_many(HANDFUL_MAX))
        stopping = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait((receiving, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done():
                receiving.cancel()
                await asyncio.wait((receiving,))
            if receiving.cancelled():
                return await self._received_last()
            return receiving.result()
        finally:
            stopping.cancel()
            receiving.cancel()


class FromThread(FromChannel):
    """What may block, read on a thread. What it raises comes out here, after what it read before."""

    def __init__(self, source: Source, total: int | None, ahead: int) -> None:
        super().__init__(
            Channel(ahead), total, rereadable=isinstance(source, FileSource) and source.rereadable
        )
        self._source = source
        self._error: BaseException | None = None
        Thread(target=self._run, name="comporta-source", daemon=True).start()

    async def __anext__(self) -> list[Entry]:
        try:
            return await super().__anext__()
        except StopAsyncIteration:
            if self._error is not None:
                raise self._error from None
            raise

    def _entry(self, item: Any) -> Entry:
        entry: Entry = item
        return entry

    def close(self) -> None:
        """Let the thread go: it may stand there with an entry that nobody will take."""
        self._channel.close()

    async def _received_last(self) -> list[Any]:
        """Receive until the thread ends, which it does after the entry that it has in hand."""
        return await self._channel.receive_many(HANDFUL_MAX, _LAST_SECONDS)

    def _run(self) -> None:
        try:
            for entry in self._source.entries():
                self._channel.sync.send(entry)
                if self._stopped.is_set():
                    break
        except ChannelClosedError:
            pass  # nobody takes any more
        except BaseException as error:
            self._error = error
        self._channel.close()


class FromAwaited(Reading):
    """Items that are awaited one by one."""

    def __init__(self, items: AsyncIterable[Any]) -> None:
        super().__init__(None, rereadable=False)
        self._items = aiter(items)
        self._positions = count()
        self._next: asyncio.Future[Any] | None = None
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


async def reading_of(given: Any, ahead: int) -> Reading:
    """Begin to read what a program gave as a source, so many entries ahead."""
    if isinstance(given, Channel):
        return FromChannel(given)
    if isinstance(given, AsyncIterable):
        return FromAwaited(given)
    if isinstance(given, Sequence) and not isinstance(given, str | bytes):
        return FromMemory(given)
    source = source_of(given)
    return FromThread(source, await Call(lambda: source.total).wait(), min(ahead, HANDFUL_MAX))


async def identity_of(given: Any) -> Mapping[str, Any]:
    """Return what a source is known by; one that cannot be read again cannot be gone on with."""
    identity: Mapping[str, Any] | None = None
    if isinstance(given, AsyncIterable):
        identity = None if isinstance(given, Channel) else {"kind": "items", "total": None}
    else:
        identity = await Call(source_of(given).identity).wait()
    if identity is None:
        raise ValueError("checkpoint needs a source that can be read again: a channel or a pipe cannot")
    return identity
