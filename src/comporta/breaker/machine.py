"""The circuit itself: what becomes of it at each question, result and moment. Pure; no clock, no I/O.

It is *open* as long as its mark lies ahead. One that has *tripped* is half-open once the mark has passed:
that is remembered by itself and never inferred from the count of failures. With a ramp it is closed in part
first. Each transition begins a new generation; what comes from a call of an earlier one changes nothing.

Instants that lie further ahead than they could (a clock was set back) are brought near, so that nothing is
locked for longer than was configured. What has outlived its time is dropped as if it had never been.

Twin: ``breaker.lua``.
"""

from __future__ import annotations

from comporta.breaker.state import (
    ADMIT,
    BARE,
    CLOSED,
    COUNT_MAX,
    FAIL,
    FAILING_MAX,
    FAILURES_US,
    FORCED_OPEN,
    FORGET,
    GIVE_BACK,
    HALF_OPEN,
    LOOK,
    OPEN,
    OPEN_UP,
    OPENED,
    RAMP,
    RAMPED,
    RESET,
    SHUT,
    SLICES,
    SUCCEED,
    UNCHANGED,
    Asked,
    Circuit,
    Failing,
    Forced,
    Probe,
    Reply,
    Rules,
    Slice,
)
from comporta.steps import WHOLE, climbed


def step(circuit: Circuit, rules: Rules, asked: Asked, now_us: int, forced: Forced) -> tuple[Circuit, Reply]:
    """Do what is asked at a moment; return what becomes of the circuit, and how it stands then."""
    circuit = anchored(circuit, rules, now_us)
    circuit, change, probe = _ACTS[asked.verb](circuit, rules, asked, now_us, forced.how)
    return circuit, _reply(circuit, rules, now_us, forced)._replace(change=change, probe=probe)


def anchored(circuit: Circuit, rules: Rules, now_us: int) -> Circuit:
    """Bring what lies too far ahead near, and drop what has ended."""
    failures_ends_us = min(circuit.failures_ends_us, now_us + FAILURES_US)
    if failures_ends_us <= now_us:
        circuit = circuit._replace(failures=0, failures_ends_us=0)
    else:
        circuit = circuit._replace(failures_ends_us=failures_ends_us)
    until_us = min(circuit.open_until_us, now_us + rules.cooldown_us)
    circuit = circuit._replace(open_until_us=until_us if until_us > now_us else 0)
    return _anchored_trip(_anchored_calls(circuit, rules, now_us), rules, now_us)


def _anchored_trip(circuit: Circuit, rules: Rules, now_us: int) -> Circuit:
    if circuit.trip_ends_us <= now_us:
        return _untripped(circuit)
    ramp_us = min(circuit.ramp_us, now_us)
    if ramp_us and now_us - ramp_us >= rules.ramp_steps * rules.ramp_us:
        return _untripped(circuit)
    probes = [p._replace(deadline_us=min(p.deadline_us, now_us + rules.probe_us)) for p in circuit.probes]
    return circuit._replace(
        opened_us=min(circuit.opened_us, now_us),
        ramp_us=ramp_us,
        probes=tuple(probe for probe in probes if probe.deadline_us > now_us),
        trip_ends_us=min(circuit.trip_ends_us, now_us + rules.memory_us),
    )


def _anchored_calls(circuit: Circuit, rules: Rules, now_us: int) -> Circuit:
    if circuit.calls_ends_us <= now_us:
        return circuit._replace(generation=0, last_us=0, run_us=0, slices=(), failing=(), calls_ends_us=0)
    latest = now_us // rules.slice_us
    return circuit._replace(
        last_us=min(circuit.last_us, now_us),
        run_us=min(circuit.run_us, now_us),
        slices=tuple(part for part in circuit.slices if latest - SLICES < part.number <= latest),
        failing=tuple(Failing(owner, min(last_us, now_us)) for owner, last_us in circuit.failing),
        calls_ends_us=min(circuit.calls_ends_us, now_us + rules.memory_us),
    )


def _untripped(circuit: Circuit) -> Circuit:
    return circuit._replace(
        tripped=False, opened_us=0, why="", successes=0, ramp_us=0, probes=(), trip_ends_us=0
    )


_Acted = tuple[Circuit, int, int]
"""The circuit, what changed, and the number of a probe that was granted."""


def _look(circuit: Circuit, rules: Rules, asked: Asked, now_us: int, forced: int) -> _Acted:
    """Look; what was counted meanwhile may be what opens it."""
    if not (_current(circuit, asked) and _counting(circuit) and (asked.calls or asked.slow)):
        return circuit, UNCHANGED, 0
    circuit = _reported(circuit, rules, asked, now_us)
    if not forced and _too_many(circuit, rules, now_us):
        return _tripped(circuit, rules, asked.why, now_us), OPENED, 0
    return circuit, UNCHANGED, 0


def _admit(circuit: Circuit, rules: Rules, asked: Asked, now_us: int, forced: int) -> _Acted:
    """Look, and take a probe if the circuit is half-open and there is one."""
    if forced or circuit.open_until_us or not _half_open(circuit) or not _has_probe(circuit, rules):
        return circuit, UNCHANGED, 0
    granted = Probe(asked.probe, now_us + rules.probe_us, asked.owner)
    circuit = circuit._replace(probes=(*circuit.probes, granted))
    return _remembered(circuit, rules, now_us), UNCHANGED, asked.probe


def _fail(circuit: Circuit, rules: Rules, asked: Asked, now_us: int, forced: int) -> _Acted:
    if not _current(circuit, asked):
        return circuit, UNCHANGED, 0
    bare = asked.generation == BARE
    if asked.probe or (not bare and not circuit.open_until_us and _half_open(circuit)):
        known = not circuit.open_until_us and _probe(circuit, asked.probe) is not None
        if forced or not known:
            return _without(circuit, asked.probe), UNCHANGED, 0
        return _tripped(_counted(circuit, rules, asked, now_us), rules, asked.why, now_us), OPENED, 0
    counting, half_open = _counting(circuit), not circuit.open_until_us and _half_open(circuit)
    if counting:
        circuit = _reported(circuit, rules, asked, now_us)
    circuit = _counted(circuit, rules, asked, now_us)
    trips = half_open or (
        counting and (_in_a_row(circuit, rules, now_us) or _too_many(circuit, rules, now_us))
    )
    if trips and not forced:
        return _tripped(circuit, rules, asked.why, now_us), OPENED, 0
    return circuit, UNCHANGED, 0


def _succeed(circuit: Circuit, rules: Rules, asked: Asked, now_us: int, forced: int) -> _Acted:
    if asked.generation == BARE:
        if circuit.open_until_us or _half_open(circuit):
            return _closed(circuit, rules, now_us)
    elif not _current(circuit, asked):
        return circuit, UNCHANGED, 0
    elif asked.probe:
        return _proved(circuit, rules, asked, now_us)
    if not _counting(circuit):
        return circuit, UNCHANGED, 0
    circuit = circuit._replace(failures=0, failures_ends_us=0)
    return _look(circuit, rules, asked, now_us, forced)


def _proved(circuit: Circuit, rules: Rules, asked: Asked, now_us: int) -> _Acted:
    if circuit.open_until_us or _probe(circuit, asked.probe) is None:
        return circuit, UNCHANGED, 0
    circuit = _without(circuit, asked.probe)._replace(successes=circuit.successes + 1)
    if circuit.successes >= rules.probes:
        return _closed(circuit, rules, now_us)
    return circuit, UNCHANGED, 0


def _give_back(circuit: Circuit, rules: Rules, asked: Asked, now_us: int, forced: int) -> _Acted:
    return _without(circuit, asked.probe), UNCHANGED, 0


def _forget(circuit: Circuit, rules: Rules, asked: Asked, now_us: int, forced: int) -> _Acted:
    new = Circuit(generation=_next(circuit, now_us), calls_ends_us=now_us + rules.memory_us)
    return new, RESET, 0


def _open_up(circuit: Circuit, rules: Rules, asked: Asked, now_us: int, forced: int) -> _Acted:
    """Open it for the rest of a time that began while the shared state was out of reach.

    Not if it has changed since: then those who did that knew more. Where several have to agree, whoever
    reports is one of them.
    """
    left_us = min(max(1, asked.left_us), rules.cooldown_us)
    began_us = now_us - (rules.cooldown_us - left_us)
    if circuit.open_until_us or forced or circuit.generation > began_us:
        return circuit, UNCHANGED, 0
    failing = _with_trouble(circuit, asked.owner, now_us)
    circuit = circuit._replace(failing=failing, calls_ends_us=now_us + rules.memory_us)
    if _agreed(circuit, began_us) < rules.quorum:
        return circuit, UNCHANGED, 0
    circuit = _tripped(circuit, rules, asked.why, now_us)
    opened_us = now_us - max(0, asked.age_us)
    return circuit._replace(open_until_us=now_us + left_us, opened_us=opened_us), OPENED, 0


_ACTS = {
    LOOK: _look,
    ADMIT: _admit,
    FAIL: _fail,
    SUCCEED: _succeed,
    GIVE_BACK: _give_back,
    FORGET: _forget,
    OPEN_UP: _open_up,
}


def _current(circuit: Circuit, asked: Asked) -> bool:
    """Whether it belongs to this generation; where none is remembered, all do."""
    return asked.generation in (BARE, circuit.generation) or not circuit.generation


def _half_open(circuit: Circuit) -> bool:
    """Whether only probes may try it, or will when it is no longer open."""
    return circuit.tripped and not circuit.ramp_us


def _counting(circuit: Circuit) -> bool:
    return not circuit.open_until_us and not _half_open(circuit)


def _has_probe(circuit: Circuit, rules: Rules) -> bool:
    return len(circuit.probes) < max(1, rules.probes - circuit.successes)


def _probe(circuit: Circuit, number: int) -> Probe | None:
    return next((probe for probe in circuit.probes if probe.number == number), None)


def _without(circuit: Circuit, number: int) -> Circuit:
    return circuit._replace(probes=tuple(probe for probe in circuit.probes if probe.number != number))


def _next(circuit: Circuit, now_us: int) -> int:
    """Return the number of the next generation: later than any before it, even if those are forgotten."""
    return max(now_us, circuit.generation + 1)


def _remembered(circuit: Circuit, rules: Rules, now_us: int) -> Circuit:
    ends_us = now_us + rules.memory_us
    return circuit._replace(trip_ends_us=ends_us, calls_ends_us=ends_us)


def _tripped(circuit: Circuit, rules: Rules, why: str, now_us: int) -> Circuit:
    """Open it. One that opens again, without having been closed, keeps since when."""
    circuit = circuit._replace(
        open_until_us=now_us + rules.cooldown_us,
        tripped=True,
        opened_us=circuit.opened_us if circuit.tripped else now_us,
        why=why,
        successes=0,
        ramp_us=0,
        probes=(),
        generation=_next(circuit, now_us),
        slices=(),
        failing=(),
    )
    return _remembered(circuit, rules, now_us)


def _closed(circuit: Circuit, rules: Rules, now_us: int) -> _Acted:
    """Close it, or let it be closed bit by bit."""
    ramped = circuit.tripped and rules.ramp_steps > 0
    circuit = circuit._replace(
        failures=0,
        failures_ends_us=0,
        open_until_us=0,
        generation=_next(circuit, now_us),
        slices=(),
        failing=(),
    )
    circuit = _remembered(circuit._replace(successes=0, probes=(), ramp_us=now_us), rules, now_us)
    return circuit if ramped else _untripped(circuit), RAMPED if ramped else SHUT, 0


def _counted(circuit: Circuit, rules: Rules, asked: Asked, now_us: int) -> Circuit:
    """Count one failure; if its worker has succeeded since the last one, it is the first of its run."""
    guarded = asked.generation != BARE
    again = guarded and asked.age_us >= 0 and 0 < circuit.last_us < now_us - asked.age_us
    failures = 1 if again else min(COUNT_MAX, circuit.failures + 1)
    circuit = _added(circuit, rules, Slice(0, 1, 1, 0), now_us)
    return circuit._replace(
        failures=failures,
        failures_ends_us=now_us + FAILURES_US,
        last_us=now_us,
        run_us=now_us if failures == 1 else circuit.run_us,
        failing=_with_trouble(circuit, asked.owner, now_us),
        calls_ends_us=now_us + rules.memory_us,
    )


def _reported(circuit: Circuit, rules: Rules, asked: Asked, now_us: int) -> Circuit:
    if not (asked.calls or asked.slow):
        return circuit
    circuit = _added(circuit, rules, Slice(0, asked.calls, 0, asked.slow), now_us)
    failing = _with_trouble(circuit, asked.owner, now_us) if asked.slow else circuit.failing
    return circuit._replace(failing=failing, calls_ends_us=now_us + rules.memory_us)


def _added(circuit: Circuit, rules: Rules, more: Slice, now_us: int) -> Circuit:
    """Count something in the newest part of the window; nobody counts where no rule asks."""
    if not rules.windowed:
        return circuit
    number = now_us // rules.slice_us
    before = tuple(part for part in circuit.slices if part.number != number)
    now = [part for part in circuit.slices if part.number == number]
    counts = [min(COUNT_MAX, sum(part[at] for part in (*now, more))) for at in (1, 2, 3)]
    return circuit._replace(slices=(*before, Slice(number, *counts)))


def _with_trouble(circuit: Circuit, owner: str, now_us: int) -> tuple[Failing, ...]:
    others = [failing for failing in circuit.failing if failing.owner != owner]
    return (*others, Failing(owner, now_us))[-FAILING_MAX:]


def _in_a_row(circuit: Circuit, rules: Rules, now_us: int) -> bool:
    if circuit.ramp_us:
        return circuit.failures >= min(rules.threshold or rules.probes, rules.probes)
    return 0 < rules.threshold <= circuit.failures and _agreed(circuit, circuit.run_us) >= rules.quorum


def _agreed(circuit: Circuit, since_us: int) -> int:
    """Return how many workers had trouble at that moment or later."""
    return sum(failing.last_us >= since_us for failing in circuit.failing)


def _too_many(circuit: Circuit, rules: Rules, now_us: int) -> bool:
    """Whether too great a part of the calls in the window failed or was slow."""
    calls = sum(part.calls for part in circuit.slices)
    if not rules.windowed or calls < rules.minimum_calls:
        return False
    failures = sum(part.failures for part in circuit.slices)
    slow = sum(part.slow for part in circuit.slices)
    return _agreed(circuit, now_us - rules.window_us + 1) >= rules.quorum and (
        (rules.failure_ppm > 0 and failures * 1_000_000 >= rules.failure_ppm * calls)
        or (rules.slow_ppm > 0 and slow * 1_000_000 >= rules.slow_ppm * calls)
    )


def phase_of(circuit: Circuit, forced: int) -> int:
    """Return the phase of an anchored circuit."""
    if forced:
        return OPEN if forced == FORCED_OPEN else CLOSED
    if circuit.open_until_us:
        return OPEN
    if _half_open(circuit):
        return HALF_OPEN
    return RAMP if circuit.ramp_us else CLOSED


def _left_us(circuit: Circuit, rules: Rules, phase: int, now_us: int, forced: int) -> int:
    if phase == OPEN:
        return rules.cooldown_us if forced else circuit.open_until_us - now_us
    if phase == HALF_OPEN and not _has_probe(circuit, rules):
        return min(probe.deadline_us for probe in circuit.probes) - now_us
    if phase == RAMP:
        return rules.ramp_us - (now_us - circuit.ramp_us) % rules.ramp_us
    return 0


def _reply(circuit: Circuit, rules: Rules, now_us: int, forced: Forced) -> Reply:
    phase = phase_of(circuit, forced.how)
    share = {CLOSED: WHOLE, RAMP: climbed(rules.ramp_steps, rules.ramp_us, now_us - circuit.ramp_us)}
    return Reply(
        moment_us=now_us,
        phase=phase,
        generation=circuit.generation,
        left_us=_left_us(circuit, rules, phase, now_us, forced.how),
        failures=circuit.failures,
        forced=forced.how,
        share=share.get(phase, 0),
        age_us=now_us - circuit.opened_us if circuit.tripped else -1,
        why=forced.why if forced.how else circuit.why,
        probe=0,
        change=UNCHANGED,
        probes=tuple((probe.deadline_us - now_us, probe.owner) for probe in circuit.probes),
    )
