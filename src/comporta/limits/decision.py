"""What a limiter returns to its callers: decisions and statistics, with times in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from comporta.clock import to_seconds
from comporta.limits.reply import LimitReply
from comporta.stores.outage_info import Fallback


class Decision(NamedTuple):
    """Whether a request is allowed, and the use of its key. Times are float seconds.

    ``limit`` is the capacity in effect, and ``remaining`` how many units the key could still take now.
    ``retry_after`` is 0 for an allowed request. Otherwise the limiter refuses the same request until then and
    grants it afterwards, unless another caller takes the capacity first. ``reset_after`` is when the key will
    be unused again. ``paused`` is how long the limit grants nothing, whatever remains. ``would_refuse`` is
    true if the request is allowed only because the limit is in shadow mode.
    """

    allowed: bool
    limit: int
    remaining: int
    retry_after: float
    reset_after: float
    paused: float = 0.0
    would_refuse: bool = False

    def __bool__(self) -> bool:
        """Return ``allowed``, so that ``if await limiter.decide(key):`` works."""
        return self.allowed


@dataclass(frozen=True, slots=True)
class Stats:
    """The use of a key, for health pages (A10).

    ``tokens_available`` is how many units the key could take now, and ``requests_last_minute`` how many it
    took in the last minute. ``limit`` is the capacity in effect, ``original`` the capacity without
    degradation, and ``paused`` the seconds for which the limit grants nothing. ``fallback`` says since when
    and why this worker decides from its local share; the numbers then describe the share.
    """

    tokens_available: int
    requests_last_minute: int
    limit: int
    fallback: Fallback | None = None
    paused: float = 0.0
    original: int = 0


def decision_from_reply(reply: LimitReply, *, allowed: bool) -> Decision:
    """Return the decision that corresponds to a limit's reply."""
    return Decision(
        allowed,
        reply.capacity,
        reply.remaining,
        to_seconds(reply.retry_us),
        to_seconds(reply.reset_us),
        to_seconds(reply.paused_us),
    )
