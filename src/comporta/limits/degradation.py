"""Adaptive degradation: errors of an upstream lower its limit for the whole fleet, successes raise it again.

Each error lowers the limit by 10 % of the original, never below a floor; it climbs by as much, one request at
the least, at most every five seconds, whoever of the fleet reports. The burst follows in the same step. Or,
with ``rule="accepted"``, an error lowers it at once to a little below what the upstream was accepting.

What is lowered is the record that every decision reads (``in_force.py``); nothing is kept here but when this
worker last tried to climb.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from comporta.clock import to_us
from comporta.errors import StateError
from comporta.flow import Flow, run, run_async
from comporta.limits.adjust import Adjusted, Climb, Drop, DropTo
from comporta.limits.in_force import Timed, per_second
from comporta.limits.telling import tell
from comporta.steps import WHOLE, millionths

if TYPE_CHECKING:
    from comporta.limits.limiter import BaseLimiter
    from comporta.stores.base import Operation

RULES: Final = ("steps", "accepted")
KEPT_OF_ACCEPTED: Final = 0.85
"""How much of the rate that was being accepted is asked for after a refusal."""

EVERY_MAX = 300.0
"""A degradation that nobody touches for this long is over, so steps cannot be further apart."""


class Degradation:
    """Lowers and raises a limit by what the upstream answers; for all who share the limit.

    ::

        degradation = Degradation(limiter)
        try:
            answer = await call()
        except UpstreamError:
            await degradation.record_error()
        else:
            await degradation.record_success()

    ``drop``, ``floor`` and ``climb`` are parts of the original limit, ``every`` the seconds between two
    climbs, and from a drop to the first. ``rule="accepted"`` lowers the limit to 0.85 of the rate that was
    being accepted, once in ``round_trip`` seconds: give ``record_error`` the requests per second that the
    whole fleet got through (this worker's own of the last second, times the live workers); left out, it is
    the limit itself.

    A success costs no round trip unless this worker knows that the limit is lowered. While the shared state
    is out of reach nothing is lowered or raised, and nobody is told so: workers share the limit as they last
    knew it. An operator's ``change()`` begins anew from his numbers.
    """

    def __init__(
        self,
        limiter: BaseLimiter,
        drop: float = 0.1,
        floor: float = 0.1,
        climb: float = 0.1,
        every: float = 5.0,
        *,
        rule: str = "steps",
        round_trip: float = 1.0,
    ) -> None:
        for name, part in (("drop", drop), ("floor", floor), ("climb", climb)):
            _check(name, part, "above 0 and at most 1", 0, 1)
        _check("every", every, f"above 0 and at most {EVERY_MAX:g} seconds", 0, EVERY_MAX)
        _check("round_trip", round_trip, f"above 0 and at most {EVERY_MAX:g} seconds", 0, EVERY_MAX)
        if rule not in RULES:
            raise ValueError(f"rule must be one of {', '.join(RULES)}, got {rule!r:.50}")
        self.limiter = limiter
        self.rule = rule
        self.drop, self.floor, self.climb = drop, floor, climb
        self.every, self.round_trip = every, round_trip
        self.verbs = DegradationVerbs(self)
        self.sync = SyncDegradation(self)

    @property
    def current(self) -> float:
        """The limit in force in requests per second, as far as this worker knows."""
        return rates_of(self.limiter)[0]

    @property
    def original(self) -> float:
        """The limit that it climbs back to, in requests per second."""
        return rates_of(self.limiter)[1]

    async def record_error(self, accepted_rate: float | None = None) -> None:
        """Lower the limit: the upstream is overloaded, or refused."""
        await run_async(self.verbs.dropping(accepted_rate))

    async def record_success(self) -> None:
        """Raise the limit by a step, if it is lowered and it is time."""
        if self.verbs.is_due():
            await run_async(self.verbs.climbing())

    def get_state(self) -> dict[str, Any]:
        """Return the figures for a health page, as far as this worker knows."""
        current, original = self.current, self.original
        return {
            "limiter": self.limiter.name,
            "current": current,
            "original": original,
            "degraded": current < original,
            "rule": self.rule,
        }


class DegradationVerbs:
    """What one can tell a degradation, each verb once, as a flow."""

    def __init__(self, degradation: Degradation) -> None:
        self._owner = degradation
        self._limit = degradation.limiter.verbs
        shares = (degradation.drop, degradation.floor, degradation.climb)
        self._drop, self._floor, self._climb = map(millionths, shares)
        self._every_us, self._round_trip_us = to_us(degradation.every), to_us(degradation.round_trip)
        self._tried_us: int | None = None

    def dropping(self, accepted_rate: float | None = None) -> Flow[bool]:
        """Lower the limit; true if it was lowered."""
        if accepted_rate is not None:
            _check("accepted_rate", accepted_rate, "0 to 1e9 requests per second", -1e-9, 1e9)
        self._tried_us = self._limit.store.clock.now_ns() // 1000
        adjusted = yield from self._adjusting(self._lowering(accepted_rate))
        if adjusted is None or not adjusted.changed:
            return False
        if self._limit.leases is not None:
            yield from self._limit.leases.recalling()
        self._tell("degraded", "lowered", adjusted, "warning")
        return True

    def climbing(self) -> Flow[bool]:
        """Raise the limit by a step; true if it was raised."""
        self._tried_us = self._limit.store.clock.now_ns() // 1000
        numbers = (self._climb, self._every_us)
        adjusted = yield from self._adjusting(Climb(self._limit.name, self._limit.numbers, *numbers))
        if adjusted is None or not adjusted.changed:
            return False
        if self._limit.leases is not None:
            self._limit.leases.ask_all_again()
        self._limit.lines.call_all_first()
        self._tell("recovered", "raised", adjusted, "info")
        return True

    def is_due(self) -> bool:
        """Whether a success may have something to raise, as far as can be told without asking."""
        rule = self._limit.known()
        lowered = isinstance(rule, Timed) and rule.record.share < WHOLE
        if not (lowered or self._limit.blind):
            return False
        now_us = self._limit.store.clock.now_ns() // 1000
        return self._tried_us is None or not 0 <= now_us - self._tried_us < self._every_us

    def _lowering(self, accepted_rate: float | None) -> Operation[Adjusted]:
        name, numbers = self._limit.name, self._limit.numbers
        if self._owner.rule == "steps":
            return Drop(name, numbers, self._drop, self._floor)
        rate = self._owner.current if accepted_rate is None else accepted_rate
        passes = round(1000 * KEPT_OF_ACCEPTED * rate)
        return DropTo(name, numbers, passes, self._floor, self._round_trip_us)

    def _adjusting(self, operation: Operation[Adjusted]) -> Flow[Adjusted | None]:
        """Change what is in force; where that cannot be done, the call that went wrong is not to blame."""
        try:
            return (yield from self._limit.adjusting(operation))
        except StateError:
            return None

    def _tell(self, what: str, how: str, adjusted: Adjusted, severity: str) -> None:
        original = self._owner.original
        was, now = (original * share / WHOLE for share in (adjusted.before, adjusted.share))
        text = f"{how} from {was:g} to {now:g} requests per second, of {original:g}"
        tell(what, self._limit.name, text, severity)


class SyncDegradation:
    """The verbs of a degradation, blocking: ``degradation.sync``."""

    __slots__ = ("_verbs",)

    def __init__(self, degradation: Degradation) -> None:
        self._verbs = degradation.verbs

    def record_error(self, accepted_rate: float | None = None) -> None:
        """Lower the limit: the upstream is overloaded, or refused."""
        run(self._verbs.dropping(accepted_rate))

    def record_success(self) -> None:
        """Raise the limit by a step, if it is lowered and it is time."""
        if self._verbs.is_due():
            run(self._verbs.climbing())


def rates_of(limiter: BaseLimiter) -> tuple[float, float]:
    """Return the limit in force and that without degradation, in requests per second, as known here."""
    verbs = limiter.verbs
    rule = verbs.known()
    if not isinstance(rule, Timed):
        return per_second(rule.numbers), per_second(rule.numbers)
    now_us = None if verbs.is_remote else verbs.store.clock.now_ns() // 1000  # a server's is not known here
    current, original = rule.numbers_at(now_us)
    return per_second(current), per_second(original)


def _check(name: str, value: float, allowed: str, above: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {value!r:.50}")
    if not (isfinite(value) and above < value <= most):
        raise ValueError(f"{name} must be {allowed}, got {value}")
