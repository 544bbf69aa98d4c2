"""The threads of one database: whatever may wait for it, waits here and not on an event loop.

Never the default executor: there it would stand in line behind whatever else a program does in threads, and
the others behind a lock of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from comporta import forks
from comporta.errors import DatabaseBusyError

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

T = TypeVar("T")

WAITING_MAX = 1000
"""How many calls of coroutines may be under way or in line; the next is refused at once."""


class Crew:
    """So many threads, started when they are needed."""

    def __init__(self, address: str, threads: int, seconds: float) -> None:
        self._address = address
        self._threads = threads
        self._seconds = seconds
        self._lock = Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._waiting = 0
        forks.register(self)

    async def run(self, work: Callable[[float], T]) -> T:
        """Do it on a thread, in the seconds that are left; whoever stops waiting for it does not stop it."""
        from asyncio import get_running_loop, wrap_future  # noqa: PLC0415 - blocking programs never need it

        deadline = monotonic() + self._seconds

        def in_turn() -> T:
            try:
                left = deadline - monotonic()
                if left <= 0:
                    raise self._busy(f"its turn did not come within {self._seconds:g} s")
                return work(left)
            finally:
                self._waiting_less()

        with self._lock:
            if self._waiting >= WAITING_MAX:
                raise self._busy(f"{WAITING_MAX} calls are waiting already")
            future = self._started().submit(in_turn)
            self._waiting += 1
        future.add_done_callback(lambda done: self._waiting_less() if done.cancelled() else None)
        return await wrap_future(future, loop=get_running_loop())

    def close(self) -> None:
        """End the threads once they have done what was asked of them."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()

    def after_fork(self) -> None:
        """The threads stayed with the parent."""
        forks.renew(self._lock)
        self._pool = None
        self._waiting = 0

    def _started(self) -> ThreadPoolExecutor:
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - see above

            self._pool = ThreadPoolExecutor(self._threads, "comporta-database")
        return self._pool

    def _waiting_less(self) -> None:
        with self._lock:
            self._waiting -= 1

    def _busy(self, why: str) -> DatabaseBusyError:
        return DatabaseBusyError(f"{self._address}: {why}")
