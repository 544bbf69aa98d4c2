"""Taking from one limit with a priority class, in order with the waiters of other processes.

It takes what ``AcquireOperation`` takes, but leaves the headroom of the higher classes and the units that
others claimed before untouched; a caller that waits leaves a claim of its own (``claims.py``).

Lua version: ``claims.lua``, below the Lua text of the strategy and ``headroom.lua``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from comporta.limits.claims import CLAIMS, ClaimAttempt, claims_after, live_claims, units_ahead
from comporta.limits.operation import LimitDemand, LimitOperation, on_local_share
from comporta.limits.priority import step_above_floor
from comporta.limits.reply import unusable_key_error
from comporta.limits.scripts import CLAIM_SPACE, LIMIT_SPACE
from comporta.limits.strategies.base import Strategy, ceil_div
from comporta.stores.base import GONE, Operation, Outage, Script, State, StateKey, key_text

BLOCKED_US_MIN = 1_000
"""The shortest wait of a caller that others precede, however much there is."""


class ClaimOperation(Operation[int]):
    """Take an amount from one limit; the reply is the wait in microseconds.

    Without an ``attempt`` there are no claims: no other process sees the state.
    """

    __slots__ = ("_attempt", "_demand", "script")

    script: Script

    def __init__(self, script: Script, demand: LimitDemand, attempt: ClaimAttempt | None) -> None:
        self.script = script
        self._demand = demand
        self._attempt = attempt

    @property
    def state_keys(self) -> list[StateKey]:
        """The state of the key, and the claims on it."""
        demand = self._demand
        limit = StateKey(f"{LIMIT_SPACE}:{demand.name}", demand.key, demand.strategy)
        if self._attempt is None:
            return [limit]
        return [limit, StateKey(f"{CLAIM_SPACE}:{demand.name}", demand.key, CLAIMS)]

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[list[State | None], int]:
        """Take what neither a floor nor a claim keeps back, and renew or withdraw the claim."""
        if self._attempt is None:
            new, wait_us = self._take(states[0], now_us, 0)
            return [new], wait_us
        state, old = states
        claims = live_claims(old or (), now_us)
        new, wait_us = self._take(state, now_us, units_ahead(claims, self._attempt, now_us))
        claims = claims_after(claims, self._attempt, now_us, self._demand.amount, wait_us)
        if claims == (old or ()):
            return [new, None], wait_us
        return [new, claims or GONE], wait_us

    def _take(self, state: State | None, now_us: int, ahead: int) -> tuple[State | None, int]:
        strategy, amount = self._demand.strategy, self._demand.amount
        floor = self._demand.headroom.floor(strategy, state, now_us, amount)
        missing = amount + floor + ahead - strategy.effective_at(now_us)[0].params.capacity
        if ahead and missing > 0:
            return _refuse_behind_claims(strategy, state, now_us, missing)
        return step_above_floor(strategy, state, now_us, amount, floor=floor + ahead)

    def script_keys(self) -> tuple[str]:
        """Return the state of the key, which holds the claims, too."""
        return (key_text(f"{LIMIT_SPACE}:{self._demand.name}", self._demand.key),)

    def script_args(self) -> tuple[int, ...]:
        """Return the amount, the headroom and the attempt."""
        return (self._demand.amount, self._demand.headroom.units, *(self._attempt or ClaimAttempt(0, 0)))

    def undo(self, reply: int) -> LimitOperation | None:
        """Return what releases the amount granted to a cancelled caller."""
        if reply:
            return None
        return LimitOperation([self._demand._replace(amount=-self._demand.amount)])

    def fallback(self, outage: Outage) -> ClaimOperation:
        """Return what takes from this worker's share of the limit, which has no claims."""
        return ClaimOperation(self.script, on_local_share(self._demand, outage), None)

    def parse(self, raw: Sequence[Any]) -> int:
        """Parse the wait, or raise the error that the script returned for the key."""
        wait_us = raw[0]
        if isinstance(wait_us, int):
            return wait_us
        raise unusable_key_error(self._demand.name, self._demand.key, wait_us)


def _refuse_behind_claims(
    strategy: Strategy, state: State | None, now_us: int, missing: int
) -> tuple[State | None, int]:
    """Refuse until the units ahead and those of this caller have become available, one after the other.

    Together they are ``missing`` units more than the limit can hold.
    """
    current, paused_us, _ = strategy.effective_at(now_us)
    capacity, per_us, unit, _ = current.params
    new, wait_us = current.step(state, now_us, capacity)
    more_us = ceil_div(missing * unit, per_us) if per_us else 0
    refused = new if wait_us else None  # a refusal changes a state only in time
    return refused, max(wait_us + more_us, paused_us, BLOCKED_US_MIN)
