"""Fair waiting between processes (F9): large costs do not starve, and batches leave room for others.

A waiter's fair time is that of a queue in order of arrival: (units ahead in its class + cost) / rate.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from tests.processes.fleet import Worker, run_together, with_long_timeout
from tests.support import assert_within

RATE = 20
SAME_TIME_SECONDS = 0.05
"""Callers of different processes that begin to wait within this time are in no particular order."""

SHARED_LIMIT = {"rate": 10, "capacity": 10, "batch_headroom": 8}
BATCH_PROCESSES, BATCH_CALLERS = 3, 100


def run_jobs(*jobs: tuple[str, dict[str, Any]]) -> list[Any]:
    with ExitStack() as ends:
        workers = [ends.enter_context(Worker(job, **arguments)) for job, arguments in jobs]
        for worker in workers:
            worker.wait_ready()
        return run_together(workers)


def fair_times(waits: list[tuple[float, float, int]]) -> Iterator[tuple[float, float]]:
    """Return how long each waiter waited, and its fair time."""
    for began, ended, cost in waits:
        ahead = sum(
            other_cost
            for other_began, other_ended, other_cost in waits
            if other_began < began + SAME_TIME_SECONDS and other_ended > began
        )
        yield ended - began, max(ahead, cost) / RATE


STRATEGIES = ("token_bucket", "leaky_bucket", "fixed_window", "sliding_window")


def limit_of(strategy: str) -> dict[str, Any]:
    """Return the limit of 20/s."""
    window = 1.0 if "window" in strategy else None
    capacity = {"token_bucket": 10, "leaky_bucket": 100}.get(strategy, RATE)
    return {"rate": RATE, "capacity": capacity, "window": window, "strategy": strategy}


def taking_job(state: str, strategy: str, cost: int, threads: int, **options: Any) -> tuple[str, Any]:
    """Return the job of a process whose threads take and wait all the time."""
    arguments = {"url": with_long_timeout(state), "limit": limit_of(strategy), "seconds": 2.0, **options}
    return "take_in_turns", {**arguments, "cost": cost, "threads": threads}


def assert_fair(strategy: str, results: list[tuple[int, list[tuple[float, float]]]]) -> None:
    """Assert that no waiter, given its cost and the times of its waits, waited much longer than is fair."""
    window = limit_of(strategy)["window"] or 0.0
    waits = [(began, ended, cost) for cost, result in results for began, ended in result]
    for waited, fair in fair_times(waits):
        assert_within(waited, 1.2 * fair + 0.1 + window, f"a waiter with a fair time of {fair:.2f} s")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_waiters__of_large_and_small_costs_in_three_processes__wait_for_their_fair_time(
    state: str, strategy: str
) -> None:
    costs = [(10, 2), (1, 8), (1, 8)]
    results = run_jobs(*(taking_job(state, strategy, *each) for each in costs))
    assert_fair(strategy, [(cost, result) for (cost, _), result in zip(costs, results, strict=True)])


@pytest.mark.parametrize("strategy", ["token_bucket", "sliding_window"])
def test_groups__of_large_and_small_costs_in_three_processes__wait_for_their_fair_time(
    state: str, strategy: str
) -> None:
    costs = [(10, 2), (1, 8), (1, 8)]
    results = run_jobs(*(taking_job(state, strategy, *each, grouped=True) for each in costs))
    assert_fair(strategy, [(cost, result) for (cost, _), result in zip(costs, results, strict=True)])


def test_large_waiters__limit_with_leases__wait_for_their_fair_time(state: str) -> None:
    limit = {**limit_of("token_bucket"), "lease": True}
    passing = {"url": with_long_timeout(state), "limit": limit, "how": "acquire", "seconds": 2.0}
    job, arguments = taking_job(state, "token_bucket", 10, 2)
    waits, _ = run_jobs((job, {**arguments, "limit": limit}), ("take_without_waiting", passing))
    assert_fair("token_bucket", [(10, waits)])
    assert waits


@pytest.mark.parametrize(
    ("strategy", "how"),
    [
        ("token_bucket", "acquire"),
        ("token_bucket", "decide"),
        ("token_bucket", "acquire_up_to"),
        ("token_bucket", "group"),
        ("fixed_window", "acquire"),
        ("sliding_window", "acquire"),
    ],
)
def test_large_waiters__callers_of_another_process_do_not_wait__wait_for_their_fair_time(
    state: str, strategy: str, how: str
) -> None:
    passing = {"url": with_long_timeout(state), "limit": limit_of(strategy), "how": how, "seconds": 2.0}
    waits, _ = run_jobs(taking_job(state, strategy, 10, 2), ("take_without_waiting", passing))
    assert_fair(strategy, [(10, waits)])
    assert waits


def ideal_waits(times: list[float], capacity: float) -> list[float]:
    """Return how long callers would wait for a bucket of 10/s alone."""
    level, last, waits = capacity, 0.0, []
    for at in times:
        level = min(capacity, level + 10 * (at - last)) - 1
        last = at
        waits.append(max(0.0, -level / 10))
    return waits


def arrival_times(load: float, seconds: float) -> list[float]:
    """Return random times with exactly this load, at which an ideal bucket of 8 would delay no caller."""
    for seed in range(1000):
        source = random.Random(seed)
        times = sorted(source.uniform(0, seconds) for _ in range(round(10 * load * seconds)))
        if load > 0.7 or not any(ideal_waits(times, 8)):
            return times
    raise AssertionError("no such times")


def run_load(state: str, load: float, seconds: float, batch_processes: int) -> tuple[float, int]:
    """Return the 99th percentile of the interactive waits, and the units that batches got."""
    state = with_long_timeout(state)
    batch = {"url": state, "limit": SHARED_LIMIT, "callers": BATCH_CALLERS, "seconds": seconds}
    calls = {"url": state, "limit": SHARED_LIMIT, "times": arrival_times(load, seconds)}
    key = "k" if batch_processes else "alone"
    *batches, waits = run_jobs(
        *[("wait_as_batch", batch)] * batch_processes, ("call_at_times", {**calls, "key": key})
    )
    return sorted(waits)[int(0.99 * len(waits))], sum(batches)


def test_interactive_caller__300_waiting_batch_callers__waits_at_most_150_ms(state: str) -> None:
    seconds, load = 8.0, 0.7
    p99, batch_units = run_load(state, load, seconds, BATCH_PROCESSES)
    assert_within(p99, 0.15, "an interactive caller")
    rest = 10 * seconds * (1 - load) + SHARED_LIMIT["capacity"] - SHARED_LIMIT["batch_headroom"]
    assert batch_units >= 0.95 * rest - 1


def test_interactive_caller__load_of_90_percent__waits_300_ms_longer_at_most(shared: str) -> None:
    with_batches, _ = run_load(shared, 0.9, 8.0, BATCH_PROCESSES)
    alone, _ = run_load(shared, 0.9, 8.0, 0)
    assert_within(with_batches, alone + 0.3, "an interactive caller")
