"""What the two buckets share: a level counted in fractions of a token that time raises or lowers.

``unit`` fractions make a token, and ``per_us`` of them are added or removed every microsecond (10/s: 1 per
µs, 100,000 per token). Refilling involves no rounding, and all sums are exact in Python and, below 2**53, in
Lua.
"""

from __future__ import annotations

from abc import abstractmethod
from fractions import Fraction
from struct import Struct
from typing import TYPE_CHECKING, Self

from comporta.clock import SECOND_US
from comporta.limits.strategies.base import STATE_TTL_US_MIN, LimitParams, ceil_div, rescale_level
from comporta.limits.strategies.registered_strategy import RegisteredStrategy
from comporta.stores.base import PINNED_US, State

if TYPE_CHECKING:
    from comporta.limits.config import LimitConfig

LEVEL_MAX = 2**52
"""The most fractions of a token in a bucket: sums stay exact in Lua, whose numbers are doubles."""


class BucketStrategy(RegisteredStrategy):
    """The parameters of a bucket.

    State: level, last change, the unit in which the level is counted, units granted in this slice, past
    slices.
    """

    __slots__ = ("capacity", "full", "params", "per_us", "pinned_ttl_us", "ttl_us", "unit")

    codec = Struct("<qqqI16s")

    def __init__(self, capacity: int, per_us: int, unit: int) -> None:
        self.capacity = capacity
        self.per_us = per_us
        self.unit = unit
        self.full = capacity * unit
        self.ttl_us = max(STATE_TTL_US_MIN, ceil_div(self.level_max, per_us))
        self.pinned_ttl_us = self.ttl_us + PINNED_US
        self.params = LimitParams(capacity, per_us, unit, 0)

    @classmethod
    def from_config(cls, config: LimitConfig) -> BucketStrategy:
        """Return the strategy with the numbers of a configuration."""
        return cls(config.capacity, *exact_rate(config.rate, config.capacity))

    @classmethod
    def check_config(cls, config: LimitConfig) -> None:
        """Raise ``ValueError`` for a rate that would take longer than 70 years to refill the bucket."""
        exact_rate(config.rate, config.capacity)

    @property
    def level_max(self) -> int:
        """The level from which the bucket takes longest to become unused again."""
        return self.full

    def with_params(self, params: LimitParams) -> Self:
        """Return the strategy with other parameters; a state carries the unit of its level."""
        return type(self)(params.capacity, params.per_us, params.unit)

    def pace_us(self, units: int) -> int:
        """Return how long the rate takes for some units."""
        return units * self.unit // self.per_us

    def expires_us(self, state: State) -> int:
        """Return when a bucket is full or empty again, which is equivalent to never used."""
        debt = max(0, self.debt(rescale_level(state[0], state[2], self.unit)))
        return int(state[1]) + self.ttl_us + ceil_div(debt, self.per_us)

    @abstractmethod
    def debt(self, level: int) -> int:
        """Return by how much a level exceeds what can be taken; 0 or less means no debt."""

    def retention_us(self, state: State) -> int:
        """Return the same time; a bucket is pinned if its last grant left nothing for another one."""
        level: int = state[0]
        last_us: int = state[1]
        if level >= self.unit:  # nearly always
            return last_us + self.ttl_us
        return self.expires_us(state) + PINNED_US if level < 0 else last_us + self.pinned_ttl_us


def exact_rate(rate: float, capacity: int) -> tuple[int, int]:
    """Return ``per_us`` and ``unit``: integers whose quotient is the rate in tokens per microsecond.

    A rate that people write (10, 0.1, 100/60) is represented exactly. Any other rate is rounded down to the
    nearest quotient for which a full bucket can still be counted, so rounding never raises the limit.
    """
    unit_max = LEVEL_MAX // (2 * capacity)
    simple = Fraction(rate).limit_denominator(1_000_000)
    exact = simple if abs(simple - Fraction(rate)) <= Fraction(rate) / 10**12 else Fraction(rate)
    per_us = exact / SECOND_US
    if per_us.denominator > unit_max:
        per_us = Fraction(int(per_us * unit_max), unit_max)
    if not per_us:
        years = capacity / rate / (365 * 86_400)
        raise ValueError(
            f"capacity must be refilled within 70 years, got {capacity} at {rate} per second: "
            f"{years:.0f} years"
        )
    return per_us.numerator, per_us.denominator
