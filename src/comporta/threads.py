"""Background threads and events that stay usable when a signal handler raises at any moment.

Task queues enforce time limits with such handlers, and Ctrl-C is handled by one: an exception can occur
between any two steps of the main thread. ``threading.Event``, ``Condition`` and ``Thread.start`` are written
in Python. An exception in the middle of them leaves a lock held, and the next thread that uses them waits
forever. The classes here take a single step of the interpreter instead, or leave the work to a thread in
which no handler ever runs.

This module does not know what work the threads do.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import TIMEOUT_MAX, Lock
from typing import Any, TypeVar

from comporta import fork_safety
from comporta.runtime import RUNTIME, START_SECONDS_MAX, PerProcess

T = TypeVar("T")

_CONTEXTS_MAX = 10


class AutoResetEvent:
    """An event for one waiting thread, which resets itself when that thread wakes up.

    If it is set before the thread waits, the thread does not wait.
    """

    __slots__ = ("_unset",)

    def __init__(self) -> None:
        self._unset = RUNTIME.waiting_lock()
        self._unset.acquire()

    def set(self) -> None:
        """Set the event, unless it is set."""
        with suppress(RuntimeError):
            self._unset.release()

    def is_set(self) -> bool:
        """Return whether the event is set."""
        return not self._unset.locked()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the event is set, for at most ``timeout`` seconds, and reset it; false if it was not."""
        return self._unset.acquire(timeout=-1 if timeout is None else min(max(timeout, 0.0), TIMEOUT_MAX))


def snapshot(items: deque[T]) -> list[T]:
    """Return the items of a deque that other threads may change.

    Without the GIL a copy fails if another thread changes the deque at the same moment, and is made again.
    """
    while True:
        with suppress(RuntimeError):
            return list(items.copy())


class BackgroundThread:
    """A daemon thread that can be started once, woken and asked to stop.

    The thread polls ``stop_requested`` and waits on ``wake``. Create a new object for each start, so that a
    thread that is slow to stop cannot react to requests that are meant for its successor.
    """

    __slots__ = ("_created_ns", "_running", "_stopped", "stop_requested", "wake")

    def __init__(self) -> None:
        self.wake = AutoResetEvent()
        self.stop_requested = False
        self._stopped = AutoResetEvent()
        self._running: bool | None = None  # None: not started yet
        self._created_ns = RUNTIME.monotonic_ns()

    def start(self, work: Callable[..., object], *args: Any, name: str) -> bool:
        """Run ``work(*args)`` on the thread; returns false if the system cannot start one.

        It cannot do so while the interpreter is shutting down, or if the limit on threads is reached.
        """
        failures: list[RuntimeError] = []

        def start_thread() -> None:  # pragma: no cover - runs on a thread that no tracer sees
            self._running = True
            try:
                RUNTIME.start_thread(partial(self._run, work, args), name)
            except RuntimeError as error:
                self._running = False
                failures.append(error)

        return RUNTIME.call_without_signals(start_thread) and not failures

    def is_alive(self) -> bool:
        """Return whether the thread runs, or may be starting: a signal may have interrupted ``start``."""
        if self._running is None:
            return RUNTIME.monotonic_ns() - self._created_ns < START_SECONDS_MAX * 1e9
        return self._running

    def stop(self, timeout: float | None) -> None:
        """Ask the thread to stop and wait for its end, at most ``timeout`` seconds (``None``: no limit)."""
        self.stop_requested = True
        self.wake.set()
        if self._running:
            self._stopped.wait(timeout)

    def _run(self, work: Callable[..., object], args: tuple[Any, ...]) -> None:
        try:
            work(*args)
        finally:
            self._running = False
            self._stopped.set()


def run_cleanup(work: Callable[..., object], *args: Any) -> None:
    """Run the last step of a coroutine or generator: here, or on another thread if it is being destroyed.

    The garbage collector destroys a coroutine whose event loop was closed before it finished. It may do so at
    any moment, on a thread that may hold any lock, so cleanup that waits for a lock there may wait for its
    own thread. One other thread runs the cleanup of all coroutines that are destroyed at the same time.
    """
    if is_from_destruction(sys.exception()):
        run_elsewhere(work, *args)
    else:
        work(*args)


def is_from_destruction(error: BaseException | None) -> bool:
    """Whether an exception ends a coroutine or generator that the interpreter destroys.

    The interpreter raises ``GeneratorExit`` inside it; an error in its cleanup has that as its context.
    """
    for _ in range(_CONTEXTS_MAX):
        if error is None or isinstance(error, GeneratorExit):
            break
        error = error.__context__
    return isinstance(error, GeneratorExit)


class _DeferredWork:
    """Calls that one bare thread makes, one after another; it ends when none is left."""

    __slots__ = ("_calls", "_lock")

    def __init__(self) -> None:
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._lock = Lock()
        fork_safety.reinit_lock_after_fork(self._lock)

    def add(self, work: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._calls.append((work, args))
        if not self._lock.locked():  # a thread that holds it checks for further calls after the release
            with suppress(RuntimeError):  # no thread can be started: the next call of add() tries again
                RUNTIME.start_bare_thread(self._run)

    def _run(self) -> None:  # pragma: no cover - runs on a thread that no tracer sees
        while self._calls and self._lock.acquire(blocking=False):
            try:
                while self._calls:
                    work, args = self._calls.popleft()
                    with suppress(Exception):  # no caller is left to report it to
                        work(*args)
            finally:
                self._lock.release()


_DEFERRED = PerProcess(_DeferredWork)


def run_elsewhere(work: Callable[..., object], *args: Any) -> None:
    """Run ``work`` on another thread, soon; safe in ``__del__``, because it takes no lock and never waits.

    Exceptions of ``work`` are dropped. While the interpreter is shutting down, it may not run at all.
    """
    _DEFERRED.get().add(work, args)
