"""Many callers, one load: whoever comes first starts it, all get what comes of it.

A load belongs to nobody: it runs in a task or a thread of its own, so that a caller who goes away, the first
one included, takes nothing from the others. What a load cannot bring to an end (its event loop was closed,
or stopped and not run again for as long as a turn lasts) is ``abandoned``, and one of those who wait starts
anew.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from comporta import forks
from comporta.flow import Flow, run, run_async
from comporta.threads import Bell, Run, clear_up

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Coroutine

FLIGHTS_MAX = 1000
"""How many loads may be under way in one process."""


class Flight:
    """Something under way, and who waits for it; threads and coroutines alike."""

    __slots__ = ("_lock", "_wakes", "error", "give_up", "landed", "result", "stopped_at", "task")

    def __init__(self) -> None:
        self._lock = Lock()
        self._wakes: list[Callable[[], object]] = []
        self.landed = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.task: asyncio.Task[None] | None = None
        self.stopped_at: float | None = None
        self.give_up: Callable[[], object] = self.land

    def runs(self) -> bool:
        """Whether anybody carries it out: a thread, or an event loop that runs."""
        return self.task is None or self.task.get_loop().is_running()

    def lost(self, patience: float) -> bool:
        """Whether it will not land by itself: its event loop was closed, or stopped for so many seconds."""
        if self.task is None or self.landed or self.runs():
            self.stopped_at = None
            return False
        now = monotonic()
        self.stopped_at = self.stopped_at or now
        return self.task.get_loop().is_closed() or now - self.stopped_at >= patience

    def land(self, result: Any = None, error: BaseException | None = None) -> bool:
        """Tell all who wait; only the first time counts, and is true."""
        with self._lock:
            if self.landed:
                return False
            self.result, self.error = result, error
            self.landed = True
            wakes, self._wakes = self._wakes, []
        for wake in wakes:
            with suppress(RuntimeError):  # its event loop is closed: nobody waits there any more
                wake()
        return True

    def listen(self, wake: Callable[[], object]) -> bool:
        """Be woken at the end; true if that was already."""
        with self._lock:
            if not self.landed:
                self._wakes.append(wake)
            return self.landed

    def deaf(self, wake: Callable[[], object]) -> None:
        """Stop listening."""
        with self._lock, suppress(ValueError):
            self._wakes.remove(wake)


class Landing:
    """Effect: wait for a flight, ``seconds`` at the most; answers whether it has landed."""

    __slots__ = ("_flight", "_seconds")

    def __init__(self, flight: Flight, seconds: float | None = None) -> None:
        self._flight = flight
        self._seconds = seconds

    def block(self) -> bool:
        """Hold the thread."""
        bell = Bell()
        if not self._flight.listen(bell.set):
            try:
                bell.wait(self._seconds)
            finally:
                self._flight.deaf(bell.set)
        return self._flight.landed

    async def wait(self) -> bool:
        """Hold nothing."""
        import asyncio  # noqa: PLC0415 - see clock.py

        loop, event = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(event.set)

        if not self._flight.listen(wake):
            try:
                async with asyncio.timeout(self._seconds):
                    await event.wait()
            except TimeoutError:
                pass
            finally:
                clear_up(self._flight.deaf, wake)
        return self._flight.landed


class Call:
    """Effect: call a loader, ``seconds`` at the most; then it is a ``TimeoutError``.

    A plain function runs in a thread of its own, which cannot be ended: what it returns too late is dropped.
    """

    __slots__ = ("_function", "_seconds")

    def __init__(self, function: Callable[[], Any], seconds: float) -> None:
        self._function = function
        self._seconds = seconds

    def block(self) -> Any:
        """Hold the thread."""
        flight = in_thread(self._function)
        result = _landed(flight, Landing(flight, self._seconds).block(), self._seconds)
        if hasattr(result, "__await__"):
            if hasattr(result, "close"):
                result.close()
            raise TypeError("loader must be a plain function here, got one to be awaited")
        return result

    async def wait(self) -> Any:
        """Hold nothing."""
        import asyncio  # noqa: PLC0415 - see clock.py
        from inspect import iscoroutinefunction  # noqa: PLC0415 - costs 10 ms

        async with asyncio.timeout(self._seconds):
            if iscoroutinefunction(self._function):
                return await _awaited(self._function())
            flight = in_thread(self._function)
            result = _landed(flight, await Landing(flight).wait(), self._seconds)
            return await _awaited(result) if hasattr(result, "__await__") else result


def _landed(flight: Flight, landed: bool, seconds: float) -> Any:
    if not landed:
        raise TimeoutError(f"no answer within {seconds:g} s")
    if flight.error is not None and not isinstance(flight.error, Exception):
        raise _ended(flight.error) from flight.error
    if flight.error is not None:
        raise flight.error
    return flight.result


def _ended(error: BaseException) -> RuntimeError:
    """Return what ends a loader and nothing else as a failure: it would be called again at once."""
    return RuntimeError(f"the loader ended with {error!r:.100}")


async def _awaited(awaitable: Any) -> Any:
    """Await a loader; a cancellation that is its own is told from one of the load."""
    import asyncio  # noqa: PLC0415 - see clock.py

    try:
        return await awaitable
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise _ended(error) from error


def in_thread(function: Callable[[], Any]) -> Flight:
    """Run something in a thread of its own, with the context of the caller."""
    flight, context = Flight(), copy_context()

    def fly() -> None:
        try:
            flight.land(context.run(function))
        except BaseException as error:  # whoever waits is told, whatever it was
            flight.land(error=error)

    if not Run().start(fly, name="comporta-cache-load"):
        raise RuntimeError("no thread can be had to fetch")
    return flight


class Launch:
    """Effect: have a flow run by itself, which lands a flight; it goes on whatever becomes of the caller."""

    __slots__ = ("_flight", "_flights", "_flow")

    def __init__(self, flights: Flights, flow: Flow[None], flight: Flight) -> None:
        self._flights = flights
        self._flow = flow
        self._flight = flight

    def block(self) -> None:
        """Start a thread."""
        self._flights.keep(in_thread(lambda: run(self._flow)))

    async def wait(self) -> None:
        """Start a task."""
        import asyncio  # noqa: PLC0415 - see clock.py

        task = self._flight.task = asyncio.create_task(run_async(self._flow))
        self._flights.keep_task(task)
        task.add_done_callback(self._over)

    def _over(self, _: object) -> None:
        if not self._flight.landed:  # cancelled before its first step: the flow never began
            self._flight.give_up()


class Flights:
    """What is under way in this process, by key; what nobody carries out for ``patience`` seconds is lost."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._by_key: dict[str, Flight] = {}
        self._threads: set[Flight] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._lock = Lock()
        forks.register(self)

    def __len__(self) -> int:
        return len(self._by_key)

    def join(self, key: str) -> tuple[Flight | None, bool]:
        """Return the flight of a key, and whether the caller has to start it; none if there are too many."""
        self.bury(key)
        with self._lock:
            flight = self._by_key.get(key)
            if flight is not None:
                return flight, False
            if len(self._by_key) >= FLIGHTS_MAX:
                return None, False
            flight = self._by_key[key] = Flight()
            return flight, True

    def bury(self, key: str) -> None:
        """End the flight of a key whose event loop was closed or stopped, so that somebody can start anew."""
        with self._lock:
            flight = self._by_key.get(key)
            if flight is None or flight.task is None or not flight.lost(self._patience):
                return
            del self._by_key[key]  # so that one thread ends it, and no other
        if flight.task.get_loop().is_closed():
            self._tasks.discard(flight.task)
            with suppress(RuntimeError):  # it does not want to end
                cast("Coroutine[Any, Any, None]", flight.task.get_coro()).close()
        else:  # should it ever run again, it ends; till then nobody may touch what it holds
            with suppress(RuntimeError):
                flight.task.get_loop().call_soon_threadsafe(flight.task.cancel)
        flight.give_up()  # only the first end counts

    def leave(self, key: str, flight: Flight) -> None:
        """Forget a flight that is about to land."""
        with self._lock:
            if self._by_key.get(key) is flight:
                del self._by_key[key]

    def keep(self, thread: Flight) -> None:
        """Know of a thread until it ends."""
        with self._lock:
            self._threads.add(thread)
        if thread.listen(lambda: self._threads.discard(thread)):
            self._threads.discard(thread)

    def keep_task(self, task: asyncio.Task[None]) -> None:
        """Hold a task until it ends: a loop itself does not."""
        with self._lock:
            self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self, seconds: float) -> None:
        """Wait for threads, and ask tasks on other threads' loops to end."""
        self._cancel()
        deadline = monotonic() + seconds
        for thread in list(self._threads):
            Landing(thread, max(0.0, deadline - monotonic())).block()

    async def aclose(self, seconds: float) -> None:
        """End the tasks of this loop, and wait for threads."""
        import asyncio  # noqa: PLC0415 - see clock.py

        loop = asyncio.get_running_loop()
        ours = [task for task in list(self._tasks) if task.get_loop() is loop]
        self._cancel()
        deadline = monotonic() + seconds
        if ours:
            await asyncio.wait(ours, timeout=seconds)
        for thread in list(self._threads):
            await Landing(thread, max(0.0, deadline - monotonic())).wait()

    def after_fork(self) -> None:
        """Leave what is under way to the parent."""
        forks.renew(self._lock)
        self._by_key.clear()
        self._threads.clear()
        self._tasks.clear()

    def _cancel(self) -> None:
        for task in list(self._tasks):
            with suppress(RuntimeError):  # its loop is closed
                task.get_loop().call_soon_threadsafe(task.cancel)
