"""The common part of all windows: their leases, and the pace at which they serve waiting callers.

Windows with a counter (``CountedWindowStrategy``) also share how they settle and how workers divide them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from comporta.clock import to_us
from comporta.limits.strategies.registered_strategy import RegisteredStrategy

if TYPE_CHECKING:
    from comporta.limits.config import LimitConfig

LEASE_DIVISOR = 100
"""A lease lasts at most this fraction of a window and leases at most this fraction of its capacity.

A window therefore grants at most that much less than its limit.
"""


class WindowStrategy(RegisteredStrategy):
    """``capacity`` units per window."""

    __slots__ = ()

    needs_window = True
    capacity: int

    @classmethod
    def lease_us(cls, config: LimitConfig) -> int:
        """Return how long a lease may keep units from other workers: at most a hundredth of the window."""
        return min(to_us(float(config.lease)), to_us(config.window or 0) // LEASE_DIVISOR)

    def lease_size_max(self, worker_count: int) -> int:
        """Return the most units that one worker may lease.

        A window does not recover the units of a killed worker before it ends, so a lease is a small fraction
        of it.
        """
        return self.capacity // max(2 * worker_count, LEASE_DIVISOR)

    def pace_us(self, units: int) -> int:
        """Return the time of the windows that must end before some units fit, less the first one."""
        return (units - 1) // self.capacity * self.params.window_us
