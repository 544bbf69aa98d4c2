"""Drives psycopg's generators by the events of one socket, on an event loop.

A generator continues in a callback of the event loop, and its caller is woken once, when the generator has
ended. The loop watches the socket from the first call on: adding and removing it for each call would take
longer than the rest of a short read. For the same reason the timer of a deadline stays until it fires, and is
then set again.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Generator
from typing import Any, TypeVar

from psycopg.pq import ConnStatus
from psycopg.pq.abc import PGconn
from psycopg.waiting import Ready, Wait

from comporta.database.postgres_errors import NoReplyError
from comporta.runtime import RUNTIME

T = TypeVar("T")

_READABLE, _WRITABLE, _WRITE = int(Ready.R), int(Ready.W), int(Wait.W)


class SocketDriver:
    """Runs one generator at a time; ``request`` is what it waits for, unless it ``is_ended``."""

    __slots__ = (
        "_future",
        "_gen",
        "_loop",
        "_pgconn",
        "_socket",
        "_timer",
        "deadline",
        "is_ended",
        "request",
    )

    def __init__(self, pgconn: PGconn) -> None:
        self.deadline = float("inf")
        self.is_ended = True
        self.request = 0
        self._pgconn = pgconn
        self._socket = pgconn.socket  # kept because libpq forgets the number when it closes the socket
        self._loop: asyncio.AbstractEventLoop | None = None
        self._gen: Generator[Any, Any, Any] | None = None
        self._future: asyncio.Future[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop that watches the socket."""
        return self._loop

    async def run(self, gen: Generator[Any, Any, T], request: int) -> T:
        """Run a generator, which may wait, to its end; raise ``NoReplyError`` at the deadline.

        If the caller is cancelled before the end, pass the generator again, with ``request``, to continue.
        """
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            loop.add_reader(self._socket, self._on_readable)  # psycopg always waits for that
            self._loop, self._timer = loop, None
        if self._timer is None or self._timer.when() > loop.time() + self.deadline - RUNTIME.monotonic():
            self._set_timer(loop)
        future: asyncio.Future[T] = loop.create_future()
        self._gen, self._future, self.request, self.is_ended = gen, future, request, False
        if request & _WRITE:
            loop.add_writer(self._socket, self._advance, _WRITABLE)
        try:
            return await future
        finally:
            self._gen = self._future = None
            if self.is_ended and not future.cancelled():
                future.exception()  # a cancelled caller does not retrieve it

    def stop(self) -> None:
        """Stop watching the socket, on the thread of the event loop, or while it does not run."""
        loop, self._loop = self._loop, None
        timer, self._timer = self._timer, None
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self._socket)
            loop.remove_writer(self._socket)
            if timer is not None:
                timer.cancel()

    def _on_readable(self) -> None:
        if self._future is None:  # the server has ended an idle connection
            self.stop()
        else:
            self._advance(_READABLE)

    def _advance(self, ready: int) -> None:
        gen, future = self._gen, self._future
        if gen is None or future is None or future.done():  # the caller has not resumed yet
            return
        was_writing = self.request & _WRITE
        try:
            self.request = gen.send(ready)
        except StopIteration as end:
            self.is_ended, self.request = True, 0
            future.set_result(end.value)
        except BaseException as error:
            self.is_ended, self.request = True, 0
            future.set_exception(error)
        if was_writing and not self.request & _WRITE and self._loop is not None:
            self._loop.remove_writer(self._socket)
        if self._pgconn.status != ConnStatus.OK:  # libpq has closed the socket: its number may be used again
            self.stop()

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_later(max(0.0, self.deadline - RUNTIME.monotonic()), self._on_timer, loop)

    def _on_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        future = self._future
        if future is None or future.done():
            return
        if RUNTIME.monotonic() >= self.deadline:
            if not has_data(self._socket):
                future.set_exception(NoReplyError())
                return
            self._advance(_READABLE)  # the data arrived while the event loop was blocked
        self._set_timer(loop)


def has_data(socket: int) -> bool:
    """Whether a read from a socket would return immediately."""
    poll = select.poll()
    poll.register(socket, select.POLLIN)
    return bool(poll.poll(0))
