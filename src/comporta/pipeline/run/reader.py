"""From a source to the event loop, in chunks, for any kind of source.

A source that may block is read on a daemon thread: a file on a dead network or a terminal without input must
not keep the program from ending.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count, islice
from typing import Any

from comporta.errors import ChannelClosedError
from comporta.pipeline.channel import Channel
from comporta.pipeline.run.sources import EntrySource, FileSource, IterableSource, SourceEntry, source_of
from comporta.runtime import RUNTIME
from comporta.thread_pool import run_in_thread

CHUNK_ENTRIES_MAX = 512
"""The largest number of entries in a chunk."""

_REMAINING_SECONDS_MAX = 0.2
"""How long a stopped reader waits for an entry that a thread may be about to send."""


class EntryReader(AsyncIterator[list[SourceEntry]]):
    """The entries of a source, in chunks. After ``stop`` it still returns the entries already read."""

    def __init__(self, total: int | None, *, rereadable: bool) -> None:
        self.total = total
        self.rereadable = rereadable

    @abstractmethod
    def stop(self) -> None:
        """Stop reading."""

    def close(self) -> None:
        """Return no more entries."""


class MemoryReader(EntryReader):
    """Reads items that are all in memory."""

    def __init__(self, items: Sequence[Any]) -> None:
        super().__init__(len(items), rereadable=True)
        self._entries: Iterator[SourceEntry] = IterableSource(items).entries()

    async def __anext__(self) -> list[SourceEntry]:
        chunk = list(islice(self._entries, CHUNK_ENTRIES_MAX))
        if not chunk:
            raise StopAsyncIteration
        return chunk

    def stop(self) -> None:
        """Stop reading."""
        self._entries = iter(())


class ChannelReader(EntryReader):
    """Reads a channel that others send to."""

    def __init__(self, channel: Channel[Any], total: int | None = None, *, rereadable: bool = False) -> None:
        super().__init__(total, rereadable=rereadable)
        self._channel = channel
        self._positions = count()
        self._stopped = asyncio.Event()
        self._remaining: int | None = None

    async def __anext__(self) -> list[SourceEntry]:
        items: list[Any] = []
        with suppress(ChannelClosedError):
            items = await self._receive()
        if items:
            return [self._entry(item) for item in items]
        raise StopAsyncIteration

    def stop(self) -> None:
        """Return what is in the channel and no more: senders that continue would keep the run from ending."""
        if self._remaining is None:
            statistics = self._channel.statistics()
            self._remaining = statistics.size + statistics.waiting_senders
        self._stopped.set()

    async def _receive_remaining(self) -> list[Any]:
        """Receive items that were in the channel when the reader was stopped."""
        count_max = min(CHUNK_ENTRIES_MAX, self._remaining or 0)
        items = await self._channel.receive_many(count_max, _REMAINING_SECONDS_MAX) if count_max else []
        self._remaining = (self._remaining or 0) - len(items)
        return items

    def _entry(self, item: Any) -> SourceEntry:
        position = next(self._positions)
        return SourceEntry(position, position, item)

    async def _receive(self) -> list[Any]:
        """Receive items; an empty list when the reader is stopped and the channel is empty."""
        if self._stopped.is_set():
            return await self._receive_remaining()
        receiving = asyncio.ensure_future(self._channel.receive_many(CHUNK_ENTRIES_MAX))
        stopping = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait((receiving, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done():
                receiving.cancel()
                await asyncio.wait((receiving,))
            if receiving.cancelled():
                return await self._receive_remaining()
            return receiving.result()
        finally:
            stopping.cancel()
            receiving.cancel()


class ThreadReader(ChannelReader):
    """Reads a blocking source on a thread; an error of the source is raised after the entries before it."""

    def __init__(self, source: EntrySource, total: int | None, ahead: int) -> None:
        super().__init__(
            Channel(ahead), total, rereadable=isinstance(source, FileSource) and source.rereadable
        )
        self._source = source
        self._error: BaseException | None = None
        RUNTIME.start_thread(self._run, "comporta-source")

    async def __anext__(self) -> list[SourceEntry]:
        try:
            return await super().__anext__()
        except StopAsyncIteration:
            if self._error is not None:
                raise self._error from None
            raise

    def _entry(self, item: Any) -> SourceEntry:
        entry: SourceEntry = item
        return entry

    def close(self) -> None:
        """End the thread, which may be waiting to send an entry that is no longer wanted."""
        self._channel.close()

    async def _receive_remaining(self) -> list[Any]:
        """Receive until the thread ends, which it does after its current entry."""
        return await self._channel.receive_many(CHUNK_ENTRIES_MAX, _REMAINING_SECONDS_MAX)

    def _run(self) -> None:
        try:
            for entry in self._source.entries():
                self._channel.sync.send(entry)
                if self._stopped.is_set():
                    break
        except ChannelClosedError:
            pass  # the run has ended
        except BaseException as error:
            self._error = error
        self._channel.close()


class AsyncIterableReader(EntryReader):
    """Reads an asynchronous iterable, item by item."""

    def __init__(self, items: AsyncIterable[Any]) -> None:
        super().__init__(None, rereadable=False)
        self._items = aiter(items)
        self._positions = count()
        self._next: asyncio.Future[Any] | None = None
        self._stopped = False

    async def __anext__(self) -> list[SourceEntry]:
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
        return [SourceEntry(position, position, item)]

    def stop(self) -> None:
        """Stop waiting for items."""
        self._stopped = True
        if self._next is not None:
            self._next.cancel()


async def open_reader(given: Any, ahead: int) -> EntryReader:
    """Start to read the source of a pipeline, at most ``ahead`` entries ahead."""
    if isinstance(given, Channel):
        return ChannelReader(given)
    if isinstance(given, AsyncIterable):
        return AsyncIterableReader(given)
    if isinstance(given, Sequence) and not isinstance(given, str | bytes):
        return MemoryReader(given)
    source = source_of(given)
    return ThreadReader(source, await run_in_thread(lambda: source.total), min(ahead, CHUNK_ENTRIES_MAX))


async def source_identity(given: Any) -> Mapping[str, Any]:
    """Return the identity of a source; raises if it cannot be read again, because it cannot be resumed."""
    identity: Mapping[str, Any] | None = None
    if isinstance(given, AsyncIterable):
        identity = None if isinstance(given, Channel) else {"kind": "items", "total": None}
    else:
        identity = await run_in_thread(source_of(given).identity)
    if identity is None:
        raise ValueError(
            "checkpoint must be None for a source that cannot be read again, such as a channel or a pipe"
        )
    return identity
