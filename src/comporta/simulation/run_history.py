"""What happened in a simulation, in order: calls, requests to the upstream, faults, events, reports.

Times are nanoseconds of virtual time since the start. The history is plain data: invariants
(``invariants.py``) are functions of it, and :meth:`FleetHistory.trace` is the same text for the same seed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple, TypeVar

from comporta.simulation.network import seconds_ns
from comporta.simulation.scenario import FleetScenario

GRANTED = "granted"
REFUSED = "refused"
FAILED = "failed"
"""The call raised what no caller should see."""


class Call(NamedTuple):
    """One call of a user: what it requested, how it ended, and who decided.

    ``decided_ns`` is when the decision was made: by the server, or by the worker if ``is_local``.
    ``timeout_ns`` is how long the caller was willing to wait. ``detail`` names the error, if there was one.
    """

    began_ns: int
    ended_ns: int
    decided_ns: int
    worker: str
    result: str
    is_local: bool
    cost: int
    timeout_ns: int
    priority: str
    detail: str


class Request(NamedTuple):
    """One request that reached the upstream, and the status with which it was answered.

    ``ended_ns`` is 0 while it is in flight. ``is_retry``: the call had made a request before.
    """

    began_ns: int
    ended_ns: int
    worker: str
    status: int
    is_retry: bool


class Moment(NamedTuple):
    """Something that happened at a moment: a fault, an event, the start or the end of a worker."""

    at_ns: int
    worker: str
    kind: str
    text: str


class AppliedReport(NamedTuple):
    """A report of an outage's grants that the server carried out; ``report`` is its reporter and number."""

    at_ns: int
    worker: str
    limit: str
    amount: int
    report: str
    changed: bool


Record = Call | Request | Moment | AppliedReport
R = TypeVar("R", Call, Request, Moment, AppliedReport)


@dataclass
class FleetHistory:
    """The records of one simulation, in the order in which they ended, and a digest of all operations."""

    scenario: FleetScenario
    records: list[Record] = field(default_factory=list)
    operation_count: int = 0
    event_count: int = 0

    def __post_init__(self) -> None:
        self._digest = blake2b(digest_size=16)

    def add(self, record: Record) -> None:
        """Append a record."""
        self.records.append(record)

    def add_operation(self, text: str) -> None:
        """Count an operation of the server, which becomes part of the digest."""
        self.operation_count += 1
        self._digest.update(text.encode())

    def of(self, kind: type[R]) -> list[R]:
        """Return the records of one kind."""
        return [record for record in self.records if type(record) is kind]

    def moments(self, *kinds: str) -> list[Moment]:
        """Return the moments of some kinds."""
        return [moment for moment in self.of(Moment) if moment.kind in kinds]

    def intervals(self, begin: str, end: str) -> dict[str, list[tuple[int, int]]]:
        """Return the times of each worker from a moment of one kind to the next of another, or to the end."""
        intervals: dict[str, list[tuple[int, int]]] = {}
        since: dict[str, int] = {}
        for moment in self.moments(begin, end):
            if moment.kind == begin:
                since.setdefault(moment.worker, moment.at_ns)
            elif moment.worker in since:
                intervals.setdefault(moment.worker, []).append((since.pop(moment.worker), moment.at_ns))
        for worker, from_ns in since.items():
            intervals.setdefault(worker, []).append((from_ns, seconds_ns(self.scenario.seconds)))
        return intervals

    def alive_at_end(self) -> set[str]:
        """Return the workers that were neither killed nor exited after their last start."""
        alive: set[str] = set()
        for moment in self.moments("worker_started", "worker_killed", "worker_exited"):
            if moment.kind == "worker_started":
                alive.add(moment.worker)
            else:
                alive.discard(moment.worker)
        return alive

    def trace(self) -> str:
        """Return all records as text, one a line: the same for the same scenario, byte for byte."""
        lines = [str(self.scenario), *(_line(record) for record in self.records)]
        lines.append(f"{self.operation_count} operations {self._digest.hexdigest()}")
        return "\n".join(lines) + "\n"


def _line(record: Record) -> str:
    name = type(record).__name__
    return f"{name.lower()} " + " ".join(str(value) for value in record)
