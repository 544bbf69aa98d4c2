"""Whole decisions where the state is in this process: the fast path of ``acquire``, without a flow.

Inbound limits use it, because they decide every incoming request and report the use of the key to the client.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from comporta.limits.limiter import BaseLimiter
from comporta.limits.reply import LimitReply, build_reply
from comporta.limits.strategies.base import LimitParams, Strategy
from comporta.stores.base import State

if TYPE_CHECKING:
    from comporta.stores.bound_limit import LocalBoundLimit, Step


class FastDecision(NamedTuple):
    """The reply of a limit, and the parameters that it decided by."""

    reply: LimitReply
    params: LimitParams


def fast_decider(limiter: BaseLimiter) -> Callable[[Any, int], FastDecision] | None:
    """Return a function that takes from a limit or raises ``WouldBlock``; ``None`` if a server decides."""
    flows = limiter._flows
    if flows.is_remote:
        return None
    bound = flows.bound if flows.lease_client is None else flows.lease_client.inner
    return cast("LocalBoundLimit", bound).fast_path(_decision_step)


def _decision_step(strategy: Strategy) -> Step[FastDecision]:
    """Return the step of a strategy that replies with a whole decision instead of a wait."""

    def step(state: State | None, now_us: int, cost: int) -> tuple[State | None, FastDecision]:
        new, wait_us = strategy.step(state, now_us, cost)
        reply = build_reply(strategy, new or state, now_us, wait_us, wait_us)
        return new, FastDecision(reply, strategy.params)

    return step
