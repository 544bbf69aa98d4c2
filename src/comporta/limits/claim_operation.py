"""Taking from one limit with a priority class, in order with the waiters of other processes.

It works like ``AcquireOperation``, but leaves untouched the headroom of higher classes and the units that
others claimed before; a caller that waits leaves a claim of its own (``claims.py``).

Lua version: ``claims.lua``, below the Lua text of the strategy, ``headroom.lua`` and ``claim_support.lua``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from comporta.limits.claims import (
    ClaimAttempt,
    changed_claims,
    claims_after,
    live_claims,
    retry_wait_us,
    take_in_order,
    units_ahead,
)
from comporta.limits.operation import LimitDemand, LimitOperation, on_local_share
from comporta.limits.reply import unusable_key_error
from comporta.stores.base import Operation, Script, State, StateKey
from comporta.stores.outage_info import Outage


class ClaimOperation(Operation[int]):
    """Take an amount from one limit; the reply is the wait in microseconds.

    Without an ``attempt`` there are no claims: no other process sees the state.
    """

    __slots__ = ("_demand", "script")

    script: Script

    def __init__(self, script: Script, demand: LimitDemand, attempt: ClaimAttempt | None) -> None:
        self.script = script
        self._demand = demand if demand.attempt is attempt else demand._replace(attempt=attempt)

    @property
    def state_keys(self) -> list[StateKey]:
        """The state of the key, and the claims on it."""
        return self._demand.state_keys

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[list[State | None], int]:
        """Take what neither a headroom nor a claim reserves, and renew or withdraw the claim."""
        attempt = self._demand.attempt
        if attempt is None:
            new, wait_us = self._take(states[0], now_us, 0)
            return [new], wait_us
        state, old = states
        claims = live_claims(old or (), now_us)
        new, wait_us = self._take(state, now_us, units_ahead(claims, attempt, now_us))
        claims = claims_after(claims, attempt, now_us, self._demand.amount, wait_us)
        return [new, changed_claims(old, claims)], retry_wait_us(claims, attempt, now_us, wait_us)

    def _take(self, state: State | None, now_us: int, ahead: int) -> tuple[State | None, int]:
        strategy, amount = self._demand.strategy, self._demand.amount
        floor = self._demand.headroom.floor(strategy, state, now_us, amount)
        return take_in_order(strategy, state, now_us, amount, floor=floor, ahead=ahead)

    def script_keys(self) -> tuple[str]:
        """Return the state of the key, which also holds the claims."""
        return (self._demand.state_text,)

    def script_args(self) -> tuple[int, ...]:
        """Return the amount, the headroom and the attempt."""
        attempt = self._demand.attempt or ClaimAttempt(0, 0)
        return (self._demand.amount, self._demand.headroom.units, *attempt)

    def undo(self, reply: int) -> LimitOperation | None:
        """Return the operation that releases the amount granted to a cancelled caller."""
        return None if reply else LimitOperation([self._demand.released])

    def fallback(self, outage: Outage) -> ClaimOperation:
        """Return the operation that takes from this worker's share of the limit, which has no claims."""
        return ClaimOperation(self.script, on_local_share(self._demand, outage), None)

    def parse(self, raw: Sequence[Any]) -> int:
        """Parse the wait, or raise the error that the script returned for the key."""
        wait_us = raw[0]
        if isinstance(wait_us, int):
            return wait_us
        raise unusable_key_error(self._demand.name, self._demand.key, wait_us)
