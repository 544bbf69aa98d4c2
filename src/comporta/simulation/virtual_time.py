"""Virtual time, and the threads that run on it.

Every thread of every simulated worker is a greenlet of one real thread. A thread runs until it waits, and
waiting costs no real time: the scheduler continues with the action that is due next. Two actions that are due
at the same moment happen in the order in which they were scheduled, so a run depends only on its inputs.

This module knows about workers only whether their threads may run, and nothing about the network.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from heapq import heappop, heappush
from queue import Empty
from typing import Any, Protocol

from greenlet import GreenletExit, getcurrent, greenlet  # type: ignore[import-untyped]

NANOSECONDS = 1_000_000_000


class SimulatedProcess(Protocol):
    """The simulated process to which a thread belongs."""

    is_running: bool
    """Whether its threads may run: false while it is paused, and after its end."""

    is_dead: bool
    """Whether it has ended."""

    deferred: list[tuple[SimulatedThread, int]]
    """The threads that became due while it was paused, each with its ticket."""

    threads: dict[SimulatedThread, None]
    """The threads that have not ended."""

    def local_delay_ns(self, nanoseconds: int) -> int:
        """Return how long a wait of ``nanoseconds`` by its own clock takes in virtual time."""


class SimulatedThread(greenlet):  # type: ignore[misc]  # greenlet has no types
    """A thread of a simulated process. ``ticket`` counts its waits: an old timer does not end a later wait.

    Creating a greenlet takes ten times as long as switching to one, so a greenlet whose thread has ended is
    used again for another thread, of any process (:meth:`Scheduler.start`).
    """

    __slots__ = ("_scheduler", "owner", "ticket", "work")  # every event reads them

    def __init__(self, scheduler: Scheduler, owner: SimulatedProcess, work: Callable[[], object]) -> None:
        super().__init__(self._main, scheduler.hub)
        self.owner = owner
        self.work = work
        self.ticket = 0
        self._scheduler = scheduler

    def resume(self, ticket: int) -> None:
        """Continue the thread if it is still in the wait with this number; called by the scheduler only."""
        if ticket != self.ticket or self.dead:
            return
        owner = self.owner
        if not owner.is_running:
            if not owner.is_dead:
                owner.deferred.append((self, ticket))
            return
        self.ticket += 1
        scheduler = self._scheduler
        scheduler.current = self
        self.switch()
        scheduler.current = None

    def end(self) -> None:
        """End the thread immediately, as the end of its process does. Its cleanup code cannot wait."""
        self.ticket += 1
        scheduler, previous = self._scheduler, self._scheduler.current
        scheduler.current = self
        self.throw(GreenletExit)
        scheduler.current = previous

    def _main(self) -> None:
        scheduler = self._scheduler
        while True:
            try:
                self.work()
            except GreenletExit:
                return
            except Exception as error:
                scheduler.on_thread_error(self, error)
            finally:
                self.owner.threads.pop(self, None)
                self.ticket += 1
            self.work = _do_nothing
            scheduler.idle.append(self)
            scheduler.hub.switch()


class Scheduler:
    """Runs what is due, in order, and moves virtual time from one event to the next.

    ``current`` is the thread that runs, ``None`` while the network, a server or a fault acts. ``acting_for``
    is the process whose request the server carries out: a clock that the request reads is that process's.
    ``on_thread_error`` is called with a thread that ended by an exception. ``idle`` has the greenlets whose
    threads have ended, at most as many as there were threads at one time.
    """

    def __init__(self) -> None:
        self.now_ns = 0
        self.current: SimulatedThread | None = None
        self.acting_for: SimulatedProcess | None = None
        self.hub = getcurrent()
        self._switch_to_hub = self.hub.switch
        self.event_count = 0
        self.idle: list[SimulatedThread] = []
        self.on_thread_error: Callable[[SimulatedThread, Exception], object] = _raise
        self._events: list[tuple[int, int, Callable[[Any], object], Any]] = []

    def call_at(self, at_ns: int, action: Callable[[Any], object], argument: Any = None) -> None:
        """Call ``action(argument)`` at a moment of virtual time; not before what is due now."""
        self.event_count += 1
        heappush(self._events, (max(at_ns, self.now_ns), self.event_count, action, argument))

    def call_after(self, delay_ns: int, action: Callable[[Any], object], argument: Any = None) -> None:
        """Call ``action(argument)`` after some nanoseconds of virtual time."""
        self.event_count += 1
        heappush(self._events, (self.now_ns + delay_ns, self.event_count, action, argument))

    def start(self, owner: SimulatedProcess, work: Callable[[], object]) -> SimulatedThread:
        """Start a thread, which runs when it is its turn, at this moment of virtual time."""
        thread = self._new_thread(owner, work)
        self.wake(thread)
        return thread

    def start_after(self, delay_ns: int, owner: SimulatedProcess, work: Callable[[], object]) -> None:
        """Start a thread after some nanoseconds of virtual time, unless its process has ended by then.

        Until then the thread takes no greenlet: a few greenlets that are reused stay in the processor's
        cache.
        """
        self.call_after(delay_ns, self._start_due, (owner, work))

    def _start_due(self, start: tuple[SimulatedProcess, Callable[[], object]]) -> None:
        owner, work = start
        if not owner.is_dead:
            thread = self._new_thread(owner, work)
            thread.resume(thread.ticket)

    def _new_thread(self, owner: SimulatedProcess, work: Callable[[], object]) -> SimulatedThread:
        if self.idle:
            thread = self.idle.pop()
            thread.owner, thread.work, thread.gr_context = owner, work, None
        else:
            thread = SimulatedThread(self, owner, work)
        owner.threads[thread] = None
        return thread

    def wake(self, thread: SimulatedThread) -> None:
        """Let a waiting thread check again whether it may continue, at this moment of virtual time."""
        self.event_count += 1
        heappush(self._events, (self.now_ns, self.event_count, thread.resume, thread.ticket))

    def running_thread(self) -> SimulatedThread:
        """Return the thread that runs; ``RuntimeError`` if none does, because only a thread can wait."""
        if self.current is None:
            raise RuntimeError("only a simulated thread can wait, and none is running")
        return self.current

    def park(self, until_ns: int | None) -> None:
        """Suspend the running thread until it is woken, or until a moment of virtual time.

        A caller checks afterwards for what it waited: a wake-up means only that it may be there.
        """
        thread = self.current
        if thread is None:
            thread = self.running_thread()  # raises the error
        if thread.owner.is_dead:
            raise GreenletExit
        if until_ns is not None:
            self.event_count += 1
            heappush(self._events, (until_ns, self.event_count, thread.resume, thread.ticket))
        self._switch_to_hub()

    def sleep_until(self, until_ns: int) -> None:
        """Suspend the running thread until a moment of virtual time, whatever wakes it."""
        self.park(until_ns)
        while self.now_ns < until_ns:
            self.park(until_ns)

    def run_until(self, until_ns: int) -> None:
        """Do everything that is due until a moment of virtual time."""
        events = self._events
        while events and events[0][0] <= until_ns:
            self.now_ns, _, action, argument = heappop(events)
            action(argument)
        self.now_ns = until_ns

    def close(self) -> None:
        """End the idle greenlets, which the garbage collector cannot."""
        while self.idle:
            self.idle.pop().throw(GreenletExit)


class SimulatedLock:
    """The lock on which threads of one process wait; see :class:`comporta.runtime.WaitingLock`."""

    __slots__ = ("_is_locked", "_scheduler", "_waiters")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._is_locked = False
        self._waiters: list[SimulatedThread] | None = None

    def acquire(self, *, timeout: float = -1) -> bool:
        """Acquire the lock; false if it was not free within ``timeout`` seconds (-1: no limit)."""
        if not self._is_locked:
            self._is_locked = True
            return True
        if not timeout:
            return False
        return self._wait(None if timeout < 0 else round(timeout * NANOSECONDS))

    def release(self) -> None:
        """Release the lock, and wake a thread that waits for it."""
        if not self._is_locked:
            raise RuntimeError("release unlocked lock")
        self._is_locked = False
        if self._waiters:
            self._scheduler.wake(self._waiters[0])

    def locked(self) -> bool:
        """Return whether the lock is held."""
        return self._is_locked

    def _wait(self, delay_ns: int | None) -> bool:
        scheduler = self._scheduler
        thread = scheduler.running_thread()
        ends_ns = None if delay_ns is None else scheduler.now_ns + thread.owner.local_delay_ns(delay_ns)
        if self._waiters is None:
            self._waiters = []
        self._waiters.append(thread)
        try:
            while self._is_locked:
                if ends_ns is not None and scheduler.now_ns >= ends_ns:
                    return False
                scheduler.park(ends_ns)
            self._is_locked = True
            return True
        finally:
            self._waiters.remove(thread)


class SimulatedQueue:
    """The queue at which threads of one process wait; see :class:`comporta.runtime.WaitingQueue`."""

    __slots__ = ("_items", "_scheduler", "_waiters")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._items: deque[Any] = deque()
        self._waiters: deque[SimulatedThread] = deque()

    def put(self, item: Any) -> None:
        """Append an item, and wake the thread that has waited longest."""
        self._items.append(item)
        if self._waiters:
            self._scheduler.wake(self._waiters.popleft())

    def get(self, *, timeout: float) -> Any:
        """Return the first item; ``Empty`` if there is none within ``timeout`` seconds."""
        scheduler = self._scheduler
        ends_ns = None
        while not self._items:
            thread = scheduler.running_thread()
            if ends_ns is None:
                ends_ns = scheduler.now_ns + thread.owner.local_delay_ns(round(timeout * NANOSECONDS))
            if scheduler.now_ns >= ends_ns:
                raise Empty
            self._wait(thread, ends_ns)
        return self._items.popleft()

    def get_nowait(self) -> Any:
        """Return the first item; ``Empty`` if there is none."""
        if not self._items:
            raise Empty
        return self._items.popleft()

    def qsize(self) -> int:
        """Return how many items there are."""
        return len(self._items)

    def empty(self) -> bool:
        """Return whether there are no items."""
        return not self._items

    def _wait(self, thread: SimulatedThread, ends_ns: int) -> None:
        self._waiters.append(thread)
        try:
            self._scheduler.park(ends_ns)
        finally:
            with suppress(ValueError):  # it was woken by `put`
                self._waiters.remove(thread)


def _do_nothing() -> None:
    """The work of an idle greenlet."""


def _raise(thread: SimulatedThread, error: Exception) -> None:
    raise error
