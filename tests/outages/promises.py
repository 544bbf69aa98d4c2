"""Check the promises that comporta makes for an outage against the record of one.

The machine may be busy with other programs. A call may exceed its deadline only if a thread of its process
that does nothing but sleep was delayed by 50 ms at the same time (``jobs.py``). A run with a missed deadline
is :class:`Late`. A limit that is exceeded always fails: a worker that the machine does not run misses the
server's replies, falls back and grants its share in addition to the others, who use the whole limit, until it
rejoins (docs/reference/failover.md); the bound adds exactly that share for exactly that time.
"""

from __future__ import annotations

from tests.outages.record import RECOVERY_SECONDS_MAX, OutageRecord
from tests.support import Late, assert_within

CALL_SECONDS_MAX = 0.25
THROUGHPUT_MIN = 0.9


def assert_promises(record: OutageRecord) -> str:
    """Assert every promise and return a summary."""
    summary = describe(record)
    assert record.errors == [], summary
    for phase in record.phases:
        if phase.falls_back and not all(record.fell_back(phase)):  # a worker that is not run misses 0.2 s
            raise Late(f"a worker did not fall back while the server was {phase.name}: {summary}")
    assert_within(record.slowest_seconds(), CALL_SECONDS_MAX, summary)
    assert_within(
        max(max(record.recovery_seconds(phase)) for phase in record.phases), RECOVERY_SECONDS_MAX, summary
    )
    assert_limit(record, record.capacity, summary)
    if record.fallback_throughput() < THROUGHPUT_MIN:
        raise Late(summary)
    return summary


def assert_limit(record: OutageRecord, burst: int, summary: str) -> None:
    """Assert that no second had more grants than the limit, a burst, and a token for each worker."""
    most = record.rate + burst + len(record.results) + record.lone_grants_max(seconds=1.0)
    assert record.most_in_a_second <= most, summary


def describe(record: OutageRecord) -> str:
    """Return a summary of a record."""
    stalls = sum(len(result["stalls"]) for result in record.results)
    calls = sum(len(result["calls"]) for result in record.results)
    recoveries = {phase.name: f"{max(record.recovery_seconds(phase)):.2f} s" for phase in record.phases}
    return (
        f"{calls} calls, {len(record.grants)} granted, at most {record.most_in_a_second} in a second and "
        f"{record.excess:.1f} above what was due; {100 * record.fallback_throughput():.1f} % of the limit in "
        f"outages; slowest call {1000 * record.slowest_seconds():.0f} ms; rejoined after {recoveries}; "
        f"{stalls} stalls of the machine; {len(record.errors)} errors {record.errors[:3]}"
    )
