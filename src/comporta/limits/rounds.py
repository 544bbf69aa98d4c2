"""One thread for the whole process that comes by when it was told to.

A worker that stops asking cannot give back what it has on lease: somebody else has to come by before the
lease ends. This file knows when to call whom, and nothing of what is done then. The thread starts when it is
first needed, in a forked child anew, and never keeps a program from ending.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from contextlib import suppress
from heapq import heappop, heappush
from itertools import count
from threading import Lock
from typing import Protocol
from weakref import WeakSet

from comporta import forks
from comporta.clock import MONOTONIC
from comporta.threads import Run

_REST_SECONDS = 1.0


class Holder(Protocol):
    """Something that has what others could use."""

    def give_back(self) -> None:
        """Give back everything, now."""


class Rounds:
    """Calls back at given moments, and all holders when the program ends."""

    def __init__(self) -> None:
        self._visits: list[tuple[int, int, Callable[[], object]]] = []
        self._numbers = count()
        self._lock = Lock()
        self._holders: WeakSet[Holder] = WeakSet()
        self._run: Run | None = None
        atexit.register(self.end)
        forks.register(self)
        forks.register_thread(self)

    def watch(self, at_ns: int, visit: Callable[[], object], holder: Holder) -> None:
        """Call ``visit`` at a moment of the monotonic clock, and the holder when the program ends."""
        with self._lock:
            self._holders.add(holder)
            heappush(self._visits, (at_ns, next(self._numbers), visit))
            if self._run is None or not self._run.lives():
                self._start()
            elif self._visits[0][0] == at_ns:
                self._run.wake.set()

    def _start(self) -> None:
        run = self._run = Run()
        if not run.start(self._go_round, run, name="comporta-leases"):
            self._run = None
            self._visits.clear()  # leases end by themselves

    def holders(self) -> list[Holder]:
        """Return who was watched so far and is still there."""
        with self._lock:
            return list(self._holders)

    def end(self) -> None:
        """Let all holders give back what they have."""
        for holder in list(self._holders):
            with suppress(Exception):  # whatever it is: what is out on lease ends by itself
                holder.give_back()

    def before_fork(self) -> None:
        """Let the thread end for the moment."""
        if self._run is not None:
            self._run.end(_REST_SECONDS)

    def after_fork_in_parent(self) -> None:
        """Go on."""
        with self._lock:
            if self._run is not None and self._run.over:
                self._start()

    def after_fork(self) -> None:
        """Leave the parent's leases to the parent; its thread is not here."""
        forks.renew(self._lock)
        self._visits.clear()
        self._holders.clear()
        self._run = None

    def _go_round(self, run: Run) -> None:
        while True:
            visit = self._next(run)
            if visit is None:
                return
            with suppress(Exception):  # see `end`
                visit()
            del visit  # or it would keep what it visits alive until the next one is due

    def _next(self, run: Run) -> Callable[[], object] | None:
        """Wait until somebody is due; nothing if it is time to rest."""
        while not run.over:
            with self._lock:
                now_ns = MONOTONIC.now_ns()
                if self._visits and self._visits[0][0] <= now_ns:
                    return heappop(self._visits)[2]
                left = (self._visits[0][0] - now_ns) / 1e9 if self._visits else None
            run.wake.wait(left)
        return None


ROUNDS = Rounds()
