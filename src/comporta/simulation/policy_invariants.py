"""What must hold for single policies, in the scenarios that aim at them: circuits, classes, reservations.

Each invariant looks only at histories in which nothing else can explain what it finds: without faults, or
with faults of the upstream alone. ``invariants.py`` has the invariants that hold under every fault, and lists
all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from comporta.limits.priority import PRIORITIES
from comporta.simulation.network import seconds_ns
from comporta.simulation.run_history import GRANTED, Call, FleetHistory, Request
from comporta.simulation.virtual_time import NANOSECONDS
from comporta.simulation.workload import RESERVED_UNITS, STOP_BEFORE_END_SECONDS

_FAILED_STATUS_MIN = 429
_SHARE_DUE = 0.6
_USED_DUE = 0.7


def circuits_open_for_current_results(history: FleetHistory) -> list[str]:
    """A circuit opens only for failures of requests that began after its last change."""
    if not history.scenario.faults or any(
        not fault.kind.startswith("upstream") or fault.kind == "upstream_slow"
        for fault in history.scenario.faults
    ):
        return []
    failed = [request for request in history.of(Request) if request.status >= _FAILED_STATUS_MIN]
    needed, since_ns = history.scenario.threshold, 0
    for moment in history.moments("circuit_opened", "circuit_closed"):
        if moment.kind == "circuit_opened":
            counted = _ended_between(failed, since_ns, moment.at_ns)
            if counted < needed:
                at = f"{moment.at_ns / NANOSECONDS:.3f} s"
                return [f"opened at {at} by {counted} failures since its last change, {needed} are needed"]
            needed = 1  # of the probe
        else:
            needed = history.scenario.threshold
        since_ns = moment.at_ns
    return []


def _ended_between(requests: Sequence[Request], from_ns: int, until_ns: int) -> int:
    """Return how many requests began after one moment and ended before another."""
    return sum(request.began_ns >= from_ns and request.ended_ns <= until_ns for request in requests)


def no_class_starves(history: FleetHistory) -> list[str]:
    """Without faults each class gets most of what it asks for, or of what the higher ones leave."""
    scenario = history.scenario
    if scenario.workload != "priority" or scenario.faults:
        return []
    asked: Counter[str] = Counter()
    granted: Counter[str] = Counter()
    for call in history.of(Call):
        asked[call.priority] += 1
        granted[call.priority] += call.result == GRANTED
    left = scenario.rate * (scenario.seconds - STOP_BEFORE_END_SECONDS)
    violations = []
    for name in PRIORITIES:
        due = _SHARE_DUE * min(asked[name], left)
        if granted[name] < due:
            violations.append(f"{name}: {granted[name]} of {asked[name]} calls granted, {due:.0f} are due")
        left = max(0.0, left - asked[name])
    return violations


def reservations_are_settled(history: FleetHistory) -> list[str]:
    """Without faults, what calls use in all is what the limit allows: what they do not use is given back."""
    scenario = history.scenario
    if scenario.workload != "reserve" or scenario.faults:
        return []
    seconds = scenario.seconds - STOP_BEFORE_END_SECONDS
    calls = history.of(Call)
    used = sum(call.cost for call in calls if call.result == GRANTED)
    reserved_at_once = RESERVED_UNITS * scenario.callers * scenario.workers
    allowed = scenario.burst + scenario.rate * (seconds + 1) + reserved_at_once
    if used > allowed:
        return [f"{used} units used in {seconds:g} s, allowed {allowed:.0f}"]
    due = _USED_DUE * scenario.rate * seconds
    if used < due and _are_refused_often(calls):
        return [f"{used} units used in {seconds:g} s, {due:.0f} are due"]
    return []


def _are_refused_often(calls: Sequence[Call]) -> bool:
    late = [call for call in calls if call.began_ns > seconds_ns(2)]
    return sum(call.result != GRANTED for call in late) > 0.3 * len(late)


def one_load_per_key(history: FleetHistory) -> list[str]:
    """Without faults the fleet loads a key once at a time."""
    if history.scenario.faults:
        return []
    loading: Counter[str] = Counter()
    for moment in history.moments("load_began", "load_ended"):
        loading[moment.text] += 1 if moment.kind == "load_began" else -1
        if loading[moment.text] > 1:
            return [f"two loads of key {moment.text} at {moment.at_ns / NANOSECONDS:.3f} s"]
    return []


def no_key_is_stuck(history: FleetHistory) -> list[str]:
    """Every fetch ends after a load, and after the lease of each worker that died or stopped before."""
    scenario = history.scenario
    if scenario.workload != "cache":
        return []
    left = history.moments("calls_left")
    if left:
        return [f"{left[0].worker} still fetches at the end"]
    stopped = [fault.seconds for fault in scenario.faults if fault.kind in {"kill", "exit", "pause"}]
    allowed = _FETCH_SECONDS + sum(_FETCH_SECONDS + _LEASE_SECONDS + seconds for seconds in stopped)
    longest = max(history.of(Call), key=lambda call: call.ended_ns - call.began_ns, default=None)
    if longest is None or longest.ended_ns - longest.began_ns <= seconds_ns(allowed):
        return []
    seconds = (longest.ended_ns - longest.began_ns) / NANOSECONDS
    return [f"{longest.worker} fetched for {seconds:.1f} s, allowed {allowed:.1f}"]


_FETCH_SECONDS = 1.0
_LEASE_SECONDS = 1.5

POLICY_INVARIANTS = (
    circuits_open_for_current_results,
    no_class_starves,
    reservations_are_settled,
    one_load_per_key,
    no_key_is_stuck,
)
"""The invariants of this module."""
