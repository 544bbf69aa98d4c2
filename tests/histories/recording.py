"""Records histories of real processes and checks each of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.histories.linearizability import Call, Specification, is_linearizable
from tests.histories.server_moments import monitored, with_server_moments
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


def limit_specification(strategy: str) -> LimitSpecification:
    """Return the pure step of one of the limits."""
    limit = LIMITS[strategy]
    return LimitSpecification(
        LimitConfig(limit["rate"], limit["capacity"], limit.get("window"), LimitStrategy(strategy))
    )


def check_limit(state: str, strategy: str, rounds: int, seed: int) -> None:
    """Record histories of a limit, and check that its pure step explains each of them."""
    record = partial(_record_overlapping, state, "record_limit", limit=LIMITS[strategy])
    _check(limit_specification(strategy), rounds, seed, record)


def check_sliding_window(server_url: str, rounds: int, seed: int) -> None:
    """Record histories of a sliding window on a server, and check that its pure step explains each of them.

    Its log keeps the time of each grant. Without the moments that the server reports, every choice of these
    times would leave another state, and the search would not end.
    """
    record = partial(record_sliding_window, server_url)
    _check(limit_specification("sliding_window"), rounds, seed, record)


def check_permits(state: str, rounds: int, seed: int) -> None:
    """Record histories of permits, and check that the pure operations explain each of them."""
    record = partial(_record_overlapping, state, "record_permits", max_permits=MAX_PERMITS)
    _check(PermitSpecification(MAX_PERMITS), rounds, seed, record)


def record_sliding_window(server_url: str, rounds: int, seed: str) -> list[list[Call]]:
    """Return histories in which calls overlapped, with each change at the moment that the server reports.

    They are in the order of their recording. By the length of the calls whose moments are unknown, those
    without refusals would be the first.
    """
    with monitored(server_url) as monitor:
        recorded = _record_rounds(server_url, "record_limit", rounds, seed, limit=LIMITS["sliding_window"])
        scripts = monitor.scripts()
    keys = [f"{seed}-{number}" for number in range(rounds)]
    exact = with_server_moments(recorded, keys, scripts)
    return [after for before, after in zip(recorded, exact, strict=True) if has_overlap(before)]


def _check(
    specification: Specification, rounds: int, seed: int, record: Callable[[int, str], list[list[Call]]]
) -> None:
    """Check ``rounds`` histories in which calls of different processes overlap."""
    checked = 0
    for batch in range(BATCHES_MAX):
        for history in record(RECORDED_FACTOR * rounds, f"{seed}-{batch}"):
            if checked < rounds:
                checked += _is_explained(history, specification)
        if checked == rounds:
            return
    raise AssertionError(f"only {checked} of {rounds} histories could be verified")


def _record_overlapping(state: str, job: str, rounds: int, seed: str, **arguments: Any) -> list[list[Call]]:
    """Return histories in which calls overlapped, those with the shortest calls first."""
    recorded = _record_rounds(state, job, rounds, seed, **arguments)
    return sorted(filter(has_overlap, recorded), key=unknown_us)


def _record_rounds(state: str, job: str, rounds: int, seed: str, **arguments: Any) -> list[list[Call]]:
    url = state if "timeout=" in state else with_long_timeout(state)
    arguments |= {"rounds": rounds, "calls": CALLS, "seed": seed}
    with start_workers(PROCESSES, job, url=url, **arguments) as workers:
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
