"""Documents of fleets that no test can start: 60 upstreams, 100 workers, outages, held circuits."""

from __future__ import annotations

import random
from typing import Any

NOW = 1_800_000_000.0
SLOT_SECONDS = 10
OUTAGE_REASON = "redis://10.0.0.5:6379/0 cannot be reached: Connection refused"
COUNTS = ("ok", "failed", "refused", "open", "limited", "would_refuse", "retries")


def upstream(name: str, **others: Any) -> dict[str, Any]:
    """Return the summary of a healthy upstream with some traffic."""
    minute = {"calls": 240, "ok": 238, "failed": 2, **dict.fromkeys(COUNTS[2:], 0)}
    waits = {"wait_p50": 0.004, "wait_p95": 0.08, "wait_p99": 0.4}
    latencies = {"latency_p50": 0.12, "latency_p95": 0.31, "latency_p99": 0.9}
    limit = {"limit": 5.0, "original": 5.0, "configured": 5.0, "limit_text": "5/s burst 3"}
    return {
        "name": name,
        "phase": "closed",
        "reason": "",
        "since": None,
        "until": None,
        "forced": None,
        "failures": 0,
        "threshold": 10,
        "share": 1.0,
        "probes": [],
        "tokens": 2,
        "capacity": 3,
        **limit,
        "configured_text": "5/s burst 3",
        "paused": 0.0,
        "in_flight": 2,
        "in_flight_max": 8,
        "holders": {"web-1:4001": 2},
        "in_words": "",
        "shadow": [],
        "limits": [],
        "last_failures": [],
        "minute": {**minute, **waits, **latencies},
        **others,
    }


def limit(name: str, text: str, **others: Any) -> dict[str, Any]:
    """Return one of several limits."""
    rates = {"limit": 16.67, "original": 16.67, "configured": 16.67}
    texts = {"limit_text": text, "configured_text": text}
    return {"name": name, "tokens": 2, "capacity": 1000, "burst": 1000, **rates, **texts, **others}


def failure(number: int, now: float = NOW) -> dict[str, Any]:
    """Return a failure, older the higher its number."""
    text = f"ConnectError: All connection attempts failed ({number})"
    return {"at": now - 10 * number, "text": text, "worker": f"web-{number}:{4000 + number}"}


def open_upstream(name: str, now: float = NOW) -> dict[str, Any]:
    """Return one whose circuit is open."""
    times = {"since": now - 8, "until": now + 22}
    failures = [failure(number, now) for number in range(5)]
    return upstream(name, phase="open", failures=12, reason="HTTP 503", last_failures=failures, **times)


def held_closed(name: str) -> dict[str, Any]:
    """Return one that is dead, and that an operator holds closed."""
    minute = {**upstream(name)["minute"], "ok": 0, "failed": 16}
    return upstream(name, forced="closed", failures=16, reason="we need it today", minute=minute)


def worker(number: int, **others: Any) -> dict[str, Any]:
    """Return a live worker."""
    held = {"probes": [], "permits": {"up-07": 1}, "leases": {}, "fetches": 1, "jobs": 0}
    name = f"web-{number}:{4000 + number}"
    about = {"name": name, "host": f"web-{number}", "pid": 4000 + number, "started": NOW - 90_000}
    return {**about, "last_heartbeat": 0.4, **held, **others}


def event(number: int, **others: Any) -> dict[str, Any]:
    """Return an event, older the higher its number."""
    about = {"kind": "breaker_opened", "source": f"up-{number % 60:02}", "severity": "warning"}
    return {
        "at": NOW - 5 * number,
        **about,
        "text": "open for 30.0 s: HTTP 503",
        "worker": "web-1:4001",
        **others,
    }


def document(now: float = NOW, **others: Any) -> dict[str, Any]:
    """Return a document with two healthy upstreams and three workers."""
    parts = {
        "upstreams": [upstream("pcp"), upstream("pncp", limit_text="10/s", configured_text="10/s")],
        "workers": [worker(number) for number in range(3)],
        "events": [event(number) for number in range(20)],
    }
    about: dict[str, Any] = {
        "at": now,
        "as_of": None,
        "worker": "web-0:4000",
        "version": "0.1",
        "status": "ok",
        "reasons": [],
    }
    state: dict[str, Any] = {
        "state": {"engine": "redis", "fallback": None},
        "recent": {},
        "cache": None,
        "jobs": [],
    }
    database = {"database": {"status": "ok", "engine": "sqlite", "reason": None}}
    return {**about, **state, **database, "story": None, "demo": None, "admin": True, **parts, **others}


def large_fleet(now: float = NOW, upstreams: int = 60, workers: int = 100) -> dict[str, Any]:
    """Return many upstreams of which the last by name is open, and many workers of which the last is late."""
    healthy = [upstream(f"up-{number:02}") for number in range(upstreams - 1)]
    return document(
        now,
        status="warn",
        reasons=["zz-last is open"],
        upstreams=[*healthy, open_upstream("zz-last", now)],
        workers=[
            *(worker(number) for number in range(workers - 1)),
            worker(workers - 1, last_heartbeat=7.0),
        ],
        events=[event(number) for number in range(200)],
        recent={name["name"]: slots(now, 3) for name in healthy},
    )


def store_down(now: float = NOW) -> dict[str, Any]:
    """Return a document during an outage of the store."""
    fallback = {"since": now - 45, "reason": OUTAGE_REASON, "workers": 3}
    return document(
        now,
        status="warn",
        reasons=["the shared store is unreachable"],
        as_of=now - 46,
        state={"engine": "redis", "fallback": fallback},
        upstreams=[upstream("pcp", tokens=1, capacity=1), upstream("pncp", tokens=1, capacity=3)],
        story={
            "scenario": "redis-dies",
            "step": 2,
            "of": 5,
            "title": "The state server is killed",
            "text": "Each worker goes on by itself.",
            "look": "The top of the page.",
        },
    )


def slots(now: float, count: int, seed: int = 1, limit: float = 5.0) -> dict[str, Any]:
    """Return the latest slots of a series."""
    draw = random.Random(seed)
    starts = [now - SLOT_SECONDS * (count - number) + 3 for number in range(count)]
    ok = [draw.randint(20, 45) for _ in starts]
    failed = [draw.choice([0, 0, 0, 4]) for _ in starts]
    zeros = {name: [0] * count for name in COUNTS[2:]}
    gauges = {"limit": [limit] * count, "phase": [0] * count, "phases": [[0]] * count}
    waits = {"wait_p50": [0.004] * count, "wait_p95": [draw.random() / 5 for _ in starts]}
    calls = [one + other for one, other in zip(ok, failed, strict=True)]
    numbers = [round(start / SLOT_SECONDS) for start in starts]
    about = {"starts": starts, "slots": numbers, "calls": calls, "ok": ok, "failed": failed}
    return {**about, **zeros, **gauges, **waits}


def latencies(now: float, count: int) -> dict[str, Any]:
    """Return the latest slots of a series of latencies."""
    draw = random.Random(5)
    starts = slots(now, count)["starts"]
    p50 = [0.1 + draw.random() / 10 for _ in starts]
    return {"starts": starts, "latency_p50": p50, "latency_p95": [2.4 * each for each in p50]}


def history(now: float, names: list[str]) -> dict[str, Any]:
    """Return 5 minutes of history of some upstreams."""
    series = {name: slots(now, 30, number) for number, name in enumerate(names)}
    series |= {f"latency.{name}": latencies(now, 30) for name in names}
    return {"slot_seconds": SLOT_SECONDS, "at": now, "series": series, "reasons": []}
