"""The configuration of a limit: capacity, rate and strategy. Frozen, and validated when created."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from comporta.limits.priority import Headroom
from comporta.limits.strategies.calendar_window import calendar_strategy
from comporta.limits.strategies.fixed_window import FixedWindowStrategy
from comporta.limits.strategies.leaky_bucket import LeakyBucketStrategy
from comporta.limits.strategies.registered_strategy import RegisteredStrategy
from comporta.limits.strategies.registry import strategy_type
from comporta.limits.strategies.schedule import PERIODS
from comporta.limits.strategies.sliding_window import SlidingWindowStrategy
from comporta.limits.strategies.token_bucket import TokenBucketStrategy
from comporta.validators import require_bool, require_choice, require_integer, require_number

RATE_MAX = 1e9
CAPACITY_MAX = 1_000_000_000
WINDOW_MIN = 0.001
WINDOW_MAX = 366 * 86_400
LEASE_DEFAULT = 0.05
LEASE_MIN = 0.001
LEASE_MAX = 10.0
CLOSED_AFTER_MAX = 86_400


class LimitStrategy(Enum):
    """The built-in strategies: how a limit counts."""

    TOKEN_BUCKET = TokenBucketStrategy.name
    """``capacity`` units at once, refilled at ``rate`` units per second."""

    FIXED_WINDOW = FixedWindowStrategy.name
    """``capacity`` units in each window of ``window`` seconds, which starts with the first request."""

    SLIDING_WINDOW = SlidingWindowStrategy.name
    """``capacity`` units in any interval of ``window`` seconds."""

    LEAKY_BUCKET = LeakyBucketStrategy.name
    """``rate`` units per second, evenly spaced, while at most ``capacity`` callers wait for their turn."""


FALLBACKS = ("share", "open", "closed")

_UNITS = {
    "ms": 0.001,
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86_400.0),
}
_LIMIT_PATTERN = re.compile(
    r"\s*(?P<amount>\d{1,20})\s*(?:/|per)\s*(?P<periods>\d{1,20}(?:\.\d{1,20})?)?\s*(?P<unit>[a-z]+)"
    r"(?:\s*,?\s*burst\s+(?P<burst>\d{1,20}))?\s*"
)
_CALENDAR_PATTERN = re.compile(
    r"\s*(?P<amount>\d{1,20})\s*(?:/|per)\s*(?P<period>day|month)\s+at\s+(?P<time>\d\d:\d\d)\s+(?P<zone>\S+)\s*",
    re.IGNORECASE,
)
_DURATION_PATTERN = re.compile(r"\s*(?P<periods>\d{1,20}(?:\.\d{1,20})?)\s*(?P<unit>[a-z]+)\s*")


@dataclass(frozen=True)
class LimitConfig:
    """A limit: ``rate`` per second with a burst of ``capacity``, or ``capacity`` in each ``window`` seconds.

    Buckets use ``rate`` and ``capacity``; windows use ``capacity`` and ``window`` and ignore ``rate``.
    ``strategy`` is a :class:`LimitStrategy` or the name of a registered strategy. ``distributed`` uses a
    shared store by default (see :func:`comporta.stores.registry.default_url`). ``fallback`` is what each
    worker does while a shared store is unreachable: ``"share"`` grants the limit divided by the number of
    workers, ``"open"`` everything, ``"closed"`` nothing, from ``closed_after`` seconds after the outage began
    (until then its share). ``lease`` lets workers take many units in one step
    and use them one by one, within the given time: ``True`` for 50 ms, text such as ``"20ms"``, or seconds.
    ``shadow`` counts what the limit would refuse (metric ``would_refuse``), and refuses nothing.
    ``batch_headroom`` and ``normal_headroom`` are the units that callers of these priority classes leave to
    the higher ones; ``None`` is half of the capacity.
    """

    rate: float
    capacity: int
    window: float | None = None
    strategy: LimitStrategy | str = LimitStrategy.TOKEN_BUCKET
    distributed: bool = False
    fallback: str = "share"
    lease: bool | float | str = False
    shadow: bool = False
    batch_headroom: int | None = None
    normal_headroom: int = 0
    closed_after: float = 0.0

    def __post_init__(self) -> None:
        """Validate at creation, so that no limiter ever sees an invalid configuration."""
        object.__setattr__(self, "strategy", _normalize_strategy(self.strategy))
        object.__setattr__(self, "lease", _lease_seconds(self.lease))
        self.validate()

    def validate(self) -> None:
        """Raise ``ValueError`` or ``TypeError`` for an invalid value."""
        require_number("rate", self.rate, above=0, maximum=RATE_MAX)
        require_integer("capacity", self.capacity, 1, CAPACITY_MAX)
        strategy = strategy_type(self.strategy_name)
        if self.window is not None:
            require_number("window", self.window, WINDOW_MIN, WINDOW_MAX, unit="seconds")
        elif strategy.needs_window:
            raise ValueError(f"window is required for {self.strategy_name}, got None")
        strategy.check_config(self)
        require_choice("fallback", self.fallback, FALLBACKS)
        require_number("closed_after", self.closed_after, 0, CLOSED_AFTER_MAX, unit="seconds")
        if self.closed_after and self.fallback != "closed":
            raise ValueError(f"closed_after needs fallback='closed', got fallback={self.fallback!r}")
        require_bool("shadow", self.shadow)
        if self.lease is not False:
            require_number("lease", self.lease, LEASE_MIN, LEASE_MAX, unit="seconds")
        require_integer("normal_headroom", self.normal_headroom, 0, self.capacity)
        if self.batch_headroom is not None:
            require_integer("batch_headroom", self.batch_headroom, self.normal_headroom, self.capacity)

    @classmethod
    def parse(
        cls,
        text: str,
        strategy: LimitStrategy | str = LimitStrategy.TOKEN_BUCKET,
        *,
        distributed: bool = False,
        fallback: str = "share",
        lease: bool | float | str = False,
        shadow: bool = False,
        batch_headroom: int | None = None,
        normal_headroom: int = 0,
        closed_after: float = 0.0,
    ) -> LimitConfig:
        """Parse ``"10/s"``, ``"100/minute burst 20"``, ``"5/15m"`` or ``"1000/day at 00:00 Europe/Lisbon"``.

        The burst of a bucket is the amount itself unless the text gives one. A window has no burst. A day or
        month with a time and a time zone makes a calendar window, which is a separate strategy.
        """
        if not isinstance(text, str):
            raise TypeError(f"limit must be a LimitConfig or a str such as '10/s', got {text!r:.100}")
        calendar = _CALENDAR_PATTERN.fullmatch(text)
        options: dict[str, Any] = {
            "distributed": distributed,
            "fallback": fallback,
            "lease": lease,
            "shadow": shadow,
            "batch_headroom": batch_headroom,
            "normal_headroom": normal_headroom,
            "closed_after": closed_after,
        }
        if calendar is not None:
            return cls(**_calendar_fields(calendar, _strategy_name(strategy)), **options)
        parts = _LIMIT_PATTERN.fullmatch(text.lower())
        if parts is None or parts["unit"] not in _UNITS:
            raise ValueError(
                "limit must look like '10/s', '100/minute burst 20' or '1000/day at 00:00 America/Sao_Paulo' "
                f"(units: {', '.join(_UNITS)}; with a time also month), got {text!r:.100}"
            )
        amount, window = int(parts["amount"]), float(parts["periods"] or 1) * _UNITS[parts["unit"]]
        require_integer("amount", amount, 1, CAPACITY_MAX)
        name = _strategy_name(strategy)
        if parts["burst"] and strategy_type(name).needs_window:
            raise ValueError(f"burst does not apply to {name}, got {text!r}")
        if window <= 0:
            raise ValueError(f"limit must have a positive period, got {text!r:.100}")
        capacity = int(parts["burst"] or amount)
        return cls(amount / window, capacity, window, strategy, **options)

    @classmethod
    def coerce(cls, limit: LimitConfig | str, strategy: LimitStrategy | str | None = None) -> LimitConfig:
        """Return a configuration from a configuration or text; ``strategy`` replaces its strategy."""
        if isinstance(limit, LimitConfig):
            return limit if strategy is None else replace(limit, strategy=strategy)
        return cls.parse(limit, strategy or LimitStrategy.TOKEN_BUCKET)

    def __str__(self) -> str:
        """Return the limit as people write it, with its strategy."""
        kind = self.strategy_name if self.lease is False else f"{self.strategy_name}, lease {self.lease:g} s"
        kind = f"{kind}, shadow" if self.shadow else kind
        return f"{strategy_type(self.strategy_name).limit_text(self)} ({kind})"

    @property
    def strategy_name(self) -> str:
        """The name of the strategy."""
        return _strategy_name(self.strategy)

    @property
    def lease_us(self) -> int:
        """How long a lease may keep units from other workers, in µs: a small part of a window."""
        return strategy_type(self.strategy_name).lease_us(self)

    def build_strategy(self) -> RegisteredStrategy:
        """Return the strategy with the numbers of this limit."""
        return strategy_type(self.strategy_name).from_config(self)


Limits = LimitConfig | str | Sequence[LimitConfig | str] | Mapping[str, LimitConfig | str]
"""One limit or several: ``"10/s; 1000/day"``, a list of limits, or limits by name."""


def split_limits(limit: Limits, name: str) -> dict[str, tuple[str, LimitConfig | str]]:
    """Return the limits by the names that callers use, each with the name of its limiter.

    Named limits keep their names. The first limit of a list has the ``name`` of the whole list, so that
    adding a second limit does not change the state of the first.
    """
    if isinstance(limit, str) and ";" in limit:
        limit = limit.split(";")
    if isinstance(limit, Mapping):
        for each, value in limit.items():
            if not isinstance(value, LimitConfig | str):
                raise TypeError(
                    f"limit[{each!r:.100}] must be a LimitConfig or a str such as '10/s', got {value!r:.100}"
                )
        return {each: (f"{name}.{each}", value) for each, value in limit.items()}
    if isinstance(limit, LimitConfig | str) or not isinstance(limit, Sequence):
        limit = [limit]
    names = [name, *(f"{name}.{number}" for number in range(2, len(limit) + 1))]
    return {each: (each, value) for each, value in zip(names, limit, strict=False)}


def _calendar_fields(parts: re.Match[str], strategy: str) -> dict[str, Any]:
    """Return the numbers and the strategy of a calendar window that a text describes."""
    period = parts["period"].lower()
    found = calendar_strategy(period, parts["time"], parts["zone"])
    if strategy not in (TokenBucketStrategy.name, FixedWindowStrategy.name, found.name):
        raise ValueError(f"a time of day does not apply to {strategy}, got {parts[0]!r:.100}")
    amount, window = int(parts["amount"]), PERIODS[period]
    require_integer("amount", amount, 1, CAPACITY_MAX)
    return {"rate": amount / window, "capacity": amount, "window": window, "strategy": found.name}


def class_headrooms(config: LimitConfig) -> tuple[Headroom, ...]:
    """Return the headroom that callers of each priority class leave to higher classes."""
    batch = config.batch_headroom
    if batch is None:
        batch = max(config.normal_headroom, config.capacity // 2)
    return tuple(Headroom(units, config.capacity) for units in (0, config.normal_headroom, batch))


def _strategy_name(strategy: LimitStrategy | str) -> str:
    return strategy.value if isinstance(strategy, LimitStrategy) else strategy


def _normalize_strategy(strategy: LimitStrategy | str) -> LimitStrategy | str:
    """Return the member of ``LimitStrategy`` for its name, so that equal limits compare equal."""
    if isinstance(strategy, LimitStrategy):
        return strategy
    if not isinstance(strategy, str):
        raise TypeError(
            f"strategy must be a LimitStrategy or the name of a registered strategy, got {strategy!r:.50}"
        )
    strategy_type(strategy)
    return next((member for member in LimitStrategy if member.value == strategy), strategy)


def _lease_seconds(lease: bool | float | str) -> bool | float:
    """Return a lease in any form that users may write as seconds, or ``False``."""
    if isinstance(lease, bool):
        return LEASE_DEFAULT if lease else False
    if isinstance(lease, int | float):
        return lease
    if not isinstance(lease, str):
        raise TypeError(f"lease must be a bool, a number of seconds or a str, got {lease!r:.100}")
    parts = _DURATION_PATTERN.fullmatch(lease.lower())
    if parts is None or parts["unit"] not in _UNITS:
        raise ValueError(f"lease must look like '50ms' (units: {', '.join(_UNITS)}), got {lease!r:.100}")
    return float(parts["periods"]) * _UNITS[parts["unit"]]
