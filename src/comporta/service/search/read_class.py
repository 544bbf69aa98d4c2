"""The priority class in which the pages of a listing wait for capacity: the highest of its waiters.

A listing is read once for everyone, in the class of the caller that came first, for example a scheduled
refresh. A user who joins such a refresh later would wait behind all searches. The read therefore takes over
the class and the owner of the user (priority inheritance), for the page that waits and for all later ones. It
keeps them until the listing is read, for at most ``READ_SECONDS_MAX``, and takes over each class at most
once. This module does not know what a listing is or where it comes from; ``waiting_users`` does the same for
users of other workers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from comporta.limits.priority import PRIORITIES, Caller, priority, resolve_caller

T = TypeVar("T")

Fetch = Callable[[Callable[[], None]], Coroutine[Any, Any, T]]
"""Fetches a page; calls its argument as soon as the page no longer waits for capacity."""


class ReadClass:
    """The class and the owner of one read; ``raise_to`` gives it a higher one."""

    def __init__(self, caller: Caller) -> None:
        self.callers = 0
        self._caller = caller
        self._raised = asyncio.Event()

    @property
    def caller(self) -> Caller:
        """The caller whose class and owner the read has."""
        return self._caller

    def raise_to(self, caller: Caller) -> None:
        """Take over the class and the owner of a caller, if its class is higher."""
        if caller.rank < self._caller.rank:
            self._caller = caller
            self._raised.set()

    async def fetch(self, fetch: Fetch[T]) -> T:
        """Fetch a page in this class, and start again if the class is raised while the page waits."""
        while True:
            self._raised.clear()
            is_sent = asyncio.Event()
            with as_caller(self._caller):
                fetching = asyncio.create_task(fetch(is_sent.set))
            try:
                await self._wait_for_any(fetching)
                if fetching.done() or is_sent.is_set():
                    return await fetching
            finally:
                await _end(fetching)
            if not fetching.cancelled():  # it ended while it was being cancelled
                return fetching.result()

    async def _wait_for_any(self, fetching: asyncio.Task[T]) -> None:
        """Wait until a page has been fetched, or the class is raised."""
        if not self._caller.rank:  # already the highest class
            await asyncio.wait((fetching,))
            return
        raised = asyncio.create_task(self._raised.wait())
        try:
            await asyncio.wait((fetching, raised), return_when=asyncio.FIRST_COMPLETED)
        finally:
            raised.cancel()


class ReadClasses:
    """The class of each listing that is being read or waited for in this worker."""

    def __init__(self) -> None:
        self._by_key: dict[Hashable, ReadClass] = {}

    @contextmanager
    def join(self, key: Hashable) -> Iterator[ReadClass]:
        """Wait for a listing as the caller of the context; yield the class of its read."""
        caller = resolve_caller(None, None)
        joined = self._by_key.setdefault(key, ReadClass(caller))
        joined.raise_to(caller)
        joined.callers += 1
        try:
            yield joined
        finally:
            joined.callers -= 1
            if not joined.callers:
                self._by_key.pop(key, None)

    def raise_to(self, key: Hashable, caller: Caller) -> None:
        """Give the read of a listing, if there is one, the class of a caller."""
        joined = self._by_key.get(key)
        if joined is not None:
            joined.raise_to(caller)


@contextmanager
def as_caller(caller: Caller) -> Iterator[None]:
    """Set the class and the owner of all calls in a ``with`` block."""
    with priority(PRIORITIES[caller.rank], owner=caller.owner):
        yield


async def _end(task: asyncio.Task[Any]) -> None:
    """Cancel a task unless it is done, and wait until it has released what it held."""
    if not task.done():
        task.cancel()
        await asyncio.wait((task,))
