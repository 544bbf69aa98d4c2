"""How far the grants of a history exceed its limit, and how far its faults allow them to.

The bounds are those of ``docs/reference/failover.md``. If a fault has its own row there, at most the excess
in that row is allowed.
"""

from __future__ import annotations

from typing import Final

from comporta.simulation.faults import Fault
from comporta.simulation.network import seconds_ns
from comporta.simulation.run_history import GRANTED, Call, FleetHistory, Request
from comporta.simulation.virtual_time import NANOSECONDS
from comporta.simulation.workload import RESERVED_UNITS

REJOIN_SECONDS_MAX: Final = 2.0
"""Workers rejoin within this time after the store is reachable again, even if they noticed its loss late."""

STORE_FAULTS: Final = frozenset({"hang", "crash", "full", "read_only"})
NETWORK_FAULTS: Final = frozenset(
    {"slow", "loss", "partition", "black_hole", "requests_lost", "replies_lost", "half_open"}
)
WORKER_FAULTS: Final = frozenset({"pause", "kill", "exit"})


def largest_excess(history: FleetHistory) -> tuple[float, int]:
    """Return by how much grants exceeded the limit in the worst interval, and where that ended."""
    scenario = history.scenario
    level, last_ns, worst, worst_ns = 0.0, 0, 0.0, 0
    for at_ns, cost in grants(history):
        level = max(0.0, level - scenario.rate * (at_ns - last_ns) / NANOSECONDS) + cost
        last_ns = at_ns
        if level - scenario.burst > worst:
            worst, worst_ns = level - scenario.burst, at_ns
    return worst, worst_ns


def grants(history: FleetHistory) -> list[tuple[int, int]]:
    """Return the grants in order, each as its time and its units."""
    if history.scenario.workload == "upstream":
        return sorted((request.began_ns, 1) for request in history.of(Request))
    return sorted((call.decided_ns, call.cost) for call in history.of(Call) if call.result == GRANTED)


def excess_allowed(history: FleetHistory) -> float:
    """Return the grants beyond the limit that the documentation allows for the faults of a scenario."""
    scenario = history.scenario
    share = scenario.capacity / scenario.workers + 1
    allowed = 1 + 0.1 * scenario.rate * (scenario.workload == "upstream")
    allowed += len(history.moments("state_fallback"))  # one token per worker and outage, by rounding
    if scenario.workload == "reserve":  # a call's units are known when it settles, later than its grant
        allowed += RESERVED_UNITS * scenario.callers * scenario.workers
    outage_seconds = sum(fault.seconds + REJOIN_SECONDS_MAX for fault in scenario.faults if _is_outage(fault))
    for fault in scenario.faults:
        affected = len(fault.workers) or scenario.workers
        if fault.kind in WORKER_FAULTS:  # what it did not report, and its part if others stop counting it
            allowed += affected * (share + scenario.rate * outage_seconds / scenario.workers)
        if fault.kind == "server_clock" or fault.value in {"empty", "old"}:
            allowed += scenario.capacity
        if _cuts_off_some(history, fault):
            until_ns = seconds_ns(fault.end + REJOIN_SECONDS_MAX)
            local = _local_grants(history, seconds_ns(fault.at), until_ns)
            allowed += min(local, scenario.rate * (fault.seconds + REJOIN_SECONDS_MAX) + scenario.capacity)
    return allowed


def _is_outage(fault: Fault) -> bool:
    return fault.kind in STORE_FAULTS or fault.kind in NETWORK_FAULTS


def _cuts_off_some(history: FleetHistory, fault: Fault) -> bool:
    """Whether a fault cut off some workers and not others: those that it names, or those that noticed it."""
    if fault.kind in {"loss", "slow", "half_open", "pause"}:
        return True
    if not _is_outage(fault):
        return False
    return bool(fault.workers) or len(_workers_cut_off(history, fault)) < history.scenario.workers


def _workers_cut_off(history: FleetHistory, fault: Fault) -> set[str]:
    """Return the workers that were in fallback at the end of a fault."""
    end_ns = seconds_ns(fault.end)
    fallbacks = history.intervals("state_fallback", "state_recovered")
    return {
        worker
        for worker, intervals in fallbacks.items()
        if any(begin <= end_ns <= end for begin, end in intervals)
    }


def _local_grants(history: FleetHistory, from_ns: int, until_ns: int) -> int:
    return sum(
        call.cost
        for call in history.of(Call)
        if call.is_local and call.result == GRANTED and from_ns <= call.decided_ns <= until_ns
    )
