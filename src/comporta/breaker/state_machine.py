"""The state machine of a circuit: the new state and the reply for each request. No I/O, and no clock.

A circuit is *open* until ``open_until_us``. A circuit that has *tripped* is half-open once that time has
passed; ``tripped`` is part of the state and never inferred from the number of failures. With a ramp the
circuit then closes step by step. Each transition starts a new generation, and the result of a call that was
admitted in an earlier generation changes nothing.

``normalization`` drops what has expired before each step, and ``result_counts`` counts results.
``breaker.lua`` is the same algorithm for a server.
"""

from __future__ import annotations

from comporta.breaker.normalization import (
    clear_trip,
    longest_cooldown_us,
    next_cooldown_us,
    normalize,
    ttl_us,
)
from comporta.breaker.result_counts import (
    add_failing_worker,
    count_failures,
    count_report,
    exceeds_ratio,
    failing_worker_count,
    own_failures,
    reaches_threshold,
    window_counts,
)
from comporta.breaker.state import (
    ADMIT,
    CHANGE_CLOSED,
    CHANGE_NONE,
    CHANGE_OPENED,
    CHANGE_RAMP,
    CHANGE_RESET,
    CLOSED,
    FAIL,
    FORCED_OPEN,
    HALF_OPEN,
    NO_ADMISSION,
    OPEN,
    RAMP,
    READ,
    RELEASE,
    REPORT_FAILURES,
    REPORT_OPEN,
    RESET,
    SUCCEED,
    Circuit,
    CircuitReply,
    CircuitRequest,
    CircuitRules,
    ForcedState,
    Probe,
)
from comporta.ramp import FULL_SHARE, ramp_share


def step(
    circuit: Circuit, rules: CircuitRules, request: CircuitRequest, now_us: int, forced: ForcedState
) -> tuple[Circuit, CircuitReply]:
    """Carry out a request at ``now_us``; return the new circuit and the reply."""
    circuit = normalize(circuit, rules, now_us)
    circuit, change, probe = _COMMANDS[request.command](circuit, rules, request, now_us, forced.mode)
    return circuit, _reply(circuit, rules, request.owner, now_us, forced)._replace(change=change, probe=probe)


_CommandResult = tuple[Circuit, int, int]
"""The new circuit, what changed, and the number of the probe that was granted (0: none)."""


def _read(
    circuit: Circuit, rules: CircuitRules, request: CircuitRequest, now_us: int, forced: int
) -> _CommandResult:
    """Add the reported counts, which may open the circuit."""
    if not (_is_current(circuit, request) and _counts_results(circuit) and (request.calls or request.slow)):
        return circuit, CHANGE_NONE, 0
    circuit = count_report(circuit, rules, request, now_us)
    if not forced and exceeds_ratio(circuit, rules, now_us):
        return _trip(circuit, rules, request.reason, now_us), CHANGE_OPENED, 0
    return circuit, CHANGE_NONE, 0


def _admit(
    circuit: Circuit, rules: CircuitRules, request: CircuitRequest, now_us: int, forced: int
) -> _CommandResult:
    """Grant a probe if the circuit is half-open and one is free."""
    if forced or circuit.open_until_us or not _is_half_open(circuit) or not _has_free_probe(circuit, rules):
        return circuit, CHANGE_NONE, 0
    granted = Probe(request.probe, now_us + rules.probe_us, request.owner)
    circuit = circuit._replace(probes=(*circuit.probes, granted))
    return _extend_ttl(circuit, rules, now_us), CHANGE_NONE, request.probe


def _fail(
    circuit: Circuit, rules: CircuitRules, request: CircuitRequest, now_us: int, forced: int
) -> _CommandResult:
    if not _is_current(circuit, request):
        return circuit, CHANGE_NONE, 0
    half_open = not circuit.open_until_us and _is_half_open(circuit)
    if request.probe or (half_open and request.generation != NO_ADMISSION):
        running = not circuit.open_until_us and _find_probe(circuit, request.probe) is not None
        if forced or not running:
            return _remove_probe(circuit, request.probe), CHANGE_NONE, 0
        circuit = count_failures(circuit, rules, request, now_us)
        return _trip(circuit, rules, request.reason, now_us), CHANGE_OPENED, 0
    counting = _counts_results(circuit)
    if counting:
        circuit = count_report(circuit, rules, request, now_us)
    circuit = count_failures(circuit, rules, request, now_us)
    if not forced and (half_open or (counting and _must_open(circuit, rules, now_us))):
        return _trip(circuit, rules, request.reason, now_us), CHANGE_OPENED, 0
    return circuit, CHANGE_NONE, 0


def _succeed(
    circuit: Circuit, rules: CircuitRules, request: CircuitRequest, now_us: int, forced: int
) -> _CommandResult:
    if request.generation == NO_ADMISSION:
        if circuit.open_until_us or _is_half_open(circuit):
            return _close(circuit, rules, now_us)
    elif not _is_current(circuit, request):
        return circuit, CHANGE_NONE, 0
    elif request.probe:
        return _succeed_probe(circuit, rules, request, now_us)
    if not _counts_results(circuit):
        return circuit, CHANGE_NONE, 0
    circuit = circuit._replace(failures=0, failures_ends_us=0)
    return _read(circuit, rules, request, now_us, forced)


def _succeed_probe(
    circuit: Circuit, rules: CircuitRules, request: CircuitRequest, now_us: int
) -> _CommandResult:
    if circuit.open_until_us or _find_probe(circuit, request.probe) is None:
        return circuit, CHANGE_NONE, 0
    circuit = _remove_probe(circuit, request.probe)._replace(successes=circuit.successes + 1)
    if circuit.successes >= rules.probes:
        return _close(circuit, rules, now_us)
    return circuit, CHANGE_NONE, 0


def _release_probe(
    circuit: Circuit, rules: CircuitRules, request: CircuitRequest, now_us: int, forced: int
) -> _CommandResult:
    return _remove_probe(circuit, request.probe), CHANGE_NONE, 0


def _reset(
    circuit: Circuit, rules: CircuitRules, request: CircuitRequest, now_us: int, forced: int
) -> _CommandResult:
    new = Circuit(generation=_next_generation(circuit, now_us), calls_ends_us=now_us + rules.ttl_us)
    return new, CHANGE_RESET, 0


def _report_open(
    circuit: Circuit, rules: CircuitRules, request: CircuitRequest, now_us: int, forced: int
) -> _CommandResult:
    """Open the circuit for the rest of a cooldown that a worker began during an outage of the store.

    A circuit that has changed since that cooldown began is left alone: the change is based on newer results.
    With a quorum, the reporting worker counts as one of the failing ones.
    """
    cooldown_us = min(request.cooldown_us or rules.cooldown_us, longest_cooldown_us(rules))
    remaining_us = min(max(1, request.remaining_us), cooldown_us)
    started_us = now_us - (cooldown_us - remaining_us)
    if circuit.open_until_us or forced or circuit.generation > started_us:
        return circuit, CHANGE_NONE, 0
    failing_workers = add_failing_worker(circuit, request.owner, now_us)
    ends_us = now_us + ttl_us(circuit, rules)
    circuit = circuit._replace(failing_workers=failing_workers, calls_ends_us=ends_us)
    if failing_worker_count(circuit, started_us) < rules.quorum:
        return circuit, CHANGE_NONE, 0
    circuit = _trip(circuit, rules, request.reason, now_us)._replace(
        open_until_us=now_us + remaining_us,
        opened_us=now_us - max(0, request.age_us),
        cooldown_us=cooldown_us,
    )
    return _extend_ttl(circuit, rules, now_us), CHANGE_OPENED, 0


def _report_failures(
    circuit: Circuit, rules: CircuitRules, request: CircuitRequest, now_us: int, forced: int
) -> _CommandResult:
    """Count the failures of a worker during an outage of the store, except those that reached the store."""
    missing = request.total - own_failures(circuit, request.owner)
    if missing <= 0 or not (_is_current(circuit, request) and _counts_results(circuit)):
        return circuit, CHANGE_NONE, 0
    streak = min(missing, request.streak)
    circuit = count_failures(circuit, rules, request, now_us, count=missing, streak=streak)
    if not forced and _must_open(circuit, rules, now_us):
        return _trip(circuit, rules, request.reason, now_us), CHANGE_OPENED, 0
    return circuit, CHANGE_NONE, 0


_COMMANDS = {
    READ: _read,
    ADMIT: _admit,
    FAIL: _fail,
    SUCCEED: _succeed,
    RELEASE: _release_probe,
    RESET: _reset,
    REPORT_OPEN: _report_open,
    REPORT_FAILURES: _report_failures,
}


def _is_current(circuit: Circuit, request: CircuitRequest) -> bool:
    """Whether a result belongs to the current generation; a circuit without one accepts every result."""
    return request.generation in (NO_ADMISSION, circuit.generation) or not circuit.generation


def _is_half_open(circuit: Circuit) -> bool:
    """Whether only probes are admitted, now or when the circuit stops being open."""
    return circuit.tripped and not circuit.ramp_start_us


def _counts_results(circuit: Circuit) -> bool:
    return not circuit.open_until_us and not _is_half_open(circuit)


def _must_open(circuit: Circuit, rules: CircuitRules, now_us: int) -> bool:
    return reaches_threshold(circuit, rules) or exceeds_ratio(circuit, rules, now_us)


def _has_free_probe(circuit: Circuit, rules: CircuitRules) -> bool:
    return len(circuit.probes) < min(rules.probes_at_once, max(1, rules.probes - circuit.successes))


def _find_probe(circuit: Circuit, number: int) -> Probe | None:
    return next((probe for probe in circuit.probes if probe.number == number), None)


def _remove_probe(circuit: Circuit, number: int) -> Circuit:
    return circuit._replace(probes=tuple(probe for probe in circuit.probes if probe.number != number))


def _next_generation(circuit: Circuit, now_us: int) -> int:
    """Return the next generation: higher than every earlier one, even if the state has expired since."""
    return max(now_us, circuit.generation + 1)


def _extend_ttl(circuit: Circuit, rules: CircuitRules, now_us: int) -> Circuit:
    ends_us = now_us + ttl_us(circuit, rules)
    return circuit._replace(trip_ends_us=ends_us, calls_ends_us=ends_us)


def _trip(circuit: Circuit, rules: CircuitRules, reason: str, now_us: int) -> Circuit:
    """Open the circuit. A circuit that reopens without having closed keeps the time when it first opened."""
    cooldown_us = next_cooldown_us(circuit, rules)
    circuit = circuit._replace(
        open_until_us=now_us + cooldown_us,
        cooldown_us=cooldown_us,
        tripped=True,
        opened_us=circuit.opened_us if circuit.tripped else now_us,
        reason=reason,
        successes=0,
        ramp_start_us=0,
        probes=(),
        generation=_next_generation(circuit, now_us),
        slices=(),
        failing_workers=(),
    )
    return _extend_ttl(circuit, rules, now_us)


def _close(circuit: Circuit, rules: CircuitRules, now_us: int) -> _CommandResult:
    """Close the circuit, or start its ramp."""
    ramped = circuit.tripped and rules.ramp_steps > 0
    circuit = circuit._replace(
        failures=0,
        failures_ends_us=0,
        open_until_us=0,
        successes=0,
        probes=(),
        ramp_start_us=now_us,
        generation=_next_generation(circuit, now_us),
        slices=(),
        failing_workers=(),
    )
    if ramped:
        return _extend_ttl(circuit, rules, now_us), CHANGE_RAMP, 0
    return clear_trip(circuit)._replace(calls_ends_us=now_us + rules.ttl_us), CHANGE_CLOSED, 0


def phase_of(circuit: Circuit, forced: int) -> int:
    """Return the phase of a normalized circuit."""
    if forced:
        return OPEN if forced == FORCED_OPEN else CLOSED
    if circuit.open_until_us:
        return OPEN
    if _is_half_open(circuit):
        return HALF_OPEN
    return RAMP if circuit.ramp_start_us else CLOSED


def _remaining_us(circuit: Circuit, rules: CircuitRules, phase: int, now_us: int, forced: int) -> int:
    if phase == OPEN:
        return rules.cooldown_us if forced else circuit.open_until_us - now_us
    if phase == HALF_OPEN and not _has_free_probe(circuit, rules):
        return min(probe.deadline_us for probe in circuit.probes) - now_us
    if phase == RAMP:
        return rules.ramp_step_us - (now_us - circuit.ramp_start_us) % rules.ramp_step_us
    return 0


def _share_of(circuit: Circuit, rules: CircuitRules, phase: int, now_us: int) -> int:
    """Return the share of calls that a phase admits."""
    if phase == RAMP:
        return ramp_share(rules.ramp_steps, rules.ramp_step_us, now_us - circuit.ramp_start_us)
    return FULL_SHARE if phase == CLOSED else 0


def _reply(
    circuit: Circuit, rules: CircuitRules, owner: str, now_us: int, forced: ForcedState
) -> CircuitReply:
    phase = phase_of(circuit, forced.mode)
    first, calls, failed, slow = window_counts(circuit)
    return CircuitReply(
        now_us=now_us,
        phase=phase,
        generation=circuit.generation,
        remaining_us=_remaining_us(circuit, rules, phase, now_us, forced.mode),
        failures=circuit.failures,
        forced=forced.mode,
        share=_share_of(circuit, rules, phase, now_us),
        age_us=now_us - circuit.opened_us if circuit.tripped else -1,
        cooldown_us=circuit.cooldown_us,
        own_failures=own_failures(circuit, owner),
        calls=calls,
        failed=failed,
        slow=slow,
        window_age_us=now_us - first * rules.slice_us if first >= 0 else -1,
        reason=forced.reason if forced.mode else circuit.reason,
        probe=0,
        change=CHANGE_NONE,
        probes=tuple((probe.deadline_us - now_us, probe.owner) for probe in circuit.probes),
    )
