"""How a cache behaves, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Final

SECONDS_MAX: Final = 10 * 366 * 86_400.0
LEASE_SECONDS_MAX: Final = 3600.0
BY_PARAMS: Final = "params"
BY_USER: Final = "user"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """Durations are in seconds; see :class:`comporta.cache.cache.HealthCache`."""

    fresh: float
    stale: float
    scope: str
    lease_seconds: float
    soft_timeout: float | None
    refresh_timeout: float
    refreshes_max: int
    refresh_every: float
    entries_per_user: int
    level_entries: int
    level_bytes: int
    level_seconds: float

    def __post_init__(self) -> None:
        check_seconds("fresh", self.fresh, 0.001)
        check_seconds("stale", self.stale, self.fresh)
        if self.scope not in (BY_PARAMS, BY_USER):
            raise ValueError(f"scope must be {BY_PARAMS!r} or {BY_USER!r}, got {self.scope!r:.50}")
        check_seconds("lease_seconds", self.lease_seconds, 0.05, LEASE_SECONDS_MAX)
        if self.soft_timeout is not None:
            check_seconds("soft_timeout", self.soft_timeout)
        check_seconds("refresh_timeout", self.refresh_timeout, 0.001, 86_400)
        check_seconds("refresh_every", self.refresh_every)
        check_seconds("level_seconds", self.level_seconds, 0.001)
        check_count("refreshes_max", self.refreshes_max, 0, 1000)
        check_count("entries_per_user", self.entries_per_user, 1, 100_000)
        check_count("level_entries", self.level_entries, 1, 10_000_000)
        check_count("level_bytes", self.level_bytes, 1, 2**40)

    @property
    def refresh_pause(self) -> float:
        """How soon after a success a refresh is allowed: what is fresh for less than that needs it sooner."""
        return min(self.refresh_every, self.fresh)


def check_seconds(field: str, value: object, least: float = 0.0, most: float = SECONDS_MAX) -> None:
    """Refuse what is no length of time."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{field} must be a number of seconds, got {value!r:.50}")
    if not (isfinite(value) and least <= value <= most):
        raise ValueError(f"{field} must be {least:g} to {most:g} seconds, got {value}")


def check_count(field: str, value: object, least: int, most: int) -> None:
    """Refuse what is no number of things."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{field} must be an int, got {value!r:.50}")
    if not least <= value <= most:
        raise ValueError(f"{field} must be {least} to {most}, got {value}")
