"""Leaky bucket: grants are evenly spaced, and a queue of bounded length waits for its turns.

The level says how many turns are assigned ahead. At level 0 the next caller passes at once. A caller that
waits takes the next free turn, provided that at most ``capacity`` callers wait. If its caller leaves, a turn
is spent, because passing it on would give two other callers the same moment.

Lua version: ``leaky_bucket.lua``.
"""

from __future__ import annotations

from comporta.limits.strategies.base import CHARGE, LimitUsage, ceil_div, rescale_level
from comporta.limits.strategies.bucket import BucketStrategy
from comporta.limits.strategies.recent_traffic import (
    NO_PAST,
    SLICE_US,
    recent_count,
    shift_past,
    subtract_released,
)
from comporta.stores.base import PINNED_US, State
from comporta.stores.lua import lua


class LeakyBucketStrategy(BucketStrategy):
    """One turn every ``unit / per_us`` microseconds, and at most ``capacity`` callers in the queue.

    It supports no leases, because a turn used late could coincide with the first turn of another worker.
    """

    __slots__ = ()

    name = "leaky_bucket"
    short_name = "leaky"
    has_queue = True

    @property
    def level_max(self) -> int:
        """A full queue and the turn of the caller that is being served."""
        return self.full + self.unit

    @staticmethod
    def lua() -> str:
        """Return the Lua version."""
        return lua("limits/strategies/leaky_bucket")

    def step(
        self, state: State | None, now_us: int, cost: int, max_wait_us: int = 0
    ) -> tuple[State | None, int]:
        """Take the next ``cost`` turns if the first of them comes within ``max_wait_us``."""
        if state is None:
            state = (0, now_us, self.unit, 0, NO_PAST)
        level = self._level(state, now_us)
        _, last_us, _, count, past = state
        wait_us = ceil_div(level, self.per_us)
        turns = cost * self.unit
        is_full = level > 0 and level + turns - self.unit > self.full
        if (wait_us > max_wait_us or is_full) and max_wait_us >= 0:
            if now_us >= last_us:
                return None, max(wait_us, max_wait_us + 1)
            turns = cost = 0  # the clock went back: store the state at the new time and take nothing
            wait_us = max(wait_us, max_wait_us + 1)
        if now_us ^ last_us >= SLICE_US:
            past, count = shift_past(past, count, last_us, now_us), 0
        if max_wait_us == CHARGE:
            turns = min(turns, max(0, self.level_max - level))
        return (level + turns, now_us, self.unit, count + cost, past), wait_us

    def release(self, state: State, now_us: int, cost: int) -> State:
        """Free turns that were taken; the callers queued behind them do not move up."""
        _, last_us, _, count, past = state
        level = max(0, self._level(state, now_us) - cost * self.unit)
        return (level, now_us, self.unit, *subtract_released(past, count, last_us, now_us, cost))

    def usage(self, state: State | None, now_us: int) -> LimitUsage:
        """Return the number of free places in the queue and when the queue will be empty."""
        if state is None:
            return LimitUsage(self.capacity, 0, 0)
        _, last_us, _, count, past = state
        level = self._level(state, now_us)
        return LimitUsage(
            max(0, self.capacity - ceil_div(level, self.unit)),
            ceil_div(level, self.per_us),
            recent_count(past, count, last_us, now_us),
        )

    def retention_us(self, state: State) -> int:
        """Return ``expires_us``; a bucket is pinned if its last caller left no place in the queue."""
        if state[0] > self.level_max:
            return self.expires_us(state) + PINNED_US
        retention_us: int = state[1] + (self.pinned_ttl_us if state[0] >= self.full else self.ttl_us)
        return retention_us

    def debt(self, level: int) -> int:
        """Return how far a level is above that of a full queue."""
        return level - self.level_max

    def used_units(self, state: State, now_us: int) -> int:
        """Return the turns assigned ahead."""
        return ceil_div(self._level(state, now_us), self.unit)

    def outage_share(self, worker_count: int, since_us: int) -> tuple[LeakyBucketStrategy, State]:
        """Return a bucket with a part of the rate and the queue; its first turn is one interval ahead."""
        unit = self.unit * worker_count
        share = LeakyBucketStrategy(max(1, self.capacity // worker_count), self.per_us, unit)
        return share, (unit, since_us, unit, 0, NO_PAST)

    def _level(self, state: State, now_us: int) -> int:
        level = rescale_level(state[0], state[2], self.unit)
        since_us: int = max(0, now_us - state[1])
        return max(0, level - since_us * self.per_us)
