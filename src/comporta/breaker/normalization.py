"""Removes expired data from a circuit and corrects times that its rules do not allow. No I/O, no clock.

A time that lies further in the future than the rules allow means that a clock was set back. It is moved to
the latest allowed time, so that nothing stays locked for longer than configured.

``load`` in ``breaker.lua`` is the same algorithm for a server.
"""

from __future__ import annotations

from comporta.breaker.state import FAILURES_TTL_US, SLICES, TTL_MARGIN_US, Circuit, CircuitRules


def normalize(circuit: Circuit, rules: CircuitRules, now_us: int) -> Circuit:
    """Return the circuit without expired groups, and with times that the rules allow."""
    failures_ends_us = min(circuit.failures_ends_us, now_us + FAILURES_TTL_US)
    if failures_ends_us <= now_us:
        circuit = circuit._replace(failures=0, failures_ends_us=0)
    else:
        circuit = circuit._replace(failures_ends_us=failures_ends_us)
    until_us = min(circuit.open_until_us, now_us + longest_cooldown_us(rules))
    circuit = circuit._replace(open_until_us=until_us if until_us > now_us else 0)
    return _normalize_trip(_normalize_calls(circuit, rules, now_us), rules, now_us)


def _normalize_trip(circuit: Circuit, rules: CircuitRules, now_us: int) -> Circuit:
    if circuit.trip_ends_us <= now_us:
        return clear_trip(circuit)
    ramp_start_us = min(circuit.ramp_start_us, now_us)
    if ramp_start_us and now_us - ramp_start_us >= rules.ramp_steps * rules.ramp_step_us:
        return clear_trip(circuit)
    probes = [p._replace(deadline_us=min(p.deadline_us, now_us + rules.probe_us)) for p in circuit.probes]
    return circuit._replace(
        opened_us=min(circuit.opened_us, now_us),
        ramp_start_us=ramp_start_us,
        probes=tuple(probe for probe in probes if probe.deadline_us > now_us),
        cooldown_us=min(circuit.cooldown_us, longest_cooldown_us(rules)),
        trip_ends_us=min(circuit.trip_ends_us, now_us + ttl_us(circuit, rules)),
    )


def _normalize_calls(circuit: Circuit, rules: CircuitRules, now_us: int) -> Circuit:
    if circuit.calls_ends_us <= now_us:
        return circuit._replace(
            generation=0, last_failure_us=0, streak_start_us=0, slices=(), failing_workers=(), calls_ends_us=0
        )
    latest = now_us // rules.slice_us
    return circuit._replace(
        last_failure_us=min(circuit.last_failure_us, now_us),
        streak_start_us=min(circuit.streak_start_us, now_us),
        slices=tuple(part for part in circuit.slices if latest - SLICES < part.number <= latest),
        failing_workers=tuple(
            worker._replace(last_failure_us=min(worker.last_failure_us, now_us))
            for worker in circuit.failing_workers
        ),
        calls_ends_us=min(circuit.calls_ends_us, now_us + ttl_us(circuit, rules)),
    )


def clear_trip(circuit: Circuit) -> Circuit:
    """Return the circuit as one that has not tripped."""
    return circuit._replace(
        tripped=False,
        opened_us=0,
        reason="",
        successes=0,
        ramp_start_us=0,
        probes=(),
        cooldown_us=0,
        trip_ends_us=0,
    )


def longest_cooldown_us(rules: CircuitRules) -> int:
    """Return the longest time for which the circuit can be open."""
    return max(rules.cooldown_us, rules.cooldown_max_us)


def next_cooldown_us(circuit: Circuit, rules: CircuitRules) -> int:
    """Return the cooldown of a circuit that opens now: longer than the last one unless it closed since."""
    if not circuit.tripped:
        return rules.cooldown_us
    last_us = max(circuit.cooldown_us, rules.cooldown_us)
    return min(longest_cooldown_us(rules), last_us * rules.cooldown_permille // 1000)


def ttl_us(circuit: Circuit, rules: CircuitRules) -> int:
    """Return how long an unused circuit is kept; a cooldown that has grown extends it."""
    cooldown_us = min(circuit.cooldown_us, longest_cooldown_us(rules))
    return max(rules.ttl_us, cooldown_us + TTL_MARGIN_US if circuit.tripped else 0)
