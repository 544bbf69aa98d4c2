"""How long to wait before each new try. Pure: it reads no clock and sleeps nowhere.

Each wait is longer than the one before by ``factor``, with jitter, so that callers who failed together do not
come back together:

=================== ==========================================================================
``(low, high)``     the wait, and between ``low`` and ``high`` seconds on top of it
``"full"``          anything between nothing and the wait
``"decorrelated"``  anything between ``base`` and three times the last wait; ``factor`` is not used
=================== ==========================================================================

Those who wait as long as they were told to were told so together: they, too, come a little apart, by up to
``high`` (or ``base``) seconds. And so do those who have come to ``max_delay``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Final, Literal

from comporta.chance import uniform

IDEMPOTENT_METHODS: Final = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PUT", "TRACE"})
"""The HTTP methods that may be sent twice without harm (RFC 9110); others are retried only where told so."""

RETRIES_MAX = 100
SECONDS_MAX = 86_400.0
FACTOR_MAX = 1000.0

Jitter = tuple[float, float] | Literal["full", "decorrelated"]
Draw = Callable[[float, float], float]
"""Draws a number between two; ``uniform`` is one."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """How often to try again, and after how many seconds each; ``deadline`` is over all tries together."""

    retries: int = 3
    base: float = 2.0
    factor: float = 2.0
    jitter: Jitter = (0.0, 0.5)
    max_delay: float = 60.0
    deadline: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.retries, bool) or not isinstance(self.retries, int):
            raise TypeError(f"retries must be an int, got {self.retries!r:.50}")
        if not 0 <= self.retries <= RETRIES_MAX:
            raise ValueError(f"retries must be 0 to {RETRIES_MAX}, got {self.retries}")
        check_range("base", self.base, 0, SECONDS_MAX)
        check_range("factor", self.factor, 1, FACTOR_MAX)
        check_range("max_delay", self.max_delay, 0.001, SECONDS_MAX)
        if self.deadline is not None:
            check_range("deadline", self.deadline, 0.001, SECONDS_MAX)
        _check_jitter(self.jitter)

    def delays(self, draw: Draw = uniform) -> Delays:
        """Return the waits of one call."""
        return Delays(self, draw)


class Delays:
    """The waits of one call, one after the other."""

    __slots__ = ("_backoff", "_draw", "_last", "_left")

    def __init__(self, backoff: Backoff, draw: Draw = uniform) -> None:
        self._backoff = backoff
        self._draw = draw
        self._left = backoff.retries
        self._last: float | None = None

    def next_delay(self, retry_after: float = 0.0, elapsed: float = 0.0) -> float | None:
        """Return how many seconds to wait before the next try; ``None``: give up.

        ``retry_after`` is what the other side asks for: it is never shortened, so if it is longer than
        ``max_delay`` there is no next try. Jitter comes on top of it. ``elapsed`` seconds went by since the
        call began: nobody waits past the deadline only to be late.
        """
        backoff = self._backoff
        if self._left == 0 or retry_after > backoff.max_delay:
            return None
        self._left -= 1
        delay = min(self._grown(), backoff.max_delay)
        if retry_after > delay:
            delay = retry_after + self._apart()
        if backoff.deadline is not None and elapsed + delay > backoff.deadline:
            return None
        return delay

    def _grown(self) -> float:
        backoff, draw, last = self._backoff, self._draw, self._last
        if backoff.jitter == "decorrelated":
            high = 3 * (backoff.base if last is None else last)
            self._last = min(draw(backoff.base, max(backoff.base, high)), backoff.max_delay)
            return self._last
        # bounded at each step: a hundred powers of a thousand are no number any more
        plain = self._last = min(backoff.base if last is None else last * backoff.factor, backoff.max_delay)
        if backoff.jitter == "full":
            return draw(0.0, plain)
        low, high = backoff.jitter
        return max(0.0, min(plain, backoff.max_delay - high)) + draw(low, high)

    def _apart(self) -> float:
        backoff = self._backoff
        low, high = (0.0, backoff.base) if isinstance(backoff.jitter, str) else backoff.jitter
        return self._draw(low, high)


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Raise for what is no number of this range."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {value!r:.50}")
    if not (isfinite(value) and low <= value <= high):
        raise ValueError(f"{name} must be {low:g} to {high:g}, got {value}")


def _check_jitter(jitter: object) -> None:
    if jitter in ("full", "decorrelated"):
        return
    if not (isinstance(jitter, tuple) and len(jitter) == 2):
        raise TypeError(f"jitter must be (low, high), 'full' or 'decorrelated', got {jitter!r:.50}")
    low, high = jitter
    check_range("jitter", low, 0, SECONDS_MAX)
    check_range("jitter", high, 0, SECONDS_MAX)
    if low > high:
        raise ValueError(f"jitter must be (low, high) with low at most high, got {jitter}")
