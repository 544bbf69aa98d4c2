"""Token bucket: a rate, and a burst saved up while nothing was asked for.

Twin: ``token_bucket.lua``.
"""

from __future__ import annotations

from comporta.clock import SECOND_US
from comporta.limits.bucket import Bucket
from comporta.limits.rule import View, ceil_div, rescaled
from comporta.limits.traffic import NO_PAST, SLICE_BITS, recent, returned, shifted
from comporta.stores.base import State


class TokenBucket(Bucket):
    """``capacity`` tokens at the most, refilled at the rate; the level is what is there."""

    __slots__ = ()

    code = 1

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
        if level < need and level < full and patience_us >= 0:
            wait_us = -((level - (min(full, need))) // per_us)
            if now_us >= last_us:
                return None, wait_us
            need = cost = 0  # the clock went back: anchor the state to the new time, taking nothing
        if (now_us ^ last_us) >> SLICE_BITS:
            past, count = shifted(past, count, last_us, now_us), 0
        level -= need
        if patience_us < 0:
            level = max(level, -SECOND_US * per_us)
        return (level, now_us, self.unit, count + cost, past), wait_us

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

    def used(self, state: State, now_us: int) -> int:
        """Return the tokens that would not be back by now, debt included."""
        return ceil_div(self.full - self._level(state, now_us), self.unit)

    def _level(self, state: State, now_us: int) -> int:
        level = rescaled(state[0], state[2], self.unit)
        since_us: int = max(0, now_us - state[1])
        return min(self.full, level + since_us * self.per_us)
