"""Time-outs for many awaited calls that all have the same duration.

``asyncio.timeout`` adds a timer to the event loop for each call and removes it again. Calls of one policy all
have the same duration, so their deadlines come in the order in which the calls started: one queue, and one
timer for its first entry, are enough. A deadline has the same effect as with ``asyncio.timeout``: the task is
cancelled, and that cancellation becomes a ``TimeoutError``, unless other code cancelled the task as well.
Only tasks can be timed, not blocking calls.
"""

from __future__ import annotations

from itertools import takewhile
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any

from comporta import fork_safety
from comporta.flow import missing_loop_error
from comporta.runtime import RUNTIME
from comporta.validators import require_number

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

SECONDS_MAX = 366 * 86_400.0


class RunningTimeout:
    """The time-out of one call in progress: its task, and its deadline by the loop's clock.

    ``Timeouts.start`` sets the attributes: an ``__init__`` would double the cost of the object.
    """

    __slots__ = ("_cancel_count", "_queue", "deadline", "is_expired", "task")

    _queue: _DeadlineQueue
    _cancel_count: int
    task: asyncio.Task[Any]
    deadline: float
    is_expired: bool

    def finish(self, error: BaseException | None = None) -> None:
        """End the time-out; call it exactly once, however the call ended.

        Raises ``TimeoutError`` if ``error`` is the cancellation at the deadline.
        """
        if not self.is_expired:
            del self._queue[self]
            return
        # always, because a task that stays marked as cancelled would confuse other code
        is_only_cancellation = self.task.uncancel() <= self._cancel_count
        if is_only_cancellation and error is not None and _is_cancellation(error):
            raise TimeoutError from error


class TimeoutContext:
    """A time-out as a context manager: ``with timeouts.context():``."""

    __slots__ = ("_entry", "_timeouts")

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._entry: RunningTimeout | None = None

    def __enter__(self) -> RunningTimeout:
        if self._entry is not None:
            raise RuntimeError("this context was already entered: call context() again for a new one")
        self._entry = self._timeouts.start()
        return self._entry

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._entry is not None  # noqa: S101 - Python calls this after __enter__ only
        self._entry.finish(error)


class Timeouts:
    """Time-outs of one duration, for calls on any event loop in any thread.

    The fastest form::

        timeout = timeouts.start()
        try:
            result = await call()
        except BaseException as error:
            timeout.finish(error)
            raise
        timeout.finish()

    It keeps one entry for each call in progress, and one timer for each loop.
    """

    __slots__ = ("__weakref__", "_find_loop", "_find_task", "_last_queue", "_lock", "_queues", "seconds")

    _find_task: Callable[[asyncio.AbstractEventLoop], asyncio.Task[Any] | None]
    """Set together with ``_find_loop``, when asyncio is loaded."""

    def __init__(self, seconds: float) -> None:
        self.seconds = require_number("timeout", seconds, maximum=SECONDS_MAX, above=0, unit="seconds")
        self._queues: dict[asyncio.AbstractEventLoop, _DeadlineQueue] = {}
        self._last_queue: _DeadlineQueue | None = None
        self._find_loop: Callable[[], asyncio.AbstractEventLoop] | None = None
        self._lock = Lock()
        fork_safety.register(self)

    def start(self) -> RunningTimeout:
        """Start a time-out for the running task, which lasts until ``RunningTimeout.finish``."""
        try:
            loop = (self._find_loop or self._load_asyncio())()
        except RuntimeError:
            raise missing_loop_error() from None
        task = self._find_task(loop)  # given the loop, it need not find it again
        if task is None:
            raise RuntimeError("a timeout needs a running task: call it inside a coroutine")
        queue = self._last_queue
        if queue is None or queue.loop is not loop:
            queue = self._queue_for(loop)
        entry = RunningTimeout()
        entry._queue, entry._cancel_count, entry.task = queue, task.cancelling(), task
        entry.deadline, entry.is_expired = queue.now() + self.seconds, False
        queue[entry] = None
        if not queue.is_scheduled:
            queue.schedule(entry)
        return entry

    def context(self) -> TimeoutContext:
        """Return a context manager that sets the time-out for its body."""
        return TimeoutContext(self)

    def after_fork(self) -> None:
        """Drop the parent's event loops."""
        fork_safety.reinit_lock(self._lock)
        self._queues.clear()
        self._last_queue = None

    def _load_asyncio(self) -> Callable[[], asyncio.AbstractEventLoop]:
        import asyncio  # noqa: PLC0415 - 40 ms, and blocking programs do not need it

        self._find_task = asyncio.current_task
        self._find_loop = asyncio.get_running_loop
        return asyncio.get_running_loop

    def _queue_for(self, loop: asyncio.AbstractEventLoop) -> _DeadlineQueue:
        with self._lock:  # other threads may have loops, too
            queue = self._queues.get(loop)
            if queue is None:
                for other in [other for other in self._queues if other.is_closed()]:
                    del self._queues[other]  # a queue references its loop: neither would be collected
                queue = self._queues[loop] = _DeadlineQueue(loop)
            self._last_queue = queue
            return queue


class _DeadlineQueue(dict[RunningTimeout, None]):
    """The time-outs of calls in progress on one loop, in the order of their deadlines.

    A dictionary, because entries are removed from anywhere in the queue. Only the loop's thread uses it.
    """

    __slots__ = ("is_scheduled", "loop", "now")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.loop = loop
        self.is_scheduled = False
        self.now = _clock_of(loop)

    def schedule(self, first: RunningTimeout) -> None:
        """Have the loop expire entries at the deadline of the first one."""
        self.is_scheduled = True
        self.loop.call_at(first.deadline, self._expire_due)

    def _expire_due(self) -> None:
        """Cancel the calls whose deadline has passed, and schedule the next deadline."""
        now = self.now()
        for entry in list(takewhile(lambda entry: entry.deadline <= now, self)):
            del self[entry]
            entry.is_expired = True
            entry.task.cancel()
        self.is_scheduled = False
        if self:
            self.schedule(next(iter(self)))


def _clock_of(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """Return the clock of a loop; of asyncio's own loops, the native function behind their method."""
    from asyncio import BaseEventLoop  # noqa: PLC0415 - as above

    return RUNTIME.monotonic if type(loop).time is BaseEventLoop.time else loop.time


def _is_cancellation(error: BaseException) -> bool:
    from asyncio import CancelledError  # noqa: PLC0415 - as above

    return isinstance(error, CancelledError)
