"""Leaky bucket: what passes is evenly spaced, and a queue of bounded length waits for its turn.

The level is how far ahead the turns are given out already. At level 0 the next caller passes at once;
a caller with patience takes the next free turn, as long as at most ``capacity`` are waiting. A turn
given to a caller that then goes away is spent: to pass it on would put two others side by side.

Twin: ``leaky_bucket.lua``.
"""

from __future__ import annotations

from comporta.limits.bucket import Bucket
from comporta.limits.rule import Ended, Lent, View, ceil_div, rescaled
from comporta.limits.traffic import NO_PAST, SLICE_BITS, recent, returned, shifted
from comporta.stores.base import State


class LeakyBucket(Bucket):
    """One turn each ``unit / per_us`` microseconds, at most ``capacity`` callers waiting."""

    __slots__ = ()

    code = 2

    @property
    def level_max(self) -> int:
        """A full queue, and the turn of the one who is served."""
        return self.full + self.unit

    def step(
        self, state: State | None, now_us: int, cost: int, patience_us: int = 0
    ) -> tuple[State | None, int]:
        """Take the next ``cost`` turns, if the first of them comes within ``patience_us``."""
        if state is None:
            state = (0, now_us, self.unit, 0, NO_PAST)
        level = self._level(state, now_us)
        _, last_us, _, count, past = state
        wait_us = ceil_div(level, self.per_us)
        turns = cost * self.unit
        crowded = level > 0 and level + turns - self.unit > self.full
        if (wait_us > patience_us or crowded) and patience_us >= 0:
            if now_us >= last_us:
                return None, max(wait_us, patience_us + 1)
            turns = cost = 0  # the clock went back: anchor the state to the new time, taking nothing
            wait_us = max(wait_us, patience_us + 1)
        if (now_us ^ last_us) >> SLICE_BITS:
            past, count = shifted(past, count, last_us, now_us), 0
        level += turns
        if patience_us < 0:
            level = min(level, self.level_max)
        return (level, now_us, self.unit, count + cost, past), wait_us

    def give(self, state: State, now_us: int, cost: int) -> State:
        """Free turns that were taken; those who queue behind them do not move up."""
        _, last_us, _, count, past = state
        level = max(0, self._level(state, now_us) - cost * self.unit)
        return (level, now_us, self.unit, *returned(past, count, last_us, now_us, cost))

    def lend(self, state: State, now_us: int, amount: int, life_us: int) -> Lent:
        """Turns are not lent: used late, the last of one worker would fall beside the first of the next."""
        return Lent(state, 0, 0)

    def take_back(self, state: State, now_us: int, ended: Ended, life_us: int) -> None:
        """There are none to take back."""

    def view(self, state: State | None, now_us: int) -> View:
        """Tell the free places in the queue, and when it will be empty."""
        if state is None:
            return View(self.capacity, 0, 0)
        _, last_us, _, count, past = state
        level = self._level(state, now_us)
        return View(
            max(0, self.capacity - ceil_div(level, self.unit)),
            ceil_div(level, self.per_us),
            recent(past, count, last_us, now_us),
        )

    def used(self, state: State, now_us: int) -> int:
        """Return the turns given out ahead."""
        return ceil_div(self._level(state, now_us), self.unit)

    def _level(self, state: State, now_us: int) -> int:
        level = rescaled(state[0], state[2], self.unit)
        since_us: int = max(0, now_us - state[1])
        return max(0, level - since_us * self.per_us)
