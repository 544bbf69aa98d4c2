"""What a limiter answers."""

from __future__ import annotations

from dataclasses import dataclass

from comporta.clock import to_seconds
from comporta.limits.operation import Answer
from comporta.stores.failover import Fallback


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether it may pass, and how the key stands now. Times are float seconds.

    ``retry_after`` is 0 when allowed; otherwise the same request is refused before and granted then, if
    nobody else comes in between. ``reset_after`` is when the key will be as if never used. ``paused`` is for
    how long nothing will be granted, whatever is left.
    """

    allowed: bool
    limit: int
    remaining: int
    retry_after: float
    reset_after: float
    paused: float = 0.0

    def __bool__(self) -> bool:
        """So that ``if await limiter.decide(key):`` reads well."""
        return self.allowed

    @classmethod
    def of(cls, answer: Answer, *, allowed: bool) -> Decision:
        """Return the decision in a store's answer."""
        return cls(
            allowed,
            answer.capacity,
            answer.remaining,
            to_seconds(answer.retry_us),
            to_seconds(answer.reset_us),
            to_seconds(answer.paused_us),
        )


@dataclass(frozen=True, slots=True)
class Stats:
    """How a key stands, for health pages (A10).

    ``fallback`` says since when and why this worker is on its own; then the figures are those of its share.
    ``limit`` is the capacity in force and ``original`` what it is if not degraded; ``paused`` the seconds for
    which nothing will be granted.
    """

    tokens_available: int
    requests_last_minute: int
    limit: int
    fallback: Fallback | None = None
    paused: float = 0.0
    original: int = 0
