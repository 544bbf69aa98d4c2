"""What happened to the calls of one upstream in a playback: numbers per slot of time, and their totals.

One bar in the report shows one slot. The record has a fixed size, whatever the number of calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import exp, log
from typing import Any, Final

from comporta.limits.config import LimitConfig, LimitStrategy

SLOTS_MAX: Final = 300
"""The largest number of slots in a record."""

OUTCOMES: Final = ("ok", "failed", "limited", "open", "busy")
"""How a call ends: answered; with an error; refused by the limit; by the breaker; no caller was free."""

_WAIT_STEP = log(1.05)
_WAIT_MIN = 0.001


class TokenMeter:
    """Counts the attempts that exceed a limit: capacity at the start, plus rate * time."""

    def __init__(self, config: LimitConfig) -> None:
        window = config.window
        self._rate = config.rate if window is None else config.capacity / window
        self._capacity = config.capacity * (2 if config.strategy == LimitStrategy.FIXED_WINDOW else 1)
        self._tokens = float(self._capacity)
        self._at = 0.0

    def exceeds(self, now: float) -> bool:
        """Count an attempt, and return whether it exceeds the limit."""
        tokens = min(self._capacity, self._tokens + (now - self._at) * self._rate) - 1
        self._at = now
        is_excess = tokens < -1e-6
        self._tokens = tokens + 1 if is_excess else tokens
        return is_excess


class WaitTimes:
    """Durations, each counted to within 5 %."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.longest = 0.0

    def add(self, seconds: float) -> None:
        """Count a duration."""
        self._counts[0 if seconds <= _WAIT_MIN else 1 + int(log(seconds / _WAIT_MIN) / _WAIT_STEP)] += 1
        if seconds > self.longest:
            self.longest = seconds

    def quantile(self, share: float) -> float:
        """Return the duration that this fraction of all durations does not exceed; 0 if there are none."""
        left = share * self._counts.total()
        for step, count in sorted(self._counts.items()):
            left -= count
            if left <= 0:
                return min(self.longest, _WAIT_MIN * exp(step * _WAIT_STEP)) if step else 0.0
        return self.longest


class UpstreamRecord:
    """The numbers of one upstream. ``rate`` is the rate of its limit, in calls per second."""

    def __init__(self, name: str, limits: Sequence[LimitConfig], seconds: float) -> None:
        self.name = name
        self.seconds = seconds
        self.slot = max(1.0, seconds / SLOTS_MAX)
        slots = max(1, round(seconds / self.slot + 0.499))
        self.rate = min(_rate(config) for config in limits)
        self._last_slot = slots - 1
        self.demand = [0] * slots
        self.sent = [0] * slots
        self.over = [0] * slots
        self.outcomes = {outcome: [0] * slots for outcome in OUTCOMES}
        self.longest_wait = [0.0] * slots
        self.phases: list[Counter[str]] = [Counter() for _ in range(slots)]
        self.fallback: list[Counter[bool]] = [Counter() for _ in range(slots)]
        self.waits = WaitTimes()
        self.retries = 0
        self._meters = [TokenMeter(config) for config in limits]

    def slot_at(self, now: float) -> int:
        """Return the slot of a moment."""
        return min(int(now / self.slot), self._last_slot)

    def add_call(self, now: float) -> None:
        """Count a call that a user makes."""
        self.demand[self.slot_at(now)] += 1

    def add_attempt(self, now: float, *, waited: float | None) -> None:
        """Count a request to the upstream; ``waited`` is how long the call waited, ``None`` for a retry."""
        slot = self.slot_at(now)
        self.sent[slot] += 1
        if sum([meter.exceeds(now) for meter in self._meters]):
            self.over[slot] += 1
        if waited is None:
            self.retries += 1
            return
        self.waits.add(waited)
        if waited > self.longest_wait[slot]:
            self.longest_wait[slot] = waited

    def add_outcome(self, now: float, outcome: str) -> None:
        """Count the end of a call."""
        self.outcomes[outcome][self.slot_at(now)] += 1

    def add_sample(self, now: float, phase: str, *, is_fallback: bool) -> None:
        """Count the current state of one worker's breaker and store."""
        slot = self.slot_at(now)
        self.phases[slot][phase] += 1
        self.fallback[slot][is_fallback] += 1

    def summary(self) -> dict[str, Any]:
        """Return the totals, for a table or as JSON."""
        return {
            "upstream": self.name,
            "calls": sum(self.demand),
            **{outcome: sum(self.outcomes[outcome]) for outcome in OUTCOMES},
            "attempts": sum(self.sent),
            "retries": self.retries,
            "over_limit": sum(self.over),
            "wait_median": round(self.waits.quantile(0.5), 3),
            "wait_p95": round(self.waits.quantile(0.95), 3),
            "wait_max": round(self.waits.longest, 3),
            "open_seconds": self._seconds_of(self.phases, "open"),
            "fallback_seconds": self._seconds_of(self.fallback, True),
        }

    def _seconds_of(self, samples: Sequence[Counter[Any]], value: object) -> float:
        """Return for how many seconds a sampled worker had a value, on average."""
        return round(sum(slot[value] / max(1, slot.total()) for slot in samples) * self.slot, 1)


def _rate(config: LimitConfig) -> float:
    return config.rate if config.window is None else config.capacity / config.window
