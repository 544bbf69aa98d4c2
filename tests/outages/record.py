"""The record of an outage: the logs of all workers, and what they say about calls and the limit.

A grant is charged to an interval only if its whole call lies within it, as in
``tests/processes/accounting.py``, because the exact moment of a decision is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from tests.processes.accounting import Span, most_above_bucket, most_in_window

SECOND_NS = 1_000_000_000
RECOVERY_SECONDS_MAX = 2.0
"""How long after a fault the last worker must have rejoined."""


class Phase(NamedTuple):
    """One fault: when it began and ended, and whether it makes workers fall back."""

    name: str
    began_ns: int
    ended_ns: int
    falls_back: bool


@dataclass(frozen=True)
class OutageRecord:
    """The results of the workers, and the faults meanwhile."""

    results: Sequence[dict[str, Any]]
    phases: Sequence[Phase]
    began_ns: int
    rate: int
    capacity: int

    @property
    def grants(self) -> list[Span]:
        """The start and the end of every granted call of all workers."""
        return [call[:2] for result in self.results for call in result["calls"] if call[2]]

    @property
    def errors(self) -> list[str]:
        """All exceptions that reached a caller."""
        return [error for result in self.results for error in result["errors"]]

    @property
    def most_in_a_second(self) -> int:
        """The largest number of grants in any second."""
        return most_in_window(self.grants, 1.0)

    @property
    def excess(self) -> float:
        """By how much the worst interval exceeds the burst plus the rate."""
        return most_above_bucket(self.grants, self.rate, self.capacity)

    def slowest_seconds(self) -> float:
        """Return the duration of the slowest call, except calls during which the machine stalled."""
        slowest_ns: int = max(
            after - before
            for result in self.results
            for before, after, _ in result["calls"]
            if not any(start < after and end > before for start, end in result["stalls"])
        )
        return slowest_ns / SECOND_NS

    def granted_between(self, start_ns: int, end_ns: int) -> int:
        """Return the number of grants between two moments."""
        return sum(start_ns <= after < end_ns for _, after in self.grants)

    def fallback_throughput(self) -> float:
        """Return the share of the limit that was granted in outages, without the first second of each."""
        spans = [(p.began_ns + SECOND_NS, p.ended_ns) for p in self.phases if p.falls_back]
        spans = [(start, end) for start, end in spans if end > start]
        due = sum((end - start) * self.rate / SECOND_NS for start, end in spans)
        return sum(self.granted_between(start, end) for start, end in spans) / due if due else 1.0

    def fell_back(self, phase: Phase) -> list[bool]:
        """Return for each worker whether it was in fallback at some moment of a fault.

        A worker may be in fallback when the fault begins: if the machine stalls for 50 ms just before, its
        calls miss their deadline, and it does not fall back a second time.
        """
        return [_was_in_fallback(result["switches"], phase) for result in self.results]

    def lone_grants_max(self, seconds: float = float("inf")) -> float:
        """Return what workers may grant on top of the limit because they fell back while others did not.

        Such a worker uses its share of the limit, while the others use the whole limit
        (docs/reference/failover.md). Counts at most ``seconds`` of each worker.
        """
        share = self.rate / len(self.results)
        return sum(share * min(seconds, lone_seconds) for lone_seconds in self._lone_seconds())

    def stalled_grants_max(self) -> float:
        """Return what workers that the machine did not run may grant because they fell back alone."""
        share = self.rate / len(self.results)
        lone = zip(self.results, self._lone_seconds(), strict=True)
        return sum(share * seconds for result, seconds in lone if result["stalls"])

    def _lone_seconds(self) -> list[float]:
        """Return for each worker how long it was in fallback while another was not."""
        moments = sorted({at_ns for result in self.results for at_ns, _ in result["switches"]})
        found = [0.0] * len(self.results)
        for start_ns, end_ns in pairwise([*moments, max(moments, default=0) + SECOND_NS]):
            in_fallback = [_is_in_fallback(result["switches"], start_ns) for result in self.results]
            for number, alone in enumerate(in_fallback):
                if alone and not all(in_fallback):
                    found[number] += (end_ns - start_ns) / SECOND_NS
        return found

    def recovery_seconds(self, phase: Phase) -> list[float]:
        """Return how long each worker took to rejoin after a fault."""
        return [_seconds_to_rejoin(result["switches"], phase.ended_ns) for result in self.results]


def _is_in_fallback(switches: Sequence[tuple[int, bool]], moment_ns: int) -> bool:
    states = [in_fallback for at_ns, in_fallback in switches if at_ns <= moment_ns]
    return bool(states) and states[-1]


def _seconds_to_rejoin(switches: Sequence[tuple[int, bool]], over_ns: int) -> float:
    before = [in_fallback for at_ns, in_fallback in switches if at_ns <= over_ns]
    if not (before and before[-1]):
        return 0.0
    rejoins = (at_ns for at_ns, in_fallback in switches if at_ns > over_ns and not in_fallback)
    return (next(rejoins, 2**62) - over_ns) / SECOND_NS


def _was_in_fallback(switches: list[tuple[int, bool]], phase: Phase) -> bool:
    """Whether a worker was in fallback when a phase began, or fell back before it ended."""
    earlier = [in_fallback for at_ns, in_fallback in switches if at_ns < phase.began_ns]
    fell_back = any(
        in_fallback for at_ns, in_fallback in switches if phase.began_ns <= at_ns <= phase.ended_ns
    )
    return fell_back or (bool(earlier) and earlier[-1])
