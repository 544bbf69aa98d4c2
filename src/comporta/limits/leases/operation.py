"""The lease operation: end the lease that a worker holds and grant the next one, in one step.

A busy worker makes one call per lease. The units that it needs at once are taken as for any caller; the
additional units are leased. ``client.py`` implements how a worker uses a lease.

Lua version: ``lease.lua``, below the Lua text of the strategy and of its leases.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from comporta.limits.acquire import AcquireOperation, LimitDefinition
from comporta.limits.claims import take_in_order
from comporta.limits.operation import LimitDemand
from comporta.limits.reply import unusable_key_error
from comporta.limits.scripts import lease_script
from comporta.limits.strategies.base import EndedLease, Strategy
from comporta.stores.base import Operation, Script, State, StateKey, key_text
from comporta.stores.outage_info import Outage


class Lease(NamedTuple):
    """The granted amount, how long the leased part of it may be used, and the id of the lease.

    ``wait_us`` is how long until more is available. It is set after a refusal, and when less was granted than
    wanted: a worker that has used up such a lease need not call the store to learn that nothing is left.
    """

    granted: int
    ttl_us: int
    wait_us: int
    lease_id: int


NO_LEASE = EndedLease(0, 0, 0)
REFUSED = Lease(0, 0, 0, 0)


class LeaseSource:
    """One limit as lease operations address it; a lease may be used for at most ``ttl_us``."""

    __slots__ = ("definition", "script", "strategy", "ttl_us")

    def __init__(self, strategy: Strategy, definition: LimitDefinition, ttl_us: int) -> None:
        self.strategy = strategy
        self.definition = definition
        self.ttl_us = ttl_us
        self.script = lease_script(strategy.name, definition.name, (*strategy.params, ttl_us))


class LeaseOperation(Operation[Lease]):
    """End a lease, then take ``needed``, or up to ``wanted`` if available; 0 needed only ends a lease."""

    __slots__ = ("_source", "ended", "key", "needed", "script", "wanted")

    script: Script
    reply_size = len(Lease._fields)

    def __init__(
        self, source: LeaseSource, key: str, needed: int, wanted: int, ended: EndedLease = NO_LEASE
    ) -> None:
        self._source = source
        self.script = source.script
        self.key = key
        self.needed = needed
        self.wanted = wanted
        self.ended = ended

    @property
    def state_keys(self) -> list[StateKey]:
        """The state of the key, and the claims on it."""
        return self._demand.state_keys

    @property
    def _demand(self) -> LimitDemand:
        return self._source.definition.demand(self.key, self.needed)._replace(strategy=self._source.strategy)

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[list[State | None], Lease]:
        """Return the ended lease, then take and lease; while others wait for claimed units, only take."""
        state, claims = self._demand.split_states(states)
        new, lease = self._step(state, self._demand.kept_units(claims, now_us), now_us)
        return [new, *[None] * (len(states) - 1)], lease

    def _step(self, state: State | None, ahead: int, now_us: int) -> tuple[State | None, Lease]:
        strategy, paused_us, _ = self._source.strategy.effective_at(now_us)
        ttl_us = self._source.ttl_us
        returned = None
        if state is not None and (self.ended.lent or self.ended.unused):
            returned = strategy.return_lease(state, now_us, self.ended, ttl_us)
            state = returned or state
        if not self.needed:
            return returned, REFUSED
        if paused_us:
            new, wait_us = strategy.step(state, now_us, self.needed)
            refused = new if wait_us else None  # a refusal only brings a state up to date
            return refused or returned, REFUSED._replace(wait_us=max(wait_us, paused_us))
        remaining = 0 if ahead else strategy.usage(state, now_us).remaining
        amount = max(self.needed, min(self.wanted, remaining))
        new, wait_us = take_in_order(strategy, state, now_us, amount, floor=0, ahead=ahead)
        if new is None or wait_us:
            return new or returned, REFUSED._replace(wait_us=wait_us)
        kept, ttl_us, lease_id = strategy.grant_lease(new, now_us, amount - self.needed, ttl_us)
        wait_us = 0
        if amount < self.wanted:
            wait_us = take_in_order(strategy, kept, now_us, 1, floor=0, ahead=ahead)[1]
        return kept, Lease(amount, ttl_us, wait_us, lease_id)

    def script_keys(self) -> tuple[str]:
        """Return the state of the key."""
        return (key_text(self._source.definition.space, self.key),)

    def script_args(self) -> tuple[int, ...]:
        """Return what is needed and wanted, and the ended lease."""
        return (self.needed, self.wanted, *self.ended)

    def undo(self, reply: Lease) -> LeaseOperation | None:
        """Return the operation that releases the units granted to a cancelled caller."""
        if not reply.granted:
            return None
        ended = EndedLease(reply.lease_id, reply.granted - self.needed, reply.granted)
        return LeaseOperation(self._source, self.key, 0, 0, ended)

    def fallback(self, outage: Outage) -> Operation[Lease]:
        """Return the operation that takes the needed units from this worker's share, which leases nothing."""
        share = self._source.definition.local_share(outage)
        return cast("Operation[Lease]", FallbackLease(share, self.key, self.needed))

    def parse(self, raw: Sequence[Any]) -> Lease:
        """Parse the lease, or raise the error that the script returned for the key."""
        if isinstance(raw[0], int):
            return Lease._make(raw)
        raise unusable_key_error(self._source.definition.name, self.key, raw[0])


class FallbackLease(AcquireOperation):
    """Take from this worker's share of a limit; the reply has the form of a lease of exactly that amount."""

    __slots__ = ()

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[list[State | None], Lease]:  # type: ignore[override]
        """Take the amount; the unused units of an ended lease belong to the shared store and are lost."""
        if not self.amount:
            return [None], REFUSED
        new_states, wait_us = super().step(states, now_us)
        return new_states, REFUSED._replace(wait_us=wait_us) if wait_us else Lease(self.amount, 0, 0, 0)
