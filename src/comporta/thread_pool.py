"""A pool of daemon threads for calls that block, awaited from an event loop.

It replaces the event loop's default executor. There, calls queue behind everything else that the program runs
on threads, and the interpreter joins the threads at exit, so one call that hangs keeps the program alive.

The pool does not know what the calls do. It bounds the queue, drops calls that are cancelled before they
start, survives a fork, and stays usable if a signal handler raises in the middle of
:meth:`ThreadPool.submit`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from queue import Empty
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from comporta import fork_safety
from comporta.errors import RefusedError
from comporta.flow import running_loop
from comporta.runtime import RUNTIME, WaitingQueue
from comporta.threads import BackgroundThread

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future

P = ParamSpec("P")
T = TypeVar("T")

CALLS_MAX: Final = 1000
"""How many calls of one pool may be queued or running, by default."""

RETRY_SECONDS: Final = 1.0
"""The ``retry_after`` of the error that refuses a call because the queue is full."""

IDLE_SECONDS: Final = 60.0
"""A thread ends after this long without a call, so a pool that is dropped without ``close`` leaks none."""


class _Call:
    """A call and the future that its caller awaits.

    It has no lock, because an interrupted caller could leave a lock held. If a caller cancels its future just
    when a thread starts the call, the call runs and its result is dropped.
    """

    __slots__ = ("future", "is_started", "loop", "work")

    def __init__(self, work: Callable[[], Any], loop: AbstractEventLoop) -> None:
        self.work = work
        self.loop = loop
        self.future: Future[Any] = loop.create_future()
        self.is_started = False

    def run(self) -> Callable[[], None]:
        """Make the call; return the function that delivers its result."""
        self.is_started = True
        if self.future.cancelled():
            return lambda: None
        result, error = _outcome(self.work)
        return lambda: self._deliver(result, error)

    def _deliver(self, result: Any, error: BaseException | None) -> None:
        with suppress(RuntimeError):  # the event loop was closed meanwhile
            self.loop.call_soon_threadsafe(_settle, self.future, result, error)


_Queue = WaitingQueue[_Call | None]


class ThreadPool:
    """Runs calls on at most ``threads`` daemon threads, which it starts when needed.

    At most ``calls_max`` calls are queued or running; the pool refuses any further call. ``refusal`` makes
    the error that it then raises from a text; the default is a :class:`RefusedError`.
    """

    def __init__(
        self,
        name: str,
        threads: int,
        *,
        calls_max: int = CALLS_MAX,
        refusal: Callable[[str], Exception] | None = None,
    ) -> None:
        self.name = name
        self._threads_max = threads
        self._calls_max = calls_max
        self._refusal = refusal
        self._lock = Lock()
        self._calls: set[_Call] = set()  # queued or running
        self._queue: _Queue = RUNTIME.waiting_queue()
        self._threads: dict[BackgroundThread, None] = {}
        self._starting: dict[BackgroundThread, None] = {}
        fork_safety.register(self)

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run ``work`` on a pool thread.

        Cancelling the returned future removes the call from the queue if it has not started.
        """
        call = _Call(work, running_loop())
        calls = self._calls
        call.future.add_done_callback(lambda _: None if call.is_started else calls.discard(call))
        try:
            needed = self._enqueue(call)
            if needed is not None:
                self._start(*needed)
        except BaseException:
            self._withdraw(call)
            raise
        return call.future

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``work(*args, **kwargs)`` on a pool thread and return its result.

        A caller that is cancelled stops waiting; the call itself stops only if it has not started.
        """
        return await self.submit(lambda: work(*args, **kwargs))

    async def run_within(self, seconds: float, work: Callable[[float], T]) -> T:
        """Run ``work(seconds_left)`` on a pool thread, or refuse if none becomes free within ``seconds``."""
        deadline = RUNTIME.monotonic() + seconds

        def work_in_time() -> T:
            left = deadline - RUNTIME.monotonic()
            if left <= 0:
                raise self._refusal_error(f"no thread became free within {seconds:g} s")
            return work(left)

        return await self.submit(work_in_time)

    def close(self, *, wait: bool = False) -> None:
        """End the threads after the queued calls; with ``wait``, return only when they have ended.

        A later call starts new threads.
        """
        with self._lock:
            threads, self._threads = list(self._threads), {}
            queue, self._queue = self._queue, RUNTIME.waiting_queue()
            self._starting.clear()
        for _ in threads:
            queue.put(None)
        if wait:
            for thread in threads:
                thread.stop(None)

    def after_fork(self) -> None:
        """Start without threads and calls, which stay with the parent process."""
        fork_safety.reinit_lock(self._lock)
        self._calls, self._queue = set(), RUNTIME.waiting_queue()
        self._threads, self._starting = {}, {}

    # -- the caller's side

    def _enqueue(self, call: _Call) -> tuple[BackgroundThread, _Queue] | None:
        """Queue a call; if the pool needs one more thread, return a thread to start and its queue."""
        with self._lock:
            if len(self._calls) >= self._calls_max:
                raise self._refusal_error(f"{self._calls_max} calls are waiting already")
            if self._queue.qsize() > 2 * self._calls_max:
                self._drop_cancelled()
            if self._starting:
                self._forget_unstarted()
            self._calls.add(call)
            self._queue.put(call)
            if len(self._threads) < min(self._threads_max, len(self._calls)):
                thread = BackgroundThread()
                self._threads[thread] = self._starting[thread] = None
                return thread, self._queue
        return None

    def _start(self, thread: BackgroundThread, queue: _Queue) -> None:
        """Start a thread; if the system has none left, the call waits for the pool's other threads."""
        if thread.start(self._serve, thread, queue, name=f"comporta-{self.name}"):
            return
        with self._lock:
            self._forget(thread)
            if self._threads:
                return
        raise RuntimeError(
            f"{self.name}: cannot start a thread: the interpreter is shutting down, or the system's limit on "
            "threads is reached"
        )

    def _withdraw(self, call: _Call) -> None:
        """Withdraw a call whose caller was interrupted, and threads that may not have been started for it.

        A thread that does start registers itself again.
        """
        call.future.cancel()
        if call in self._calls and not call.is_started:
            self._calls.discard(call)
            with self._lock:
                for thread in list(self._starting):
                    self._forget(thread)

    def _drop_cancelled(self) -> None:
        """Remove cancelled calls from the queue, where they otherwise stay until a thread skips them."""
        calls: list[_Call | None] = []
        with suppress(Empty):
            while True:
                calls.append(self._queue.get_nowait())
        for call in calls:
            if call is not None and not call.future.cancelled():
                self._queue.put(call)

    def _forget_unstarted(self) -> None:
        """Drop threads that never started, because their caller was interrupted twice."""
        for thread in [thread for thread in self._starting if not thread.is_alive()]:
            self._forget(thread)

    def _forget(self, thread: BackgroundThread) -> None:
        self._threads.pop(thread, None)
        self._starting.pop(thread, None)

    def _refusal_error(self, text: str) -> Exception:
        if self._refusal is not None:
            return self._refusal(text)
        return RefusedError(f"{self.name}: {text}", self.name, RETRY_SECONDS)

    # -- the threads' side

    def _serve(self, thread: BackgroundThread, queue: _Queue) -> None:
        """Run calls until the pool is closed or there are none for :data:`IDLE_SECONDS`."""
        with self._lock:
            self._starting.pop(thread, None)
            if queue is self._queue:
                self._threads[thread] = None
        while self._serve_one(queue) or not self._may_end(thread, queue):
            pass

    def _serve_one(self, queue: _Queue) -> bool:
        """Wait for a call and run it; false if there is none for :data:`IDLE_SECONDS`, or the pool is closed.

        The call stops counting before its caller gets the result, so that successive calls need only one
        thread.
        """
        try:
            call = queue.get(timeout=IDLE_SECONDS)
        except Empty:
            return False
        if call is None:
            return False
        deliver = call.run()
        self._calls.discard(call)
        deliver()
        return True

    def _may_end(self, thread: BackgroundThread, queue: _Queue) -> bool:
        """Return whether a thread without a call may end; false if a call was queued at this moment."""
        with self._lock:
            if queue is self._queue and not queue.empty():
                return False
            self._forget(thread)
            return True


async def run_in_thread(work: Callable[[], T]) -> T:
    """Run ``work`` on its own thread, never queued, to its end even if the caller is cancelled."""
    from asyncio import shield  # noqa: PLC0415 - blocking programs never need it

    pool = ThreadPool("call", 1)
    future = pool.submit(work)
    pool.close()
    return await shield(future)


def _outcome(work: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    """Return the result or the error of a call.

    This function must not see the future: an error references this frame through its traceback, and the
    future references the error.
    """
    try:
        return work(), None
    except StopIteration as error:  # no asyncio future accepts it: its caller would wait forever
        return None, RuntimeError(f"the call raised {error!r:.200}")
    except BaseException as error:
        return None, error


def _settle(future: Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return  # cancelled meanwhile
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
