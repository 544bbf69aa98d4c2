"""The validated options of a cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from comporta.validators import require_choice, require_integer, require_number

SECONDS_MAX: Final = 10 * 366 * 86_400.0
LEASE_SECONDS_MAX: Final = 3600.0
BY_PARAMS: Final = "params"
BY_USER: Final = "user"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """Durations are in seconds; :class:`comporta.cache.cache.HealthCache` says what each option means."""

    fresh: float
    stale: float
    scope: str
    lease_seconds: float
    soft_timeout: float | None
    refresh_timeout: float
    refreshes_max: int
    refresh_every: float
    entries_per_user: int | None
    table_entries: int
    table_bytes: int
    local_entries: int
    local_bytes: int
    local_ttl: float

    def __post_init__(self) -> None:
        _require_seconds("fresh", self.fresh, 0.001)
        _require_seconds("stale", self.stale, self.fresh)
        require_choice("scope", self.scope, (BY_PARAMS, BY_USER))
        _require_seconds("lease_seconds", self.lease_seconds, 0.05, LEASE_SECONDS_MAX)
        if self.soft_timeout is not None:
            _require_seconds("soft_timeout", self.soft_timeout)
        _require_seconds("refresh_timeout", self.refresh_timeout, 0.001, 86_400)
        _require_seconds("refresh_every", self.refresh_every)
        _require_seconds("local_ttl", self.local_ttl, 0.001)
        require_integer("refreshes_max", self.refreshes_max, 0, 1000)
        if self.entries_per_user is not None:
            require_integer("entries_per_user", self.entries_per_user, 1, 100_000)
        require_integer("table_entries", self.table_entries, 1, 1_000_000_000)
        require_integer("table_bytes", self.table_bytes, 1, 2**50)
        require_integer("local_entries", self.local_entries, 1, 10_000_000)
        require_integer("local_bytes", self.local_bytes, 1, 2**40)

    @property
    def refresh_pause(self) -> float:
        """How many seconds after a success a refresh is allowed; a short ``fresh`` shortens this time."""
        return min(self.refresh_every, self.fresh)


def _require_seconds(name: str, value: object, minimum: float = 0.0, maximum: float = SECONDS_MAX) -> None:
    require_number(name, value, minimum, maximum, unit="seconds")
