"""Single flight: one load per key and process, whose result all callers share.

A load runs in its own task or thread, so that cancelling a caller, even the first one, does not affect the
others. A load that cannot end is abandoned, and one of its waiting callers starts another: its event loop was
closed, or was stopped and did not run again for as long as a fetch lease lasts.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

from comporta import fork_safety
from comporta.flow import Flow, run, run_async, running_loop
from comporta.runtime import RUNTIME
from comporta.threads import AutoResetEvent, BackgroundThread, run_cleanup

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Coroutine

LOADS_MAX = 1000
"""How many loads may run in one process."""


class SharedFuture:
    """The result of a load, for which both threads and coroutines can wait."""

    __slots__ = ("_callbacks", "_lock", "abandon", "error", "is_done", "result", "stopped_at", "task")

    def __init__(self) -> None:
        self._lock = Lock()
        self._callbacks: list[Callable[[], object]] = []
        self.is_done = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.task: asyncio.Task[None] | None = None
        self.stopped_at: float | None = None
        self.abandon: Callable[[], object] = self.complete

    def is_running(self) -> bool:
        """Whether a thread, or an event loop that is running, runs the load."""
        return self.task is None or self.task.get_loop().is_running()

    def is_lost(self, stopped_seconds_max: float) -> bool:
        """Whether the load cannot end: its event loop is closed, or has been stopped for too long."""
        if self.task is None or self.is_done or self.is_running():
            self.stopped_at = None
            return False
        now = RUNTIME.monotonic()
        self.stopped_at = self.stopped_at or now
        return self.task.get_loop().is_closed() or now - self.stopped_at >= stopped_seconds_max

    def complete(self, result: Any = None, error: BaseException | None = None) -> bool:
        """Set the result and wake all waiting callers; only the first call has an effect and returns true."""
        with self._lock:
            if self.is_done:
                return False
            self.result, self.error = result, error
            self.is_done = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            with suppress(RuntimeError):  # the waiter's event loop is closed
                callback()
        return True

    def add_callback(self, callback: Callable[[], object]) -> bool:
        """Call ``callback`` on completion; return true, without calling it, if the load is done already."""
        with self._lock:
            if not self.is_done:
                self._callbacks.append(callback)
            return self.is_done

    def remove_callback(self, callback: Callable[[], object]) -> None:
        """Do not call ``callback`` any more."""
        with self._lock, suppress(ValueError):
            self._callbacks.remove(callback)


class WaitForFuture:
    """Effect: wait for a future, for up to ``seconds``; the result is whether it is done."""

    __slots__ = ("_future", "_seconds")

    def __init__(self, future: SharedFuture, seconds: float | None = None) -> None:
        self._future = future
        self._seconds = seconds

    def block(self) -> bool:
        """Wait on this thread."""
        event = AutoResetEvent()
        if not self._future.add_callback(event.set):
            try:
                event.wait(self._seconds)
            finally:
                self._future.remove_callback(event.set)
        return self._future.is_done

    async def wait(self) -> bool:
        """Wait without blocking the event loop."""
        import asyncio  # noqa: PLC0415 - see clock.py

        loop, event = running_loop(), asyncio.Event()

        def wake() -> None:
            if asyncio._get_running_loop() is loop:
                event.set()  # the other way would cost each of many callers a system call
            else:
                loop.call_soon_threadsafe(event.set)

        if not self._future.add_callback(wake):
            try:
                async with asyncio.timeout(self._seconds) as _timeout:  # named: see clock.py
                    await event.wait()
            except TimeoutError:
                pass
            finally:
                run_cleanup(self._future.remove_callback, wake)
        return self._future.is_done


class CallLoader:
    """Effect: call a loader, and raise ``TimeoutError`` after ``seconds``.

    A plain function runs in its own thread. Python cannot end a thread, so a late result is dropped.
    """

    __slots__ = ("_function", "_seconds")

    def __init__(self, function: Callable[[], Any], seconds: float) -> None:
        self._function = function
        self._seconds = seconds

    def block(self) -> Any:
        """Call it, and wait on this thread."""
        future = run_in_thread(self._function)
        result = _result_of(future, WaitForFuture(future, self._seconds).block(), self._seconds)
        if hasattr(result, "__await__"):
            if hasattr(result, "close"):
                result.close()
            raise TypeError("loader must be a plain function in cache.sync, got one returning an awaitable")
        return result

    async def wait(self) -> Any:
        """Call it, and wait without blocking the event loop."""
        import asyncio  # noqa: PLC0415 - see clock.py
        from inspect import iscoroutinefunction  # noqa: PLC0415 - takes 10 ms

        async with asyncio.timeout(self._seconds) as _timeout:  # named: see clock.py
            if iscoroutinefunction(self._function):
                return await _await_loader(self._function())
            future = run_in_thread(self._function)
            result = _result_of(future, await WaitForFuture(future).wait(), self._seconds)
            return await _await_loader(result) if hasattr(result, "__await__") else result


def _result_of(future: SharedFuture, is_done: bool, seconds: float) -> Any:
    if not is_done:
        raise TimeoutError(f"the loader did not return within {seconds:g} s")
    if future.error is not None and not isinstance(future.error, Exception):
        raise _loader_ended(future.error) from future.error
    if future.error is not None:
        raise future.error
    return future.result


def _loader_ended(error: BaseException) -> RuntimeError:
    """Return an ordinary failure for a ``SystemExit`` or cancellation inside a loader.

    Otherwise the load would count as abandoned, and the loader would run again immediately.
    """
    return RuntimeError(f"the loader ended with {error!r:.100}")


async def _await_loader(awaitable: Any) -> Any:
    """Await a loader; distinguish its own cancellation from a cancellation of the load."""
    import asyncio  # noqa: PLC0415 - see clock.py

    try:
        return await awaitable
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise _loader_ended(error) from error


def run_in_thread(function: Callable[[], Any]) -> SharedFuture:
    """Run a function in a new thread, with the caller's context variables."""
    future, context = SharedFuture(), copy_context()

    def work() -> None:
        try:
            future.complete(context.run(function))
        except BaseException as error:  # every waiting caller gets it, whichever exception it is
            future.complete(error=error)

    if not BackgroundThread().start(work, name="comporta-cache-load"):
        raise RuntimeError("the cache could not start a thread for the loader")
    return future


class StartLoad:
    """Effect: start a flow in its own thread or task; it continues even if the caller is cancelled."""

    __slots__ = ("_flow", "_future", "_single_flight")

    def __init__(self, single_flight: SingleFlight, flow: Flow[None], future: SharedFuture) -> None:
        self._single_flight = single_flight
        self._flow = flow
        self._future = future

    def block(self) -> None:
        """Start a thread."""
        self._single_flight.track_thread(run_in_thread(lambda: run(self._flow)))

    async def wait(self) -> None:
        """Start a task."""
        task = self._future.task = running_loop().create_task(run_async(self._flow))
        self._single_flight.track_task(task)
        task.add_done_callback(self._abandon_unless_done)

    def _abandon_unless_done(self, _: object) -> None:
        if not self._future.is_done:  # cancelled before its first step, so the flow never ran
            self._future.abandon()


class SingleFlight:
    """The running loads of this process by key.

    A load is lost if its event loop has been stopped for ``stopped_seconds_max``.
    """

    def __init__(self, stopped_seconds_max: float) -> None:
        self._stopped_seconds_max = stopped_seconds_max
        self._by_key: dict[str, SharedFuture] = {}
        self._threads: set[SharedFuture] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._lock = Lock()
        fork_safety.register(self)

    def __len__(self) -> int:
        return len(self._by_key)

    def join(self, key: str) -> tuple[SharedFuture | None, bool]:
        """Return the future of a key, and whether the caller must start the load.

        The future is ``None`` if ``LOADS_MAX`` loads are running.
        """
        self.abandon_if_lost(key)
        with self._lock:
            future = self._by_key.get(key)
            if future is not None:
                return future, False
            if len(self._by_key) >= LOADS_MAX:
                return None, False
            future = self._by_key[key] = SharedFuture()
            return future, True

    def abandon_if_lost(self, key: str) -> None:
        """Abandon the load of a key if its event loop is closed or stopped; a caller then starts another."""
        with self._lock:
            future = self._by_key.get(key)
            if future is None or future.task is None or not future.is_lost(self._stopped_seconds_max):
                return
            del self._by_key[key]  # so that only one thread abandons the load
        if future.task.get_loop().is_closed():
            self._tasks.discard(future.task)
            with suppress(RuntimeError):  # the coroutine refuses to end
                cast("Coroutine[Any, Any, None]", future.task.get_coro()).close()
        else:  # cancelled if the loop ever runs again; until then no other thread may touch the task
            with suppress(RuntimeError):
                future.task.get_loop().call_soon_threadsafe(future.task.cancel)
        future.abandon()  # has no effect if the load ended meanwhile

    def remove(self, key: str, future: SharedFuture) -> None:
        """Remove a load that is about to complete."""
        with self._lock:
            if self._by_key.get(key) is future:
                del self._by_key[key]

    def track_thread(self, thread: SharedFuture) -> None:
        """Remember a thread until it ends, so that ``close`` can wait for it."""
        with self._lock:
            self._threads.add(thread)
        if thread.add_callback(lambda: self._threads.discard(thread)):
            self._threads.discard(thread)

    def track_task(self, task: asyncio.Task[None]) -> None:
        """Reference a task until it ends; an event loop itself holds only a weak reference."""
        with self._lock:
            self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self, seconds: float) -> None:
        """Cancel the tasks of all event loops, and wait for threads."""
        self._cancel_tasks()
        deadline = RUNTIME.monotonic() + seconds
        for thread in list(self._threads):
            WaitForFuture(thread, max(0.0, deadline - RUNTIME.monotonic())).block()

    async def aclose(self, seconds: float) -> None:
        """Cancel the tasks of all event loops, and wait for those of this loop and for threads."""
        import asyncio  # noqa: PLC0415 - see clock.py

        loop = asyncio.get_running_loop()
        own_tasks = [task for task in list(self._tasks) if task.get_loop() is loop]
        self._cancel_tasks()
        deadline = RUNTIME.monotonic() + seconds
        if own_tasks:
            await asyncio.wait(own_tasks, timeout=seconds)
        for thread in list(self._threads):
            await WaitForFuture(thread, max(0.0, deadline - RUNTIME.monotonic())).wait()

    def after_fork(self) -> None:
        """Drop the parent's loads in a forked child."""
        fork_safety.reinit_lock(self._lock)
        self._by_key.clear()
        self._threads.clear()
        self._tasks.clear()

    def _cancel_tasks(self) -> None:
        for task in list(self._tasks):
            with suppress(RuntimeError):  # its loop is closed
                task.get_loop().call_soon_threadsafe(task.cancel)
