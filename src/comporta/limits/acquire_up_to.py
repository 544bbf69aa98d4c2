"""Taking what is available: as much of an amount as one limit can grant now, in one step.

Lua version: ``acquire_up_to.lua``, below the Lua text of the strategy, ``headroom.lua`` and
``one_limit.lua``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from comporta.limits.one_limit import OneLimitOperation
from comporta.limits.operation import LimitOperation, on_local_share
from comporta.limits.reply import unusable_key_error
from comporta.limits.scripts import acquire_up_to_script
from comporta.stores.base import Script, State
from comporta.stores.outage_info import Outage


class AcquireUpTo(OneLimitOperation[int]):
    """Take as much of the demanded amount as is available; the reply is how much was granted."""

    __slots__ = ()

    @property
    def script(self) -> Script:
        """The script of the strategy, for any key of the limit."""
        strategy = self.demand.strategy
        return acquire_up_to_script(strategy.name, self.demand.name, tuple(strategy.params))

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[list[State | None], int]:
        """Take what is left beyond the headroom and the claims of others, up to the amount."""
        demand, strategy = self.demand, self.demand.strategy
        state, claims = demand.split_states(states)
        kept = demand.headroom.floor(strategy, state, now_us, 1) + demand.kept_units(claims, now_us)
        amount = min(demand.amount, strategy.usage(state, now_us).remaining - kept)
        unchanged: list[State | None] = [None] * len(states)
        if amount < 1:
            return unchanged, 0
        new, wait_us = strategy.step(state, now_us, amount)
        return [new, *unchanged[1:]], 0 if wait_us else amount

    def undo(self, reply: int) -> LimitOperation | None:
        """Return the operation that releases the amount granted to a cancelled caller."""
        return LimitOperation([self.demand._replace(amount=reply).released]) if reply else None

    def fallback(self, outage: Outage) -> AcquireUpTo:
        """Return the operation that takes from this worker's share of the limit."""
        return AcquireUpTo(on_local_share(self.demand, outage))

    def parse(self, raw: Sequence[Any]) -> int:
        """Parse the amount, or raise the error that the script returned for the key."""
        granted = raw[0]
        if isinstance(granted, int):
            return granted
        raise unusable_key_error(self.demand.name, self.demand.key, granted)
