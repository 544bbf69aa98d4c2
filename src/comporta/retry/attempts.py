"""What hooks, listeners and the called function can read about an attempt: number, wait and outcome.

This module knows neither when another attempt is made nor what an outcome means: ``retry`` and an upstream's
flow decide that. Without hooks and listeners the first attempt of a call costs nothing, because
``current_attempt`` is 1 by default.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from comporta.flow import Effect
from comporta.signatures import require_plain_function

LISTENERS_MAX = 100


@dataclass(frozen=True, slots=True)
class RetryAttempt:
    """One attempt of a call, as passed to hooks. Fields after ``waited`` are set when it has ended."""

    number: int
    """1 for the first attempt of a call, 2 for its first retry."""

    source: str = ""
    """The name of the upstream; empty if the :class:`Retry` is used without one."""

    waited: float = 0.0
    """Seconds spent waiting before this attempt: for its delay and, with an upstream, for the limit."""

    outcome: str = ""
    """``"ok"`` or ``"failure"``; with an upstream any kind of :class:`Outcome`. Empty before the attempt."""

    reason: str = ""
    """A short text about the outcome, for people."""

    error: Exception | None = None
    """What the attempt raised."""

    result: Any = None
    """What the attempt returned."""

    next_delay: float | None = None
    """Seconds until the next attempt, at least; ``None``: there is none."""


AttemptHook = Callable[[RetryAttempt], object]
"""A plain function that gets an attempt before it starts, or after it has ended. Its result is ignored."""

attempt_number: ContextVar[int] = ContextVar("comporta_attempt", default=1)
listeners: list[AttemptHook] = []
"""Functions that get every attempt of this process after it has ended, and those that an upstream refused."""


def current_attempt() -> int:
    """Return the number of the current attempt in this task or thread; 1 outside of a retry."""
    return attempt_number.get()


def listen_to_attempts(listener: AttemptHook) -> Callable[[], None]:
    """Call ``listener`` after every attempt of this process; return a function that removes it.

    The listener runs on the thread of the attempt, and its exceptions are dropped. It also receives attempts
    that an upstream refuses, with the outcome ``"open"`` or ``"limited"``.
    """
    if len(listeners) >= LISTENERS_MAX:
        raise ValueError(f"listeners must be at most {LISTENERS_MAX}: call what this returned to remove one")
    listeners.append(listener)

    def stop() -> None:
        if listener in listeners:
            listeners.remove(listener)

    return stop


class AttemptHooks:
    """The hooks of one retry; also passes its attempts to the listeners."""

    __slots__ = ("_after", "_before", "is_empty")

    def __init__(self, before: AttemptHook | None = None, after: AttemptHook | None = None) -> None:
        for field, hook in (("before_attempt", before), ("after_attempt", after)):
            if hook is not None:
                require_plain_function(field, hook)
        self._before = before
        self._after = after
        self.is_empty = before is None and after is None

    def start(self, number: int, source: str, waited: float) -> RetryAttempt:
        """Call the hook before an attempt, and return the attempt."""
        attempt = RetryAttempt(number, source, waited)
        if self._before is not None:
            self._before(attempt)
        return attempt

    def finish(self, attempt: RetryAttempt, **ended: Any) -> None:
        """Call listeners and the hook after an attempt; ``ended`` has the fields that are now known."""
        attempt = replace(attempt, **ended)
        for listener in tuple(listeners):
            with suppress(Exception):
                listener(attempt)
        if self._after is not None:
            self._after(attempt)


NO_HOOKS = AttemptHooks()


class NumberedAttempt:
    """Effect: perform another effect while ``current_attempt`` returns this number."""

    __slots__ = ("_effect", "_number")

    def __init__(self, effect: Effect, number: int) -> None:
        self._effect = effect
        self._number = number

    def block(self) -> Any:
        """Perform the effect."""
        token = attempt_number.set(self._number)
        try:
            return self._effect.block()
        finally:
            attempt_number.reset(token)

    async def wait(self) -> Any:
        """Perform the effect without blocking the event loop."""
        token = attempt_number.set(self._number)
        try:
            return await self._effect.wait()
        finally:
            with suppress(ValueError):  # an abandoned coroutine may be closed in another context
                attempt_number.reset(token)
