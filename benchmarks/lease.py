"""Leases: decisions of two processes on one hot key of a server when they lease its tokens in batches."""

from __future__ import annotations

from benchmarks import ours, peers, server
from benchmarks.measure import Contender, Effort
from benchmarks.pair import compare_in_pair
from benchmarks.report import Goal, Section, Table

_OURS = f"{ours.COMPORTA} redis://, leased"
_LIMITS = {"refused": 10, "admitted": 10_000_000}
_SLOT_SECONDS = 0.06


def contenders(url: str, per_second: int) -> list[Contender]:
    """Return ours, leased and exact, and all that share their state through a server."""
    return [
        ours.leased(url, per_second),
        ours.on_redis(url, per_second),
        *peers.on_redis(url, per_second),
    ]


def run(effort: Effort) -> Section:
    """Compare with two processes on one hot key at once."""
    section = Section(
        "Leases, from two processes at once",
        "One hot key on a server, both processes as fast as possible, not pinned; the sum of both. "
        "A lease lasts 50 ms.",
    )
    with server.start() as running:
        for what, per_second in _LIMITS.items():
            arguments = (running.url, per_second)
            timings = compare_in_pair(contenders, arguments, what, effort.rounds // 2, _SLOT_SECONDS)
            section.tables.append(Table.of_speeds(f"Two processes, {what}", timings, _OURS))
            rivals = [name for name in timings.rates if not name.startswith(ours.COMPORTA)]
            promise = f"leases, two processes, {what}: the best Redis-backed peer"
            section.goals.append(Goal.at_least(30, promise, timings, _OURS, rivals))
    return section
