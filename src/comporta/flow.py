"""One text for blocking and awaiting code.

Whatever has to wait, or to ask the store more than once, is written as a *flow*: a generator that
yields effects and is sent their results. :func:`run` carries a flow out on a thread, :func:`run_async`
on an event loop. A flow never knows which of the two drives it.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Effect(Protocol):
    """Something a flow wants done, in either world."""

    def block(self) -> Any:
        """Do it while holding the thread."""

    async def wait(self) -> Any:
        """Do it while the event loop goes on."""


Flow = Generator[Effect, Any, T]


def run(flow: Flow[T]) -> T:
    """Drive a flow to its end, blocking."""
    try:
        effect = next(flow)
        while True:
            try:
                answer = effect.block()
            except BaseException as error:
                effect = flow.throw(error)
            else:
                effect = flow.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


async def run_async(flow: Flow[T]) -> T:
    """Drive a flow to its end, awaiting; a cancellation is thrown into the flow like any error."""
    try:
        effect = next(flow)
        while True:
            try:
                answer = await effect.wait()
            except BaseException as error:
                effect = flow.throw(error)
            else:
                effect = flow.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result
