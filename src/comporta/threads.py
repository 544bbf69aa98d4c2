"""Threads that can be started and woken at any moment, though a signal handler may raise at any moment.

Task queues limit time that way, and so does Ctrl-C: between two steps of the main thread an exception falls
from the sky. ``threading.Event``, ``Condition`` and ``Thread.start`` are Python themselves: interrupted in
the middle they leave a lock held, and the next to use them waits for ever. What is here takes one step of
the interpreter, or has it taken by a thread in which no handler ever runs.
"""

from __future__ import annotations

import sys
from _thread import allocate_lock, start_new_thread
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import TIMEOUT_MAX, Thread
from typing import Any

from comporta import forks
from comporta.clock import MONOTONIC

_STARTING_SECONDS = 2.0

_left: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
_clearing = allocate_lock()
forks.renew_after_fork(_clearing)


class Bell:
    """Wakes one thread, now or when it comes to wait; hearing it makes it silent again."""

    __slots__ = ("_silent",)

    def __init__(self) -> None:
        self._silent = allocate_lock()
        self._silent.acquire()

    def set(self) -> None:
        """Ring, unless it is ringing."""
        with suppress(RuntimeError):
            self._silent.release()

    def is_set(self) -> bool:
        """Whether it is ringing."""
        return not self._silent.locked()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it rings, so many seconds at the most; whether it did."""
        return self._silent.acquire(timeout=-1 if seconds is None else min(max(seconds, 0.0), TIMEOUT_MAX))


class Run:
    """One run of a thread: how it is started, woken, and told to end.

    Each start is a run of its own, so that one told to end and slow to notice cannot take the next one's
    orders for its own. It keeps no program from ending.
    """

    __slots__ = ("_began_ns", "_gone", "_running", "over", "wake")

    def __init__(self) -> None:
        self.wake = Bell()
        self.over = False
        self._gone = Bell()
        self._running: bool | None = None  # not yet
        self._began_ns = MONOTONIC.now_ns()

    def start(self, work: Callable[..., object], *args: Any, name: str) -> bool:
        """Have ``work`` done; false if no thread can be had.

        None can be had when the interpreter is ending, or the system's limit is reached.
        """
        started = Bell()
        refused: list[RuntimeError] = []

        def begin() -> None:  # pragma: no cover - on a thread that no tracer sees
            try:
                Thread(target=self._go, args=(work, args), name=name, daemon=True).start()
            except RuntimeError as error:
                refused.append(error)
            started.set()

        try:
            start_new_thread(begin, ())
        except RuntimeError:
            return False
        started.wait(_STARTING_SECONDS)
        return not refused

    def lives(self) -> bool:
        """Whether it runs, or is about to: whoever started it may have been interrupted on the way."""
        if self._running is None:
            return MONOTONIC.now_ns() - self._began_ns < _STARTING_SECONDS * 1e9
        return self._running

    def end(self, seconds: float) -> None:
        """Tell it to end, and wait until it has, so many seconds at the most."""
        self.over = True
        self.wake.set()
        if self._running:
            self._gone.wait(seconds)

    def _go(self, work: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._running = True
        try:
            work(*args)
        finally:
            self._running = False
            self._gone.set()


def clear_up(work: Callable[..., object], *args: Any) -> None:
    """Do what is left to do at the end of a coroutine: at once, or, if it is thrown away, on another thread.

    A coroutine whose event loop was closed over it is thrown away by the garbage collector, which runs at any
    moment, on a thread that may hold any lock: to wait for one there is to wait for oneself. However many are
    thrown away at once, one thread clears up after all of them.
    """
    if not isinstance(sys.exception(), GeneratorExit):
        work(*args)
        return
    _left.append((work, args))
    if not _clearing.locked():  # who clears up looks again after the lock is free
        with suppress(RuntimeError):  # the program ends, or the next one thrown away has better luck
            start_new_thread(_clear, ())


def _clear() -> None:  # pragma: no cover - on a thread that no tracer sees
    while _left and _clearing.acquire(blocking=False):
        try:
            while _left:
                work, args = _left.popleft()
                with suppress(Exception):  # nobody is there to be told
                    work(*args)
        finally:
            _clearing.release()
