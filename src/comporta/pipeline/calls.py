"""An effect for what blocks: called where it stands, or by a thread while an event loop goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from comporta.threads import Run


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
    import asyncio  # noqa: PLC0415 - blocking programs never need it
    from concurrent.futures import Future  # noqa: PLC0415 - see above

    future: Future[Any] = Future()

    def work() -> None:
        try:
            future.set_result(fn())
        except StopIteration as error:  # no future takes it: whoever waits would do so for ever
            future.set_exception(RuntimeError(f"what was called raised {error!r:.200}"))
        except BaseException as error:
            future.set_exception(error)

    if not Run().start(work, name="comporta-call"):
        raise RuntimeError("no thread can be had for a call that blocks")
    return await asyncio.shield(asyncio.wrap_future(future))
