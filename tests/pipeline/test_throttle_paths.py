"""Acquiring from both limits is the same on a server, under a memory store's lock, and on the fast path."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings
from tests.support import max_examples, redis_store

from comporta.limits.config import LimitConfig
from comporta.limits.overrides.operation import LowerByStep, PauseLimit, RaiseByStep
from comporta.pipeline.throttle.fast_path import fast_acquire
from comporta.pipeline.throttle.operation import AcquireBoth, PartitionStateType, ThrottleLimits
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock, Server

PARTITIONS = ("a", "b", "c:d.e")
limits = st.builds(LimitConfig, st.sampled_from([10.0, 1.0, 100 / 60, 3.0, 20_000.0]), st.integers(1, 20))
moves = st.one_of(st.just(0), st.integers(1, 2_000_000), st.integers(-5_000_000, 20_000_000))
steps = st.tuples(
    moves,
    st.sampled_from(["acquire"] * 6 + ["drop", "climb", "pause"]),
    st.sampled_from(PARTITIONS),
    st.integers(1, 20),
)


@settings(
    max_examples=max_examples(120),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(of_all=limits, partition=limits, sequence=st.lists(steps, min_size=1, max_size=40))
def test_acquire_both__any_sequence__gives_the_same_waits_on_all_three_paths(
    valkey: Server, of_all: LimitConfig, partition: LimitConfig, sequence: list[tuple[int, str, str, int]]
) -> None:
    clock = ManualClock(1_800_000_000)
    strategy = partition.build_strategy()
    both = ThrottleLimits("jobs", of_all.build_strategy(), strategy, strategy, "share")
    locked, fast = MemoryStore(clock), MemoryStore(clock)
    acquire = fast_acquire(fast, both)
    assert acquire is not None
    assert fast_acquire(None, both) is None
    with redis_store(valkey, clock) as remote:
        for move_us, action, name, cost in sequence:
            clock.advance(move_us / 1e6)
            limit = both.partition_name(name)
            if action == "acquire":
                operation = AcquireBoth(both, name, min(cost, of_all.capacity, partition.capacity))
                waits = locked.apply(operation)
                assert remote.apply(operation) == waits
                assert (acquire(name, limit, operation.cost) or fast.apply(operation)) == waits
            else:
                numbers = {"drop": (200_000, 100_000), "climb": (100_000, 5_000_000), "pause": (1_000_000,)}
                change = {"drop": LowerByStep, "climb": RaiseByStep, "pause": PauseLimit}[action]
                for store in (locked, fast, remote):
                    store.apply(change(limit, strategy.params, *numbers[action]))


@settings(max_examples=max_examples(200), deadline=None)
@given(partition=limits, floor=st.integers(1, 10**6), moves=st.lists(st.integers(0, 3 * 10**6), max_size=30))
def test_partition_state__dropped_at_its_expiry__changes_no_decision(
    partition: LimitConfig, floor: int, moves: list[int]
) -> None:
    """Without degradation; a degraded partition keeps a debt as the floor requires, at most a minute."""
    strategy = partition.build_strategy()
    state_type, state, kept, now_us = PartitionStateType(strategy, floor), None, None, 1
    for move_us in moves:
        now_us += move_us
        if kept is not None and state_type.expires_us(kept) <= now_us:
            kept = None
        new, wait_us = strategy.step(state, now_us, 1)
        new_kept, wait_kept_us = strategy.step(kept, now_us, 1)
        assert wait_us == wait_kept_us
        state, kept = new or state, new_kept or kept
