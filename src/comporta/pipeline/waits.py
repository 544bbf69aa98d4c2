"""What a flow of a writer waits for, on a thread or on an event loop: a bell, or work that blocks.

A signal may interrupt a main thread between any two steps of Python code; so its bell is a plain lock, and
nothing that others use can be left locked by it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Lock, Thread
from typing import Any

from comporta.limits.waiting import Ticket


class Wait:
    """Effect: rest until the ticket is called, for so many seconds at the most."""

    __slots__ = ("_seconds", "_ticket")

    def __init__(self, ticket: Ticket, seconds: float) -> None:
        self._ticket = ticket
        self._seconds = seconds

    def block(self) -> None:
        """Hold the thread."""
        bell = Lock()
        bell.acquire()

        def ring() -> None:
            with suppress(RuntimeError):  # it has rung
                bell.release()

        try:
            if not self._ticket.listen(ring):
                bell.acquire(timeout=self._seconds)
        finally:
            self._ticket.deaf()

    async def wait(self) -> None:
        """Hold nothing."""
        import asyncio  # noqa: PLC0415 - blocking programs never need it

        loop = asyncio.get_running_loop()
        rung = loop.create_future()

        def ring() -> None:
            if not rung.done():
                rung.set_result(None)

        try:
            if not self._ticket.listen(lambda: loop.call_soon_threadsafe(ring), loop.is_closed):
                await asyncio.wait({rung}, timeout=self._seconds)
        finally:
            self._ticket.deaf()


class Call:
    """Effect: call something that is awaited in one world only; what blocks gets a thread in the other."""

    __slots__ = ("_awaited", "_fn")

    def __init__(self, fn: Callable[[], Any], *, awaited: bool = False) -> None:
        self._fn = fn
        self._awaited = awaited

    def block(self) -> Any:
        """Call it."""
        return self._fn()

    async def wait(self) -> Any:
        """Await it, or have a thread of its own call it."""
        if self._awaited:
            return await self._fn()
        return await _on_a_thread(self._fn)


async def _on_a_thread(fn: Callable[[], Any]) -> Any:
    """Never the loop's own pool: there it would stand in line behind whatever else a program does."""
    import asyncio  # noqa: PLC0415 - see above
    from concurrent.futures import Future  # noqa: PLC0415 - see above

    future: Future[Any] = Future()

    def work() -> None:
        try:
            future.set_result(fn())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=work, name="comporta-writer", daemon=True).start()
    return await asyncio.shield(asyncio.wrap_future(future))
