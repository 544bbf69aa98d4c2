"""Background threads and events that stay usable when a signal handler raises at any moment.

Task queues enforce time limits with such handlers, and Ctrl-C is one: an exception can appear between any two
steps of the main thread. ``threading.Event``, ``Condition`` and ``Thread.start`` are written in Python. An
exception in the middle of them leaves a lock held, and the next thread that uses them waits forever. The
classes here take a single step of the interpreter instead, or leave the work to a thread in which no handler
ever runs.

This module knows nothing about the work that the threads do.
"""

from __future__ import annotations

import _thread
import sys
from _thread import allocate_lock, start_new_thread
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import TIMEOUT_MAX, Thread
from typing import Any

from comporta import fork_safety
from comporta.clock import MONOTONIC

_START_SECONDS_MAX = 2.0
_CONTEXTS_MAX = 10

_deferred: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
_deferred_lock = allocate_lock()
fork_safety.reinit_lock_after_fork(_deferred_lock)


class AutoResetEvent:
    """An event for one waiting thread, which resets itself when that thread wakes up.

    It may be set before the thread waits: then the thread does not wait.
    """

    __slots__ = ("_unset",)

    def __init__(self) -> None:
        if _thread.allocate_lock is not allocate_lock:
            raise _late_patch_error()
        self._unset = allocate_lock()
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


class BackgroundThread:
    """A daemon thread that can be started once, woken and asked to stop.

    The thread polls ``stop_requested`` and waits on ``wake``. Make a new object for each start: a thread that
    is slow to notice that it should stop then cannot react to requests that are meant for its successor.
    """

    __slots__ = ("_created_ns", "_running", "_stopped", "stop_requested", "wake")

    def __init__(self) -> None:
        self.wake = AutoResetEvent()
        self.stop_requested = False
        self._stopped = AutoResetEvent()
        self._running: bool | None = None  # None: not started yet
        self._created_ns = MONOTONIC.now_ns()

    def start(self, work: Callable[..., object], *args: Any, name: str) -> bool:
        """Run ``work(*args)`` on the thread; returns false if the system cannot start one.

        It cannot when the interpreter is shutting down or the limit on threads is reached.
        """
        started = AutoResetEvent()
        failures: list[RuntimeError] = []

        def start_thread() -> None:  # pragma: no cover - runs on a thread that no tracer sees
            self._running = True
            try:
                Thread(target=self._run, args=(work, args), name=name, daemon=True).start()
            except RuntimeError as error:
                self._running = False
                failures.append(error)
            started.set()

        try:
            start_new_thread(start_thread, ())
        except RuntimeError:
            return False
        started.wait(_START_SECONDS_MAX)
        return not failures

    def is_alive(self) -> bool:
        """Return whether the thread runs, or may be starting: a signal may have interrupted ``start``."""
        if self._running is None:
            return MONOTONIC.now_ns() - self._created_ns < _START_SECONDS_MAX * 1e9
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


def _late_patch_error() -> RuntimeError:
    """Return the error for a program that patched the thread module after this module was imported.

    Whatever waits then blocks all greenlets, also the one that it waits for, and threads never start.
    """
    return RuntimeError(
        "gevent patched the thread module after comporta was imported, and waiting would block all "
        "greenlets: call gevent.monkey.patch_all() before the first import of comporta (for gunicorn "
        "--preload, in gunicorn.conf.py)"
    )


def run_cleanup(work: Callable[..., object], *args: Any) -> None:
    """Run the last step of a coroutine or generator: here, or on another thread if it is being destroyed.

    The garbage collector destroys a coroutine whose event loop was closed before it finished. It does so at
    any moment, on a thread that may hold any lock, so cleanup that waits for a lock there can wait for its
    own thread. One other thread runs the cleanup of all coroutines that are destroyed at the same time.
    """
    if is_from_destruction(sys.exception()):
        run_elsewhere(work, *args)
    else:
        work(*args)


def is_from_destruction(error: BaseException | None) -> bool:
    """Whether an exception ends a coroutine or generator that is being destroyed: also one of its cleanup."""
    for _ in range(_CONTEXTS_MAX):
        if error is None or isinstance(error, GeneratorExit):
            break
        error = error.__context__
    return isinstance(error, GeneratorExit)


def run_elsewhere(work: Callable[..., object], *args: Any) -> None:
    """Run ``work`` on another thread, soon; safe in ``__del__``, because it takes no lock and never waits.

    Exceptions of ``work`` are dropped. While the interpreter is shutting down, it may not run at all.
    """
    _deferred.append((work, args))
    if not _deferred_lock.locked():  # the thread that holds it looks for more after it has released it
        with suppress(RuntimeError):  # the interpreter is shutting down, or the next cleanup tries again
            start_new_thread(_run_deferred, ())


def _run_deferred() -> None:  # pragma: no cover - runs on a thread that no tracer sees
    while _deferred and _deferred_lock.acquire(blocking=False):
        try:
            while _deferred:
                work, args = _deferred.popleft()
                with suppress(Exception):  # no caller is left to report it to
                    work(*args)
        finally:
            _deferred_lock.release()
