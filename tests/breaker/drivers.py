"""A breaker used by blocking or by async code, with the same methods for both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from comporta import CircuitBreaker, CircuitOpenError


class Driver:
    """The methods of a breaker: blocking without a runner, async with one."""

    def __init__(self, breaker: CircuitBreaker, runner: asyncio.Runner | None) -> None:
        self.breaker = breaker
        self.runner = runner

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if self.runner is None:
            blocking: Callable[..., Any] = getattr(self.breaker.sync, name)
            return blocking
        runner = self.runner
        return lambda *args, **kwargs: runner.run(getattr(self.breaker, name)(*args, **kwargs))

    def degraded(self) -> bool:
        """Return the property, without mypy narrowing its value."""
        return self.breaker.is_degraded

    def guarded(self, function: Callable[[], Any]) -> Any:
        """Call a function that the breaker decorates."""
        if self.runner is None:
            return self.breaker(function)()

        async def awaited() -> Any:
            return function()

        return self.runner.run(self.breaker(awaited)())

    def within(self, function: Callable[[], Any]) -> Any:
        """Call a function in a ``with`` block."""
        if self.runner is None:
            with self.breaker.sync.admit():
                return function()

        async def awaited() -> Any:
            async with self.breaker.admit():
                return function()

        return self.runner.run(awaited())

    def fails(self, times: int = 1) -> None:
        """Make calls that fail."""
        for _ in range(times):
            try:
                self.guarded(_fail)
            except OSError:
                continue
            raise AssertionError("the call did not fail")

    def refused(self) -> CircuitOpenError | None:
        """Make a call that would succeed; return the error if the breaker refuses it."""
        try:
            assert self.guarded(lambda: "well") == "well"
        except CircuitOpenError as error:
            return error
        return None


def _fail() -> None:
    raise OSError("no route")
