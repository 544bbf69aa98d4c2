"""The latency of one decision: the median and the slow ones."""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks import ours, server
from benchmarks.measure import Contender, Effort, percentile
from benchmarks.report import Goal, Section, Table
from benchmarks.state import shared_state

_PLENTY = 1_000_000
_PERCENT = (50, 99, 99.9)


def run(effort: Effort) -> Section:
    """Time decisions one by one."""
    with shared_state() as state, server.start() as running:
        found = {
            "memory://": _measure(ours.blocking(_PLENTY)[0], 2000 * effort.rounds),
            "shared://": _measure(ours.shared(state, _PLENTY), 2000 * effort.rounds),
            "redis://": _measure(ours.on_redis(running.url, _PLENTY), 400 * effort.rounds),
        }
    rows = [
        [name, *(_duration_text(percentile(times, p)) for p in _PERCENT)] for name, times in found.items()
    ]
    return Section(
        "Latency",
        "Token bucket, one process, blocking, one key, admitted; not pinned, with the server on the same "
        "machine.",
        [Table("One decision", ["", "median", "99 %", "99.9 %"], rows)],
        [
            _goal("under 1 ms in the process (99 %)", found["memory://"], 1),
            _goal("under 10 ms shared by a machine (99 %)", found["shared://"], 10),
            _goal("under 10 ms through Redis (99 %)", found["redis://"], 10),
        ],
    )


def _measure(contender: Contender, count: int) -> list[int]:
    decide: Callable[[str], object] = contender.decide
    now, times = time.perf_counter_ns, []
    for _ in range(100):
        decide("user:1")
    for _ in range(count):
        start = now()
        decide("user:1")
        times.append(now() - start)
    return sorted(times)


def _goal(promise: str, times: list[int], milliseconds: int) -> Goal:
    slow = percentile(times, 99)
    return Goal(f"latency: {promise}", _duration_text(slow), slow < milliseconds * 1_000_000)


def _duration_text(nanoseconds: int) -> str:
    return f"{nanoseconds / 1000:,.1f} µs"
