"""Adaptive degradation: upstream errors lower the limit for the whole fleet, successes raise it again.

Each error lowers the limit by 10 % of the original, never below a floor. Successes raise it by the same
amount, but by at least one request, at most every 5 s across all workers. The burst follows in the same step.
With ``rule="accepted"`` an error lowers the limit at once to slightly below the rate that the upstream
accepted. With ``rule="cubic"`` it lowers the limit by 20 % of the current one, and successes raise it along
the curve of CUBIC (RFC 9438): fast up to slightly below the level of the error, slowly past it, and then
faster and faster.

The limit's override record holds all of this, and every decision reads it (``record.py``). This module keeps
only the time at which this worker last tried to raise the limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from comporta.clock import to_us
from comporta.errors import StateError
from comporta.flow import Flow, run, run_async
from comporta.limits.overrides.notifications import publish_limit_event
from comporta.limits.overrides.operation import (
    LowerByFraction,
    LowerByStep,
    LowerToRate,
    OverrideReply,
    RaiseAlongCurve,
    RaiseByStep,
)
from comporta.limits.overrides.record import ExpiringStrategy, rate_per_second, rate_text
from comporta.limits.wait_queue import TIMEOUT_MAX
from comporta.ramp import FULL_SHARE, millionths
from comporta.validators import require_choice, require_number

if TYPE_CHECKING:
    from comporta.limits.limiter import BaseLimiter
    from comporta.limits.strategies.base import LimitParams
    from comporta.stores.base import Operation

RULES: Final = ("steps", "accepted", "cubic")
DROPS: Final = {"steps": 0.1, "accepted": 0.1, "cubic": 0.2}
EVERY_SECONDS: Final = {"steps": 5.0, "accepted": 5.0, "cubic": 3.0}
"""The defaults of ``drop`` and ``every``."""

ACCEPTED_FRACTION: Final = 0.85
"""The fraction of the accepted rate that the limit is lowered to after a refusal."""

EVERY_MAX = 300.0
"""A degradation ends after this time without a step, so steps cannot be further apart."""

ACCEPTED_RATE_MAX = 1_000_000_000

_CURVE_STEPS = 10
"""A curve is followed in at least this many steps from a drop back to its peak."""

_SENT_MARGIN_US = 50_000
"""A call that was sent up to this long after a drop counts as sent before it, because the drop reaches a
worker, and the refusal reaches the store, only a round trip later."""


class Degradation:
    """Lowers and raises a limit according to the upstream's answers, for every worker that shares it.

    ::

        degradation = Degradation(limiter)
        try:
            response = await call()
        except UpstreamError:
            await degradation.record_error()
        else:
            await degradation.record_success()

    ``drop``, ``floor`` and ``climb`` are fractions of the original limit, ``every`` the seconds between two
    raises and from a drop to the first raise. ``rule="accepted"`` lowers the limit to 0.85 of the accepted
    rate, once in ``round_trip`` seconds: pass ``record_error`` the requests per second that the upstream
    accepted from the whole fleet (this worker's own rate of the last second times the number of live
    workers). The default is the limit itself. With ``rule="cubic"``, ``drop`` is a fraction of the current
    limit (0.2), ``every`` the seconds from a drop back to the level before it (3), and ``climb`` is not used.

    Each error lowers the limit. Pass ``took``, the seconds from sending a request to its refusal, to lower it
    once for all requests that the upstream refuses at the same time.

    A success costs no round trip unless this worker knows that the limit is lowered. While the shared store
    is unreachable, errors and successes have no effect: workers divide the last limit that they know. After
    an operator's ``set_limit()`` the degradation restarts from the operator's numbers.

    ``sync`` has the same methods for blocking code.
    """

    def __init__(
        self,
        limiter: BaseLimiter,
        drop: float | None = None,
        floor: float = 0.1,
        climb: float = 0.1,
        every: float | None = None,
        *,
        rule: str = "steps",
        round_trip: float = 1.0,
    ) -> None:
        self.rule = require_choice("rule", rule, RULES)
        drop = DROPS[rule] if drop is None else drop
        every = EVERY_SECONDS[rule] if every is None else every
        for name, fraction in (("drop", drop), ("floor", floor), ("climb", climb)):
            require_number(name, fraction, above=0, maximum=1)
        require_number("every", every, above=0, maximum=EVERY_MAX, unit="seconds")
        require_number("round_trip", round_trip, above=0, maximum=EVERY_MAX, unit="seconds")
        self.limiter = limiter
        self.drop, self.floor, self.climb = drop, floor, climb
        self.every, self.round_trip = every, round_trip
        self._flows = DegradationFlows(self)
        self.sync = SyncDegradation(self)

    @property
    def current(self) -> float:
        """The limit in effect in requests per second, as far as this worker knows."""
        return limiter_rates(self.limiter)[0]

    @property
    def original(self) -> float:
        """The limit without degradation in requests per second."""
        return limiter_rates(self.limiter)[1]

    async def record_error(self, accepted_rate: float | None = None, *, took: float | None = None) -> None:
        """Lower the limit: the upstream is overloaded, or refused a request.

        With ``took``, nothing changes if any worker lowered the limit after this request was sent, or lowered
        it for the current pause, however late the refusal arrives.
        """
        await run_async(self._flows.lower_flow(accepted_rate, took))

    async def record_success(self) -> None:
        """Raise the limit by a step if it is lowered and the last step was long enough ago."""
        if self._flows.is_due():
            await run_async(self._flows.raise_flow())

    def get_state(self) -> dict[str, Any]:
        """Return the numbers for a health page, as far as this worker knows."""
        current, original = self.current, self.original
        return {
            "limiter": self.limiter.name,
            "current": current,
            "original": original,
            "degraded": current < original,
            "rule": self.rule,
        }


class DegradationFlows:
    """The flows of a degradation."""

    def __init__(self, degradation: Degradation) -> None:
        self._degradation = degradation
        self._limit_flows = degradation.limiter._flows
        self._is_remote = self._limit_flows.bound.remote is not None
        fractions = (degradation.drop, degradation.floor, degradation.climb)
        self._drop, self._floor, self._climb = map(millionths, fractions)
        self._every_us, self._round_trip_us = to_us(degradation.every), to_us(degradation.round_trip)
        self._is_curve = degradation.rule == "cubic"
        self._step_us = max(1, self._every_us // _CURVE_STEPS)
        self._last_attempt_us: int | None = None
        self._lowered_us: int | None = None
        """When this worker last learned that it lowered the limit; the record forgets that on recovery."""

    def lower_flow(self, accepted_rate: float | None = None, took: float | None = None) -> Flow[bool]:
        """Lower the limit; true if it was lowered."""
        if accepted_rate is not None:
            require_number("accepted_rate", accepted_rate, 0, ACCEPTED_RATE_MAX, unit="requests per second")
        if took is not None:
            require_number("took", took, 0, TIMEOUT_MAX, unit="seconds")
        now_us = self._limit_flows.store.clock.now_ns() // 1000
        if took is not None and self._is_answered_here(now_us, now_us - to_us(took)):
            return False
        age_us = 0 if took is None else to_us(took) + _SENT_MARGIN_US
        self._last_attempt_us = now_us
        reply = yield from self._override_flow(self._lower_operation(accepted_rate, age_us))
        if reply is None or not reply.changed:
            return False
        self._lowered_us = self._limit_flows.store.clock.now_ns() // 1000
        if self._limit_flows.lease_client is not None:
            yield from self._limit_flows.lease_client.recall_flow()
        self._publish("degraded", "lowered", reply, "warning")
        return True

    def _is_answered_here(self, now_us: int, sent_us: int) -> bool:
        """Whether this worker lowered the limit after it sent a call, however long ago that was."""
        return self._lowered_us is not None and sent_us <= self._lowered_us <= now_us

    def raise_flow(self) -> Flow[bool]:
        """Raise the limit by a step; true if it was raised."""
        flows = self._limit_flows
        self._last_attempt_us = flows.store.clock.now_ns() // 1000
        reply = yield from self._override_flow(self._raise_operation())
        if reply is None or not reply.changed:
            return False
        if flows.lease_client is not None:
            flows.lease_client.forget_all_refusals()
        flows.wait_queue.wake_all_first()
        if not self._is_curve or reply.share == FULL_SHARE:  # a curve has too many steps to publish every one
            self._publish("recovered", "raised", reply, "info")
        return True

    def is_due(self) -> bool:
        """Whether a success may raise the limit, as far as this worker knows without a round trip."""
        strategy = self._limit_flows.current_strategy()
        if strategy.lasting and not (self._is_remote and self._limit_flows.overrides.misses_remote_changes):
            return False  # no override that ends by itself; a type check would cost more
        is_lowered = isinstance(strategy, ExpiringStrategy) and strategy.record.share < FULL_SHARE
        if not (is_lowered or self._limit_flows.overrides.misses_remote_changes):
            return False
        now_us = self._limit_flows.store.clock.now_ns() // 1000
        if self._last_attempt_us is None:
            return True
        return not 0 <= now_us - self._last_attempt_us < self._attempt_every_us()

    def _attempt_every_us(self) -> int:
        """Return the interval between this worker's attempts: the fleet together makes one per step."""
        if not self._is_curve:
            return self._every_us
        return min(self._every_us, self._step_us * (self._limit_flows.store.worker_count or 1))

    def _raise_operation(self) -> Operation[OverrideReply]:
        name, params = self._limit_flows.name, self._limit_flows.params
        if self._is_curve:
            return RaiseAlongCurve(name, params, self._drop, self._every_us, self._step_us)
        return RaiseByStep(name, params, self._climb, self._every_us)

    def _lower_operation(self, accepted_rate: float | None, age_us: int) -> Operation[OverrideReply]:
        name, params = self._limit_flows.name, self._limit_flows.params
        clock = self._limit_flows.store.clock
        if self._is_curve:
            return LowerByFraction(name, params, self._drop, self._floor, age_us, clock=clock)
        if self._degradation.rule == "steps":
            return LowerByStep(name, params, self._drop, self._floor, age_us, clock=clock)
        rate = self._degradation.current if accepted_rate is None else accepted_rate
        per_1000_s = round(1000 * ACCEPTED_FRACTION * rate)
        return LowerToRate(name, params, per_1000_s, self._floor, age_us, self._round_trip_us, clock=clock)

    def _override_flow(self, operation: Operation[OverrideReply]) -> Flow[OverrideReply | None]:
        """Change the override; ``None`` if the store fails, which must not fail the caller's request."""
        try:
            return (yield from self._limit_flows.overrides.change_flow(operation))
        except StateError:
            return None

    def _publish(self, what: str, verb: str, reply: OverrideReply, severity: str) -> None:
        original = self._degradation.original
        shares = (reply.before, reply.share, FULL_SHARE)
        before, now, full = (rate_text(original * share / FULL_SHARE) for share in shares)
        text = f"{verb} from {before} to {now} requests per second, of {full}"
        publish_limit_event(what, self._limit_flows.name, text, severity)


class SyncDegradation:
    """The methods of a degradation, blocking: ``degradation.sync``."""

    __slots__ = ("_flows",)

    def __init__(self, degradation: Degradation) -> None:
        self._flows = degradation._flows

    def record_error(self, accepted_rate: float | None = None, *, took: float | None = None) -> None:
        """Lower the limit: the upstream is overloaded, or refused a request."""
        run(self._flows.lower_flow(accepted_rate, took))

    def record_success(self) -> None:
        """Raise the limit by a step if it is lowered and the last step was long enough ago."""
        if self._flows.is_due():
            run(self._flows.raise_flow())


def limiter_rates(limiter: BaseLimiter) -> tuple[float, float]:
    """Return the limit in effect and the limit without degradation in requests/s, as this worker knows it."""
    current, original = limiter_params(limiter)
    return rate_per_second(current), rate_per_second(original)


def limiter_params(limiter: BaseLimiter) -> tuple[LimitParams, LimitParams]:
    """Return the parameters in effect and without degradation, as this worker knows them."""
    flows = limiter._flows
    strategy = flows.current_strategy()
    if not isinstance(strategy, ExpiringStrategy):
        return strategy.params, strategy.params
    # this worker does not know the clock of a server
    now_us = None if flows.is_remote else flows.store.clock.now_ns() // 1000
    return strategy.params_at(now_us)
