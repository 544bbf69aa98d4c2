"""A limit asked for a whole answer where its state is at hand: the way that ``acquire`` goes, without a flow.

It is for those who ask for every request that comes in, and tell their clients how they stand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from comporta.limits.limiter import BaseLimiter
from comporta.limits.operation import Answer, answered
from comporta.limits.rule import Numbers, Rule
from comporta.stores.base import State

if TYPE_CHECKING:
    from comporta.stores.base import LocalBound, Step


class Told(NamedTuple):
    """What a limit says, and the numbers that it went by."""

    answer: Answer
    numbers: Numbers


def answers_at_once(limiter: BaseLimiter) -> Callable[[Any, int], Told] | None:
    """Return what takes from a limit on the spot or raises ``Busy``; nothing if only a server can tell."""
    verbs = limiter.verbs
    if verbs.is_remote:
        return None
    bound = verbs.bound if verbs.leases is None else verbs.leases.inner
    return cast("LocalBound", bound).short_way(_answering)


def _answering(rule: Rule) -> Step[Told]:
    """Return the step of a rule that does not only say how long to wait."""

    def step(state: State | None, now_us: int, cost: int) -> tuple[State | None, Told]:
        new, wait_us = rule.step(state, now_us, cost)
        return new, Told(answered(rule, new or state, now_us, wait_us, wait_us), rule.numbers)

    return step
