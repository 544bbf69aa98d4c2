"""State shared by the processes of a machine: ``shared://`` compared with peers that use Redis."""

from __future__ import annotations

from itertools import repeat

from benchmarks import ours, peers, server
from benchmarks.measure import Contender, Effort, Timings, calls, check, in_turns
from benchmarks.pair import compare_in_pair
from benchmarks.report import Goal, Section, Table
from benchmarks.state import shared_state

_OURS = f"{ours.COMPORTA} shared://"
_LIMITS = {"refused": 10, "admitted": 1_000_000}
_SLOT_SECONDS = 0.03


def contenders(state: str, url: str, per_second: int) -> list[Contender]:
    """Return comporta's limiters and all peers that share their state through a server."""
    return [
        ours.shared(state, per_second),
        ours.on_redis(url, per_second),
        *peers.on_redis(url, per_second),
    ]


def one_process(effort: Effort) -> Section:
    """Compare on one hot key, refused and admitted."""
    section = Section(
        "Shared by processes, from one of them",
        "One hot key. Redis-backed contenders: one connection on loopback, client and server pinned to "
        "one core.",
    )
    with shared_state() as state, server.pinned() as url:
        for what, per_second in _LIMITS.items():
            timings = _one(effort, what, contenders(state, url, per_second))
            _add_results(section, timings, f"one process, {what}", 20)
    return section


def two_processes(effort: Effort) -> Section:
    """Compare with two processes on one hot key at once."""
    section = Section(
        "Shared by processes, from two at once",
        "One hot key, both processes as fast as possible, not pinned; the sum of both.",
    )
    with shared_state() as state, server.start() as running:
        for what, per_second in _LIMITS.items():
            arguments = (state, running.url, per_second)
            timings = compare_in_pair(contenders, arguments, what, effort.rounds // 2, 2 * _SLOT_SECONDS)
            _add_results(section, timings, f"two processes, {what}", 10)
    return section


def _one(effort: Effort, key: str, candidates: list[Contender]) -> Timings:
    for contender in candidates:
        contender.decide(key)
        check(contender, repeat(key), admits=key == "admitted")
    return in_turns({c.name: calls(c, repeat(key)) for c in candidates}, effort, _SLOT_SECONDS)


def _add_results(section: Section, timings: Timings, how: str, wanted: int) -> None:
    rivals = [name for name in timings.rates if not name.startswith(ours.COMPORTA)]
    section.tables.append(Table.of_speeds(how.capitalize(), timings, _OURS))
    promise = f"shared, {how}: the best Redis-backed peer"
    section.goals.append(Goal.at_least(wanted, promise, timings, _OURS, rivals))
