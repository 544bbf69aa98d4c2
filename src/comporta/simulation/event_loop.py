"""An asyncio event loop on virtual time, in a thread of a simulated worker.

The loop is asyncio's own. Only its selector is replaced: where it would wait for the system, the thread waits
in the scheduler. So tasks, timers and time-outs are those of production.
"""

from __future__ import annotations

import asyncio
from asyncio.events import _set_running_loop
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from comporta.runtime import RUNTIME
from comporta.simulation.virtual_time import NANOSECONDS, Scheduler, SimulatedThread

T = TypeVar("T")


class _Selector:
    """Waits in the scheduler until the loop is woken or its next timer is due."""

    def __init__(self, loop: SimulatedLoop, scheduler: Scheduler) -> None:
        self._loop = loop
        self._scheduler = scheduler
        self._thread: SimulatedThread | None = None
        self._is_woken = False

    def select(self, timeout: float | None) -> list[Any]:
        """Wait; asyncio itself determines what is due."""
        if self._is_woken or timeout == 0:
            self._is_woken = False
            return []
        scheduler = self._scheduler
        self._thread = thread = scheduler.running_thread()
        ends_ns = None
        if timeout is not None:
            ends_ns = scheduler.now_ns + thread.owner.local_delay_ns(max(0, int(timeout * NANOSECONDS)) + 1)
        _set_running_loop(None)  # the threads of other workers run meanwhile, with loops of their own
        try:
            scheduler.park(ends_ns)
            while not self._is_over(ends_ns):
                scheduler.park(ends_ns)
        finally:
            _set_running_loop(self._loop)
            self._thread = None
        self._is_woken = False
        return []

    def _is_over(self, ends_ns: int | None) -> bool:
        return self._is_woken or (ends_ns is not None and self._scheduler.now_ns >= ends_ns)

    def wake(self) -> None:
        """End the wait."""
        self._is_woken = True
        if self._thread is not None:
            self._scheduler.wake(self._thread)


class SimulatedLoop(asyncio.BaseEventLoop):
    """asyncio's event loop on the clock of a simulated worker."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self._clock_resolution = 1e-6
        self._selector = _Selector(self, scheduler)

    def time(self) -> float:
        """Return the worker's monotonic clock in seconds."""
        return RUNTIME.monotonic_ns() / NANOSECONDS

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Call a function on another thread of the worker."""
        future = self.create_future()

        def call() -> None:
            try:
                result = func(*args)
            except Exception as error:
                self.call_soon_threadsafe(_settle, future, None, error)
            else:
                self.call_soon_threadsafe(_settle, future, result, None)

        RUNTIME.start_thread(call, "executor")
        return future

    def _process_events(self, event_list: list[Any]) -> None:
        """Do nothing: there are no sockets."""

    def _write_to_self(self) -> None:
        self._selector.wake()


def run_loop(scheduler: Scheduler, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine function on a new event loop in the running thread, and return its result."""
    loop = SimulatedLoop(scheduler)
    loop.set_exception_handler(_ignore_context)
    try:
        return loop.run_until_complete(main())
    finally:
        for task in asyncio.all_tasks(loop):  # the tasks of a process that was killed
            with suppress(RuntimeError):
                task.get_coro().close()
        loop.close()


def _ignore_context(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report nothing: a killed process leaves tasks behind."""


def _settle(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
