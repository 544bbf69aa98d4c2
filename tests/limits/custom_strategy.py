"""A strategy that is not part of the package: the generic cell rate algorithm, in Python and in Lua.

Its state is one time, the theoretical arrival time of the next request. It supports no leases.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from comporta.limits.strategies.base import LimitParams, LimitUsage, ceil_div
from comporta.limits.strategies.bucket import exact_rate
from comporta.limits.strategies.registered_strategy import RegisteredStrategy
from comporta.limits.strategies.registry import register_strategy
from comporta.stores.base import State

if TYPE_CHECKING:
    from comporta.limits.config import LimitConfig

LUA = """
-- State: HASH {tat: theoretical arrival time in microseconds}
local function gcra(key, now_us, amount, max_wait_us, commit, capacity, per_us, unit)
  local stored = pcall('HGET', key, 'tat')
  if type(stored) == 'table' and stored.err then return stored.err end
  local interval_us = ceil(unit / per_us)
  local burst_us = capacity * interval_us
  local tat_us = min(max(number(stored) or now_us, now_us), now_us + burst_us)
  local wait_us = 0
  if amount > 0 and max_wait_us >= 0 then
    wait_us = max(0, tat_us + amount * interval_us - burst_us - now_us)
  end
  if commit and wait_us <= max(0, max_wait_us) and (amount > 0 or stored) then
    tat_us = min(max(tat_us + amount * interval_us, now_us), now_us + burst_us)
    call('HSET', key, 'tat', format('%.0f', tat_us))
    expire(key, tat_us - now_us)
  end
  return wait_us, floor((burst_us - tat_us + now_us) / interval_us), tat_us - now_us, nil, now_us
end
"""


class GcraStrategy(RegisteredStrategy):
    """One request every ``unit / per_us`` microseconds, and a burst of ``capacity``."""

    __slots__ = ("burst_us", "capacity", "interval_us", "params")

    name = "gcra"
    codec = Struct("<q")

    def __init__(self, capacity: int, per_us: int, unit: int) -> None:
        self.capacity = capacity
        self.interval_us = ceil_div(unit, per_us)
        self.burst_us = capacity * self.interval_us
        self.params = LimitParams(capacity, per_us, unit, 0)

    @classmethod
    def from_config(cls, config: LimitConfig) -> GcraStrategy:
        return cls(config.capacity, *exact_rate(config.rate, config.capacity))

    @staticmethod
    def lua() -> str:
        return LUA

    def with_params(self, params: LimitParams) -> GcraStrategy:
        return GcraStrategy(params.capacity, params.per_us, params.unit)

    def expires_us(self, state: State) -> int:
        return int(state[0])

    def step(
        self, state: State | None, now_us: int, cost: int, max_wait_us: int = 0
    ) -> tuple[State | None, int]:
        arrival_us = self._arrival_us(state, now_us)
        wait_us = 0
        if max_wait_us >= 0:
            wait_us = max(0, arrival_us + cost * self.interval_us - self.burst_us - now_us)
        if wait_us > max(0, max_wait_us):
            return None, wait_us
        return (min(arrival_us + cost * self.interval_us, now_us + self.burst_us),), wait_us

    def release(self, state: State, now_us: int, cost: int) -> State:
        return (max(self._arrival_us(state, now_us) - cost * self.interval_us, now_us),)

    def usage(self, state: State | None, now_us: int) -> LimitUsage:
        ahead_us = self._arrival_us(state, now_us) - now_us
        return LimitUsage((self.burst_us - ahead_us) // self.interval_us, ahead_us, 0)

    def used_units(self, state: State, now_us: int) -> int:
        return ceil_div(self._arrival_us(state, now_us) - now_us, self.interval_us)

    def outage_share(self, worker_count: int, since_us: int) -> tuple[GcraStrategy, State]:
        _, per_us, unit, _ = self.params
        share = GcraStrategy(max(1, self.capacity // worker_count), per_us, unit * worker_count)
        return share, (since_us + share.burst_us,)

    def _arrival_us(self, state: State | None, now_us: int) -> int:
        arrival_us: int = now_us if state is None else state[0]
        return min(max(arrival_us, now_us), now_us + self.burst_us)


register_strategy(GcraStrategy)
