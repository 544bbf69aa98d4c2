"""Windows with a counter: the common part of fixed and calendar windows."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from comporta.limits.strategies.sliding_window import SlidingWindowStrategy
from comporta.limits.strategies.window import WindowStrategy
from comporta.stores.base import State


class CountedWindowStrategy(WindowStrategy):
    """A window whose state is the number of units used in it, and when it began or ends."""

    __slots__ = ()

    def settle(self, state: State | None, now_us: int, amount: int, age_us: int) -> State | None:
        """Count a debit into the current window, and a credit if the call was granted in the same window."""
        if amount < 0 and (state is None or not self._is_in_window(state, now_us, age_us)):
            return None
        return super().settle(state, now_us, amount, age_us)

    def used_units(self, state: State, now_us: int) -> int:
        """Return the units counted into the current window."""
        used: int = self._current_window(state, now_us)[0]
        return used

    def outage_share(self, worker_count: int, since_us: int) -> tuple[SlidingWindowStrategy, State]:
        """Return a share of a sliding window of the same length.

        A counted window that starts used up would refuse every caller until its end, and one that starts
        unused would grant the limit twice.
        """
        window = SlidingWindowStrategy(self.capacity, self.params.window_us)
        return window.outage_share(worker_count, since_us)

    @abstractmethod
    def _current_window(self, state: State, now_us: int) -> Any:
        """Return the units used in the current window, followed by its strategy-specific data."""

    @abstractmethod
    def _is_in_window(self, state: State, now_us: int, age_us: int) -> bool:
        """Whether the state and a grant that is ``age_us`` old both belong to the current window."""
