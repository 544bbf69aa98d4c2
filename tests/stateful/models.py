"""What limits, permits, circuits and cache keys promise, as small models in exact arithmetic.

They are written from the documentation and share nothing with the package: no module of comporta is imported.
Times are integers in microseconds.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor
from typing import Protocol

SECOND_US = 1_000_000
NOTHING = Fraction(0)


class LimitModel(Protocol):
    """The limit of one key."""

    def take(self, now_us: int, cost: int) -> int:
        """Take a cost and return 0, or take nothing and return the microseconds until it would be granted."""

    def give_back(self, now_us: int, cost: int) -> None:
        """Give back units that were taken."""

    def remaining(self, now_us: int) -> int:
        """Return how many units could be taken now."""


class TokenBucketModel:
    """A bucket that time fills: ``rate`` tokens a second, at most ``capacity``."""

    def __init__(self, capacity: int, rate: int) -> None:
        self.capacity = Fraction(capacity)
        self.per_us = Fraction(rate, SECOND_US)
        self.level = self.capacity
        self.at_us = 0

    def take(self, now_us: int, cost: int) -> int:
        self._fill(now_us)
        if self.level >= cost:
            self.level -= cost
            return 0
        return ceil((cost - self.level) / self.per_us)

    def give_back(self, now_us: int, cost: int) -> None:
        self._fill(now_us)
        self.level = min(self.capacity, self.level + cost)

    def remaining(self, now_us: int) -> int:
        self._fill(now_us)
        return floor(self.level)

    def _fill(self, now_us: int) -> None:
        self.level = min(self.capacity, self.level + (now_us - self.at_us) * self.per_us)
        self.at_us = now_us


class LeakyBucketModel:
    """Turns at even intervals: a caller that does not wait passes only if all turns given out have passed."""

    def __init__(self, capacity: int, rate: int) -> None:
        self.capacity = capacity
        self.interval_us = Fraction(SECOND_US, rate)
        self.free_us = NOTHING

    def take(self, now_us: int, cost: int) -> int:
        if self.free_us > now_us:
            return ceil(self.free_us - now_us)
        self.free_us = now_us + cost * self.interval_us
        return 0

    def give_back(self, now_us: int, cost: int) -> None:
        self.free_us = max(Fraction(now_us), self.free_us - cost * self.interval_us)

    def remaining(self, now_us: int) -> int:
        ahead = max(NOTHING, (self.free_us - now_us) / self.interval_us)
        return max(0, self.capacity - ceil(ahead))


class FixedWindowModel:
    """A number of units in each window, which begins with the first unit taken after the last window."""

    def __init__(self, capacity: int, window_us: int) -> None:
        self.capacity = capacity
        self.window_us = window_us
        self.began_us: int | None = None
        self.used = 0

    def take(self, now_us: int, cost: int) -> int:
        self._end(now_us)
        if self.used + cost > self.capacity and self.began_us is not None:
            return self.began_us + self.window_us - now_us
        if self.began_us is None:
            self.began_us = now_us
        self.used += cost
        return 0

    def give_back(self, now_us: int, cost: int) -> None:
        self._end(now_us)
        self.used = max(0, self.used - cost)

    def remaining(self, now_us: int) -> int:
        self._end(now_us)
        return self.capacity - self.used

    def _end(self, now_us: int) -> None:
        if self.began_us is not None and now_us >= self.began_us + self.window_us:
            self.began_us, self.used = None, 0


class SlidingWindowModel:
    """At most ``capacity`` units in every interval that is as long as the window."""

    def __init__(self, capacity: int, window_us: int) -> None:
        self.capacity = capacity
        self.window_us = window_us
        self.taken_us: list[int] = []

    def take(self, now_us: int, cost: int) -> int:
        self._forget(now_us)
        missing = len(self.taken_us) + cost - self.capacity
        if missing > 0:
            return self.taken_us[missing - 1] + self.window_us - now_us
        self.taken_us += [now_us] * cost
        return 0

    def give_back(self, now_us: int, cost: int) -> None:
        self._forget(now_us)
        del self.taken_us[max(0, len(self.taken_us) - cost) :]

    def remaining(self, now_us: int) -> int:
        self._forget(now_us)
        return self.capacity - len(self.taken_us)

    def _forget(self, now_us: int) -> None:
        self.taken_us = [at_us for at_us in self.taken_us if at_us + self.window_us > now_us]


class PermitsModel:
    """A number of permits, each of which expires unless it is renewed."""

    def __init__(self, count: int, ttl_us: int) -> None:
        self.count = count
        self.ttl_us = ttl_us
        self.ends_us: dict[int, int] = {}

    def acquire(self, now_us: int, permit: int) -> bool:
        if len(self.held(now_us)) >= self.count:
            return False
        self.ends_us[permit] = now_us + self.ttl_us
        return True

    def release(self, permit: int) -> None:
        self.ends_us.pop(permit, None)

    def renew(self, now_us: int, permit: int) -> bool:
        if permit not in self.held(now_us):
            return False
        self.ends_us[permit] = now_us + self.ttl_us
        return True

    def held(self, now_us: int) -> set[int]:
        """Return the permits that have not expired."""
        self.ends_us = {permit: ends_us for permit, ends_us in self.ends_us.items() if ends_us > now_us}
        return set(self.ends_us)

    def seconds_left(self, now_us: int) -> list[float]:
        """Return how long each permit lasts, the next one to expire first."""
        return sorted((self.ends_us[permit] - now_us) / SECOND_US for permit in self.held(now_us))


class CircuitModel:
    """A circuit that opens after failures in a row, and then admits one call at a time until one succeeds.

    A call belongs to the period in which it was admitted: each opening and each closing begins another one,
    and results of earlier periods change nothing. Failures, and a circuit that nothing uses, are forgotten
    after 300 s.
    """

    FORGOTTEN_US = 300 * SECOND_US

    def __init__(self, threshold: int, cooldown_us: int, probe_us: int) -> None:
        self.threshold = threshold
        self.cooldown_us = cooldown_us
        self.probe_us = probe_us
        self.period = 0
        self.failures = 0
        self.failed_us = 0
        self.opened_us: int | None = None
        self.used_us = 0
        self.probe: int | None = None
        self.probe_ends_us = 0

    def admit(self, now_us: int, call: int) -> int | None:
        """Return the period of an admitted call, or None."""
        self._forget(now_us)
        if self.opened_us is None:
            return self.period
        if now_us < self.opened_us + self.cooldown_us:
            return None
        if self.probe is not None and now_us < self.probe_ends_us:
            return None
        self.probe, self.probe_ends_us, self.used_us = call, now_us + self.probe_us, now_us
        return self.period

    def retry_us(self, now_us: int) -> int:
        """Return how long a call that was just refused has to wait."""
        assert self.opened_us is not None
        return (
            max(self.opened_us + self.cooldown_us, self.probe_ends_us if self.probe is not None else 0)
            - now_us
        )

    def fail(self, now_us: int, call: int, period: int) -> None:
        self._forget(now_us)
        if period != self.period:
            return
        if self.opened_us is not None:
            if call == self.probe and now_us < self.probe_ends_us:
                self._open(now_us)
            return
        self.failures, self.failed_us = self.failures + 1, now_us
        if self.failures >= self.threshold:
            self._open(now_us)

    def succeed(self, now_us: int, call: int, period: int) -> None:
        self._forget(now_us)
        if period != self.period:
            return
        if self.opened_us is None:
            self.failures = 0
        elif call == self.probe and now_us < self.probe_ends_us:
            self.opened_us = self.probe = None
            self.failures, self.period = 0, self.period + 1

    def is_open(self, now_us: int) -> bool:
        self._forget(now_us)
        return self.opened_us is not None and now_us < self.opened_us + self.cooldown_us

    def _open(self, now_us: int) -> None:
        self.opened_us, self.used_us, self.probe, self.period = now_us, now_us, None, self.period + 1

    def _forget(self, now_us: int) -> None:
        if now_us >= self.failed_us + self.FORGOTTEN_US:
            self.failures = 0
        if self.opened_us is not None and now_us >= self.used_us + self.FORGOTTEN_US:
            self.opened_us = self.probe = None


class CacheKeyModel:
    """One key of a cache: its last result, the failures since, and when the source may be called again."""

    BACKOFF_MINUTES = (0, 1, 5, 15, 30)

    def __init__(self, fresh: float, stale: float) -> None:
        self.fresh = fresh
        self.stale = stale
        self.value: int | None = None
        self.fetched = 0.0
        self.failures = 0
        self.next_try = 0.0

    def freshness(self, now: float) -> str:
        """Return how usable the result is; a key without one is expired."""
        if self.value is None or now - self.fetched >= self.stale:
            return "expired"
        return "fresh" if now - self.fetched < self.fresh else "stale"

    def may_load(self, now: float) -> bool:
        """Return whether the source may be called."""
        return now >= self.next_try

    def load(self, now: float, value: int | None) -> None:
        """Call the source, which returns a value, or fails."""
        if value is None:
            self.failures += 1
            self.next_try = now + 60 * self.BACKOFF_MINUTES[min(self.failures, 4)]
        else:
            self.value, self.fetched, self.failures, self.next_try = value, now, 0, 0.0
