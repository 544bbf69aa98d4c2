"""What a process takes from its machine (time, randomness, threads, its identity), and its singletons.

Nothing else in comporta reads a clock or random bytes, or starts a thread, except the commands, the service,
the demo and the test tools. :func:`install` can therefore replace all of it: a simulation runs the code of
many workers in one thread, on virtual time, and everything that happens is determined by its seed.

:data:`RUNTIME` is the one object that callers use. Look its functions up when you call them, or when you
create an object, never when a module is imported, because a simulation starts later. The clock that stores
and flows use is :data:`comporta.clock.MONOTONIC`, which follows this module.

This module does not know what callers do with the time and the threads.
"""

from __future__ import annotations

import _thread
import atexit
import os
import time
from _thread import allocate_lock, get_ident, start_new_thread
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from threading import Thread
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")
F = TypeVar("F", bound=Callable[[], object])

HOST_CHARS_MAX = 64

START_SECONDS_MAX = 2.0
"""How many seconds a caller waits for a thread to start."""

_objects: dict[PerProcess[Any], Any] = {}
_followers: list[Callable[[], None]] = []
_exit_functions: list[Callable[[], object]] = []


class WaitingLock(Protocol):
    """A lock that one thread acquires twice in order to wait, until another thread releases it."""

    def acquire(self, *, timeout: float = -1) -> bool:
        """Acquire the lock; false if it was not free within ``timeout`` seconds (-1: no limit)."""

    def release(self) -> None:
        """Release the lock; ``RuntimeError`` if it is free."""

    def locked(self) -> bool:
        """Return whether the lock is held."""


class WaitingQueue(Protocol[T]):
    """An unbounded queue on which several threads wait; putting and getting are single steps."""

    def put(self, item: T, /) -> None:
        """Append an item, and wake a thread that waits for one."""

    def get(self, *, timeout: float) -> T:
        """Return the first item; ``queue.Empty`` if there is none within ``timeout`` seconds."""

    def get_nowait(self) -> T:
        """Return the first item; ``queue.Empty`` if there is none."""

    def qsize(self) -> int:
        """Return how many items there are."""

    def empty(self) -> bool:
        """Return whether the queue is empty."""


class Runtime(ABC):
    """What a process takes from its machine; :data:`RUNTIME` is the one in use."""

    @abstractmethod
    def monotonic_ns(self) -> int:
        """Return the time of a clock that never goes backwards, in nanoseconds."""

    @abstractmethod
    def monotonic(self) -> float:
        """Return the time of the same clock in seconds."""

    @abstractmethod
    def unix_ns(self) -> int:
        """Return Unix time in nanoseconds; operators and NTP may set it back."""

    @abstractmethod
    def unix_time(self) -> float:
        """Return Unix time in seconds."""

    @abstractmethod
    def sleep(self, seconds: float) -> None:
        """Block the thread for ``seconds``."""

    @abstractmethod
    def random_bytes(self, size: int) -> bytes:
        """Return ``size`` random bytes; those of a forked child differ from its parent's."""

    @abstractmethod
    def host(self) -> str:
        """Return the name of the host, in at most 64 characters."""

    @abstractmethod
    def pid(self) -> int:
        """Return the number of this process on its host."""

    @abstractmethod
    def waiting_lock(self) -> WaitingLock:
        """Return a free lock. Acquiring and releasing it are single steps of the interpreter."""

    @abstractmethod
    def waiting_queue(self) -> WaitingQueue[Any]:
        """Return an empty queue."""

    @abstractmethod
    def start_thread(self, work: Callable[[], object], name: str) -> None:
        """Run ``work`` on a daemon thread; ``RuntimeError`` if the system cannot start one."""

    @abstractmethod
    def start_bare_thread(self, work: Callable[[], object]) -> None:
        """Run ``work`` on a thread without a name, started in one step, so that ``__del__`` may do it.

        ``RuntimeError`` if the system cannot start one.
        """

    @abstractmethod
    def call_without_signals(self, work: Callable[[], object]) -> bool:
        """Call ``work`` where no signal handler can interrupt it, and wait for it to end, for at most 2 s.

        Returns false if the system cannot start the necessary thread.
        """

    @abstractmethod
    def process_objects(self) -> dict[PerProcess[Any], Any]:
        """Return the singletons of the process. A simulation has such a dictionary for each worker."""


class _Machine(Runtime):
    """The real machine. Its functions are the system's own wherever that saves a Python call."""

    monotonic_ns = staticmethod(time.monotonic_ns)
    monotonic = staticmethod(time.monotonic)
    random_bytes = staticmethod(os.urandom)  # type: ignore[assignment]  # its parameter has no name
    pid = staticmethod(os.getpid)

    def unix_ns(self) -> int:
        return time.time_ns()

    def unix_time(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    @cache  # noqa: B019 - there is one machine
    def host(self) -> str:
        return os.uname().nodename[:HOST_CHARS_MAX] or "localhost"

    def waiting_lock(self) -> WaitingLock:
        if _thread.allocate_lock is not allocate_lock:
            raise _late_patch_error()
        return allocate_lock()

    def waiting_queue(self) -> WaitingQueue[Any]:
        from queue import SimpleQueue  # noqa: PLC0415 - most programs need no thread pool

        return SimpleQueue()

    def start_thread(self, work: Callable[[], object], name: str) -> None:
        Thread(target=work, name=name, daemon=True).start()

    def start_bare_thread(self, work: Callable[[], object]) -> None:
        start_new_thread(work, ())

    def call_without_signals(self, work: Callable[[], object]) -> bool:
        done = allocate_lock()
        done.acquire()

        def call() -> None:  # pragma: no cover - runs on a thread that no tracer sees
            try:
                work()
            finally:
                done.release()

        try:
            start_new_thread(call, ())  # signal handlers run on the main thread only
        except RuntimeError:
            return False
        done.acquire(timeout=START_SECONDS_MAX)
        return True

    def process_objects(self) -> dict[PerProcess[Any], Any]:
        return _objects


RUNTIME: Runtime = _Machine()
"""The runtime that this process currently uses."""


@contextmanager
def install(runtime: Runtime) -> Iterator[None]:
    """Use another runtime in the ``with`` block, on the thread that enters it.

    Other threads of the program, and objects that were created before, keep the previous runtime.
    """
    functions = vars(RUNTIME)
    previous = dict(functions)
    scope = _Scope(get_ident())
    try:
        for name in Runtime.__abstractmethods__:
            takes_arguments = getattr(Runtime, name).__code__.co_argcount > 1
            choose = scope.choose if takes_arguments else scope.choose_reader
            functions[name] = choose(getattr(runtime, name), getattr(RUNTIME, name))
        _notify_followers()
        yield
    finally:
        scope.has_ended = True
        functions.clear()
        functions.update(previous)
        _notify_followers()


class _Scope:
    """Where an installed runtime is in use: on one thread, and until its ``with`` block ends."""

    __slots__ = ("_thread", "has_ended")

    def __init__(self, thread: int) -> None:
        self._thread = thread
        self.has_ended = False

    def choose(self, inside: Callable[..., T], outside: Callable[..., T]) -> Callable[..., T]:
        """Return a function that calls ``inside`` within the scope, and ``outside`` elsewhere."""
        thread = self._thread

        def call(*args: Any, **options: Any) -> T:
            if get_ident() == thread and not self.has_ended:
                return inside(*args, **options)
            return outside(*args, **options)

        return call

    def choose_reader(self, inside: Callable[[], T], outside: Callable[[], T]) -> Callable[[], T]:
        """Do the same for functions without arguments in two thirds of the time, for clocks."""
        thread = self._thread

        def read() -> T:
            return inside() if get_ident() == thread and not self.has_ended else outside()

        return read


def follow(adopt: Callable[[], None]) -> None:
    """Call ``adopt`` now and whenever another runtime is installed, for objects that copy its functions."""
    _followers.append(adopt)
    adopt()


def _notify_followers() -> None:
    for adopt in _followers:
        adopt()


class PerProcess(Generic[T]):
    """A singleton of a process: ``SCHEDULER = PerProcess(LeaseScheduler)``, ``SCHEDULER.get()``.

    The module that defines it makes the object when it is imported. A simulated worker gets one of its own on
    first use, or one that the simulation put into ``process_objects`` beforehand.
    """

    __slots__ = ("_factory",)

    def __init__(self, factory: Callable[[], T]) -> None:
        self._factory = factory
        _objects[self] = factory()

    def get(self) -> T:
        """Return the object of the current process."""
        objects = RUNTIME.process_objects()
        if self not in objects:
            objects[self] = self._factory()
        value: T = objects[self]
        return value


def at_exit(function: F) -> F:
    """Decorate ``function`` to run when the interpreter, or a simulated worker, exits."""
    _exit_functions.append(function)
    atexit.register(function)
    return function


def run_exit_functions() -> None:
    """Run the exit functions for a simulated worker, in reverse order, as the interpreter does."""
    for function in reversed(_exit_functions):
        function()


def _late_patch_error() -> RuntimeError:
    """Return the error for a program that patched the thread module after this module was imported.

    A wait would then block all greenlets, including the one that it waits for, and threads would never start.
    """
    return RuntimeError(
        "gevent patched the thread module after comporta was imported, and waiting would block all "
        "greenlets: call gevent.monkey.patch_all() before the first import of comporta (for gunicorn "
        "--preload, in gunicorn.conf.py)"
    )
