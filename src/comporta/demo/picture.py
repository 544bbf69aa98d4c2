"""What can be seen of the demo at a moment.

That is what the service says of the shared state, what the portals have counted themselves, and what users
were answered. Pure: stories ask it what is so, and the terminal shows its figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from comporta.demo.plan import LIMITS

WINDOW_SECONDS: Final = 10.0
"""Over how long portals count what is ``recent`` and ``busiest``."""

ANSWERS: Final = ("fresh", "stale", "partial", "nothing", "failed", "over", "broken", "watched", "jobs")
"""What users count: fresh, stale and partial answers; refusals because nobody has anything; failures;
refusals because they asked too much; connections that were cut off; searches watched; batches done."""


@dataclass(frozen=True)
class Picture:
    """A moment.

    ``replaced`` is how many workers answer that took the place of others, ``alone`` how many of the latest
    answers came from workers without the shared state.
    """

    health: Mapping[str, Any]
    portals: Mapping[str, Mapping[str, Any]]
    counts: Mapping[str, int]
    replaced: int = 0
    alone: int = 0

    def phase(self, name: str) -> str:
        """Return the phase of an upstream's circuit."""
        return str(self._source(name).get("phase"))

    def in_a_word(self, name: str) -> str:
        """Return the phase as the page says it."""
        return "half-open" if self.phase(name) in ("half_open", "ramp") else self.phase(name)

    def until(self, name: str) -> float:
        """Return until when a circuit is open, in Unix seconds; 0 if it is not."""
        return float(self.health.get(f"{name}_circuit_breaker", {}).get("degraded_until") or 0.0)

    def limit(self, name: str) -> float:
        """Return the limit that is in force."""
        return float(self._source(name).get("limit_per_second") or 0.0)

    def lowered(self, name: str) -> bool:
        """Whether that is less than it could be."""
        return 0 < self.limit(name) < LIMITS[name].rate

    def paused(self, name: str) -> float:
        """Return for how many seconds nobody may call."""
        return float(self._limiter(name).get("paused_seconds") or 0.0)

    def last_minute(self, name: str) -> int:
        """Return how many calls the fleet has made in the last minute, as the shared state counts them."""
        return int(self._limiter(name).get("requests_last_minute") or 0)

    def rate(self, name: str) -> float:
        """Return how many requests a second a portal sees."""
        return float(self.portals.get(name, {}).get("recent", 0)) / WINDOW_SECONDS

    def busiest(self, name: str) -> int:
        """Return how many it has seen at the most in ten seconds."""
        return int(self.portals.get(name, {}).get("busiest", 0))

    def too_many(self, name: str) -> int:
        """Return how many it refused because they were above its limit."""
        return int(self.portals.get(name, {}).get("too_many", 0))

    def mended(self) -> bool:
        """Whether all portals have a good day."""
        return all(portal.get("mode") == "ok" for portal in self.portals.values())

    @property
    def workers(self) -> int:
        """How many workers share the state."""
        return int(self.health.get("workers", {}).get("alive", 0))

    def count(self, what: str) -> int:
        """Return how often users had this answer."""
        return self.counts.get(what, 0)

    def since(self, before: Picture) -> dict[str, int]:
        """Return what users were answered since another moment."""
        return {what: self.count(what) - before.count(what) for what in ANSWERS}

    def _source(self, name: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.health.get("sources", {}).get(name, {})
        return found

    def _limiter(self, name: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.health.get("rate_limiter", {}).get("sources", {}).get(name, {})
        return found


NOTHING: Final = Picture({}, {}, {})
"""Before anything was seen."""


def figures(now: Picture, before: Picture, seconds: float) -> dict[str, Any]:
    """Return what the sentences of a story may name."""
    since = now.since(before)
    found: dict[str, Any] = {
        **since,
        "fresh_in_all": now.count("fresh"),
        "served": since["fresh"] + since["stale"] + since["partial"],
        "lost": since["failed"] + since["broken"],
        "seconds": f"{seconds:.1f}",
        "workers": now.workers,
        "replaced": now.replaced,
    }
    for name in LIMITS:
        found |= {
            f"{name}_until": datetime.fromtimestamp(now.until(name)).astimezone().strftime("%H:%M:%S"),
            f"{name}_limit": f"{now.limit(name):g}",
            f"{name}_rate": f"{now.rate(name):.1f}",
            f"{name}_busiest": now.busiest(name),
            f"{name}_phase": now.in_a_word(name),
        }
    return found


def status(now: Picture) -> str:
    """Return how things stand, in one line."""
    portals = [
        f"{name.upper()} {now.in_a_word(name)}, {now.rate(name):.1f}/s of {now.limit(name):g}, "
        f"{now.last_minute(name)} calls in a minute"
        for name in LIMITS
    ]
    shown = (
        ("fresh", "fresh"),
        ("stale", "stale"),
        ("partial", "partial"),
        ("over", "over a client's limit"),
    )
    answers = [f"{now.count(what)} {word}" for what, word in shown]
    lost = now.count("failed") + now.count("broken")
    return f"{'; '.join(portals)}; answers: {', '.join(answers)}, {lost} failed"
