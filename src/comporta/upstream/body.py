"""The last part of an attempt: the caller reads the body of the answer.

A transport returns its response when the headers have arrived. The attempt lasts until the body ends or
breaks off, or until the caller closes or drops it. Until then the call keeps its permit and has no outcome.
This module knows no HTTP client: a transport passes each read through an :class:`OpenBody`.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from comporta.flow import Flow, run, run_async
from comporta.runtime import RUNTIME
from comporta.threads import is_from_destruction, run_elsewhere
from comporta.upstream.renewal import RENEWER

if TYPE_CHECKING:
    from comporta.upstream.flows import UpstreamCall

T = TypeVar("T")

SOCKET_SECONDS_MIN: Final = 0.001
"""The shortest time-out of a socket: 0 would mean that it does not block at all."""

_ROUNDING: Final = 0.01
"""Two clocks that measure the same time differ by less than this many seconds."""

_CANNOT_AWAIT = (GeneratorExit, KeyboardInterrupt, SystemExit)


class ReadTimer:
    """The time that one attempt may still wait for the upstream.

    It runs from the start of the attempt and stops between two reads of the body: a caller that is slow to
    process what it has read does not make the upstream late.
    """

    __slots__ = ("_idle", "_left", "_since", "_stopped", "seconds")

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._left = 0.0 if seconds is None else seconds
        self._idle = self._stopped = 0.0
        self._since: float | None = RUNTIME.monotonic()

    def stop(self) -> None:
        """Stop counting, at the end of a read."""
        since, self._since = self._since, None
        if since is not None:
            self._stopped = RUNTIME.monotonic()
            self._left -= self._stopped - since

    def idle_seconds(self) -> float:
        """Return how long the timer was stopped: the time that the caller took between reads."""
        return self._idle if self._since is not None else self._idle + RUNTIME.monotonic() - self._stopped

    def start(self) -> float | None:
        """Resume counting, at the start of a read; return the seconds left, or ``None`` without a bound.

        Raise ``TimeoutError`` if no time is left.
        """
        self._since = now = RUNTIME.monotonic()
        self._idle += now - self._stopped
        if self.seconds is None:
            return None
        if self._left <= 0:
            raise TimeoutError(self.message)
        return self._left

    def _unspent(self) -> float:
        return self._left if self._since is None else self._left - (RUNTIME.monotonic() - self._since)

    def seconds_left(self) -> float | None:
        """Return the seconds left, at least 0; ``None``: there is no bound."""
        return None if self.seconds is None else max(0.0, self._unspent())

    def require_time(self) -> None:
        """Raise ``TimeoutError`` if no time is left."""
        if self.seconds_left() == 0:
            raise TimeoutError(self.message)

    def shorten(self, seconds: float | None) -> float | None:
        """Return the time-out for one step of a client: its own, or the time left if that is shorter."""
        left = self.seconds_left()
        if left is None:
            return seconds
        left = max(left, SOCKET_SECONDS_MIN)
        return left if seconds is None else min(left, seconds)

    def explain(self, error: Exception) -> Exception:
        """Return the error of an attempt; a bare ``TimeoutError`` when no time is left gets a message."""
        is_bare = type(error) is TimeoutError and not error.args
        left = self.seconds_left()
        return TimeoutError(self.message) if is_bare and left is not None and left < _ROUNDING else error

    @property
    def message(self) -> str:
        """The message of the error that is raised when no time is left."""
        return f"the upstream took longer than the time-out of {self.seconds:g} s"


class StartedAwait:
    """Continues an ``await`` that was started by hand: ``awaited`` is what its iterator yielded first."""

    __slots__ = ("_awaited", "_steps")

    def __init__(self, steps: Any, awaited: Any) -> None:
        self._steps = steps
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, Any]:
        steps, awaited = self._steps, self._awaited
        while True:
            try:
                yield awaited
            except GeneratorExit:
                steps.close()
                raise
            except BaseException as error:
                try:
                    awaited = steps.throw(error)
                except StopIteration as end:
                    return end.value
            else:
                return (yield from steps)


class OpenBody:
    """Reads the body of an answer for its caller, and concludes the call when the body has ended.

    A read that fails is a failure of the attempt. A body that the caller closes or drops between two reads
    counts as a success: the upstream sent everything that it was asked for. A body that a cancellation drops
    during a read counts as neither.

    ``timeout_error`` creates the client's own error from a message.
    """

    __slots__ = ("_forks", "_is_reading", "_permit", "_timeout_error", "_timer", "_unfinished")

    def __init__(
        self, call: UpstreamCall, timer: ReadTimer, timeout_error: Callable[[str], Exception] = TimeoutError
    ) -> None:
        self._unfinished = [call]  # a list, because pop() returns the call to one caller only
        self._timer = timer
        self._timeout_error = timeout_error
        self._is_reading = False
        timer.stop()
        self._forks = RENEWER.get().forks
        self._permit = call.held_permit
        if self._permit is not None:
            RENEWER.get().add(*self._permit)

    def __del__(self) -> None:
        if self._unfinished:
            self.drop()

    @property
    def is_reading(self) -> bool:
        """Whether a read is in progress."""
        return self._is_reading

    def read(self, step: Callable[[], T]) -> T:
        """Make one read, blocking. ``StopIteration`` is the end of the body."""
        self._is_reading = True
        try:
            self._timer.start()
            return step()
        except StopIteration:
            self.finish()
            raise
        except BaseException as error:
            raised = self._translate(error)
            self.finish(raised)
            if raised is not error:
                raise raised from error
            raise
        finally:
            self._timer.stop()
            self._is_reading = False

    async def read_async(self, step: Callable[[], Awaitable[T]]) -> T:
        """Make one read within the time left. ``StopAsyncIteration`` is the end of the body."""
        self._is_reading = True
        try:
            left = self._timer.start()
            if left is None:
                return await step()
            steps: Any = step().__await__()
            try:  # a read that does not have to wait, because the data is there, needs no time-out
                awaited = next(steps)
            except StopIteration as end:
                value: T = end.value
                return value
            return cast(T, await self._wait_in_time(StartedAwait(steps, awaited), left))
        except StopAsyncIteration:
            await self.finish_async()
            raise
        except BaseException as error:
            raised = self._translate(error)
            await self.finish_async(raised)
            if raised is not error:
                raise raised from error
            raise
        finally:
            self._timer.stop()
            self._is_reading = False

    async def _wait_in_time(self, read: StartedAwait, left: float) -> Any:
        """Continue a read that has to wait, for up to ``left`` seconds."""
        import asyncio  # noqa: PLC0415 - 40 ms, and blocking programs do not need it

        try:
            async with asyncio.timeout(left) as scope:
                return await read
        except TimeoutError:
            if not scope.expired():  # a time-out of the client
                raise
            raise TimeoutError(self._timer.message) from None

    def _translate(self, error: BaseException) -> BaseException:
        """Return the client's own error in place of a ``TimeoutError``."""
        return self._timeout_error(str(error)) if type(error) is TimeoutError else error

    def finish(self, error: BaseException | None = None) -> None:
        """Conclude the call, blocking, unless it has been concluded.

        The garbage collector closes a body through the generator that reads it, on a thread that may hold
        any lock: then another thread concludes the call.
        """
        if self._unfinished and is_from_destruction(sys.exception()):
            self.drop(error)
            return
        flow = self._take_flow(error, may_finish=True) if self._unfinished else None
        if flow is not None:
            run(flow)

    async def finish_async(self, error: BaseException | None = None) -> None:
        """Conclude the call without blocking the event loop, unless it has been concluded."""
        if isinstance(error, _CANNOT_AWAIT):
            self.drop()
            return
        flow = self._take_flow(error, may_finish=True) if self._unfinished else None
        if flow is not None:
            await run_async(flow)

    def drop(self, error: BaseException | None = None) -> None:
        """Conclude the call on another thread: for code that cannot wait, and the garbage collector."""
        flow = self._take_flow(GeneratorExit() if error is None and self._is_reading else error)
        if flow is not None:
            run_elsewhere(run, flow)

    def _take_flow(self, error: BaseException | None, *, may_finish: bool = False) -> Flow[None] | None:
        """Return the flow that concludes the call, once; ``may_finish``: do it here if no flow is needed."""
        try:
            call = self._unfinished.pop()
        except IndexError:
            return None
        if self._forks != RENEWER.get().forks:
            return None  # the call belongs to the parent process
        if self._permit is not None:
            RENEWER.get().discard(self._permit[1])
        call.exclude_time(self._timer.idle_seconds())
        if may_finish and error is None and call.finish_body():
            return None
        return call.finish_body_flow(error)
