"""Complete decisions for state in this process: the fast path of ``decide`` and of inbound limits.

Both use the direct path of ``acquire``, without a flow or an operation, and give the same replies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from comporta.clock import SECOND_US
from comporta.limits.decision import Decision, decision_from_reply
from comporta.limits.reply import LimitReply, build_reply
from comporta.limits.strategies.base import LimitParams, Strategy
from comporta.stores.base import State

if TYPE_CHECKING:
    from comporta.limits.flows import LimitFlows
    from comporta.limits.limiter import BaseLimiter
    from comporta.stores.bound_limit import LocalBoundLimit, Step, StepOf

R = TypeVar("R")


class FastDecision(NamedTuple):
    """The reply of a limit, and the parameters on which it is based."""

    reply: LimitReply
    params: LimitParams


def fast_decider(limiter: BaseLimiter) -> Callable[[Any, int], FastDecision] | None:
    """Return a function that takes from a limit or raises ``WouldBlock``; ``None`` if there is no fast path.

    There is none if a server decides, if a ``limit_for`` calls a function of the program, or in shadow mode,
    which counts what the limit would refuse.
    """
    return _fast_path(limiter._flows, _reply_step)


def decision_path(flows: LimitFlows) -> Callable[[Any, int], Decision] | None:
    """Return the fast path of ``decide``, which raises ``WouldBlock`` if the flow must decide instead.

    ``None`` if there is none.
    """
    return _fast_path(flows, _decision_step)


def _fast_path(flows: LimitFlows, step_of: StepOf[R]) -> Callable[[Any, int], R] | None:
    if flows.is_remote or flows.shadow is not None or not flows.bound.decides_in_process:
        return None
    bound = flows.bound if flows.lease_client is None else flows.lease_client.inner
    return cast("LocalBoundLimit", bound).fast_path(step_of)


def _reply_step(strategy: Strategy) -> Step[FastDecision]:
    """Return the step of a strategy that replies with a complete decision instead of a wait."""

    def step(state: State | None, now_us: int, cost: int) -> tuple[State | None, FastDecision]:
        new, wait_us = strategy.step(state, now_us, cost)
        reply = build_reply(strategy, new or state, now_us, wait_us, wait_us)
        return new, FastDecision(reply, strategy.params)

    return step


def _decision_step(strategy: Strategy) -> Step[Decision]:
    """Return the step of a strategy that replies with the decision for the caller."""
    take, available, capacity = strategy.step, strategy.available, strategy.params.capacity
    if not strategy.lasting:
        return _changing_decision_step(strategy)

    def step(state: State | None, now_us: int, cost: int) -> tuple[State | None, Decision]:
        new, wait_us = take(state, now_us, cost)
        remaining, reset_us = available(new or state, now_us)
        wait, reset = wait_us / SECOND_US, reset_us / SECOND_US
        return new, Decision(wait_us == 0, capacity, remaining, wait, reset)

    return step


def _changing_decision_step(strategy: Strategy) -> Step[Decision]:
    """Return the same for a strategy that changes with time: a lowered or paused limit."""

    def step(state: State | None, now_us: int, cost: int) -> tuple[State | None, Decision]:
        new, wait_us = strategy.step(state, now_us, cost)
        reply = build_reply(strategy, new or state, now_us, wait_us, wait_us)
        return new, decision_from_reply(reply, allowed=wait_us == 0)

    return step
