"""One background thread for the whole process that calls functions at given times.

A worker that stops calling a limiter cannot return its lease, so this thread does it before the lease
expires; it also releases permits that were held back. The module knows when to call which function, but not
what the function does. The thread starts when it is first needed, starts again in a forked child, and never
keeps a program from exiting.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from heapq import heappop, heappush
from itertools import count
from threading import Lock

from comporta import fork_safety
from comporta.clock import MONOTONIC
from comporta.runtime import PerProcess, at_exit
from comporta.stores.base import Store
from comporta.threads import BackgroundThread
from comporta.weak_registry import WeakRegistry

_STOP_SECONDS = 1.0


class LeaseHolder(ABC):
    """Holds units of a limit, or permits, that other workers could use."""

    __slots__ = ()

    store: Store
    name: str

    @abstractmethod
    def held_units(self) -> int:
        """Return how many units it holds."""

    @abstractmethod
    def return_all(self) -> None:
        """Return all units now."""


class LeaseScheduler:
    """Calls functions at given times, and returns the units of all holders when the program exits."""

    def __init__(self) -> None:
        self._callbacks: list[tuple[int, int, Callable[[], object]]] = []
        self._sequence = count()
        self._lock = Lock()
        self._holders: WeakRegistry[LeaseHolder] = WeakRegistry()
        self._run: BackgroundThread | None = None
        fork_safety.register(self)
        fork_safety.register_thread_owner(self)

    def schedule(self, at_ns: int, callback: Callable[[], object], holder: LeaseHolder) -> bool:
        """Call ``callback`` at a monotonic time, and ``holder.return_all`` when the program exits.

        Returns false if no thread can be started: then ``callback`` is never called.
        """
        with self._lock:
            self._holders.add(holder)
            heappush(self._callbacks, (at_ns, next(self._sequence), callback))
            if self._run is None or not self._run.is_alive():
                self._start()
            elif self._callbacks[0][0] == at_ns:
                self._run.wake.set()
            return self._run is not None

    def _start(self) -> None:
        run = self._run = BackgroundThread()
        if not run.start(self._run_callbacks, run, name="comporta-leases"):
            self._run = None
            self._callbacks.clear()  # leases expire by themselves

    def holders(self) -> list[LeaseHolder]:
        """Return the holders that were scheduled and still exist."""
        return self._holders.live()

    def return_all(self) -> None:
        """Return the units of all holders."""
        for holder in self._holders.live():
            with suppress(Exception):  # whatever happens, a lease expires by itself
                holder.return_all()

    def before_fork(self) -> None:
        """Stop the thread during the fork."""
        if self._run is not None:
            self._run.stop(_STOP_SECONDS)

    def after_fork_in_parent(self) -> None:
        """Start the thread again."""
        with self._lock:
            if self._run is not None and self._run.stop_requested:
                self._start()

    def after_fork(self) -> None:
        """Leave the parent's leases to the parent; the child has no thread yet."""
        fork_safety.reinit_lock(self._lock)
        self._callbacks.clear()
        self._holders.clear()
        self._run = None

    def _run_callbacks(self, run: BackgroundThread) -> None:
        while True:
            callback = self._next_callback(run)
            if callback is None:
                return
            with suppress(Exception):  # whatever happens, a lease expires by itself
                callback()
            del callback  # otherwise it would keep its holder alive until the next callback is due

    def _next_callback(self, run: BackgroundThread) -> Callable[[], object] | None:
        """Wait until a callback is due; ``None`` if the thread must stop."""
        while not run.stop_requested:
            with self._lock:
                now_ns = MONOTONIC.now_ns()
                if self._callbacks and self._callbacks[0][0] <= now_ns:
                    return heappop(self._callbacks)[2]
                left = (self._callbacks[0][0] - now_ns) / 1e9 if self._callbacks else None
            run.wake.wait(left)
        return None


SCHEDULER = PerProcess(LeaseScheduler)


@at_exit
def return_all() -> None:
    """Return the units of all holders of this process."""
    SCHEDULER.get().return_all()
