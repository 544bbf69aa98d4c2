"""What a worker shows of the fleet while the store is unreachable."""

from __future__ import annotations

from typing import Any

from comporta.fleet.reader import UNREACHABLE
from comporta.service.dashboard.status_memory import LastKnownFleet

MINUTE = {"calls": 7}
FAILURES = [{"at": 9.0, "text": "HTTP 503", "worker": "a:1"}]


def status(*upstreams: dict[str, Any], **others: Any) -> dict[str, Any]:
    parts: dict[str, Any] = {"workers": [{"name": "a:1"}], "events": [], "story": None}
    return {"upstreams": list(upstreams), **parts, "minutes": {}, "reasons": [], **others}


def outage(*upstreams: dict[str, Any]) -> dict[str, Any]:
    return status(*upstreams, workers=None, events=None, reasons=[UNREACHABLE])


def test_status_memory__outage__keeps_minutes_and_upstreams_of_other_programs() -> None:
    memory = LastKnownFleet()
    current = status(
        {"name": "pncp", "minute": MINUTE, "last_failures": FAILURES}, {"name": "zeta", "minute": MINUTE}
    )
    assert memory.complete(current, 10.0) == (current, None)
    own = {"name": "pncp", "tokens": 1, "minute": {}}
    known, as_of = memory.complete(outage(own, {"name": "new", "minute": {}}), 20.0)
    assert as_of == 10.0
    assert known["upstreams"] == [
        {"name": "new", "minute": None, "last_failures": []},
        {**own, "minute": MINUTE, "last_failures": FAILURES},
        {"name": "zeta", "minute": MINUTE},
    ]
    assert known["workers"] == [{"name": "a:1"}]


def test_status_memory__nothing_read_before__is_unknown_and_not_zero() -> None:
    memory = LastKnownFleet()
    known, as_of = memory.complete(outage({"name": "pncp", "minute": {}}), 20.0)
    assert (as_of, known["workers"], known["upstreams"][0]["minute"]) == (0.0, None, None)
    assert memory.complete_history({"reasons": [UNREACHABLE], "series": {}})["series"] == {}
