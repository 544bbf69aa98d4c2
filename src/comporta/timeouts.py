"""A bound on how long an await may take, for many calls that all have the same one.

``asyncio.timeout`` puts a timer into the event loop for each call and takes it out again. Calls of one policy
all get the same number of seconds, so their deadlines come in the order in which they began: one line of
them and one timer for the first are enough. What happens at a deadline is exactly what ``asyncio.timeout``
does: the task is cancelled, and that cancellation, if nobody else wanted one as well, becomes a
``TimeoutError`` where the bound was set.
"""

from __future__ import annotations

from itertools import takewhile
from math import isfinite
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any

from comporta import forks

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

SECONDS_MAX = 366 * 86_400.0


class Entry:
    """One call under way: its task, and when its time is over by the loop's clock."""

    __slots__ = ("_cancelling", "_line", "deadline", "expired", "task")

    def __init__(self, line: _Line, task: asyncio.Task[Any], deadline: float) -> None:
        self._line = line
        self._cancelling = task.cancelling()
        self.task = task
        self.deadline = deadline
        self.expired = False

    def leave(self, error: BaseException | None = None) -> None:
        """End the bound, in whatever way the call ended, exactly once.

        Raises ``TimeoutError`` in the place of ``error`` if that is the cancellation made at the deadline.
        """
        if not self.expired:
            del self._line[self]
            return
        # in any case, or the task would look cancelled to whoever asks it later
        nobody_else = self.task.uncancel() <= self._cancelling
        if nobody_else and error is not None and _is_cancellation(error):
            raise TimeoutError from error


class Limit:
    """``with timeouts.limit():`` the same for those who would rather not pair two calls by hand."""

    __slots__ = ("_entry", "_timeouts")

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._entry: Entry | None = None

    def __enter__(self) -> Entry:
        if self._entry is not None:
            raise RuntimeError("a limit is entered once: ask for another")
        self._entry = self._timeouts.enter()
        return self._entry

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._entry is not None  # noqa: S101 - Python calls this after __enter__ only
        self._entry.leave(error)


class Timeouts:
    """A number of seconds that calls may take, on any event loop, in any thread.

    The cheapest form::

        entry = timeouts.enter()
        try:
            result = await call()
        except BaseException as error:
            entry.leave(error)
            raise
        entry.leave()

    It holds as much as there are calls under way, and one timer for each loop.
    """

    __slots__ = ("__weakref__", "_lines", "_lock", "_recent", "_task", "seconds")

    def __init__(self, seconds: float) -> None:
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise TypeError(f"timeout must be a number of seconds, got {seconds!r:.50}")
        if not (isfinite(seconds) and 0 < seconds <= SECONDS_MAX):
            raise ValueError(f"timeout must be above 0 and at most {SECONDS_MAX:g} seconds, got {seconds}")
        self.seconds = float(seconds)
        self._lines: dict[asyncio.AbstractEventLoop, _Line] = {}
        self._recent: _Line | None = None
        self._task: Callable[[], asyncio.Task[Any] | None] | None = None
        self._lock = Lock()
        forks.register(self)

    def enter(self) -> Entry:
        """Set the bound for what the running task does from now until ``Entry.leave``."""
        task = (self._task or self._current_task())()
        if task is None:
            raise RuntimeError("a timeout bounds what a task does: there is none here")
        loop = task.get_loop()
        line = self._recent
        if line is None or line.loop is not loop:
            line = self._line_of(loop)
        entry = Entry(line, task, loop.time() + self.seconds)
        line[entry] = None
        if not line.timed:
            line.start(entry)
        return entry

    def limit(self) -> Limit:
        """Return a context manager that sets the bound for its body."""
        return Limit(self)

    def after_fork(self) -> None:
        """Leave the parent's loops to the parent."""
        forks.renew(self._lock)
        self._lines.clear()
        self._recent = None

    def _current_task(self) -> Callable[[], asyncio.Task[Any] | None]:
        from asyncio import current_task  # noqa: PLC0415 - costs 40 ms, and blocking programs never need it

        self._task = current_task
        return current_task

    def _line_of(self, loop: asyncio.AbstractEventLoop) -> _Line:
        with self._lock:  # other threads have loops, too
            line = self._lines.get(loop)
            if line is None:
                for other in [other for other in self._lines if other.is_closed()]:
                    del self._lines[other]  # a line holds its loop, so this does not happen by itself
                line = self._lines[loop] = _Line(loop)
            self._recent = line
            return line


class _Line(dict[Entry, None]):
    """The calls under way on one loop, in the order of their deadlines.

    A dictionary, because whoever leaves does so from anywhere in the line; and it is used by one thread only.
    """

    __slots__ = ("loop", "timed")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.loop = loop
        self.timed = False

    def start(self, first: Entry) -> None:
        """Have the loop look at the line when the time of its first is over."""
        self.timed = True
        self.loop.call_at(first.deadline, self._look)

    def _look(self) -> None:
        """End those whose time is over, and come back for the next."""
        now = self.loop.time()
        for entry in list(takewhile(lambda entry: entry.deadline <= now, self)):
            del self[entry]
            entry.expired = True
            entry.task.cancel()
        self.timed = False
        if self:
            self.start(next(iter(self)))


def _is_cancellation(error: BaseException) -> bool:
    from asyncio import CancelledError  # noqa: PLC0415 - see above

    return isinstance(error, CancelledError)
