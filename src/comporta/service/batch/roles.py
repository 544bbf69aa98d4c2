"""The threads of one role: whoever does something slow there holds up nobody who does something else.

Never the default executor, and never one for all: six backfills would hold a question about the whitelist.
The threads keep no program from ending: a call to a stranger may take its whole time-out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Final, ParamSpec, TypeVar

from comporta.errors import RefusedError

P = ParamSpec("P")
T = TypeVar("T")

WAITING_MAX: Final = 1000
"""How many calls of one role may be under way or in line; the next is refused at once."""

RETRY_SECONDS: Final = 1.0

_Work = Callable[[], None]


class Role:
    """So many threads, started when they are needed."""

    def __init__(self, name: str, threads: int, waiting_max: int = WAITING_MAX) -> None:
        self.name = name
        self._threads = threads
        self._waiting_max = waiting_max
        self._lock = Lock()
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        self._started = 0
        self._waiting = 0

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do it on a thread; whoever stops waiting for it stops it only if it has not begun."""
        future: Future[T] = Future()

        def in_turn() -> None:
            try:
                if future.set_running_or_notify_cancel():
                    _settle(future, work, args, kwargs)
            finally:
                with self._lock:
                    self._waiting -= 1

        self._line_up(in_turn)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """End the threads once they have done what was asked of them; nobody waits for that."""
        with self._lock:
            started, self._started = self._started, 0
        for _ in range(started):
            self._queue.put(None)

    def _line_up(self, work: _Work) -> None:
        with self._lock:
            if self._waiting >= self._waiting_max:
                text = f"{self.name}: {self._waiting_max} calls are waiting already"
                raise RefusedError(text, self.name, RETRY_SECONDS)
            self._waiting += 1
            needed = self._started < min(self._threads, self._waiting)
            self._started += needed
        self._queue.put(work)
        if needed:
            Thread(target=self._work, name=f"comporta-{self.name}", daemon=True).start()

    def _work(self) -> None:
        while (work := self._queue.get()) is not None:
            work()


def _settle(future: Future[T], work: Callable[..., T], args: Any, kwargs: Any) -> None:
    try:
        future.set_result(work(*args, **kwargs))
    except BaseException as error:
        future.set_exception(error)
