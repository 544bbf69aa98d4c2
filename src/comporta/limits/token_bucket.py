"""Token bucket: a rate, and a burst saved up while nothing was asked for.

Tokens are counted in whole fractions: ``unit`` of them make a token and ``per_us`` of them come in each
microsecond (10/s: 1 per µs, 100,000 to a token), so nothing is lost to rounding at any rate and all
sums are exact in Python and, below 2**53, in Lua.

Twin: ``token_bucket.lua``.
"""

from __future__ import annotations

from struct import Struct

from comporta.limits.rule import KEPT_AT_LEAST_US, Numbers, View, ceil_div, rescaled
from comporta.limits.traffic import NO_PAST, SLICE_BITS, recent, returned, shifted
from comporta.stores.base import State


class TokenBucket:
    """``capacity`` tokens at the most, refilled by ``per_us / unit`` of a token each microsecond.

    State: level, last change, unit the level is counted in, units granted in this slice, slices before.
    """

    __slots__ = ("capacity", "full", "per_us", "ttl_us", "unit")

    code = 1
    codec = Struct("<qqqI16s")

    def __init__(self, capacity: int, per_us: int, unit: int) -> None:
        self.capacity = capacity
        self.per_us = per_us
        self.unit = unit
        self.full = capacity * unit
        self.ttl_us = max(KEPT_AT_LEAST_US, ceil_div(self.full, per_us))

    @property
    def numbers(self) -> Numbers:
        """The numbers for the Lua twin."""
        return Numbers(self.capacity, self.per_us, self.unit, 0)

    def revised(self, change: bytes | None) -> TokenBucket:
        """Return the rule under a change; states carry the unit they are counted in."""
        if change is None:
            return self
        numbers = Numbers.read(change)
        return TokenBucket(numbers.capacity, numbers.per_us, numbers.unit)

    def step(
        self, state: State | None, now_us: int, cost: int, patience_us: int = 0
    ) -> tuple[State | None, int]:
        """Take ``cost`` tokens if they are there.

        A cost above the capacity (possible only after the limit was lowered) needs a full bucket and
        leaves a debt, so that it waits its due but not for ever.
        """
        full, per_us = self.full, self.per_us
        if state is None:
            state = (full, now_us, self.unit, 0, NO_PAST)
        level, last_us, unit, count, past = state
        if unit != self.unit:
            level = rescaled(level, unit, self.unit)
        if now_us > last_us:
            level += (now_us - last_us) * per_us
        if level > full:
            level = full
        need = cost * self.unit
        wait_us = 0
        if level < need and level < full:
            wait_us = -((level - (min(full, need))) // per_us)
            if now_us >= last_us:
                return None, wait_us
            need = cost = 0  # the clock went back: anchor the state to the new time, taking nothing
        if (now_us ^ last_us) >> SLICE_BITS:
            past, count = shifted(past, count, last_us, now_us), 0
        return (level - need, now_us, self.unit, count + cost, past), wait_us

    def give(self, state: State, now_us: int, cost: int) -> State:
        """Put tokens back; the bucket never holds more than its capacity."""
        _, last_us, _, count, past = state
        level = min(self.full, self._level(state, now_us) + cost * self.unit)
        return (level, now_us, self.unit, *returned(past, count, last_us, now_us, cost))

    def view(self, state: State | None, now_us: int) -> View:
        """Tell the whole tokens there are, and when the bucket will be full."""
        if state is None:
            return View(self.capacity, 0, 0)
        _, last_us, _, count, past = state
        level = self._level(state, now_us)
        return View(
            max(0, level // self.unit),
            ceil_div(self.full - level, self.per_us),
            recent(past, count, last_us, now_us),
        )

    def expires_us(self, state: State) -> int:
        """Once full, a bucket is like one never used."""
        return int(state[1]) + self.ttl_us

    def _level(self, state: State, now_us: int) -> int:
        level = rescaled(state[0], state[2], self.unit)
        since_us: int = max(0, now_us - state[1])
        return min(self.full, level + since_us * self.per_us)
