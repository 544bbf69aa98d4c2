"""F8: eight workers use up a budget whose calls have a cost that only their end tells, in virtual time."""

from __future__ import annotations

import math
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import NamedTuple

import pytest
from tests.limits.faces import BEGIN, STORES, made_store

from comporta import BaseLimiter, LimitConfig, LimitStrategy
from comporta.testing import ManualClock, Server

CAPACITY, WINDOW_US = 100_000, 60_000_000
WORKERS, CALLERS = 8, 4
MEAN, SPREAD = 800, 0.8
MINUTES = 3


class Call(NamedTuple):
    granted_us: int
    ended_us: int
    used: int


def use_budget(limiters: list[BaseLimiter], clock: ManualClock, estimate: int) -> list[Call]:
    """Let the callers of all workers reserve, call and settle one after the other until the time is over."""
    chance, order, calls = Random(8), count(), []
    begin_us = BEGIN * 1_000_000
    events: list[tuple[int, int, BaseLimiter, Call | None]] = []
    for limiter in limiters * CALLERS:
        heappush(events, (begin_us + chance.randrange(1_000_000), next(order), limiter, None))
    while events[0][0] < begin_us + MINUTES * WINDOW_US:
        now_us, _, limiter, call = heappop(events)
        clock.advance((now_us - clock.now_ns() // 1000) / 1e6)
        if call is not None:
            limiter.sync.settle(None, estimate, call.used, call.granted_us / 1e6)
        decision = limiter.sync.decide(None, estimate)
        if decision:
            used = max(1, round(chance.lognormvariate(math.log(MEAN) - SPREAD**2 / 2, SPREAD)))
            call = Call(now_us, now_us + 1_000 * used, used)
            calls.append(call)
            heappush(events, (call.ended_us, next(order), limiter, call))
        else:
            heappush(events, (now_us + round(decision.retry_after * 1e6), next(order), limiter, None))
    return calls


def most_above(calls: list[Call], estimate: int) -> int:
    """Return by how much any minute was above the limit beyond the debt of the calls in flight."""
    worst = -CAPACITY
    for end_us, _, _ in calls:
        within = sum(call.used for call in calls if end_us - WINDOW_US < call.granted_us <= end_us)
        in_flight = (call for call in calls if call.granted_us <= end_us < call.ended_us)
        worst = max(worst, within - CAPACITY - sum(max(0, call.used - estimate) for call in in_flight))
    return worst


@pytest.mark.unmeasured
@pytest.mark.parametrize("estimate", [MEAN, 2 * MEAN])
@pytest.mark.parametrize("kind", STORES)
def test_budget__cost_known_afterwards__is_used_to_97_percent_and_never_exceeded(
    kind: str, estimate: int, valkey: Server
) -> None:
    clock = ManualClock(BEGIN)
    config = LimitConfig(CAPACITY * 1e6 / WINDOW_US, CAPACITY, WINDOW_US / 1e6, LimitStrategy.SLIDING_WINDOW)
    with made_store(kind, valkey, clock) as store:
        limiters = [BaseLimiter(config, store, "tokens") for _ in range(WORKERS)]
        calls = use_budget(limiters, clock, estimate)
    assert sum(call.used for call in calls) >= 0.97 * CAPACITY * MINUTES
    assert most_above(calls, estimate) <= 0
