"""The last known status of the fleet, for documents during an outage of the store.

Zeros and empty lists would suggest that nothing happens. During an outage a document therefore shows the
status that was read last, with its time, and what this worker knows by itself: the state of its upstreams
under its local share, and its own events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from comporta import events
from comporta.breaker.admission import worker_name
from comporta.fleet.reader import UNREACHABLE

OWN_EVENTS_MAX: Final = 50


class KnownFleet(NamedTuple):
    """The status of the fleet; ``as_of`` is when it was read (Unix seconds), and ``None`` if it is current.

    It is 0 if no status was read before the outage.
    """

    status: dict[str, Any]
    as_of: float | None = None


class LastKnownFleet:
    """Remembers the latest status of the fleet, and uses it to complete those read during an outage."""

    def __init__(self) -> None:
        self._known = KnownFleet(
            {"upstreams": [], "workers": None, "events": [], "story": None, "minutes": {}}, 0.0
        )
        self._series: dict[str, Any] = {}

    def complete(self, status: dict[str, Any], now: float) -> KnownFleet:
        """Return a status unchanged if the store was reachable, else completed with the last known one."""
        if UNREACHABLE not in status["reasons"]:
            self._known = KnownFleet(status, now)
            return KnownFleet(status)
        known, as_of = self._known
        return KnownFleet(
            {
                **status,
                "upstreams": _with_known_counts(status["upstreams"], known["upstreams"]),
                "workers": known["workers"],
                "events": _with_own_events(known["events"] or []),
                "story": known["story"],
                "minutes": known["minutes"],
            },
            as_of,
        )

    def complete_history(self, history: dict[str, Any]) -> dict[str, Any]:
        """Return a history unchanged, or the last one that could be read."""
        if UNREACHABLE not in history["reasons"]:
            self._series = history["series"]
            return history
        return {**history, "series": self._series}


def _with_known_counts(
    upstreams: Sequence[Mapping[str, Any]], known: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return this worker's upstreams with their last known counts, and those of other programs unchanged."""
    own = {summary["name"] for summary in upstreams}
    by_name = {summary["name"]: summary for summary in known}
    others = [dict(summary) for summary in known if summary["name"] not in own]
    completed = [{**summary, **_counts(by_name.get(summary["name"], {}))} for summary in upstreams]
    return sorted(completed + others, key=lambda summary: str(summary["name"]))


def _counts(known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a summary that are read from the store, not from this worker's upstream."""
    return {"minute": known.get("minute"), "last_failures": known.get("last_failures", [])}


def _with_own_events(known: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the known events and the latest of this worker, which it cannot publish, the newest first."""
    identities = {(event["at"], event["kind"], event["source"]) for event in known}
    own = [
        {**event._asdict(), "at": round(event.at, 3), "worker": worker_name(), "workers": 1}
        for event in events.latest_events(OWN_EVENTS_MAX)
    ]
    new = [event for event in own if (event["at"], event["kind"], event["source"]) not in identities]
    return sorted([*new, *known], key=lambda event: -float(event["at"]))
