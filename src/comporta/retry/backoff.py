"""How long to wait before each retry. Arithmetic only: it reads no clock and does not sleep.

Each delay is ``factor`` times the one before, plus jitter, so that callers that failed at the same moment do
not retry at the same moment:

=================== ==========================================================================
``(low, high)``     the delay plus ``low`` to ``high`` seconds
``"full"``          0 seconds up to the delay
``"decorrelated"``  ``base`` up to three times the last delay; ``factor`` is not used
=================== ==========================================================================

No delay is shorter than ``min_delay``: the jitter is drawn above it, so that callers stay spread out.

A ``retry_after`` that the upstream sends also gets jitter of up to ``high`` (or ``base``) seconds, because it
usually sends the same value to many callers. So does a delay that has reached ``max_delay``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from comporta.jitter import uniform
from comporta.validators import require_integer, require_number

IDEMPOTENT_METHODS: Final = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PUT", "TRACE"})
"""The HTTP methods that are safe to send twice (RFC 9110); others are retried only on request."""

RETRIES_MAX = 100
SECONDS_MAX = 86_400.0
FACTOR_MAX = 1000.0

Jitter = tuple[float, float] | Literal["full", "decorrelated"]
Draw = Callable[[float, float], float]
"""Returns a random number between two numbers; ``uniform`` is one."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """The number of retries, and the delays before them in seconds; ``deadline`` bounds the whole call."""

    retries: int = 3
    base: float = 2.0
    factor: float = 2.0
    jitter: Jitter = (0.0, 0.5)
    max_delay: float = 60.0
    deadline: float | None = None
    min_delay: float = 0.0

    def __post_init__(self) -> None:
        require_integer("retries", self.retries, 0, RETRIES_MAX)
        require_number("base", self.base, 0, SECONDS_MAX)
        require_number("factor", self.factor, 1, FACTOR_MAX)
        require_number("max_delay", self.max_delay, 0.001, SECONDS_MAX)
        if self.deadline is not None:
            require_number("deadline", self.deadline, 0.001, SECONDS_MAX)
        require_number("min_delay", self.min_delay, 0, SECONDS_MAX)
        if self.min_delay > self.max_delay:
            raise ValueError(
                f"min_delay must be at most max_delay, which is {self.max_delay:g} s, got {self.min_delay:g}"
            )
        _check_jitter(self.jitter)

    def delays(self, draw: Draw = uniform) -> Delays:
        """Return the delays of one call."""
        return Delays(self, draw)


class Delays:
    """The delays of one call, one after the other."""

    __slots__ = ("_backoff", "_draw", "_last", "_left")

    def __init__(self, backoff: Backoff, draw: Draw = uniform) -> None:
        self._backoff = backoff
        self._draw = draw
        self._left = backoff.retries
        self._last: float | None = None

    def next_delay(self, retry_after: float = 0.0, elapsed: float = 0.0) -> float | None:
        """Return how many seconds to wait before the next attempt; ``None`` means to give up.

        ``retry_after`` is the wait that the upstream asks for. The delay is never shorter, so the call gives
        up if ``retry_after`` is above ``max_delay``. ``elapsed`` is the time in seconds since the call
        started: an attempt that would start after the deadline is not worth waiting for.
        """
        backoff = self._backoff
        if self._left == 0 or retry_after > backoff.max_delay:
            return None
        self._left -= 1
        delay = min(self._backoff_delay(), backoff.max_delay)
        if retry_after > delay:
            delay = retry_after + self._spread()
        if backoff.deadline is not None and elapsed + delay > backoff.deadline:
            return None
        return delay

    def _backoff_delay(self) -> float:
        backoff, draw, last = self._backoff, self._draw, self._last
        least = backoff.min_delay
        if backoff.jitter == "decorrelated":
            low = max(backoff.base, least)
            high = 3 * (low if last is None else last)
            self._last = min(draw(low, max(low, high)), backoff.max_delay)
            return self._last
        # bounded at each step, because 1000 ** 100 does not fit a float
        plain = self._last = min(backoff.base if last is None else last * backoff.factor, backoff.max_delay)
        if backoff.jitter == "full":
            return draw(least, max(least, plain))
        low, high = backoff.jitter
        return max(least, min(plain, backoff.max_delay - high)) + draw(low, high)

    def _spread(self) -> float:
        """Return the jitter that is added to a ``retry_after``."""
        backoff = self._backoff
        low, high = (0.0, backoff.base) if isinstance(backoff.jitter, str) else backoff.jitter
        return self._draw(low, high)


def _check_jitter(jitter: object) -> None:
    if jitter in ("full", "decorrelated"):
        return
    if not (isinstance(jitter, tuple) and len(jitter) == 2):
        raise TypeError(f"jitter must be (low, high), 'full' or 'decorrelated', got {jitter!r:.50}")
    low, high = jitter
    require_number("jitter", low, 0, SECONDS_MAX)
    require_number("jitter", high, 0, SECONDS_MAX)
    if low > high:
        raise ValueError(f"jitter must be (low, high) with low at most high, got {jitter}")
