"""Settling one call: a credit if it cost less than was reserved, a debit if it cost more.

The operation carries the time when the call was granted, by the clock of the store. A server has its own
clock, so the script receives an age instead, which is computed when the request is sent.

Lua version: ``settle.lua``, below the Lua text of the strategy and of its settlements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from comporta.clock import Clock
from comporta.limits.operation import LimitDemand, on_local_share
from comporta.limits.reply import unusable_key_error
from comporta.limits.scripts import LIMIT_SPACE
from comporta.stores.base import Operation, Script, State, StateKey, key_text
from comporta.stores.outage_info import Outage


class SettleOperation(Operation[bool]):
    """Debit an amount above 0 or credit one below 0; the reply is whether the state changed.

    ``granted_us`` is when the call was granted; ``None`` means just now.
    """

    __slots__ = ("_clock", "demand", "granted_us", "script")

    script: Script

    def __init__(self, script: Script, demand: LimitDemand, granted_us: int | None, clock: Clock) -> None:
        self.script = script
        self.demand = demand
        self.granted_us = granted_us
        self._clock = clock

    @property
    def state_keys(self) -> list[StateKey]:
        """The state of the key."""
        demand = self.demand
        return [StateKey(f"{LIMIT_SPACE}:{demand.name}", demand.key, demand.strategy)]

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[list[State | None], bool]:
        """Settle the call; a credit for a window that has ended is void."""
        strategy, amount = self.demand.strategy, self.demand.amount
        age_us = self._age_us(now_us)
        if amount < 0 and strategy.effective_at(now_us)[0].params.is_window_over(age_us):
            return [None], False
        new = strategy.settle(states[0], now_us, amount, age_us)
        return [new], new is not None

    def script_keys(self) -> tuple[str]:
        """Return the state of the key."""
        return (key_text(f"{LIMIT_SPACE}:{self.demand.name}", self.demand.key),)

    def script_args(self) -> tuple[int, int]:
        """Return the amount and its age."""
        return self.demand.amount, self._age_us(self._clock.now_ns() // 1000)

    def fallback(self, outage: Outage) -> SettleOperation:
        """Return the operation that settles the call on this worker's share of the limit."""
        return SettleOperation(self.script, on_local_share(self.demand, outage), self.granted_us, self._clock)

    def parse(self, raw: Sequence[Any]) -> bool:
        """Parse whether the state changed, or raise the error that the script returned for the key."""
        if isinstance(raw[0], int):
            return raw[0] == 1
        raise unusable_key_error(self.demand.name, self.demand.key, raw[0])

    def _age_us(self, now_us: int) -> int:
        return 0 if self.granted_us is None else max(0, now_us - self.granted_us)
