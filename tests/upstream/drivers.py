"""An upstream used by blocking or by async code, and functions for it to call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from comporta import CallReport, Upstream, last_call
from comporta.testing import ManualClock


def lowest(low: float, high: float) -> float:
    """Return the lowest number: no jitter."""
    return low


class Driver:
    """Calls through an upstream: blocking without a runner, async with one."""

    def __init__(self, upstream: Upstream, runner: asyncio.Runner | None) -> None:
        self.upstream = upstream
        self.runner = runner
        self.report: CallReport | None = None

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function, and store the ``report`` of the call."""
        return self._call_and_report(function, args, kwargs, guarded=False)

    def guarded(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a decorated function."""
        return self._call_and_report(function, args, kwargs, guarded=True)

    def run(self, coroutine_or_result: Any) -> Any:
        """Return a result, or the result of a coroutine."""
        return coroutine_or_result if self.runner is None else self.runner.run(coroutine_or_result)

    def state(self) -> Any:
        return self.run(self.upstream.sync.get_state() if self.runner is None else self.upstream.get_state())

    def _call_and_report(self, function: Any, args: Any, kwargs: Any, *, guarded: bool) -> Any:
        upstream = self.upstream
        if self.runner is None:
            try:
                if guarded:
                    return upstream.guard(function)(*args, **kwargs)
                return upstream.sync.call(function, *args, **kwargs)
            finally:
                self.report = last_call()

        async def awaited(*args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(0)
            return function(*args, **kwargs)

        async def main() -> Any:
            try:
                if guarded:
                    return await upstream.guard(awaited)(*args, **kwargs)
                return await upstream.call(awaited, *args, **kwargs)
            finally:
                self.report = last_call()

        return self.runner.run(main())


class Response:
    """A response as HTTP clients have it, which counts how often it was closed."""

    def __init__(self, status: int = 200, **headers: str) -> None:
        self.status_code = status
        self.headers = {name.replace("_", "-").title(): value for name, value in headers.items()}
        self.closed = 0

    def __repr__(self) -> str:
        return f"Response({self.status_code}, {self.headers})"

    def close(self) -> None:
        self.closed += 1

    async def aclose(self) -> None:
        self.close()


class Scripted:
    """An upstream that gives each of these answers in turn, then ``"well"``; records when it is called."""

    def __init__(self, clock: ManualClock, *answers: Any, takes: float = 0.0) -> None:
        self._clock = clock
        self._began_ns = clock.now_ns()
        self._answers = list(answers)
        self._takes = takes
        self.at: list[float] = []

    def __call__(self, answer: Any = "well") -> Any:
        self.at.append(round((self._clock.now_ns() - self._began_ns) / 1e9, 3))
        self._clock.advance(self._takes)
        if self._answers:
            answer = self._answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer
