"""Records histories of real processes and checks each of them."""

from __future__ import annotations

from typing import Any

from tests.histories.linearizability import Call, Specification, is_linearizable
from tests.histories.specifications import LimitSpecification, PermitSpecification
from tests.processes.fleet import run_together, start_workers, with_long_timeout

from comporta import LimitConfig, LimitStrategy

PROCESSES = 3
CALLS = 6
"""How many calls each process makes in a history."""

UNKNOWN_US_MAX = 5_000
"""Up to this length of a call whose moment is unknown, every moment is tried before a history is rejected."""

COARSE_STEPS = 1_000
"""How many moments of a call are tried first: calls to a server are longer than the steps between them."""

RECORDED_FACTOR = 6
"""How many histories are recorded for each that is checked, those with the shortest calls first."""

BATCHES_MAX = 10
"""How often that is repeated, on a machine that is too busy for short calls."""

LIMITS: dict[str, dict[str, Any]] = {
    "token_bucket": {"rate": 1000, "capacity": 5},
    "leaky_bucket": {"rate": 1000, "capacity": 5, "strategy": "leaky_bucket"},
    "fixed_window": {"rate": 1, "capacity": 5, "window": 0.002, "strategy": "fixed_window"},
    "sliding_window": {"rate": 1, "capacity": 5, "window": 0.002, "strategy": "sliding_window"},
}
"""Limits that refill within a history, so that grants and refusals alternate."""

MAX_PERMITS = 4


def check_limit(state: str, strategy: str, rounds: int, seed: int) -> None:
    """Record histories of a limit, and check that its pure step explains each of them."""
    limit = LIMITS[strategy]
    config = LimitConfig(limit["rate"], limit["capacity"], limit.get("window"), LimitStrategy(strategy))
    _check(state, LimitSpecification(config), rounds, "record_limit", limit=limit, seed=seed)


def check_permits(state: str, rounds: int, seed: int) -> None:
    """Record histories of permits, and check that the pure operations explain each of them."""
    specification = PermitSpecification(MAX_PERMITS)
    _check(state, specification, rounds, "record_permits", max_permits=MAX_PERMITS, seed=seed)


def _check(state: str, specification: Specification, rounds: int, job: str, **arguments: Any) -> None:
    """Check ``rounds`` histories in which calls of different processes overlap."""
    checked, seed = 0, arguments.pop("seed")
    for batch in range(BATCHES_MAX):
        recorded = _record_rounds(state, RECORDED_FACTOR * rounds, job, seed=f"{seed}-{batch}", **arguments)
        for history in sorted(filter(has_overlap, recorded), key=unknown_us):
            if checked < rounds:
                checked += _is_explained(history, specification)
        if checked == rounds:
            return
    raise AssertionError(f"only {checked} of {rounds} histories could be verified")


def _record_rounds(state: str, rounds: int, job: str, **arguments: Any) -> list[list[Call]]:
    url = state if "timeout=" in state else with_long_timeout(state)
    with start_workers(PROCESSES, job, url=url, rounds=rounds, calls=CALLS, **arguments) as workers:
        results = run_together(workers)
    assert not any(result["fallback"] for result in results)
    return [
        [
            Call(process, began_us, ended_us, tuple(request), reply, moments and tuple(moments))
            for process, calls in enumerate(processes)
            for began_us, ended_us, request, reply, moments in calls
        ]
        for processes in zip(*(result["histories"] for result in results), strict=True)
    ]


def _is_explained(history: list[Call], specification: Specification) -> bool:
    """Return whether a history is verified; fail if it is wrong.

    It is not verified if the machine stalled and a call took too long to try every moment of it.
    """
    longest_us = unknown_us(history)
    if is_linearizable(history, specification, 1 + longest_us // COARSE_STEPS):
        return True
    if longest_us > UNKNOWN_US_MAX:
        return False
    in_order = sorted(history, key=lambda call: call.began_us)
    assert is_linearizable(history, specification), "\n".join(map(str, in_order))
    return True


def unknown_us(history: list[Call]) -> int:
    """Return the length of the longest call whose moment is unknown."""
    return max((call.ended_us - call.began_us for call in history if call.moments_us is None), default=0)


def has_overlap(history: list[Call]) -> bool:
    """Return whether two calls of different processes overlap."""
    return any(
        one.process != other.process and one.began_us <= other.ended_us and other.began_us <= one.ended_us
        for one in history
        for other in history
    )
