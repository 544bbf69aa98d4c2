"""What a limit is: how much, how fast, by which strategy. Frozen, and checked once, here."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction
from typing import cast

from comporta.clock import SECOND_US, to_us
from comporta.limits.fixed_window import FixedWindow
from comporta.limits.leaky_bucket import LeakyBucket
from comporta.limits.leased_bucket import LeasedTokenBucket
from comporta.limits.rule import Rule
from comporta.limits.sliding_window import LEASE_PART, SlidingWindow
from comporta.limits.token_bucket import TokenBucket

RATE_MAX = 1e9
CAPACITY_MAX = 1_000_000_000
WINDOW_MIN = 0.001
WINDOW_MAX = 366 * 86_400.0
LEASE_DEFAULT = 0.05
LEASE_MIN = 0.001
LEASE_MAX = 10.0
LEVEL_MAX = 2**52
"""The most fractions of a token in a bucket: sums stay exact in Lua, whose numbers are doubles."""


class LimitStrategy(Enum):
    """How a limit counts."""

    TOKEN_BUCKET = "token_bucket"  # noqa: S105 - no secret
    FIXED_WINDOW = "fixed_window"
    SLIDING_WINDOW = "sliding_window"
    LEAKY_BUCKET = "leaky_bucket"


WINDOWS = frozenset({LimitStrategy.FIXED_WINDOW, LimitStrategy.SLIDING_WINDOW})
FALLBACKS = ("share", "open", "closed")

_UNITS = {
    "ms": 0.001,
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86_400.0),
}
_TEXT = re.compile(
    r"\s*(?P<amount>\d{1,20})\s*(?:/|per)\s*(?P<periods>\d{1,20}(?:\.\d{1,20})?)?\s*(?P<unit>[a-z]+)"
    r"(?:\s*,?\s*burst\s+(?P<burst>\d{1,20}))?\s*"
)
_TIME = re.compile(r"\s*(?P<periods>\d{1,20}(?:\.\d{1,20})?)\s*(?P<unit>[a-z]+)\s*")


@dataclass(frozen=True)
class LimitConfig:
    """A limit: ``rate`` per second and at most ``capacity`` at once, or ``capacity`` in each ``window``.

    Buckets use ``rate`` and ``capacity``; windows use ``capacity`` and ``window`` and ignore ``rate``.
    ``distributed`` shares the state by default (see :func:`comporta.stores.urls.default_url`).
    ``fallback`` is what each worker does while a shared state is out of reach: ``"share"`` grants the limit
    divided by the number of workers, ``"open"`` everything, ``"closed"`` nothing.
    ``lease`` lets workers take many units in one step and use them one by one, within the time given:
    ``True`` for 50 ms, or text such as ``"20ms"``, or seconds.
    """

    rate: float
    capacity: int
    window: float | None = None
    strategy: LimitStrategy = LimitStrategy.TOKEN_BUCKET
    distributed: bool = False
    fallback: str = "share"
    lease: bool | float | str = False

    def __post_init__(self) -> None:
        """Check as soon as it is made, so that no limiter ever sees a bad one."""
        object.__setattr__(self, "lease", _lease_seconds(self.lease))
        self.validate()

    def validate(self) -> None:
        """Raise ``ValueError`` or ``TypeError`` for what no limit can be."""
        if not isinstance(self.strategy, LimitStrategy):
            raise TypeError(f"strategy must be a LimitStrategy, got {self.strategy!r}")
        _check("rate", self.rate, f"positive and at most {RATE_MAX:g} per second", 0, RATE_MAX)
        if isinstance(self.capacity, bool) or not isinstance(self.capacity, int):
            raise TypeError(f"capacity must be an int, got {self.capacity!r}")
        _check("capacity", self.capacity, f"positive and at most {CAPACITY_MAX}", 0, CAPACITY_MAX)
        if self.window is not None:
            allowed = f"positive, {WINDOW_MIN:g} to {WINDOW_MAX:g} seconds"
            _check("window", self.window, allowed, WINDOW_MIN - 1e-9, WINDOW_MAX)
        elif self.strategy in WINDOWS:
            raise ValueError(f"window is required for {self.strategy.value}, got None")
        if self.strategy not in WINDOWS:
            exact_rate(self.rate, self.capacity)
        if self.fallback not in FALLBACKS:
            raise ValueError(f"fallback must be one of {', '.join(FALLBACKS)}, got {self.fallback!r:.50}")
        if self.lease is not False:
            allowed = f"{LEASE_MIN:g} to {LEASE_MAX:g} seconds, True or False"
            _check("lease", cast(float, self.lease), allowed, LEASE_MIN - 1e-9, LEASE_MAX)

    @classmethod
    def parse(
        cls,
        text: str,
        strategy: LimitStrategy = LimitStrategy.TOKEN_BUCKET,
        *,
        distributed: bool = False,
        fallback: str = "share",
        lease: bool | float | str = False,
    ) -> LimitConfig:
        """Read ``"10/s"``, ``"100/minute burst 20"``, ``"5/15m"``.

        The burst of a bucket is the amount itself unless it is given. A window has no burst.
        """
        if not isinstance(text, str):
            raise TypeError(f"limit must be a LimitConfig or a str, got {text!r:.100}")
        found = _TEXT.fullmatch(text.lower())
        if found is None or found["unit"] not in _UNITS:
            raise ValueError(
                f"limit must look like '10/s' or '100/minute burst 20' (units: {', '.join(_UNITS)}), "
                f"got {text!r:.100}"
            )
        amount, window = int(found["amount"]), float(found["periods"] or 1) * _UNITS[found["unit"]]
        _check("amount", amount, f"positive and at most {CAPACITY_MAX}", 0, CAPACITY_MAX)
        if strategy in WINDOWS and found["burst"]:
            raise ValueError(f"burst does not apply to {strategy.value}, got {text!r}")
        if window <= 0:
            raise ValueError(f"limit must have a positive period, got {text!r:.100}")
        capacity = int(found["burst"] or amount)
        return cls(amount / window, capacity, window, strategy, distributed, fallback, lease)

    @classmethod
    def of(cls, limit: LimitConfig | str, strategy: LimitStrategy | None = None) -> LimitConfig:
        """Return a configuration for what users may write in its place."""
        if isinstance(limit, LimitConfig):
            return limit if strategy is None else replace(limit, strategy=strategy)
        return cls.parse(limit, strategy or LimitStrategy.TOKEN_BUCKET)

    def __str__(self) -> str:
        """Say it as people would."""
        kind = (
            self.strategy.value if self.lease is False else f"{self.strategy.value}, lease {self.lease:g} s"
        )
        if self.strategy in WINDOWS:
            return f"{self.capacity} in {self.window:g} s ({kind})"
        return f"{self.rate:g}/s burst {self.capacity} ({kind})"

    @property
    def lease_us(self) -> int:
        """For how long a lease may keep units from others; for windows a small part of the window."""
        lease_us = to_us(float(self.lease))
        if self.strategy in WINDOWS:
            return min(lease_us, to_us(self.window or 0) // LEASE_PART)
        return lease_us

    def rule(self) -> Rule:
        """Return the algorithm with this limit's numbers.

        Units on lease are used late, within half of ``lease_us``. A sliding window counts them for so much
        longer; a token bucket keeps a book of them.
        """
        window_us = to_us(self.window or 0)
        if self.strategy is LimitStrategy.FIXED_WINDOW:
            return FixedWindow(self.capacity, window_us)
        if self.strategy is LimitStrategy.SLIDING_WINDOW:
            return SlidingWindow(self.capacity, window_us + self.lease_us)
        per_us, unit = exact_rate(self.rate, self.capacity)
        if self.strategy is LimitStrategy.LEAKY_BUCKET:
            return LeakyBucket(self.capacity, per_us, unit)
        if self.lease is not False:
            return LeasedTokenBucket(self.capacity, per_us, unit, self.lease_us // 2)
        return TokenBucket(self.capacity, per_us, unit)


def _check(name: str, value: float, allowed: str, above: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not above < value <= most:  # false for nan, too
        raise ValueError(f"{name} must be {allowed}, got {str(value)[:50]}")


def _lease_seconds(lease: bool | float | str) -> bool | float:
    """Return what users may write for a lease as seconds, or ``False``."""
    if isinstance(lease, bool):
        return LEASE_DEFAULT if lease else False
    if isinstance(lease, int | float):
        return lease
    if not isinstance(lease, str):
        raise TypeError(f"lease must be a bool, a number of seconds or a str, got {lease!r:.100}")
    found = _TIME.fullmatch(lease.lower())
    if found is None or found["unit"] not in _UNITS:
        raise ValueError(f"lease must look like '50ms' (units: {', '.join(_UNITS)}), got {lease!r:.100}")
    return float(found["periods"]) * _UNITS[found["unit"]]


def exact_rate(rate: float, capacity: int) -> tuple[int, int]:
    """Return ``per_us`` and ``unit``: whole numbers whose quotient is the rate in tokens per microsecond.

    What a person writes (10, 0.1, 100/60) comes out exactly; another rate is rounded down to the nearest
    quotient for which a full bucket can still be counted, so the limit is never exceeded by rounding.
    """
    unit_max = LEVEL_MAX // (2 * capacity)
    meant = Fraction(rate).limit_denominator(1_000_000)
    exact = meant if abs(meant - Fraction(rate)) <= Fraction(rate) / 10**12 else Fraction(rate)
    per_us = exact / SECOND_US
    if per_us.denominator > unit_max:
        per_us = Fraction(int(per_us * unit_max), unit_max)
    if not per_us:
        years = capacity / rate / (365 * 86_400)
        raise ValueError(
            f"capacity must be refilled within 70 years, got {capacity} at {rate} per second: {years:.0f}"
        )
    return per_us.numerator, per_us.denominator
