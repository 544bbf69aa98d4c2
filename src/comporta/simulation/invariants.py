"""What must hold in every history, whatever went wrong: each promise of the documentation as a function.

An invariant gets a history and returns the violations that it found, as sentences. The bounds are those of
``docs/reference/failover.md``; the bounds of limits are in ``limit_excess.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Final

from comporta.simulation.limit_excess import (
    REJOIN_SECONDS_MAX,
    STORE_FAULTS,
    excess_allowed,
    grants,
    largest_excess,
)
from comporta.simulation.network import seconds_ns
from comporta.simulation.policy_invariants import POLICY_INVARIANTS
from comporta.simulation.run_history import (
    FAILED,
    GRANTED,
    AppliedReport,
    Call,
    FleetHistory,
    Moment,
    Request,
)
from comporta.simulation.scenario import FleetScenario
from comporta.simulation.share_invariants import SHARE_INVARIANTS
from comporta.simulation.upstream import LATENCY_SECONDS
from comporta.simulation.virtual_time import NANOSECONDS
from comporta.simulation.workload import STOP_BEFORE_END_SECONDS, UPSTREAM_TIMEOUT_SECONDS
from comporta.stores.redis.deadline import FACTOR
from comporta.stores.redis.store import TIMEOUT_SECONDS

Invariant = Callable[[FleetHistory], list[str]]

CONNECT_SECONDS = 0.2
"""A call is answered within its time-out, its deadline and this: up to 150 ms to connect, and a margin."""


def check(history: FleetHistory) -> list[str]:
    """Return all violations, each with the name of its invariant."""
    return [f"{name}: {text}" for name, invariant in INVARIANTS.items() for text in invariant(history)]


def callers_see_no_exception(history: FleetHistory) -> list[str]:
    """No caller gets an exception that is not a refusal, and no thread of a worker ends by one."""
    return [
        f"{call.worker} at {_seconds(call.ended_ns)} s: {call.detail}"
        for call in history.of(Call)
        if call.result == FAILED
    ]


def limit_is_kept(history: FleetHistory) -> list[str]:
    """In any interval, grants are at most capacity + rate * time + what the faults of the scenario allow."""
    scenario = history.scenario
    if scenario.workload == "cache":  # it has no limit
        return []
    excess, at_ns = largest_excess(history)
    allowed = excess_allowed(history)
    if excess <= allowed:
        return []
    limit = f"{scenario.rate:g}/s burst {scenario.burst}"
    return [f"{excess:.1f} above {limit} at {_seconds(at_ns)} s, allowed {allowed:.1f}"]


def waiters_end_in_time(history: FleetHistory) -> list[str]:
    """Every call ends within its time-out, one deadline and the pauses of its worker.

    A call of an upstream also takes as long as the request. Its retries take longer: if the upstream fails,
    or if a pause of the worker uses up the time-out of an attempt.
    """
    paused, scenario = history.intervals("worker_paused", "worker_resumed"), history.scenario
    is_upstream = scenario.workload == "upstream"
    fails = is_upstream and any(fault.kind.startswith("upstream") for fault in scenario.faults)
    if fails or scenario.workload == "cache":
        return []
    round_trip = 2 * (scenario.latency + scenario.jitter)
    request = LATENCY_SECONDS if is_upstream else 0
    answer_ns = seconds_ns(max(TIMEOUT_SECONDS, FACTOR * round_trip) + CONNECT_SECONDS + request)
    violations = []
    for call in history.of(Call):
        allowed_ns = call.timeout_ns + answer_ns
        if call.ended_ns - call.began_ns <= allowed_ns:
            continue
        paused_ns = sum(
            min(end, call.ended_ns) - max(begin, call.began_ns)
            for begin, end in paused.get(call.worker, ())
            if end > call.began_ns and begin < call.ended_ns
        )
        is_retried = is_upstream and paused_ns >= seconds_ns(UPSTREAM_TIMEOUT_SECONDS - LATENCY_SECONDS)
        if call.ended_ns - call.began_ns > allowed_ns + paused_ns and not is_retried:
            violations.append(
                f"{call.worker} waited {_seconds(call.ended_ns - call.began_ns)} s from "
                f"{_seconds(call.began_ns)} s, time-out {_seconds(call.timeout_ns)} s"
            )
    return violations


def workers_return(history: FleetHistory) -> list[str]:
    """Every worker that lives at the end uses the store again, and did so soon after the last fault."""
    violations = []
    alive = history.alive_at_end()
    last: dict[str, Moment] = {}
    for moment in history.moments("state_fallback", "state_recovered"):
        last[moment.worker] = moment
    for worker in sorted(alive):
        if worker not in last:
            continue
        moment = last[worker]
        if moment.kind == "state_fallback":
            violations.append(f"{worker} is still in fallback, since {_seconds(moment.at_ns)} s")
        elif _is_late(history, moment):
            violations.append(f"{worker} was back only at {_seconds(moment.at_ns)} s")
    return violations


def _is_late(history: FleetHistory, recovered: Moment) -> bool:
    """Whether a recovery came too long after a fault of the store, with no other fault in the way."""
    faults = history.scenario.faults
    if not faults or any(fault.kind not in STORE_FAULTS for fault in faults):
        return False
    ended_ns = max(seconds_ns(fault.end) for fault in faults)
    return recovered.at_ns - ended_ns > seconds_ns(REJOIN_SECONDS_MAX)


def reports_apply_once(history: FleetHistory) -> list[str]:
    """The server charges each report of an outage at most once."""
    applied = Counter((report.limit, report.report) for report in history.of(AppliedReport) if report.changed)
    return [f"report {each} was applied {count} times" for (_, each), count in applied.items() if count > 1]


def permits_are_kept(history: FleetHistory) -> list[str]:
    """At most ``max_concurrent`` calls are in flight; during and after an outage, what its table allows."""
    scenario = history.scenario
    if scenario.max_concurrent is None:
        return []
    allowed = scenario.max_concurrent
    disturbed_ns = min(
        (seconds_ns(fault.at) for fault in scenario.faults if not fault.kind.startswith("upstream")),
        default=seconds_ns(scenario.seconds),
    )
    violations = []
    in_flight = 0
    for at_ns, change in _changes(history.of(Request)):
        in_flight += change
        bound = allowed if at_ns < disturbed_ns else allowed + max(allowed, scenario.workers)
        if in_flight > bound:
            violations.append(f"{in_flight} calls in flight at {_seconds(at_ns)} s, allowed {bound}")
            break
    return violations


def _changes(requests: Iterable[Request]) -> list[tuple[int, int]]:
    changes = [(request.began_ns, 1) for request in requests]
    changes += [(request.ended_ns, -1) for request in requests]
    return sorted(changes)


def one_probe_per_fleet(history: FleetHistory) -> list[str]:
    """While the circuit is open the fleet makes one request per cooldown, if no other fault interferes."""
    faults = history.scenario.faults
    if any(not fault.kind.startswith("upstream") for fault in faults):
        return []
    begins = [request.began_ns for request in history.of(Request)]
    violations = []
    for fault in faults:
        if fault.kind != "upstream_errors":
            continue
        opened = [
            moment.at_ns
            for moment in history.moments("breaker_opened")
            if seconds_ns(fault.at) <= moment.at_ns <= seconds_ns(fault.end)
        ]
        if not opened:
            continue
        from_ns, until_ns = opened[0] + seconds_ns(_KNOWN_SECONDS), seconds_ns(fault.end)
        probes = sorted(at_ns for at_ns in begins if from_ns <= at_ns < until_ns)
        for first, second in pairwise(probes):
            if second - first < seconds_ns(_COOLDOWN_SECONDS):
                violations.append(f"requests at {_seconds(first)} s and {_seconds(second)} s, circuit open")
                break
    return violations


_KNOWN_SECONDS = 0.5
_COOLDOWN_SECONDS = 1.9


def pauses_hold(history: FleetHistory) -> list[str]:
    """While the limit is paused no request begins, except of workers that could not know of the pause.

    A server that restarts with other data may have lost the pause; the worker that asked for it has not.
    """
    scenario = history.scenario
    if scenario.workload != "upstream":
        return []
    cut_off = _fallback_intervals(history)
    lost_ns = [seconds_ns(fault.end) for fault in scenario.faults if fault.value in {"empty", "old"}]
    pauses = []
    for moment in history.moments("pause_stored"):
        end_ns = moment.at_ns + seconds_ns(float(moment.text))
        others_end_ns = min((at_ns for at_ns in lost_ns if moment.at_ns <= at_ns), default=end_ns)
        begin_ns = moment.at_ns + seconds_ns(_PAUSE_KNOWN_SECONDS)
        pauses.append((moment.worker, begin_ns, end_ns, min(end_ns, others_end_ns)))
    violations = [
        f"{request.worker} made a request at {_seconds(request.began_ns)} s, in a pause"
        for request in history.of(Request)
        if any(
            begin_ns < request.began_ns < (end_ns if request.worker == worker else others_end_ns)
            for worker, begin_ns, end_ns, others_end_ns in pauses
        )
        and not _is_within(request.began_ns, cut_off.get(request.worker, ()))
    ]
    return violations[:3]


_PAUSE_KNOWN_SECONDS = 0.2


def retries_stay_in_budget(history: FleetHistory) -> list[str]:
    """All workers together retry at most 10 times and for every fifth call, and a share more per outage."""
    scenario = history.scenario
    if scenario.workload != "upstream":
        return []
    retries = sum(request.is_retry for request in history.of(Request))
    calls = len(history.of(Call))
    fallbacks = len(history.moments("state_fallback"))
    allowed = 10 + 0.2 * calls + fallbacks * (10 / scenario.workers + 1) + 1
    lost = sum(fault.value in {"empty", "old"} for fault in scenario.faults)
    allowed += lost * (10 + 0.2 * calls)
    return [f"{retries} retries for {calls} calls, allowed {allowed:.0f}"] if retries > allowed else []


def permits_come_back(history: FleetHistory) -> list[str]:
    """At the end the server counts no permit of a worker that lives and has no call in flight.

    A server that restarts with old data counts such permits until their deadline: its data lack the release.
    """
    if _restarts_with_old_data(history):
        return []
    return [f"{moment.worker} still has {moment.text}" for moment in history.moments("permits_left")]


def _restarts_with_old_data(history: FleetHistory) -> bool:
    return any(fault.value == "old" for fault in history.scenario.faults)


def capacity_is_used(history: FleetHistory) -> list[str]:
    """Without faults, callers are refused only if the limit is used: no wake-up is lost.

    Strategies other than the token bucket refuse callers that come at the wrong moment.
    """
    scenario = history.scenario
    if scenario.faults or scenario.workload not in _USED_BY or scenario.burst_seconds:
        return []
    if scenario.strategy != "token_bucket" or _is_below_rate(scenario):
        return []
    seconds = scenario.seconds - STOP_BEFORE_END_SECONDS - _WARM_UP_SECONDS
    calls = [call for call in history.of(Call) if call.decided_ns >= seconds_ns(_WARM_UP_SECONDS)]
    granted = sum(call.result == GRANTED for call in calls)
    due = _USED_SHARE * scenario.rate * seconds
    if granted >= due or len(calls) - granted < _REFUSED_SHARE * len(calls):
        return []
    return [f"{len(calls) - granted} refused and {granted} granted in {seconds:g} s, {due:.0f} are due"]


def _is_below_rate(scenario: FleetScenario) -> bool:
    """Whether callers that do not wait ask for less than the limit: a small burst refuses some of them."""
    return not scenario.max_wait and scenario.load * scenario.workers < scenario.rate


_USED_BY = frozenset({"limit", "wait", "lease"})
_REFUSED_SHARE = 0.3
_WARM_UP_SECONDS = 1.0
_USED_SHARE = 0.85


def waiters_are_served(history: FleetHistory) -> list[str]:
    """Without faults no caller waits while the limit holds units that no other caller takes."""
    scenario = history.scenario
    if scenario.faults or scenario.workload != "wait":
        return []
    for begin_ns, end_ns in _unused_intervals(history):
        for call in history.of(Call):
            if min(call.ended_ns, end_ns) - max(call.began_ns, begin_ns) > seconds_ns(_UNUSED_SECONDS):
                return [f"{call.worker} waited at {_seconds(begin_ns)} s for units that were there"]
    return []


_UNUSED_SECONDS = 0.6
_UNUSED_UNITS = 2.0


def _unused_intervals(history: FleetHistory) -> list[tuple[int, int]]:
    """Return when the bucket held at least two units for so long that a waiter should have taken one."""
    scenario, intervals = history.scenario, []
    level, last_ns = float(scenario.capacity), 0
    for at_ns, cost in [*grants(history), (seconds_ns(scenario.seconds), 0)]:
        missing = max(0.0, _UNUSED_UNITS - level)
        begin_ns = last_ns + seconds_ns(missing / scenario.rate)
        if at_ns - begin_ns > seconds_ns(_UNUSED_SECONDS):
            intervals.append((begin_ns, at_ns))
        refilled = level + scenario.rate * (at_ns - last_ns) / NANOSECONDS
        level, last_ns = min(scenario.capacity, refilled) - cost, at_ns
    return intervals


def calls_succeed_again(history: FleetHistory) -> list[str]:
    """When all faults are long over, calls are granted again.

    Permits of killed workers are in use until their deadline. The same applies to permits of calls that were
    in flight when their worker exited, and to permits in the old data of a restarted server. A window that is
    used up grants nothing until it ends.
    """
    scenario = history.scenario
    if scenario.max_concurrent is not None and (
        _restarts_with_old_data(history) or any(fault.kind in {"kill", "exit"} for fault in scenario.faults)
    ):
        return []
    last_ns = seconds_ns(scenario.seconds - STOP_BEFORE_END_SECONDS)
    over_ns = max((seconds_ns(fault.end) for fault in scenario.faults), default=0)
    from_ns = over_ns + seconds_ns(_CLOSED_AGAIN_SECONDS)
    calls = [call for call in history.of(Call) if from_ns <= call.began_ns <= last_ns]
    if len(calls) < _CALLS_MIN or any(call.result == GRANTED for call in calls):
        return []
    if scenario.strategy.endswith("window") and last_ns - from_ns < seconds_ns(
        scenario.capacity / scenario.rate
    ):
        return []
    return [f"none of {len(calls)} calls since {_seconds(from_ns)} s was granted"]


_CLOSED_AGAIN_SECONDS = 5.0
_CALLS_MIN = 10


def _fallback_intervals(history: FleetHistory) -> dict[str, list[tuple[int, int]]]:
    """Return when each worker was in fallback, with a margin for what it did not know yet."""
    margin_ns = seconds_ns(1.2)
    return {
        worker: [(begin - margin_ns, end + margin_ns) for begin, end in intervals]
        for worker, intervals in history.intervals("state_fallback", "state_recovered").items()
    }


def _is_within(at_ns: int, intervals: Iterable[tuple[int, int]]) -> bool:
    return any(begin <= at_ns <= end for begin, end in intervals)


def _seconds(nanoseconds: int) -> str:
    return f"{nanoseconds / NANOSECONDS:.3f}"


INVARIANTS: Final[dict[str, Invariant]] = {
    function.__name__: function
    for function in (
        callers_see_no_exception,
        limit_is_kept,
        waiters_end_in_time,
        workers_return,
        reports_apply_once,
        permits_are_kept,
        permits_come_back,
        capacity_is_used,
        waiters_are_served,
        calls_succeed_again,
        one_probe_per_fleet,
        pauses_hold,
        retries_stay_in_budget,
        *POLICY_INVARIANTS,
        *SHARE_INVARIANTS,
    )
}
"""All invariants by name."""
