"""What the two buckets have in common: a level counted in fractions of a token, moved by time.

``unit`` fractions make a token and ``per_us`` of them come or go in each microsecond (10/s: 1 per µs, 100,000
to a token), so nothing is lost to rounding at any rate, and all sums are exact in Python and, below 2**53, in
Lua.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Self

from comporta.limits.in_force import revised
from comporta.limits.rule import KEPT_AT_LEAST_US, Numbers, ceil_div
from comporta.stores.base import State


class Bucket:
    """The numbers of a bucket.

    State: level, last change, unit the level is counted in, units granted in this slice, slices before.
    """

    __slots__ = ("capacity", "full", "numbers", "per_us", "ttl_us", "unit")

    codec = Struct("<qqqI16s")

    def __init__(self, capacity: int, per_us: int, unit: int) -> None:
        self.capacity = capacity
        self.per_us = per_us
        self.unit = unit
        self.full = capacity * unit
        self.ttl_us = max(KEPT_AT_LEAST_US, ceil_div(self.level_max, per_us))
        self.numbers = Numbers(capacity, per_us, unit, 0)

    @property
    def level_max(self) -> int:
        """The level from which it takes longest to be as if never used."""
        return self.full

    def changed(self, numbers: Numbers) -> Self:
        """Return the rule with other numbers; states carry the unit they are counted in."""
        return type(self)(numbers.capacity, numbers.per_us, numbers.unit)

    def revised(self, change: bytes | None) -> Any:
        """Return the rule under what is recorded."""
        return revised(self, change)

    def at(self, now_us: int) -> tuple[Self, int, int]:
        """It is the same at all times."""
        return self, 0, self.capacity

    def expires_us(self, state: State) -> int:
        """Once settled, a bucket is like one never used."""
        return int(state[1]) + self.ttl_us
