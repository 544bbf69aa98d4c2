"""Counts the results of calls in a circuit, and decides whether they open it. No I/O, and no clock.

Knows nothing about phases and generations: ``state_machine`` does.
"""

from __future__ import annotations

from comporta.breaker.normalization import ttl_us
from comporta.breaker.state import (
    COUNT_MAX,
    FAILING_WORKERS_MAX,
    FAILURES_TTL_US,
    NO_ADMISSION,
    Circuit,
    CircuitRequest,
    CircuitRules,
    FailingWorker,
    WindowSlice,
)

_EMPTY_WINDOW = WindowSlice(-1, 0, 0, 0)


def count_failures(
    circuit: Circuit,
    rules: CircuitRules,
    request: CircuitRequest,
    now_us: int,
    *,
    count: int = 1,
    streak: int = 1,
) -> Circuit:
    """Count failures of one worker, of which the last ``streak`` are in a row.

    They start a new streak if their worker succeeded after the previous failure. A success in the future
    means that a clock was set back, so it is unknown whether the success came before or after that failure.
    """
    admitted = request.generation != NO_ADMISSION
    restarts = admitted and 0 < circuit.last_failure_us < request.succeeded_us <= now_us
    failures = streak if restarts else min(COUNT_MAX, circuit.failures + streak)
    circuit = _add_to_window(circuit, rules, WindowSlice(0, count, count, 0), now_us)
    return circuit._replace(
        failures=failures,
        failures_ends_us=now_us + FAILURES_TTL_US if failures else 0,
        last_failure_us=now_us if streak else circuit.last_failure_us,
        streak_start_us=now_us if restarts or not circuit.failures else circuit.streak_start_us,
        failing_workers=add_failing_worker(circuit, request.owner, now_us, count),
        calls_ends_us=now_us + ttl_us(circuit, rules),
    )


def count_report(circuit: Circuit, rules: CircuitRules, request: CircuitRequest, now_us: int) -> Circuit:
    """Count the successes and slow calls that a request reports."""
    if not (request.calls or request.slow):
        return circuit
    circuit = _add_to_window(circuit, rules, WindowSlice(0, request.calls, 0, request.slow), now_us)
    failing_workers = circuit.failing_workers
    if request.slow:
        failing_workers = add_failing_worker(circuit, request.owner, now_us)
    return circuit._replace(failing_workers=failing_workers, calls_ends_us=now_us + ttl_us(circuit, rules))


def _add_to_window(circuit: Circuit, rules: CircuitRules, more: WindowSlice, now_us: int) -> Circuit:
    """Add counts to the newest slice of the window, if a rule uses the window."""
    if not rules.uses_window:
        return circuit
    number = now_us // rules.slice_us
    before = tuple(part for part in circuit.slices if part.number != number)
    now = [part for part in circuit.slices if part.number == number]
    counts = [min(COUNT_MAX, sum(part[at] for part in (*now, more))) for at in (1, 2, 3)]
    return circuit._replace(slices=(*before, WindowSlice(number, *counts)))


def add_failing_worker(
    circuit: Circuit, owner: str, now_us: int, failures: int = 0
) -> tuple[FailingWorker, ...]:
    """Return the failing workers after ``owner`` failed ``failures`` times, or had slow calls."""
    others = [worker for worker in circuit.failing_workers if worker.owner != owner]
    total = min(COUNT_MAX, own_failures(circuit, owner) + failures)
    return (*others, FailingWorker(owner, now_us, total))[-FAILING_WORKERS_MAX:]


def own_failures(circuit: Circuit, owner: str) -> int:
    """Return how many failures of a worker are counted in this generation."""
    return sum(worker.failures for worker in circuit.failing_workers if worker.owner == owner)


def reaches_threshold(circuit: Circuit, rules: CircuitRules) -> bool:
    """Whether the failures in a row open the circuit."""
    if circuit.ramp_start_us:
        return circuit.failures >= min(rules.threshold or rules.probes, rules.probes)
    return (
        0 < rules.threshold <= circuit.failures
        and failing_worker_count(circuit, circuit.streak_start_us) >= rules.quorum
    )


def failing_worker_count(circuit: Circuit, since_us: int) -> int:
    """Return how many workers failed at ``since_us`` or later."""
    return sum(worker.last_failure_us >= since_us for worker in circuit.failing_workers)


def exceeds_ratio(circuit: Circuit, rules: CircuitRules, now_us: int) -> bool:
    """Whether the share of failed or slow calls in the window reaches its limit."""
    _, calls, failures, slow = window_counts(circuit)
    if not rules.uses_window or calls < rules.minimum_calls:
        return False
    return failing_worker_count(circuit, now_us - rules.window_us + 1) >= rules.quorum and (
        (rules.failure_ppm > 0 and failures * 1_000_000 >= rules.failure_ppm * calls)
        or (rules.slow_ppm > 0 and slow * 1_000_000 >= rules.slow_ppm * calls)
    )


def window_counts(circuit: Circuit) -> WindowSlice:
    """Return the sum of the window, with the number of its oldest slice (-1 if the window is empty)."""
    if not circuit.slices:  # nearly always: rules on consecutive failures need no window
        return _EMPTY_WINDOW
    counts = [sum(part[at] for part in circuit.slices) for at in (1, 2, 3)]
    return WindowSlice(min(part.number for part in circuit.slices), *counts)
