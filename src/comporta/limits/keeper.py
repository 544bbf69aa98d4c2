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
from threading import Condition, Thread
from typing import Protocol
from weakref import WeakSet

from comporta import forks
from comporta.clock import MONOTONIC


class Holder(Protocol):
    """Something that has what others could use."""

    def give_back(self) -> None:
        """Give back everything, now."""


class Keeper:
    """Calls back at given moments, and all holders when the program ends."""

    def __init__(self) -> None:
        self._visits: list[tuple[int, int, Callable[[], object]]] = []
        self._numbers = count()
        self._changed = Condition()
        self._holders: WeakSet[Holder] = WeakSet()
        self._thread: Thread | None = None
        atexit.register(self.end)
        forks.register(self)

    def watch(self, at_ns: int, visit: Callable[[], object], holder: Holder) -> None:
        """Call ``visit`` at a moment of the monotonic clock, and the holder when the program ends."""
        with self._changed:
            self._holders.add(holder)
            heappush(self._visits, (at_ns, next(self._numbers), visit))
            if self._thread is None:
                self._thread = Thread(target=self._run, name="comporta leases", daemon=True)
                with suppress(RuntimeError):  # no thread can be had: leases end by themselves
                    self._thread.start()
            elif self._visits[0][0] == at_ns:
                self._changed.notify()

    def end(self) -> None:
        """Let all holders give back what they have."""
        for holder in list(self._holders):
            with suppress(Exception):  # whatever it is: what is out on lease ends by itself
                holder.give_back()

    def after_fork(self) -> None:
        """Leave the parent's leases to the parent; its thread is not here."""
        self._changed = Condition()
        self._visits.clear()
        self._holders.clear()
        self._thread = None

    def _run(self) -> None:
        while True:
            visit = self._next()
            with suppress(Exception):  # see `end`
                visit()

    def _next(self) -> Callable[[], object]:
        """Wait until somebody is due."""
        with self._changed:
            while True:
                now_ns = MONOTONIC.now_ns()
                if self._visits and self._visits[0][0] <= now_ns:
                    return heappop(self._visits)[2]
                self._changed.wait((self._visits[0][0] - now_ns) / 1e9 if self._visits else None)


KEEPER = Keeper()
