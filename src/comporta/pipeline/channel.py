"""A bounded channel between producers and consumers: coroutines of any event loop, and threads.

A receiver takes its item itself, under the channel's lock, in the step in which it returns. A waiting
receiver is only woken, never handed an item, because it may be cancelled at that moment. A sender of many
items takes them from its iterator only when there is room, so items that were not sent are still in it. No
item is lost or sent twice when a caller is cancelled or times out.

Calls that need not wait take a direct path; waiting is a flow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import suppress
from itertools import islice, repeat, starmap
from operator import length_hint
from threading import Lock
from typing import Generic, NamedTuple, TypeVar

from comporta import fork_safety
from comporta.clock import MONOTONIC, to_seconds, to_us
from comporta.errors import ChannelClosedError
from comporta.flow import Flow, run_async
from comporta.pipeline.fork_reset import ForkReset
from comporta.pipeline.sync_channel import SyncChannel
from comporta.pipeline.waiter import PipelineWaiter
from comporta.stores.memory import HAS_GIL
from comporta.stores.records import NEVER_US
from comporta.threads import run_cleanup
from comporta.validators import require_integer, require_number

T = TypeVar("T")

CAPACITY_MAX = 10_000_000
DEADLINE_MAX = 366 * 86_400.0
WAKE_MASK = 255
"""The first item wakes a receiver, and a receiver wakes the next one while there are more items. That chain
can break: an event loop is closed, or an interrupt comes between two of its steps. Therefore the channel also
wakes a receiver when it is full and whenever the count of sent items is 0 under this mask.
"""

CHUNK_MAX = 1000
"""How many items ``send_many`` takes from an iterator at a time, after it has reserved room for them."""


class ChannelStatistics(NamedTuple):
    """A snapshot of a channel: items in it, waiting callers, items that passed through it."""

    size: int
    capacity: int
    waiting_senders: int
    waiting_receivers: int
    sent: int
    received: int
    closed: bool


class Channel(Generic[T]):
    """A queue of at most ``capacity`` items between senders and receivers.

    ::

        channel: Channel[str] = Channel(capacity=500)
        await channel.send("item")      # waits while it is full
        async for item in channel:      # until it is closed and empty
            ...

    ``channel.sync`` has the same methods for threads. A handover between a thread and an event loop costs
    about as much for a hundred items as for one, so threads should use ``send_many`` and ``receive_many``.

    Where no caller has to wait, ``send`` and ``receive`` take no lock. CPython switches threads and runs
    signal handlers only at calls and loops, and there is neither between the check for room and its use.
    """

    def __init__(self, capacity: int = 500) -> None:
        self.capacity = require_integer("capacity", capacity, 1, CAPACITY_MAX)
        self._lock = Lock()
        self._items: deque[T] = deque()
        self._room = capacity
        self._reserved: dict[PipelineWaiter, int] = {}
        self._sent = 0
        self._closed = False
        self._senders: deque[PipelineWaiter] = deque()
        self._receivers: deque[PipelineWaiter] = deque()
        self.sync = SyncChannel(self)
        self._fork_reset = ForkReset(self._after_fork)

    async def send(self, item: T) -> None:
        """Put an item in, waiting while the channel is full."""
        room = self._room
        if room > 0 and HAS_GIL and not self._closed:
            empty = not self._items
            self._room = room - 1  # no call and no loop from the check to the append: see the class
            self._items.append(item)
            self._sent = sent = self._sent + 1
            if (empty or room == 1 or not sent & WAKE_MASK) and self._receivers:
                self._wake_first(self._receivers)
        else:
            await run_async(self._send_flow(item))

    async def send_many(self, items: Iterable[T]) -> None:
        """Put all items in, in order, as room becomes available.

        It takes from an iterator only what it sends: if it is cancelled or the channel is closed, the rest is
        still in the iterator. The end of an iterator without a known length shows only when there is room for
        one more item.
        """
        await run_async(self._send_many_flow(items))

    async def receive(self) -> T:
        """Return the next item, waiting for one."""
        try:
            item = self._items.popleft() if HAS_GIL else self._take(1)[0]
        except IndexError:
            return (await run_async(self._receive_flow(1, None)))[0]
        if HAS_GIL:
            self._room += 1
            if self._senders:
                self._wake_first(self._senders)
        return item

    async def receive_many(self, n: int, deadline: float | None = None) -> list[T]:
        """Return the items in the channel, at most ``n``; if there are none, wait for one.

        After ``deadline`` seconds without an item it returns an empty list.
        """
        return self._receive_now(n, deadline) or await run_async(self._receive_flow(n, deadline))

    def close(self) -> None:
        """Accept no more items; those in the channel can still be received. It may be called again."""
        with self._lock:
            self._closed = True
        self._wake_all()

    @property
    def closed(self) -> bool:
        """Whether the channel accepts no more items."""
        return self._closed

    def statistics(self) -> ChannelStatistics:
        """Return a snapshot of the channel."""
        with self._lock:
            size, waiting = len(self._items), (len(self._senders), len(self._receivers))
            passed = (self._sent, max(0, self._sent - size))
            return ChannelStatistics(size, self.capacity, *waiting, *passed, self._closed)

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        try:
            return await self.receive()
        except ChannelClosedError:
            raise StopAsyncIteration from None

    def _after_fork(self) -> None:
        """Leave waiting callers and reserved room to the parent process."""
        fork_safety.reinit_lock(self._lock)
        for of_parent in (self._senders, self._receivers, self._reserved):
            of_parent.clear()
        self._room = self.capacity - len(self._items)

    # -- what both interfaces are made of

    def _try_send(self, item: T) -> bool:
        """Put an item in if there is room."""
        with self._lock:
            room = self._room
            if room <= 0 or self._closed:
                return False
            empty = not self._items
            self._room = room - 1
            self._items.append(item)
            self._sent = sent = self._sent + 1
        if (empty or room == 1 or not sent & WAKE_MASK) and self._receivers:
            self._wake_first(self._receivers)
        return True

    def _receive_now(self, n: int, deadline: float | None) -> list[T]:
        """Validate the arguments of ``receive_many``, and take the items in the channel."""
        if n.__class__ is not int or n < 1 or n > CAPACITY_MAX:
            require_integer("n", n, 1, CAPACITY_MAX)
        if deadline is not None:
            require_number("deadline", deadline, 0, DEADLINE_MAX, unit="seconds")
        return self._take(n)

    def _take(self, n: int) -> list[T]:
        """Remove and return at most ``n`` items, one by one: other threads may do so at the same time."""
        items: list[T] = []
        if not self._items:
            return items
        with self._lock:
            with suppress(IndexError):  # the channel is empty
                items.extend(starmap(self._items.popleft, repeat((), n)))
            count = len(items)
            self._room += count
        if items and self._senders:
            self._wake_first(self._senders)
        return items

    def _send_flow(self, item: T) -> Flow[None]:
        """The flow of ``send``."""
        waiter = PipelineWaiter()
        while not self._try_send(item):
            if self._must_wait_for_room(waiter):
                yield from self._wait_flow(self._senders, waiter)
        self._pass_wake_on(self._senders, waiter)

    def _send_many_flow(self, items: Iterable[T]) -> Flow[None]:
        """The flow of ``send_many``: reserve room, then take as many items, so it never waits holding one.

        The iterator is code of the caller, so the flow holds no lock while it runs; it reserves the room
        instead.
        """
        rest, waiter, more = iter(items), PipelineWaiter(), True
        try:
            while more:
                room = self._reserve_room(waiter)
                if room:
                    more = self._send_chunk(rest, waiter)
                elif self._must_wait_for_room(waiter):
                    yield from self._wait_flow(self._senders, waiter)
        finally:
            if waiter in self._reserved:  # interrupted between two steps: give the room back
                self._release_room(waiter)
        self._pass_wake_on(self._senders, waiter)

    def _receive_flow(self, n: int, deadline: float | None) -> Flow[list[T]]:
        """The flow of ``receive_many``."""
        until_us = NEVER_US if deadline is None else _now_us() + to_us(deadline)
        waiter = PipelineWaiter()
        while True:
            items = self._take(n)
            if items:
                self._pass_wake_on(self._receivers, waiter)
                return items
            if self._must_wait_for_items(waiter):
                if deadline is not None:
                    waiter.timeout = to_seconds(until_us - _now_us())
                    if waiter.timeout <= 0:
                        self._leave(self._receivers, waiter)
                        return items
                yield from self._wait_flow(self._receivers, waiter)

    def _must_wait_for_room(self, waiter: PipelineWaiter) -> bool:
        """Enter the queue of senders, unless there is room; raises if the channel is closed.

        A sender enters first and then looks for room. A receiver first makes room and then looks for senders.
        So one of the two sees the other.
        """
        with self._lock:
            if self._closed:
                raise ChannelClosedError("the channel is closed: it accepts no more items")
            _enqueue(self._senders, waiter)
            if self._room > 0:
                self._senders.remove(waiter)
                return False
            return True

    def _must_wait_for_items(self, waiter: PipelineWaiter) -> bool:
        """Enter the queue of receivers, unless there is an item; raises if no item can come any more."""
        with self._lock:
            _enqueue(self._receivers, waiter)
            over, empty = self._closed and not self._reserved, not self._items  # in this order
            if over or not empty:
                self._receivers.remove(waiter)
            if over and empty:
                raise ChannelClosedError("the channel is closed, and all its items were received")
            return empty

    def _wait_flow(self, queue: deque[PipelineWaiter], waiter: PipelineWaiter) -> Flow[None]:
        """Wait to be woken; a caller that is cancelled meanwhile wakes the next one instead."""
        try:
            yield waiter
        except BaseException:
            run_cleanup(self._cancel_wait, queue, waiter)
            raise
        self._leave(queue, waiter)

    def _cancel_wait(self, queue: deque[PipelineWaiter], waiter: PipelineWaiter) -> None:
        self._leave(queue, waiter)
        self._pass_wake_on(queue, waiter)

    def _leave(self, queue: deque[PipelineWaiter], waiter: PipelineWaiter) -> None:
        if not waiter.woken:
            with self._lock, suppress(ValueError):  # woken at this moment
                queue.remove(waiter)

    def _pass_wake_on(self, queue: deque[PipelineWaiter], waiter: PipelineWaiter) -> None:
        """Wake the next waiter, if this one was woken and there is still something to take."""
        if waiter.woken and queue and (self._items if queue is self._receivers else self._room > 0):
            self._wake_first(queue)

    def _wake_first(self, queue: deque[PipelineWaiter]) -> None:
        """Wake the first waiter that can be woken.

        It leaves the queue only after that: an interrupted wake-up may wake one waiter twice but never skips
        one.
        """
        with self._lock:
            is_woken = False
            while queue and not is_woken:
                was_woken = queue[0].woken
                is_woken = queue[0].wake() and not was_woken
                queue.popleft()

    def _wake_all(self) -> None:
        for line in (self._senders, self._receivers):
            while line:
                self._wake_first(line)

    def _reserve_room(self, waiter: PipelineWaiter) -> int:
        """Reserve room for the next chunk; returns for how many items."""
        with self._lock:
            room = self._room
            if room > CHUNK_MAX:
                room = CHUNK_MAX
            if room <= 0 or self._closed:
                return 0
            self._room -= room
            self._reserved[waiter] = room
            return room

    def _send_chunk(self, rest: Iterator[T], waiter: PipelineWaiter) -> bool:
        """Send as many items as room is reserved for; false at the end. An error keeps items before it."""
        chunk: list[T] = []
        room = self._reserved[waiter]
        try:
            chunk.extend(islice(rest, room))
        finally:
            count = len(chunk)
            with self._lock:
                self._reserved[waiter] = room - count
                self._items.extend(chunk)
                self._sent += count
            self._release_room(waiter)
        return count == room and length_hint(rest, 1) > 0

    def _release_room(self, waiter: PipelineWaiter) -> None:
        """Give back reserved room that was not used, and wake the senders that wait for it."""
        with self._lock:
            room = self._reserved[waiter]
            self._room += room  # no call before the next statement, so no interrupt either
            del self._reserved[waiter]
        if self._closed:
            self._wake_all()
        elif self._receivers:
            self._wake_first(self._receivers)


def _enqueue(queue: deque[PipelineWaiter], waiter: PipelineWaiter) -> None:
    """Enter a queue: at its end, or at its head for a waiter that was woken in vain."""
    if waiter.woken:
        waiter.reset()
        queue.appendleft(waiter)
    else:
        queue.append(waiter)


def _now_us() -> int:
    return MONOTONIC.now_ns() // 1000
