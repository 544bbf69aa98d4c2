"""Users who wait for a fetch or a listing that another worker reads, as short-lived records in the store.

The worker of the user announces every ``ANNOUNCE_SECONDS`` that the user waits. The worker that reads in a
lower class, for example for a scheduled refresh, polls for such a record every ``POLL_SECONDS`` and raises
its read (``read_class.py``). An announcement that is older than the read is ignored: that user may have
received an answer since. While the store is unreachable, reads keep their class.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final, Protocol

from comporta.cache.params import hash_params
from comporta.errors import StateError
from comporta.fleet.reader import FLEET
from comporta.limits.priority import PRIORITIES, Caller
from comporta.stores.base import Store
from comporta.stores.records import ReadRecord, WriteRecord

JOIN_SECONDS: Final = 0.1
"""A user who waits this long for a fetch or a listing raises it to the class of users."""

POLL_SECONDS: Final = 1.0
ANNOUNCE_SECONDS: Final = 5.0
RECORD_SECONDS: Final = 2 * ANNOUNCE_SECONDS

_USER_RANK: Final = PRIORITIES.index("interactive")


class PrioritizedRead(Protocol):
    """A read whose class a caller can raise: that of one listing, or a fetch of several."""

    @property
    def caller(self) -> Caller:
        """The caller whose class and owner the read has."""

    def raise_to(self, caller: Caller) -> None:
        """Take over the class and the owner of a caller, if its class is higher."""


class WaitingUsers:
    """Announces users of this worker who wait for another one, and finds users who wait for this worker."""

    def __init__(self) -> None:
        self._writes: set[asyncio.Task[None]] = set()

    def announce(self, store: Store, params: Mapping[str, Any], caller: Caller) -> None:
        """Announce in the background that a user waits for the read with these cache parameters."""
        if caller.rank == _USER_RANK:
            writing = asyncio.create_task(_write(store, params, caller))
            self._writes.add(writing)
            writing.add_done_callback(self._writes.discard)

    @contextmanager
    def watch(self, store: Store, params: Mapping[str, Any], read: PrioritizedRead) -> Iterator[None]:
        """Raise a read, while it runs, to the class of a user of another worker who waits for it."""
        if read.caller.rank == _USER_RANK:
            yield
            return
        polling = asyncio.create_task(_poll(store, params, read))
        try:
            yield
        finally:
            polling.cancel()


class JoinTimer:
    """Calls ``join`` while a caller waits in a ``with`` block.

    It does so after ``JOIN_SECONDS`` and then every ``ANNOUNCE_SECONDS``, because another worker may begin to
    read meanwhile. Most searches are answered from memory and wait for nothing, and a timer costs several
    times as much as a callback. The timer is therefore set in the next iteration of the event loop, unless
    the block has ended by then.
    """

    __slots__ = ("_handle", "_join", "_loop")

    def __init__(self, join: Callable[[], None]) -> None:
        self._join = join
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> None:
        self._handle = self._loop.call_soon(self._start)

    def __exit__(self, *_: object) -> None:
        self._handle.cancel()

    def _start(self) -> None:
        self._handle = self._loop.call_later(JOIN_SECONDS, self._fire)

    def _fire(self) -> None:
        self._join()
        self._handle = self._loop.call_later(ANNOUNCE_SECONDS, self._fire)


async def _write(store: Store, params: Mapping[str, Any], caller: Caller) -> None:
    value = f"{time.time_ns()} {caller.owner or ''}".encode(errors="replace")
    with suppress(StateError):
        await store.apply_async(WriteRecord(FLEET, _key(params), value, RECORD_SECONDS))


async def _read(store: Store, key: str) -> bytes | None:
    with suppress(StateError):
        return await store.apply_async(ReadRecord(FLEET, key))
    return None


async def _poll(store: Store, params: Mapping[str, Any], read: PrioritizedRead) -> None:
    key = _key(params)
    earlier = await _read(store, key)
    while read.caller.rank != _USER_RANK:
        await asyncio.sleep(POLL_SECONDS)
        announced = await _read(store, key)
        if announced is not None and announced != earlier:
            owner = announced.decode(errors="replace").partition(" ")[2]
            read.raise_to(Caller(_USER_RANK, owner))


def _key(params: Mapping[str, Any]) -> str:
    return f"waiting.{hash_params(params)[0]}"
