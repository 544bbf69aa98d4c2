"""A server 40 ms away: its calls are answered, so workers must not fall back again and again."""

from __future__ import annotations

import time
from typing import Any

from tests.outages.promises import describe
from tests.outages.record import OutageRecord
from tests.processes.fleet import start_workers
from tests.support import Late

from comporta.testing import FaultProxy, Server

RATE, CAPACITY, WORKERS = 100, 10, 4
_ONE_WAY_SECONDS = 0.02
_START_AFTER_SECONDS = 0.2


def run_far_away(seconds: float) -> OutageRecord:
    """Let workers call at twice the limit through a network with a round trip of 40 ms."""
    arguments: dict[str, Any] = {
        "limit": {"rate": RATE, "capacity": CAPACITY},
        "pace": {"seconds": seconds, "per_second": 2 * RATE / WORKERS, "callers": 4},
        "async_workers": [0, 2],
    }
    with Server() as server, FaultProxy.to(server) as proxy:
        proxy.delay(_ONE_WAY_SECONDS)
        with start_workers(WORKERS, "steady_load", url=proxy.url, **arguments) as fleet:
            began_ns = time.monotonic_ns() + int(_START_AFTER_SECONDS * 1e9)
            for worker in fleet:
                worker.go(began_ns)
            results = [worker.result() for worker in fleet]
    return OutageRecord(results, [], began_ns, RATE, CAPACITY)


def assert_steady(record: OutageRecord, fallbacks_max: int) -> None:
    """Assert that workers fell back at most this often, and that each granted at most one token too many.

    A worker that the machine does not run for 50 ms may mistake its own delay for the server's.
    """
    fallbacks = [sum(in_fallback for _, in_fallback in result["switches"]) for result in record.results]
    stalls = sum(len(result["stalls"]) for result in record.results)
    summary = f"{sum(fallbacks)} fallbacks; {describe(record)}"
    assert record.errors == [], summary
    assert record.excess <= WORKERS + record.stalled_grants_max(), summary
    if sum(fallbacks) > fallbacks_max and stalls:
        raise Late(summary)
    assert sum(fallbacks) <= fallbacks_max, summary
