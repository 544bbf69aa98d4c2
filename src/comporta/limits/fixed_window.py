"""Fixed window: ``capacity`` per window, counted from the first request after the last window ended.

Cheap and easy to explain; two full windows may meet, so an interval as long as the window can see twice
the capacity. Who cannot have that takes the sliding window.

Twin: ``fixed_window.lua``.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

from comporta.limits.in_force import revised
from comporta.limits.rule import KEPT_AT_LEAST_US, Ended, Lent, Numbers, View
from comporta.limits.traffic import NO_PAST, SLICE_BITS, recent, returned, shifted
from comporta.stores.base import State


class FixedWindow:
    """``capacity`` units in each window of ``window_us``.

    State: used in this window, start of the window, last change, units granted in this slice, slices
    before.
    """

    __slots__ = ("capacity", "numbers", "ttl_us", "window_us")

    code = 3
    codec = Struct("<qqqI16s")

    def __init__(self, capacity: int, window_us: int) -> None:
        self.capacity = capacity
        self.window_us = window_us
        self.ttl_us = max(KEPT_AT_LEAST_US, window_us)
        self.numbers = Numbers(capacity, 0, 0, window_us)

    def changed(self, numbers: Numbers) -> FixedWindow:
        """Return the rule with other numbers; the window that runs is measured by the new length."""
        return FixedWindow(numbers.capacity, numbers.window_us)

    def revised(self, change: bytes | None) -> Any:
        """Return the rule under what is recorded."""
        return revised(self, change)

    def at(self, now_us: int) -> tuple[FixedWindow, int, int]:
        """It is the same at all times."""
        return self, 0, self.capacity

    def step(
        self, state: State | None, now_us: int, cost: int, patience_us: int = 0
    ) -> tuple[State | None, int]:
        """Count ``cost`` into the window if it fits.

        A cost above the capacity (possible only after the limit was lowered) needs an empty window.
        """
        if state is None:
            state = (0, now_us, now_us, 0, NO_PAST)
        used, start_us, last_us, count, past = state
        if now_us - start_us >= self.window_us:
            used, start_us = 0, now_us
        elif start_us > now_us:
            start_us = now_us
        wait_us = 0
        if used and used + cost > self.capacity and patience_us >= 0:
            wait_us = start_us + self.window_us - now_us
            if now_us >= last_us:
                return None, wait_us
            cost = 0  # the clock went back: anchor the state to the new time, taking nothing
        if (now_us ^ last_us) >> SLICE_BITS:
            past, count = shifted(past, count, last_us, now_us), 0
        return (used + cost, start_us, now_us, count + cost, past), wait_us

    def give(self, state: State, now_us: int, cost: int) -> State:
        """Take it off the count, if the window it was counted into still runs."""
        _, _, last_us, count, past = state
        used, start_us = self._window(state, now_us)
        counted = returned(past, count, last_us, now_us, cost)
        return (max(0, used - cost), start_us, now_us, *counted)

    def lend(self, state: State, now_us: int, amount: int, life_us: int) -> Lent:
        """A lease ends with its window, at the latest, and is called by the window's start."""
        start_us: int = state[1]
        return Lent(state, min(life_us, start_us + self.window_us - now_us), start_us)

    def take_back(self, state: State, now_us: int, ended: Ended, life_us: int) -> State | None:
        """Take what was not used off the count, if the window it was counted into still runs."""
        start_us = state[1]
        if start_us != ended.name or not 0 <= now_us - start_us < self.window_us:
            return None
        return self.give(state, now_us, ended.unused)

    def view(self, state: State | None, now_us: int) -> View:
        """Tell what is left in the window, and when it ends."""
        if state is None:
            return View(self.capacity, 0, 0)
        _, _, last_us, count, past = state
        used, start_us = self._window(state, now_us)
        return View(
            max(0, self.capacity - used),
            start_us + self.window_us - now_us if used else 0,
            recent(past, count, last_us, now_us),
        )

    def expires_us(self, state: State) -> int:
        """Once its window is over, a count means nothing."""
        return int(state[2]) + self.ttl_us

    def _window(self, state: State, now_us: int) -> tuple[int, int]:
        used, start_us = state[0], state[1]
        if now_us - start_us >= self.window_us:
            return 0, now_us
        return used, min(start_us, now_us)
