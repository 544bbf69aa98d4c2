"""A snapshot of the demo: the health of the service, the portals' own counters, and the users' answers.

This module is pure: it evaluates data that the poller has read. Scenario conditions and the status line use
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

from comporta.demo.config import LIMITS, PortalLimit
from comporta.limits.config import LimitConfig

WINDOW_SECONDS: Final = 10.0
"""The length of the window over which a portal counts ``recent`` and ``busiest``."""

ANSWER_KINDS: Final = (
    *("fresh", "stale", "partial", "pending", "nothing", "failed", "over", "broken", "watched", "jobs"),
)
"""What the simulated users count: ``fresh``, ``stale`` and ``partial`` answers; ``pending``: a part, because
the rest is still being read; ``nothing``: 503, no source and no cached result; ``failed``: any other error;
``over``: 429, the client exceeded its limit; ``broken``: connections that were cut off; ``watched``: searches
followed as a stream; ``jobs``: batch jobs completed."""


@dataclass(frozen=True)
class DemoSnapshot:
    """The state of the demo at one moment.

    ``replaced_count``: workers that replaced others and have answered. ``fallback_count``: how many of the
    latest health answers came from a worker without the shared state. ``at`` is the time in Unix seconds.
    """

    health: Mapping[str, Any]
    portals: Mapping[str, Mapping[str, Any]]
    counts: Mapping[str, int]
    replaced_count: int = 0
    fallback_count: int = 0
    at: float = 0.0

    def phase(self, name: str) -> str:
        """Return the phase of an upstream's breaker."""
        return str(self._source(name).get("phase"))

    def phase_label(self, name: str) -> str:
        """Return the phase in the words of the dashboard."""
        return "half-open" if self.phase(name) in ("half_open", "ramp") else self.phase(name)

    def open_until(self, name: str) -> float:
        """Return the end of the breaker's cooldown in Unix seconds; 0 if it is not open."""
        return float(self.health.get(f"{name}_circuit_breaker", {}).get("degraded_until") or 0.0)

    def limit(self, name: str) -> float:
        """Return the current limit, in requests per second."""
        return float(self._source(name).get("limit_per_second") or 0.0)

    def original_limit(self, name: str) -> float:
        """Return the limit without degradation, in requests per second: the configured or an operator's."""
        return float(self._source(name).get("original_limit_per_second") or LIMITS[name].rate)

    def is_limit_lowered(self, name: str) -> bool:
        """Whether the current limit is below the original one."""
        return 0 < self.limit(name) < self.original_limit(name)

    def limit_in_force(self, name: str) -> PortalLimit:
        """Return the limit that the fleet has to keep: the configured one, or an operator's."""
        text = self._source(name).get("limit")
        if not text:
            return LIMITS[name]
        limit = LimitConfig.parse(text)
        return PortalLimit(ceil(limit.rate), limit.capacity)

    def is_overridden(self, name: str) -> bool:
        """Whether an operator changed the limit or holds the breaker."""
        source = self._source(name)
        is_changed = source.get("limit") != source.get("configured_limit")
        return bool(is_changed or source.get("forced"))

    def pause_seconds(self, name: str) -> float:
        """Return the remaining seconds of the fleet's pause; 0 if there is no pause."""
        return float(self._limiter(name).get("paused_seconds") or 0.0)

    def calls_last_minute(self, name: str) -> int:
        """Return the calls of the whole fleet in the last minute, as the shared state counts them."""
        return int(self._limiter(name).get("requests_last_minute") or 0)

    def request_rate(self, name: str) -> float:
        """Return the requests per second that a portal receives, by its own count."""
        return float(self.portals.get(name, {}).get("recent", 0)) / WINDOW_SECONDS

    def busiest_count(self, name: str) -> int:
        """Return the most requests that a portal has received within 10 s."""
        return int(self.portals.get(name, {}).get("busiest", 0))

    def rejected_count(self, name: str) -> int:
        """Return the requests that a healthy portal rejected because they exceeded its limit."""
        return int(self.portals.get(name, {}).get("too_many", 0))

    def are_portals_healthy(self) -> bool:
        """Whether no portal is broken at the moment."""
        return all(portal.get("mode") == "ok" for portal in self.portals.values())

    @property
    def workers(self) -> int:
        """The number of live workers that share the state."""
        return int(self.health.get("workers", {}).get("alive", 0))

    def count(self, kind: str) -> int:
        """Return how many times users received this kind of answer."""
        return self.counts.get(kind, 0)

    def counts_since(self, before: DemoSnapshot) -> dict[str, int]:
        """Return the answers of each kind that users received since ``before``."""
        return {kind: self.count(kind) - before.count(kind) for kind in ANSWER_KINDS}

    def _source(self, name: str) -> Mapping[str, Any]:
        section: Mapping[str, Any] = self.health.get("sources", {}).get(name, {})
        return section

    def _limiter(self, name: str) -> Mapping[str, Any]:
        section: Mapping[str, Any] = self.health.get("rate_limiter", {}).get("sources", {}).get(name, {})
        return section


EMPTY_SNAPSHOT: Final = DemoSnapshot({}, {}, {})
"""The snapshot before the first poll."""


def template_values(now: DemoSnapshot, before: DemoSnapshot, seconds: float) -> dict[str, Any]:
    """Return the values that the ``result`` of a scenario step may name in braces."""
    since = now.counts_since(before)
    values: dict[str, Any] = {
        **since,
        "fresh_total": now.count("fresh"),
        "served": since["fresh"] + since["stale"] + since["partial"] + since["pending"],
        "lost": since["failed"] + since["broken"],
        "seconds": f"{seconds:.1f}",
        "workers": now.workers,
        "replaced": now.replaced_count,
        "parts": now.count("parts") - before.count("parts"),
        "waiting": now.count("waiting"),
        "whole": now.count("whole"),
        "single_seconds": f"{now.count('single_ms') / 1000:.1f}",
    }
    for name in LIMITS:
        values |= {
            f"{name}_left": f"{max(0.0, now.open_until(name) - now.at):.0f}",
            f"{name}_original": f"{now.original_limit(name):.4g}",
            f"{name}_limit": f"{now.limit(name):.4g}",
            f"{name}_rate": f"{now.request_rate(name):.1f}",
            f"{name}_busiest": now.busiest_count(name),
            f"{name}_phase": now.phase_label(name),
        }
    return values


def status_line(now: DemoSnapshot) -> str:
    """Return a summary of the snapshot in one line."""
    portals = [
        f"{name.upper()} {now.phase_label(name)}, {now.request_rate(name):.1f}/s of {now.limit(name):.4g}, "
        f"{now.calls_last_minute(name)} calls in the last minute"
        for name in LIMITS
    ]
    labels = {
        **{kind: kind for kind in ("fresh", "stale", "partial", "pending")},
        "over": "over a client's limit",
    }
    answers = [f"{now.count(kind)} {label}" for kind, label in labels.items()]
    lost = now.count("failed") + now.count("broken")
    return f"{'; '.join(portals)}; answers: {', '.join(answers)}, {lost} failed"
