"""A bounded channel between producers and consumers: coroutines of any event loop, and threads.

Whoever receives takes the item itself, under the channel's lock, at the moment it returns: an item is never
handed to somebody who waits and may be cancelled just then. Whoever sends many takes them out of their
iterator only when there is room: what was not sent is still there. So nothing is lost and nothing doubled,
whoever is cancelled or times out.

The hot path is direct; waiting is a flow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import suppress
from itertools import islice, repeat, starmap
from math import isfinite
from operator import length_hint
from threading import Lock
from typing import Generic, NamedTuple, TypeVar

from comporta import forks
from comporta.clock import MONOTONIC, to_seconds, to_us
from comporta.errors import ChannelClosedError
from comporta.flow import Flow, run, run_async
from comporta.pipeline.places import Place
from comporta.stores.memory import ONE_THREAD_AT_A_TIME
from comporta.stores.records import NEVER_US
from comporta.threads import clear_up

T = TypeVar("T")

CAPACITY_MAX = 10_000_000
DEADLINE_MAX = 366 * 86_400.0
CALL_AGAIN = 255
"""A receiver is called for the first item, and passes the call on as long as there are more. Should that be
lost, with an event loop that is closed or by an interrupt, another is called when the channel is full, and
when the count of items is 0 under this mask.
"""

CHUNK_MAX = 1000
"""How many are taken from a sender's iterator at once: for so many, room is kept from others meanwhile."""


class ChannelStatistics(NamedTuple):
    """How a channel stands: what is in it, who waits, what has passed."""

    size: int
    capacity: int
    waiting_senders: int
    waiting_receivers: int
    sent: int
    received: int
    closed: bool


class Channel(Generic[T]):
    """At most ``capacity`` items between those who send and those who receive.

    ::

        channel: Channel[str] = Channel(capacity=500)
        await channel.send("item")      # waits while it is full
        async for item in channel:      # until it is closed and empty
            ...

    ``channel.sync`` is the same for threads. Crossing between a thread and a loop costs as much for a hundred
    items as for one: threads should ``send_many`` and ``receive_many``.

    Where nobody has to wait, ``send`` and ``receive`` take no lock: a thread of CPython gives way only at
    calls and loops, and so do signal handlers; between the look at the room and its use there is neither.
    """

    def __init__(self, capacity: int = 500) -> None:
        _check("capacity", capacity, CAPACITY_MAX)
        self.capacity = capacity
        self._lock = Lock()
        self._items: deque[T] = deque()
        self._room = capacity
        self._promises: dict[Place, int] = {}
        self._sent = 0
        self._closed = False
        self._senders: deque[Place] = deque()
        self._receivers: deque[Place] = deque()
        self.sync = SyncChannel(self)
        forks.register(self)

    async def send(self, item: T) -> None:
        """Put an item in, waiting as long as the channel is full."""
        room = self._room
        if room > 0 and ONE_THREAD_AT_A_TIME and not self._closed:
            empty = not self._items
            self._room = room - 1  # no call and no loop from the look at the room to the append: see Channel
            self._items.append(item)
            self._sent = sent = self._sent + 1
            if (empty or room == 1 or not sent & CALL_AGAIN) and self._receivers:
                self._call(self._receivers)
        else:
            await run_async(self.sending(item))

    async def send_many(self, items: Iterable[T]) -> None:
        """Put all in, in order, as there is room.

        Given an iterator it takes from it only what it sends: should it be cancelled, or the channel closed,
        the rest is still in it. One that does not know its length is asked for more when there is room for
        more, so it is only then that it is known to have come to its end.
        """
        await run_async(self.sending_many(items))

    async def receive(self) -> T:
        """Take the next item, waiting for one."""
        try:
            item = self._items.popleft() if ONE_THREAD_AT_A_TIME else self.take(1)[0]
        except IndexError:
            return (await run_async(self.receiving(1, None)))[0]
        if ONE_THREAD_AT_A_TIME:
            self._room += 1
            if self._senders:
                self._call(self._senders)
        return item

    async def receive_many(self, n: int, deadline: float | None = None) -> list[T]:
        """Take what is there, up to ``n``; if there is nothing, wait for something.

        After ``deadline`` seconds without anything the answer is an empty list.
        """
        _check_many(n, deadline)
        return self.take(n) or await run_async(self.receiving(n, deadline))

    def close(self) -> None:
        """Let nothing more in; what is in can still be received. Closing twice is closing once."""
        with self._lock:
            self._closed = True
        self._call_all()

    @property
    def closed(self) -> bool:
        """Whether nothing more can be sent."""
        return self._closed

    def statistics(self) -> ChannelStatistics:
        """Tell how the channel stands."""
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

    def after_fork(self) -> None:
        """Leave those who wait, and what they have promised, to the parent."""
        forks.renew(self._lock)
        for theirs in (self._senders, self._receivers, self._promises):
            theirs.clear()
        self._room = self.capacity - len(self._items)

    # what both faces are made of ----------------------------------------------------------------------

    def put(self, item: T) -> bool:
        """Put an item in if there is room."""
        with self._lock:
            room = self._room
            if room <= 0 or self._closed:
                return False
            empty = not self._items
            self._room = room - 1
            self._items.append(item)
            self._sent = sent = self._sent + 1
        if (empty or room == 1 or not sent & CALL_AGAIN) and self._receivers:
            self._call(self._receivers)
        return True

    def take(self, n: int) -> list[T]:
        """Take what is there, up to ``n``: one by one, since others may take at the same time."""
        found: list[T] = []
        if not self._items:
            return found
        with self._lock:
            with suppress(IndexError):  # that was all
                found.extend(starmap(self._items.popleft, repeat((), n)))
            count = len(found)
            self._room += count
        if found and self._senders:
            self._call(self._senders)
        return found

    def sending(self, item: T) -> Flow[None]:
        """The flow of ``send``."""
        place = Place()
        while not self.put(item):
            if self._stands_for_room(place):
                yield from self._rest(self._senders, place)
        self._pass_on(self._senders, place)

    def sending_many(self, items: Iterable[T]) -> Flow[None]:
        """The flow of ``send_many``: first room, then as many items, so that it never waits with any in hand.

        The items come from somebody else's iterator, so no lock is held meanwhile; the room is promised.
        """
        rest, place, more = iter(items), Place(), True
        try:
            while more:
                room = self._promise(place)
                if room:
                    more = self._filled(rest, place)
                elif self._stands_for_room(place):
                    yield from self._rest(self._senders, place)
        finally:
            if place in self._promises:  # interrupted between two steps: the room is for others
                self._release(place)
        self._pass_on(self._senders, place)

    def receiving(self, n: int, deadline: float | None) -> Flow[list[T]]:
        """The flow of ``receive_many``."""
        until_us = NEVER_US if deadline is None else _now_us() + to_us(deadline)
        place = Place()
        while True:
            found = self.take(n)
            if found:
                self._pass_on(self._receivers, place)
                return found
            if self._stands_for_items(place):
                if deadline is not None:
                    place.seconds = to_seconds(until_us - _now_us())
                    if place.seconds <= 0:
                        self._leave(self._receivers, place)
                        return found
                yield from self._rest(self._receivers, place)

    def _stands_for_room(self, place: Place) -> bool:
        """Stand in line, unless there is room by now; where nothing may come in any more it is an error.

        First it stands there and then it looks, while others make room and then look who stands there.
        """
        with self._lock:
            if self._closed:
                raise ChannelClosedError("the channel is closed: nothing more can be sent")
            _stand(self._senders, place)
            if self._room > 0:
                self._senders.remove(place)
                return False
            return True

    def _stands_for_items(self, place: Place) -> bool:
        """Stand in line, unless there is an item by now; where none can come any more it is an error."""
        with self._lock:
            _stand(self._receivers, place)
            over, empty = self._closed and not self._promises, not self._items  # in this order
            if over or not empty:
                self._receivers.remove(place)
            if over and empty:
                raise ChannelClosedError("the channel is closed, and all that was in it was received")
            return empty

    def _rest(self, line: deque[Place], place: Place) -> Flow[None]:
        """Wait to be called; whoever is stopped meanwhile passes the call on."""
        try:
            yield place
        except BaseException:
            clear_up(self._stopped, line, place)
            raise
        self._leave(line, place)

    def _stopped(self, line: deque[Place], place: Place) -> None:
        self._leave(line, place)
        self._pass_on(line, place)

    def _leave(self, line: deque[Place], place: Place) -> None:
        if not place.called:
            with self._lock, suppress(ValueError):  # called just now
                line.remove(place)

    def _pass_on(self, line: deque[Place], place: Place) -> None:
        """Call the next one, if this one was called and there is still something to call for."""
        if place.called and line and (self._items if line is self._receivers else self._room > 0):
            self._call(line)

    def _call(self, line: deque[Place]) -> None:
        """Call the first of a line who hears it.

        It leaves the line only then: whoever is interrupted in between leaves nobody uncalled, and somebody
        called whom the next call does not count.
        """
        with self._lock:
            heard = False
            while line and not heard:
                before = line[0].called
                heard = line[0].call() and not before
                line.popleft()

    def _call_all(self) -> None:
        for line in (self._senders, self._receivers):
            while line:
                self._call(line)

    def _promise(self, place: Place) -> int:
        """Keep room for what is about to come, and return for how many."""
        with self._lock:
            room = self._room
            if room > CHUNK_MAX:
                room = CHUNK_MAX
            if room <= 0 or self._closed:
                return 0
            self._room -= room
            self._promises[place] = room
            return room

    def _filled(self, rest: Iterator[T], place: Place) -> bool:
        """Bring in as many as were promised; false if that was all. An error keeps those before it."""
        chunk: list[T] = []
        room = self._promises[place]
        try:
            chunk.extend(islice(rest, room))
        finally:
            count = len(chunk)
            with self._lock:
                self._promises[place] = room - count
                self._items.extend(chunk)
                self._sent += count
            self._release(place)
        return count == room and length_hint(rest, 1) > 0

    def _release(self, place: Place) -> None:
        """Give back the room that was kept and not needed, and have those look who waited for that."""
        with self._lock:
            room = self._promises[place]
            self._room += room  # no call from here to the next step: no interrupt either
            del self._promises[place]
        if self._closed:
            self._call_all()
        elif self._receivers:
            self._call(self._receivers)


class SyncChannel(Generic[T]):
    """The verbs of a channel for threads: ``channel.sync``."""

    __slots__ = ("_channel",)

    def __init__(self, channel: Channel[T]) -> None:
        self._channel = channel

    def send(self, item: T) -> None:
        """Put an item in, waiting as long as the channel is full."""
        if not self._channel.put(item):
            run(self._channel.sending(item))

    def send_many(self, items: Iterable[T]) -> None:
        """Put all in, in order, as there is room."""
        run(self._channel.sending_many(items))

    def receive(self) -> T:
        """Take the next item, waiting for one."""
        return run(self._channel.receiving(1, None))[0]

    def receive_many(self, n: int, deadline: float | None = None) -> list[T]:
        """Take what is there, up to ``n``; if there is nothing, wait for something."""
        _check_many(n, deadline)
        return self._channel.take(n) or run(self._channel.receiving(n, deadline))

    def close(self) -> None:
        """Let nothing more in."""
        self._channel.close()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        try:
            return self.receive()
        except ChannelClosedError:
            raise StopIteration from None


def _stand(line: deque[Place], place: Place) -> None:
    """Stand in a line: at its end, or, for who was called in vain, at its head again."""
    if place.called:
        place.renew()
        line.appendleft(place)
    else:
        line.append(place)


def _now_us() -> int:
    return MONOTONIC.now_ns() // 1000


def _check(name: str, value: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {value!r:.50}")
    if not 1 <= value <= most:
        raise ValueError(f"{name} must be 1 to {most}, got {value}")


def _check_many(n: int, deadline: float | None) -> None:
    if n.__class__ is not int or n < 1 or n > CAPACITY_MAX:
        _check("n", n, CAPACITY_MAX)
    if deadline is None:
        return
    if isinstance(deadline, bool) or not isinstance(deadline, int | float):
        raise TypeError(f"deadline must be a number of seconds or None, got {deadline!r:.50}")
    if not (isfinite(deadline) and 0 <= deadline <= DEADLINE_MAX):
        raise ValueError(f"deadline must be 0 to {DEADLINE_MAX:g} seconds, or None, got {deadline}")
