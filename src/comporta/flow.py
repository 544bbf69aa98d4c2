"""Flows: generators that serve blocking and asynchronous callers from one implementation.

A flow yields effects, such as "apply this operation" or "sleep", and receives their results. :func:`run`
performs the effects of a flow on the calling thread, :func:`run_async` on an event loop. A flow does not know
which of the two drives it. The names of generator functions that are flows end in ``_flow``.

The event loop is asyncio's. Under trio, a flow that has to wait raises :class:`MissingLoopError`.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


class Effect(Protocol):
    """One step that a flow asks its driver to perform."""

    def block(self) -> Any:
        """Perform the step and block the calling thread until it is done."""

    async def wait(self) -> Any:
        """Perform the step without blocking the event loop."""


class Perform:
    """An effect that calls one of two functions, depending on the driver of the flow."""

    __slots__ = ("_awaiting", "_blocking")

    def __init__(self, blocking: Callable[[], Any], awaiting: Callable[[], Awaitable[Any]]) -> None:
        self._blocking = blocking
        self._awaiting = awaiting

    def block(self) -> Any:
        """Call the blocking function."""
        return self._blocking()

    async def wait(self) -> Any:
        """Await the asynchronous function."""
        return await self._awaiting()


Flow = Generator[Effect, Any, T]


def run(flow: Flow[T]) -> T:
    """Run a flow to its end on the calling thread and return its result."""
    try:
        effect = next(flow)
        while True:
            try:
                result = effect.block()
            except BaseException as error:
                effect = flow.throw(error)
            else:
                effect = flow.send(result)
    except StopIteration as end:
        value: T = end.value
        return value


async def run_async(flow: Flow[T]) -> T:
    """Run a flow to its end on the event loop and return its result.

    A cancellation is raised inside the flow, like any other exception.
    """
    try:
        effect = next(flow)
        while True:
            try:
                result = await effect.wait()
            except BaseException as error:
                effect = flow.throw(error)
            else:
                effect = flow.send(result)
    except StopIteration as end:
        value: T = end.value
        return value


class MissingLoopError(RuntimeError):
    """A flow has to wait, but asyncio is not running: the program uses trio, or no event loop."""


def missing_loop_error() -> MissingLoopError:
    """Return the error to raise if asyncio is not running; it says what to do instead."""
    return MissingLoopError(
        "comporta needs asyncio, and this is trio: call the blocking methods on a thread, for example "
        "trio.to_thread.run_sync(limiter.sync.acquire, key)"
        if _is_in_trio()
        else "comporta needs a running asyncio event loop: use asyncio.run, or the blocking methods"
    )


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the running event loop; raises a :class:`MissingLoopError` if there is none."""
    from asyncio import get_running_loop  # noqa: PLC0415 - see clock.py

    try:
        return get_running_loop()
    except RuntimeError:
        raise missing_loop_error() from None


def is_task_cancelled() -> bool:
    """Return whether the running task itself is being cancelled, not something that it awaits."""
    from asyncio import current_task  # noqa: PLC0415 - see clock.py

    task = current_task()
    return task is not None and task.cancelling() > 0


def _is_in_trio() -> bool:
    trio = sys.modules.get("trio")
    try:
        return trio is not None and bool(trio.lowlevel.current_trio_token())
    except RuntimeError:
        return False
