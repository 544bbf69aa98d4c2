"""A breaker asked by one of its two faces, and calls made through it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from comporta import CircuitBreaker, CircuitOpenError


class Face:
    """The verbs of a breaker, blocking; or awaiting, if there is a runner."""

    def __init__(self, breaker: CircuitBreaker, runner: asyncio.Runner | None) -> None:
        self.breaker = breaker
        self.runner = runner

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        if self.runner is None:
            blocking: Callable[..., Any] = getattr(self.breaker.sync, verb)
            return blocking
        runner = self.runner
        return lambda *args, **kwargs: runner.run(getattr(self.breaker, verb)(*args, **kwargs))

    def degraded(self) -> bool:
        """Return what the property says, whatever it said before."""
        return self.breaker.is_degraded

    def guarded(self, function: Callable[[], Any]) -> Any:
        """Call a function through the breaker, as a decorated one."""
        if self.runner is None:
            return self.breaker(function)()

        async def awaited() -> Any:
            return function()

        return self.runner.run(self.breaker(awaited)())

    def within(self, function: Callable[[], Any]) -> Any:
        """Call a function in a ``with`` block."""
        if self.runner is None:
            with self.breaker.sync:
                return function()

        async def awaited() -> Any:
            async with self.breaker:
                return function()

        return self.runner.run(awaited())

    def fails(self, times: int = 1) -> None:
        """Make calls that fail."""
        for _ in range(times):
            try:
                self.guarded(_fail)
            except OSError:
                continue
            raise AssertionError("it did not fail")

    def refused(self) -> CircuitOpenError | None:
        """Make a call that succeeds; return how it was refused, if it was."""
        try:
            assert self.guarded(lambda: "well") == "well"
        except CircuitOpenError as error:
            return error
        return None


def _fail() -> None:
    raise OSError("no route")
