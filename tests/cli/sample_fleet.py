"""A sample fleet for ``comporta top``: invented documents, or one worker on a real state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from comporta.breaker.config import BreakerConfig
from comporta.errors import CircuitOpenError
from comporta.fleet import FleetCounters, FleetPublisher
from comporta.metrics import current_metrics, use_metrics
from comporta.stores.registry import close_stores
from comporta.upstream.upstream import Upstream

NOW = 1_700_000_000.0
SLOTS = 60

COUNTED = {"calls": 1506, "ok": 1100, "failed": 80, "refused": 24, "open": 300, "limited": 2, "retries": 33}
WAITED = {"wait_p50": 0.012, "wait_p95": 1.4, "wait_p99": 12.0, "latency_p95": 0.25}
MINUTE = {**COUNTED, **WAITED}
QUIET = {**dict.fromkeys(COUNTED, 0), **dict.fromkeys(WAITED)}


def card(name: str, **more: Any) -> dict[str, Any]:
    """Return the card of a healthy upstream, with changes."""
    circuit = {"phase": "closed", "until": None, "forced": None, "in_words": "Closed: calls pass."}
    limit = {"tokens": 10, "capacity": 10, "limit": 10.0, "original": 10.0, "paused": 0.0}
    calls = {"in_flight": 2, "in_flight_max": 10, "minute": QUIET}
    return {"name": name, **circuit, **limit, **calls, **more}


def worker(number: int, **more: Any) -> dict[str, Any]:
    """Return a worker that has been running for two hours."""
    about = {"name": f"web-{number}:4{number:03}", "host": f"web-{number}", "pid": 4000 + number}
    held = {"probes": [], "permits": {}, "leases": {}, "fetches": 0, "jobs": 0}
    return {**about, "started": NOW - 7300, "last_heartbeat": 0.3, **held, **more}


def event(text: str, **more: Any) -> dict[str, Any]:
    """Return an event of one worker, 3 s old."""
    fields = {"at": NOW - 3, "kind": "breaker_opened", "source": "pncp", "severity": "warning"}
    return {**fields, "text": text, "worker": "web-1:4001", "workers": 1, **more}


def document(**more: Any) -> dict[str, Any]:
    """Return the document of a fleet with problems."""
    open_words = "Open until 22:13:43: 50 failures in a row, the last: HTTP 503."
    parts = {
        "upstreams": [
            card("pncp", phase="open", until=NOW + 23, in_words=open_words, limit=5.0, minute=MINUTE),
            card("pcp", paused=12.0, in_words="Paused for 12 s: no calls are wanted until then."),
            card("slow", phase="half-open", in_words="Half-open: the next call is a probe."),
            card("plain", phase=None, tokens=None, in_flight=1, in_flight_max=None, in_words=""),
        ],
        "workers": [
            worker(1, probes=["slow"], permits={"pncp": 2}, leases={"pncp": 40}, fetches=1, jobs=2),
            worker(2),
        ],
        "events": [event("opened for 30 s", workers=3), event("a note", severity="info")],
    }
    whole = {"at": NOW, "status": "warn", "reasons": ["pncp is open"], "story": None}
    return {**whole, "database": None, "cache": None, "jobs": None, **parts, **more}


def history() -> dict[str, Any]:
    """Return ten minutes of history: all calls of the last minute failed; the last slot is incomplete."""
    starts = [NOW - 5 - 10 * age for age in range(SLOTS, -1, -1)]
    calls = [10 * number for number in range(SLOTS)] + [1]
    failed = [0 if number < SLOTS - 6 else 10 * number for number in range(SLOTS)] + [1]
    nothing = {name: [0] * (SLOTS + 1) for name in ("refused", "open", "limited")}
    series = {"starts": starts, "calls": calls, "failed": failed, **nothing}
    return {"slot_seconds": 10, "at": NOW, "series": {"pncp": series}}


@contextmanager
def fleet(url: str, healthy: str = "well") -> Iterator[None]:
    """Run a fleet of one worker on a state: one healthy upstream, and one whose breaker is open."""
    before = current_metrics()
    counters = FleetCounters()
    use_metrics(counters)
    well = Upstream(healthy, "100/s", state=url, retry=False)
    dead = Upstream(
        "dead", "100/s", state=url, retry=False, breaker=BreakerConfig(threshold=3, cooldown_seconds=300)
    )
    publisher = FleetPublisher(well.store, {healthy: well, "dead": dead}, counters)
    publisher.start()
    try:
        for _ in range(5):
            well.sync.call(lambda: None)
            with suppress(OSError, CircuitOpenError):
                dead.sync.call(_fails)
        publisher.publish()
        yield
    finally:
        publisher.close()
        use_metrics(before)
        close_stores()


def _fails() -> None:
    raise ConnectionResetError("HTTP 503")
