"""What must hold while workers decide from their local shares: on one machine, and for a strict limit.

The bounds are those of ``docs/reference/failover.md``. ``limit_excess.py`` has those that concern all grants
of a fleet.
"""

from __future__ import annotations

from collections.abc import Iterator

from comporta.simulation.limit_excess import (
    counting_seconds,
    largest_excess_of,
    outage_at_start,
    starting_excess,
)
from comporta.simulation.network import seconds_ns
from comporta.simulation.run_history import GRANTED, Call, FleetHistory
from comporta.simulation.virtual_time import NANOSECONDS

_STRICT_WORKLOADS = frozenset({"limit", "wait", "lease", "priority"})
_SHARE_DUE = 0.4
_DEMAND_MIN = 1.5
_AGAIN_SECONDS = 2.0
_AGAIN_CALLS_MIN = 10
_APART_SECONDS = 0.1


def machine_shares_one_limit(history: FleetHistory) -> list[str]:
    """Workers of one machine that start against a dead server share one limit once they count each other."""
    scenario = history.scenario
    if outage_at_start(scenario) is None or not scenario.machines:
        return []
    violations = []
    for machine, workers in enumerate(scenario.machines):
        local = [
            call for call in _first_local_grants(history) if scenario.machine_of_name(call.worker) == machine
        ]
        excess, at_ns = largest_excess_of(history, [(call.decided_ns, call.cost) for call in local])
        processes = len({call.worker for call in local})
        allowed = starting_excess(history, machine) + max(workers, processes)  # a token for each, by rounding
        if excess > allowed:
            at = f"{at_ns / NANOSECONDS:.3f} s"
            violations.append(
                f"machine {machine}: {excess:.1f} above its limit at {at}, allowed {allowed:.1f}"
            )
    return violations


def machine_workers_rejoin_together(history: FleetHistory) -> list[str]:
    """Workers of one machine that started against a dead server, and counted each other, rejoin together."""
    scenario, fault = history.scenario, outage_at_start(history.scenario)
    if fault is None or scenario.faults != (fault,) or len(scenario.machines) != 1:
        return []
    began = [moment.at_ns for moment in history.moments("state_fallback")]
    counted_ns = max(began, default=0) + seconds_ns(counting_seconds(fault))
    returned = [moment.at_ns for moment in history.moments("state_recovered")]
    if counted_ns > seconds_ns(fault.end) or not returned:
        return []
    apart_ns = max(returned) - min(returned)
    if apart_ns <= seconds_ns(_APART_SECONDS):
        return []
    return [f"the first rejoined {apart_ns / NANOSECONDS:.3f} s before the last"]


def _first_local_grants(history: FleetHistory) -> list[Call]:
    """Return what processes granted from their shares before they reached the store for the first time."""
    reached_ns: dict[str, int] = {}
    for moment in history.moments("state_recovered"):
        reached_ns.setdefault(moment.worker, moment.at_ns)
    calls = [call for call in history.of(Call) if call.is_local and call.result == GRANTED]
    calls = [call for call in calls if call.ended_ns <= reached_ns.get(call.worker, call.ended_ns)]
    return sorted(calls, key=lambda call: call.decided_ns)


def closed_limit_refuses(history: FleetHistory) -> list[str]:
    """With ``fallback="closed"``, nothing is granted after ``closed_after`` seconds of an outage.

    Tokens on lease are counted already: a worker uses them until the lease ends.
    """
    scenario = history.scenario
    if scenario.fallback != "closed":
        return []
    open_seconds = max(scenario.closed_after, scenario.lease if scenario.workload == "lease" else 0)
    open_seconds *= 1 + scenario.drift_ppm / 1e6  # by the clock of the worker
    outages = list(_outages(history))
    return [
        f"{call.worker} was granted a call at {call.ended_ns / NANOSECONDS:.3f} s, in an outage since "
        f"{begin_ns / NANOSECONDS:.3f} s"
        for call in history.of(Call)
        for worker, begin_ns, end_ns in outages
        if call.worker == worker
        and call.result == GRANTED
        and call.began_ns > begin_ns + seconds_ns(open_seconds)
        and call.ended_ns < end_ns
    ][:3]


def closed_limit_grants_its_share(history: FleetHistory) -> list[str]:
    """With ``closed_after``, the workers grant most of their shares until then, if callers ask for more."""
    scenario = history.scenario
    if scenario.fallback != "closed" or scenario.workload not in _STRICT_WORKLOADS or scenario.burst_seconds:
        return []
    if scenario.strategy != "token_bucket":
        return []
    violations = []
    for fault in scenario.faults:
        due, asked, granted = 0.0, 0.0, 0
        for worker, begin_ns, end_ns in _outages(history):
            until_ns = min(begin_ns + seconds_ns(scenario.closed_after), end_ns, seconds_ns(fault.end))
            if fault.workers or not seconds_ns(fault.at) <= begin_ns < until_ns:
                continue
            share = scenario.rate / scenario.workers * (until_ns - begin_ns) / NANOSECONDS
            due += _SHARE_DUE * share - 1
            calls = [call for call in history.of(Call) if call.worker == worker]
            # callers that wait for what the store promised them before do not ask
            asked += sum(begin_ns < call.began_ns <= until_ns for call in calls) - _DEMAND_MIN * share
            granted += sum(
                call.cost for call in calls if call.result == GRANTED and begin_ns < call.ended_ns <= until_ns
            )
        if granted < due and asked >= 0:
            violations.append(f"{granted} granted before the limit closed, {due:.0f} are due: {fault}")
    return violations


def closed_limit_grants_again(history: FleetHistory) -> list[str]:
    """With ``fallback="closed"``, calls are granted again when the workers have returned."""
    scenario = history.scenario
    if scenario.fallback != "closed" or scenario.workload not in _STRICT_WORKLOADS:
        return []
    returned = [end_ns for _, _, end_ns in _outages(history)]
    if not returned or any(seconds_ns(fault.end) > max(returned) for fault in scenario.faults):
        return []
    from_ns, until_ns = max(returned), max(returned) + seconds_ns(_AGAIN_SECONDS)
    calls = [call for call in history.of(Call) if from_ns < call.began_ns and call.ended_ns < until_ns]
    if len(calls) < _AGAIN_CALLS_MIN or any(call.result == GRANTED for call in calls):
        return []
    return [
        f"none of {len(calls)} calls was granted in {_AGAIN_SECONDS:g} s after {from_ns / NANOSECONDS:.3f} s"
    ]


def _outages(history: FleetHistory) -> Iterator[tuple[str, int, int]]:
    """Yield the worker, the beginning and the end of each time in fallback."""
    for worker, intervals in history.intervals("state_fallback", "state_recovered").items():
        for begin_ns, end_ns in intervals:
            yield worker, begin_ns, end_ns


SHARE_INVARIANTS = (
    machine_shares_one_limit,
    machine_workers_rejoin_together,
    closed_limit_refuses,
    closed_limit_grants_its_share,
    closed_limit_grants_again,
)
"""The invariants of this module."""
