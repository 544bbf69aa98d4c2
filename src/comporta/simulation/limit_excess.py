"""How far the grants of a history exceed its limit, and how far its faults allow them to.

The bounds are those of ``docs/reference/failover.md``. If a fault has its own row there, at most the excess
in that row is allowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from comporta.simulation.faults import Fault
from comporta.simulation.network import seconds_ns
from comporta.simulation.run_history import GRANTED, Call, FleetHistory, Request
from comporta.simulation.scenario import FleetScenario
from comporta.simulation.virtual_time import NANOSECONDS
from comporta.simulation.workload import RESERVED_UNITS
from comporta.stores.redis.store import CONNECT_TIMEOUT_SECONDS

REJOIN_SECONDS_MAX: Final = 2.0
"""Workers rejoin within this time after the store is reachable again, even if they noticed its loss late."""

STORE_FAULTS: Final = frozenset({"hang", "crash", "full", "read_only"})
NETWORK_FAULTS: Final = frozenset(
    {"slow", "loss", "partition", "black_hole", "requests_lost", "replies_lost", "half_open"}
)
WORKER_FAULTS: Final = frozenset({"pause", "kill", "exit"})
REFUSING_FAULTS: Final = frozenset({"crash", "full", "read_only"})
"""Faults in which a worker that calls the server gets an answer at once: a refusal."""

COUNTED_SECONDS: Final = 1.0
"""Workers of one machine count each other within this time after a probe, which may take a while to fail."""


def largest_excess(history: FleetHistory) -> tuple[float, int]:
    """Return by how much grants exceeded the limit in the worst interval, and where that ended."""
    return largest_excess_of(history, grants(history))


def largest_excess_of(history: FleetHistory, some: Sequence[tuple[int, int]]) -> tuple[float, int]:
    """Return the same for some of the grants, which are in order."""
    scenario = history.scenario
    level, last_ns, worst, worst_ns = 0.0, 0, 0.0, 0
    for at_ns, cost in some:
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
    return allowed + _excess_of_machines(history)


def _excess_of_machines(history: FleetHistory) -> float:
    """Return the excess of workers that start against a dead server: each machine knows only its own."""
    scenario, fault = history.scenario, outage_at_start(history.scenario)
    if fault is None or not scenario.machines:
        return 0.0
    machines = range(len(scenario.machines))
    another = scenario.capacity + scenario.rate * (fault.seconds + REJOIN_SECONDS_MAX)
    return sum(starting_excess(history, machine) for machine in machines) + (len(machines) - 1) * another


def starting_excess(history: FleetHistory, machine: int) -> float:
    """Return what the workers of a machine may grant beyond the limit until they have counted each other.

    A worker that begins its outage divides by those that have begun theirs, and they learn of it with their
    next probe. A stopped worker counts when it continues.
    """
    scenario, fault = history.scenario, outage_at_start(history.scenario)
    if fault is None:
        return 0.0
    seconds = counting_seconds(fault) + sum(each.seconds for each in scenario.faults if each.kind == "pause")
    shares, in_fallback, known = 0.0, set[str](), set[str]()
    for moment in history.moments("state_fallback", "state_recovered", "worker_killed", "worker_exited"):
        if not moment.worker or scenario.machine_of_name(moment.worker) != machine:
            continue
        if moment.kind != "state_fallback":
            in_fallback.discard(moment.worker)
        elif moment.worker not in known:
            shares += 1 / (len(in_fallback) + 1) if in_fallback else 0
            in_fallback.add(moment.worker)
        known.add(moment.worker)
    return shares * scenario.rate * seconds


def counting_seconds(fault: Fault) -> float:
    """Return after how long the workers of one machine have counted each other."""
    return COUNTED_SECONDS + (0 if fault.kind in REFUSING_FAULTS else CONNECT_TIMEOUT_SECONDS)


def outage_at_start(scenario: FleetScenario) -> Fault | None:
    """Return the outage that has begun before any worker starts, if there is one."""
    at_start = [each for each in scenario.faults if not each.at and not each.workers and _is_outage(each)]
    return max(at_start, key=lambda fault: fault.end, default=None)


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
