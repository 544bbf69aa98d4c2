"""What an attempt takes from the limits of its upstream: a token of one limit, or a cost of several.

Several limits are decided in one operation, all or none. A single limit keeps its own wait queue and leases.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from typing import NamedTuple

from comporta.errors import StateError
from comporta.flow import Flow
from comporta.limits.arguments import check_cost
from comporta.limits.cost import Cost, cost_amounts
from comporta.limits.decision import Decision
from comporta.limits.group import LimitGroup
from comporta.limits.limiter import BaseLimiter
from comporta.limits.priority import Caller


class LimitRefusal(NamedTuple):
    """Which limit had no capacity, when it may have some (seconds), and how long it is paused (seconds)."""

    limit: str
    retry_after: float
    paused: float


class Tokens(ABC):
    """The limits of an upstream, as attempts use them."""

    __slots__ = ()

    @abstractmethod
    def check_cost(self, cost: Cost) -> Cost:
        """Return what an attempt costs; raise for a cost that these limits cannot charge."""

    @abstractmethod
    def acquire_flow(self, cost: Cost, timeout: float, caller: Caller) -> Flow[bool]:
        """Take the cost, waiting up to ``timeout`` seconds."""

    @abstractmethod
    def release_flow(self, cost: Cost) -> Flow[None]:
        """Give the cost back, because the attempt was not made."""

    @abstractmethod
    def settle_flow(self, reserved: Cost, used: Cost, granted_at: float | None) -> Flow[bool]:
        """Settle what an attempt really cost."""

    @abstractmethod
    def refusal_flow(self, cost: Cost) -> Flow[LimitRefusal]:
        """Return which limit has no capacity for the cost."""


class SingleLimit(Tokens):
    """One limit; a cost is a number."""

    __slots__ = ("_limiter",)

    def __init__(self, limiter: BaseLimiter) -> None:
        self._limiter = limiter

    def check_cost(self, cost: Cost) -> int:
        """Return the number."""
        [amount] = cost_amounts("cost", cost, (self._limiter.name,), (1,))
        check_cost(amount)
        return amount

    def acquire_flow(self, cost: Cost, timeout: float, caller: Caller) -> Flow[bool]:
        """Take the cost."""
        return (yield from self._limiter._flows.acquire_flow(None, self.check_cost(cost), timeout, caller))

    def release_flow(self, cost: Cost) -> Flow[None]:
        """Give the cost back."""
        yield from self._limiter._flows.release_flow(None, self.check_cost(cost))

    def settle_flow(self, reserved: Cost, used: Cost, granted_at: float | None) -> Flow[bool]:
        """Settle with the limit."""
        [taken] = cost_amounts("reserved", reserved, (self._limiter.name,), (1,))
        [spent] = cost_amounts("used", used, (self._limiter.name,), (taken,))
        return (yield from self._limiter._budget.settle_flow(None, taken, spent, granted_at))

    def refusal_flow(self, cost: Cost) -> Flow[LimitRefusal]:
        """Return how long the limit is paused, or takes to refill the cost."""
        return (yield from _limiter_refusal_flow(self._limiter, self.check_cost(cost)))


class SeveralLimits(Tokens):
    """Several limits; a cost is a number for all of them, or numbers by name."""

    __slots__ = ("_group",)

    def __init__(self, group: LimitGroup) -> None:
        self._group = group

    def check_cost(self, cost: Cost) -> Cost:
        """Return the cost."""
        self._group._flows.amounts(cost)
        return cost

    def acquire_flow(self, cost: Cost, timeout: float, caller: Caller) -> Flow[bool]:
        """Take the cost from all limits or from none."""
        return (yield from self._group._flows.acquire_flow(None, cost, timeout, caller))

    def release_flow(self, cost: Cost) -> Flow[None]:
        """Give the cost back to all limits."""
        yield from self._group._flows.release_flow(None, cost)

    def settle_flow(self, reserved: Cost, used: Cost, granted_at: float | None) -> Flow[bool]:
        """Settle with each limit."""
        return (yield from self._group._flows.settle_flow(None, reserved, used, granted_at))

    def refusal_flow(self, cost: Cost) -> Flow[LimitRefusal]:
        """Return the limit that takes longest to refill the cost, or that is paused."""
        refusals = []
        limiters = self._group.limiters.values()
        for limiter, amount in zip(limiters, self._group._flows.amounts(cost), strict=True):
            refusals.append((yield from _limiter_refusal_flow(limiter, amount)))
        return max(refusals, key=lambda refusal: (refusal.paused, refusal.retry_after))


def _limiter_refusal_flow(limiter: BaseLimiter, amount: int) -> Flow[LimitRefusal]:
    """Return how long one limit is paused, or takes to have the amount."""
    retry_after, paused = amount / limiter.config.rate, 0.0
    with suppress(StateError):
        decision: Decision = yield from limiter._flows.peek_flow(None, max(1, amount))
        retry_after, paused = decision.retry_after, decision.paused
    return LimitRefusal(str(limiter.config), retry_after, paused)
