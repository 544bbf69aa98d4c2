"""Fixed window: ``capacity`` per window, counted from the first request after the last window ended.

It is cheap and easy to explain. Two full windows may adjoin, so an interval as long as the window can contain
twice the capacity; the sliding window avoids that.

Lua version: ``fixed_window.lua``, ``fixed_window_lease.lua``, ``fixed_window_settle.lua``.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from comporta.clock import to_us
from comporta.limits.strategies.base import (
    STATE_TTL_US_MIN,
    EndedLease,
    LeaseGrant,
    LimitParams,
    LimitUsage,
)
from comporta.limits.strategies.counted_window import CountedWindowStrategy
from comporta.limits.strategies.recent_traffic import (
    NO_PAST,
    SLICE_US,
    recent_count,
    shift_past,
    subtract_released,
)
from comporta.stores.base import PINNED_US, State
from comporta.stores.lua import lua

if TYPE_CHECKING:
    from comporta.limits.config import LimitConfig


class FixedWindowStrategy(CountedWindowStrategy):
    """``capacity`` units in each window of ``window_us``.

    State: units used in this window, start of the window, last change, units granted in this slice, past
    slices.
    """

    __slots__ = ("capacity", "params", "pinned_ttl_us", "ttl_us", "window_us")

    name = "fixed_window"
    short_name = "fixed"
    codec = Struct("<qqqI16s")

    def __init__(self, capacity: int, window_us: int) -> None:
        self.capacity = capacity
        self.window_us = window_us
        self.ttl_us = max(STATE_TTL_US_MIN, window_us)
        self.pinned_ttl_us = self.ttl_us + PINNED_US
        self.params = LimitParams(capacity, 0, 0, window_us)

    @classmethod
    def from_config(cls, config: LimitConfig) -> FixedWindowStrategy:
        """Return the strategy with the numbers of a configuration."""
        return cls(config.capacity, to_us(config.window or 0))

    @staticmethod
    def lua() -> str:
        """Return the Lua version."""
        return lua("limits/strategies/fixed_window")

    @staticmethod
    def settle_lua() -> str:
        """Return the Lua version of ``settle``."""
        return lua("limits/strategies/fixed_window_settle")

    @staticmethod
    def lease_lua() -> str:
        """Return the Lua version of the leases."""
        return lua("limits/strategies/fixed_window_lease")

    def with_params(self, params: LimitParams) -> FixedWindowStrategy:
        """Return the strategy with other parameters; the current window gets the new length."""
        return type(self)(params.capacity, params.window_us)

    def step(
        self, state: State | None, now_us: int, cost: int, max_wait_us: int = 0
    ) -> tuple[State | None, int]:
        """Count ``cost`` into the window if it fits.

        A cost above the capacity, which an override can cause, needs an empty window.
        """
        if state is None:
            state = (0, now_us, now_us, 0, NO_PAST)
        used, start_us, last_us, count, past = state
        if now_us - start_us >= self.window_us:
            used, start_us = 0, now_us
        elif start_us > now_us:
            start_us = now_us
        wait_us = 0
        if used and used + cost > self.capacity and max_wait_us >= 0:
            wait_us = start_us + self.window_us - now_us
            if now_us >= last_us:
                return None, wait_us
            cost = 0  # the clock went back: store the state at the new time and take nothing
        if now_us ^ last_us >= SLICE_US:
            past, count = shift_past(past, count, last_us, now_us), 0
        return (used + cost, start_us, now_us, count + cost, past), wait_us

    def release(self, state: State, now_us: int, cost: int) -> State:
        """Subtract ``cost`` from the count if its window has not ended; an ended window is not reopened."""
        _, start_us, last_us, count, past = state
        used, _ = self._current_window(state, now_us)
        traffic = subtract_released(past, count, last_us, now_us, cost)
        return (max(0, used - cost), min(start_us, now_us), now_us, *traffic)

    def usage(self, state: State | None, now_us: int) -> LimitUsage:
        """Return what is left in the window and when the window ends."""
        if state is None:
            return LimitUsage(self.capacity, 0, 0)
        _, _, last_us, count, past = state
        used, start_us = self._current_window(state, now_us)
        return LimitUsage(
            max(0, self.capacity - used),
            start_us + self.window_us - now_us if used else 0,
            recent_count(past, count, last_us, now_us),
        )

    def expires_us(self, state: State) -> int:
        """Return when the window of a count has ended."""
        return int(state[2]) + self.ttl_us

    def retention_us(self, state: State) -> int:
        """Return the same time; a window that is used up is pinned."""
        used_up = state[0] >= self.capacity
        retention_us: int = state[2] + (self.pinned_ttl_us if used_up else self.ttl_us)
        return retention_us

    def grant_lease(self, state: State, now_us: int, amount: int, ttl_us: int) -> LeaseGrant:
        """Grant a lease that ends no later than its window; its id is the start of the window."""
        start_us: int = state[1]
        return LeaseGrant(state, min(ttl_us, start_us + self.window_us - now_us), start_us)

    def return_lease(self, state: State, now_us: int, ended: EndedLease, ttl_us: int) -> State | None:
        """Subtract the unused units from the count if the window they were counted into has not ended."""
        start_us = state[1]
        if start_us != ended.lease_id or not 0 <= now_us - start_us < self.window_us:
            return None
        return self.release(state, now_us, ended.unused)

    def _is_in_window(self, state: State, now_us: int, age_us: int) -> bool:
        """Whether the last window has not ended and a grant that is ``age_us`` old belongs to it."""
        since_us: int = now_us - min(state[1], now_us)
        return age_us <= since_us < self.window_us

    def _current_window(self, state: State, now_us: int) -> tuple[int, int]:
        used, start_us = state[0], state[1]
        if now_us - start_us >= self.window_us:
            return 0, now_us
        return used, min(start_us, now_us)
