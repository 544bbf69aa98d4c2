"""Calls that a limiter answers without a flow, and what it does where it cannot."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from tests.limits.faces import Bench, Face
from tests.support import memory_store, shared_store

from comporta import BaseLimiter, LeakyBucketLimiter, LimitConfig, LimitKey, LimitStrategy
from comporta.limits.flows import LimitFlows
from comporta.limits.key import normalize_key
from comporta.limits.wait_queue import WaitQueue
from comporta.stores.memory import MemoryStore
from comporta.stores.memory_fast_path import MemoryBoundLimit
from comporta.testing import ManualClock

LONG_KEY = "k" * 300


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def flows(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Give the list of the flows that calls needed."""
    needed: list[str] = []

    def record(name: str) -> None:
        flow = getattr(LimitFlows, name)

        def recorded(self: LimitFlows, *args: Any) -> Any:
            needed.append(name)
            return flow(self, *args)

        monkeypatch.setattr(LimitFlows, name, recorded)

    for name in ("acquire_flow", "decide_flow"):
        record(name)
    return needed


@pytest.fixture(params=[memory_store, shared_store])
def local_bench(
    request: pytest.FixtureRequest, driver: asyncio.Runner | None, clock: ManualClock
) -> Iterator[Bench]:
    """Give a store that decides in this process."""
    with request.param(clock) as store:
        yield Bench(store, clock, driver)


def open_limiter(bench: Bench, limit: LimitConfig | str) -> Face:
    """Return a limiter whose store is open: the first call may need the flow for that."""
    limiter = bench.limiter(limit)
    limiter.acquire("first")
    limiter.decide("first")
    return limiter


@pytest.mark.parametrize("timeout", [1, 0.5, None])
def test_acquire__token_there__does_not_wait_and_needs_no_flow(
    local_bench: Bench, flows: list[str], timeout: float | None
) -> None:
    limiter = open_limiter(local_bench, "2/s")
    flows.clear()
    assert [limiter.acquire("k", timeout=timeout) for _ in range(2)] == [True, True]
    assert flows == []
    assert limiter.acquire("k", timeout=1) is True
    assert flows == ["acquire_flow"]


def test_acquire__leaky_bucket_with_a_timeout__waits_for_its_turn(clock: ManualClock) -> None:
    with memory_store(clock) as store:
        limiter = LeakyBucketLimiter("1/s burst 5", store, "leaky").sync
        start_ns = clock.now_ns()
        assert [limiter.acquire(timeout=5) for _ in range(3)] == [True] * 3
        assert clock.now_ns() - start_ns == 2_000_000_000


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), "1", True, 1e12])
def test_acquire__invalid_timeout_and_a_token_there__raises_and_takes_nothing(
    local_bench: Bench, timeout: Any
) -> None:
    limiter = open_limiter(local_bench, "2/hour")
    with pytest.raises((TypeError, ValueError), match="timeout"):
        limiter.acquire("k", timeout=timeout)
    assert limiter.decide("k").remaining == 1


@pytest.mark.parametrize(
    "key", [LimitKey("user", "42"), LimitKey("user", "4:2", "v1"), LimitKey("n", LONG_KEY)]
)
def test_acquire__limit_key__shares_the_state_of_its_text(
    bench: Bench, flows: list[str], key: LimitKey
) -> None:
    limiter = open_limiter(bench, "4/hour")
    assert limiter.acquire(str(key))
    assert limiter.acquire(key)
    assert limiter.acquire(key, timeout=1)
    decision = limiter.decide(key)
    assert (decision.allowed, decision.remaining) == (True, 0)
    assert not limiter.acquire(str(key))


@pytest.mark.parametrize("waiting_for", ["w", None, LONG_KEY, "~digest", LimitKey("user", "42")])
def test_acquire__callers_wait_for_another_key__needs_no_flow(
    local_bench: Bench, flows: list[str], waiting_for: LimitKey | str | None
) -> None:
    limiter = open_limiter(local_bench, "10/hour")
    queue: WaitQueue = limiter.target._flows.wait_queue
    text = normalize_key(waiting_for)
    waiter = queue.join(text)
    assert waiter is not None
    flows.clear()
    others = [key for key in ("k", None, "~k", "x" * 300, LimitKey("a", "b")) if normalize_key(key) != text]
    assert all(limiter.acquire(key) for key in others)
    assert flows == []
    assert limiter.acquire(waiting_for) is False  # the waiting caller came first
    assert flows == ["acquire_flow"]
    queue.leave(text, waiter)
    assert limiter.acquire(waiting_for) is True
    assert flows == ["acquire_flow"]


def test_decide__state_in_this_process__needs_no_flow(local_bench: Bench, flows: list[str]) -> None:
    limiter = open_limiter(local_bench, "2/hour")
    flows.clear()
    decisions = [limiter.decide("k") for _ in range(3)]
    assert [(d.allowed, d.limit, d.remaining) for d in decisions] == [
        (True, 2, 1),
        (True, 2, 0),
        (False, 2, 0),
    ]
    assert (decisions[1].retry_after, decisions[2].retry_after) == (0, 1800)
    assert [d.reset_after for d in decisions] == [1800, 3600, 3600]
    assert flows == []
    assert limiter.decide("other", 2).allowed is True
    assert flows == ["decide_flow"]


def test_decide__invalid_key__raises(local_bench: Bench) -> None:
    limiter = open_limiter(local_bench, "2/hour")
    with pytest.raises(ValueError, match="key must not be empty"):
        limiter.decide("")
    with pytest.raises(TypeError, match="key must be a LimitKey, a str or None"):
        limiter.decide(3)


def test_decide__sweep_is_due__decides_under_the_lock() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    limiter = BaseLimiter("2/s", store, "n").sync
    assert limiter.decide("k").remaining == 1
    clock.advance(3)  # past the time at which the store sweeps
    assert limiter.decide("k").remaining == 1


def test_decide__state_removed_between_read_and_write__decides_under_the_lock() -> None:
    store = MemoryStore(ManualClock())
    bound = BaseLimiter("2/s", store, "n")._flows.bound
    assert isinstance(bound, MemoryBoundLimit)
    table, removals = bound._space.table, ["once"]

    def step_of(strategy: Any) -> Any:
        def step(state: Any, now_us: int, cost: int) -> Any:
            if removals and state is not None:
                removals.pop()
                del table["k"]
                store._size -= 1
            return strategy.step(state, now_us, cost)

        return step

    decide = bound.fast_path(step_of)
    assert [decide("k", 1) for _ in range(3)] == [0, 0, 0]  # the second one found the state removed
    assert decide("k", 1) > 0


@pytest.mark.parametrize("strategy", LimitStrategy)
@pytest.mark.parametrize("lease", [False, True])
def test_available__any_strategy__is_the_usage_without_the_traffic(
    strategy: LimitStrategy, lease: bool
) -> None:
    built = LimitConfig(10, 10, 1, strategy=strategy, lease=lease).build_strategy()
    other = LimitConfig(3, 7, 2, strategy=strategy, lease=lease).build_strategy()
    state = None
    for now_us in (0, 1, 5, 400_000, 400_000, 300_000, 2_000_000, 9_000_000):
        for reader in (built, other):
            assert reader.available(state, now_us) == reader.usage(state, now_us)[:2]
        new, _ = built.step(state, now_us, 3)
        state = new or state
