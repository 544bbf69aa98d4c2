"""What callers were promised for an outage, asked of what a fleet saw of one.

The machine may be busy with other things. A call is excused from its deadline only if a thread of its own
process, which did nothing but sleep, was kept from running for 50 ms at the same time (``jobs.py``), and a
story in which something was late is told anew. So is one in which more was granted than there may be, if a
worker was kept from running: it misses the server's answers, and grants its share beside the others, who have
all of the limit, until it is back (docs/failover.md). Where all of them ran, nothing excuses it.
"""

from __future__ import annotations

from tests.outages.record import Record
from tests.support import Late, hold_to

CALL_SECONDS_MAX = 0.25
RETURN_SECONDS_MAX = 2.0
THROUGHPUT_MIN = 0.9


def hold_to_promises(record: Record) -> str:
    """Assert them all; return the figures."""
    figures = described(record)
    assert record.errors == [], figures
    for phase in record.phases:
        if phase.alone and not all(record.fell(phase)):  # 0.2 s are over before a busy machine looks
            raise Late(f"{phase.name} went unnoticed: {figures}")
    hold_to(record.slowest_seconds(), CALL_SECONDS_MAX, figures)
    hold_to(max(max(record.return_seconds(phase)) for phase in record.phases), RETURN_SECONDS_MAX, figures)
    hold_to_limit(record, record.capacity, figures)
    if record.throughput_alone() < THROUGHPUT_MIN:
        raise Late(figures)
    return figures


def hold_to_limit(record: Record, burst: int, figures: str) -> None:
    """Assert that no second had more than the limit, a burst, and a token for each worker."""
    most = record.rate + burst + len(record.answers)
    hold_where_all_ran(record, figures, kept=record.most_in_a_second <= most)


def hold_where_all_ran(record: Record, figures: str, *, kept: bool) -> None:
    """Assert something that only a worker which was kept from running can break."""
    if not kept:
        assert any(answer["stalls"] for answer in record.answers), figures
        raise Late(figures)


def described(record: Record) -> str:
    """Say what was found, in one paragraph."""
    stalls = sum(len(answer["stalls"]) for answer in record.answers)
    calls = sum(len(answer["calls"]) for answer in record.answers)
    returns = {phase.name: f"{max(record.return_seconds(phase)):.2f} s" for phase in record.phases}
    return (
        f"{calls} calls, {len(record.grants)} granted, at most {record.most_in_a_second} in a second and "
        f"{record.excess:.1f} above what was due; {100 * record.throughput_alone():.1f} % of the limit in "
        f"outages; slowest call {1000 * record.slowest_seconds():.0f} ms; back after {returns}; "
        f"{stalls} stalls of the machine; {len(record.errors)} errors {record.errors[:3]}"
    )
