"""What a fleet saw of an outage, put together: whether anybody was let down, and the limit kept.

A grant is charged to an interval only if its call lies within it from beginning to end, as in
``tests/processes/accounting.py``: when exactly a decision fell nobody knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.processes.accounting import Span, most_above_bucket, most_in_window

SECOND_NS = 1_000_000_000


class Phase(NamedTuple):
    """One fault: from when to when it lasted, and whether workers had to go on alone."""

    name: str
    began_ns: int
    ended_ns: int
    alone: bool


@dataclass(frozen=True)
class Record:
    """What the workers answered, and what was done to them meanwhile."""

    answers: Sequence[dict[str, Any]]
    phases: Sequence[Phase]
    began_ns: int
    rate: int
    capacity: int

    @property
    def grants(self) -> list[Span]:
        """The two moments of every call that was granted, by all workers."""
        return [call[:2] for answer in self.answers for call in answer["calls"] if call[2]]

    @property
    def errors(self) -> list[str]:
        """Whatever was raised to a caller."""
        return [error for answer in self.answers for error in answer["errors"]]

    @property
    def most_in_a_second(self) -> int:
        """The most that was granted in any second."""
        return most_in_window(self.grants, 1.0)

    @property
    def excess(self) -> float:
        """By how much the worst of all intervals lies above the burst and the rate."""
        return most_above_bucket(self.grants, self.rate, self.capacity)

    def slowest_seconds(self) -> float:
        """Return how long the slowest call took, those left out during which the machine stood still."""
        slowest_ns: int = max(
            after - before
            for answer in self.answers
            for before, after, _ in answer["calls"]
            if not any(start < after and end > before for start, end in answer["stalls"])
        )
        return slowest_ns / SECOND_NS

    def granted_between(self, start_ns: int, end_ns: int) -> int:
        """Return how much was granted from one moment to another."""
        return sum(start_ns <= after < end_ns for _, after in self.grants)

    def throughput_alone(self) -> float:
        """Return which part of the limit was granted in outages, but for the first second of each."""
        spans = [(p.began_ns + SECOND_NS, p.ended_ns) for p in self.phases if p.alone]
        spans = [(start, end) for start, end in spans if end > start]
        due = sum((end - start) * self.rate / SECOND_NS for start, end in spans)
        return sum(self.granted_between(start, end) for start, end in spans) / due if due else 1.0

    def fell(self, phase: Phase) -> list[bool]:
        """Return of each worker whether it went on alone during a fault."""
        return [
            any(alone and phase.began_ns <= at_ns <= phase.ended_ns for at_ns, alone in answer["switches"])
            for answer in self.answers
        ]

    def return_seconds(self, phase: Phase) -> list[float]:
        """Return how long each worker was still alone after a fault was over."""
        return [_back(answer["switches"], phase.ended_ns) for answer in self.answers]


def _back(switches: Sequence[tuple[int, bool]], over_ns: int) -> float:
    before = [alone for at_ns, alone in switches if at_ns <= over_ns]
    if not (before and before[-1]):
        return 0.0
    returns = (at_ns for at_ns, alone in switches if at_ns > over_ns and not alone)
    return (next(returns, 2**62) - over_ns) / SECOND_NS
