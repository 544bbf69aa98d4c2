"""Taking a permit and a token in one operation, for a call that needs both: both or neither.

If the permit is refused no token is taken, and the reverse, so nothing has to be given back. With an amount
of 0 the operation takes only the permit. The operation also releases permits of calls that have ended
(``held_back.py``).

Lua version: ``call.lua``, below the Lua text of the limit's strategy, ``permit_support.lua`` and
``one_limit.lua``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from comporta.limits.claims import NO_ATTEMPT
from comporta.limits.concurrency.fairness_queue import due_claims_ahead, live_claims, other_claims
from comporta.limits.concurrency.operation import ReleasePermits
from comporta.limits.concurrency.permits import (
    EMPTY_PERMITS,
    PERMIT_SPACE,
    Permit,
    PermitPool,
    changed_permits,
)
from comporta.limits.operation import LimitDemand, on_local_share
from comporta.stores.base import Operation, Script, State, StateKey, key_text
from comporta.stores.lua import script_error
from comporta.stores.outage_info import Outage

NO_PERMIT = -1
"""Replaces the wait for the limit: no permit was free, so the limit was not asked."""


class CallReply(NamedTuple):
    """Whether a call was granted; if not, the wait for the limit in µs, or ``NO_PERMIT``.

    ``others_wait`` is how many other processes wait for a permit. ``is_local`` is true if this worker's share
    decided, not the shared store.
    """

    granted: bool
    wait_us: int
    others_wait: int
    is_local: bool = False


class CallOperation(Operation[CallReply]):
    """Base of the two operations: a demand on a limit, and permits of a pool, of which the first is used."""

    __slots__ = ("_permit_texts", "demand", "permits", "pool", "script")

    script: Script
    reply_size = 3

    def __init__(self, script: Script, demand: LimitDemand, pool: PermitPool, *permits: Permit) -> None:
        self.script = script
        self.demand = demand
        self.pool = pool
        self.permits = permits
        self._permit_texts = [str(permit) for permit in permits]

    @property
    def state_keys(self) -> list[StateKey]:
        """The state of the limit, the claims on it if they count, and the permits with their claims."""
        return [*self.demand.state_keys, self.pool.state_key]

    def script_keys(self) -> tuple[str, str, str]:
        """Return the state of the limit, the permits, and the claims."""
        permits = key_text(PERMIT_SPACE, self.pool.name)
        return self.demand.state_text, permits, f"{permits}:waiting"

    def script_args(self) -> tuple[int, str, int, int, int]:
        """Return the amount, the permits, the numbers of the pool, and the rank of the caller's class."""
        return (
            self.demand.amount,
            "\n".join(self._permit_texts),
            self.pool.max_permits,
            self.pool.permit_ttl_us,
            (self.demand.attempt or NO_ATTEMPT).rank,
        )

    def fallback(self, outage: Outage) -> CallOperation:
        """Return the same operation on this worker's share of the limit and of the permits."""
        demand, pool = on_local_share(self.demand, outage), self.pool.local_share(outage)
        return type(self)(self.script, demand, pool, *self.permits)

    def parse(self, raw: Sequence[Any]) -> CallReply:
        """Parse three numbers; if the first is an error, the second says which key it concerns."""
        granted, wait_us, others_wait = raw
        if not isinstance(granted, int):
            key = self.script_keys()[wait_us]
            raise script_error(granted, key)
        return CallReply(granted == 1, int(wait_us), int(others_wait))


class AcquireForCall(CallOperation):
    """Release all permits but the first, then take the first and the amount, or neither."""

    __slots__ = ()

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[list[State | None], CallReply]:
        """Look for a free permit, then ask the limit."""
        *limit_states, permits_state = states
        limit_state, limit_claims = self.demand.split_states(limit_states)
        unchanged: list[State | None] = [None] * len(limit_states)
        pool, owner = self.pool, self.permits[0].owner
        claims = live_claims((permits_state or EMPTY_PERMITS)[1], now_us)
        others_wait = len(other_claims(claims, owner))
        held = pool.held_permits(permits_state, now_us)
        others = tuple(permit for permit in held if permit[1] not in self._permit_texts)
        without = changed_permits(permits_state, others, claims)
        if len(others) + due_claims_ahead(claims, owner, now_us) >= pool.max_permits:
            return [*unchanged, without], CallReply(False, NO_PERMIT, others_wait, pool.is_local)
        new, wait_us = None, 0
        if self.demand.amount:
            new, wait_us = self.demand.take(limit_state, limit_claims, now_us)
        if wait_us:
            return [new, *unchanged[1:], without], CallReply(False, wait_us, others_wait, pool.is_local)
        granted = changed_permits(
            permits_state, (*others, (now_us + pool.permit_ttl_us, self._permit_texts[0])), claims
        )
        return [new, *unchanged[1:], granted], CallReply(True, 0, others_wait, pool.is_local)

    def undo(self, reply: CallReply) -> Operation[Any] | None:
        """Return the operation that releases the permit and the amount of a cancelled caller."""
        if not reply.granted:
            return None
        if not self.demand.amount:
            return ReleasePermits(self.pool, self.permits[0])
        return ReleaseCall(self.script, self.demand.released, self.pool, self.permits[0])


class ReleaseCall(CallOperation):
    """Release the permits and the amount, which is below 0."""

    __slots__ = ()

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[list[State | None], CallReply]:
        """Release both."""
        limit_state, permits_state = states
        claims = live_claims((permits_state or EMPTY_PERMITS)[1], now_us)
        held = self.pool.held_permits(permits_state, now_us)
        others = tuple(permit for permit in held if permit[1] not in self._permit_texts)
        new = None
        if limit_state is not None:
            new = self.demand.strategy.release(limit_state, now_us, -self.demand.amount)
        others_wait = len(other_claims(claims, self.permits[0].owner))
        return [new, changed_permits(permits_state, others, claims)], CallReply(True, 0, others_wait)
