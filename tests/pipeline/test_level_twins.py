"""Taking from two levels is the same on a server, under the lock of a store in memory, on the short way."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings
from tests.support import examples, redis_store

from comporta.limits.adjust import Climb, Drop, Pause
from comporta.limits.config import LimitConfig
from comporta.pipeline.throttle.levels import Levels, Settling, TakeBoth
from comporta.pipeline.throttle.short_way import short_way
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock, Server

PARTITIONS = ("a", "b", "c:d.e")
limits = st.builds(LimitConfig, st.sampled_from([10.0, 1.0, 100 / 60, 3.0, 20_000.0]), st.integers(1, 20))
moves = st.one_of(st.just(0), st.integers(1, 2_000_000), st.integers(-5_000_000, 20_000_000))
steps = st.tuples(
    moves,
    st.sampled_from(["take"] * 6 + ["drop", "climb", "pause"]),
    st.sampled_from(PARTITIONS),
    st.integers(1, 20),
)


@settings(
    max_examples=examples(120), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(whole=limits, partition=limits, story=st.lists(steps, min_size=1, max_size=40))
def test_levels__any_story__is_told_alike_by_all_three(
    valkey: Server, whole: LimitConfig, partition: LimitConfig, story: list[tuple[int, str, str, int]]
) -> None:
    clock = ManualClock(1_800_000_000)
    rule = partition.rule()
    levels = Levels("jobs", whole.rule(), rule, rule, "share")
    long, short = MemoryStore(clock), MemoryStore(clock)
    taken = short_way(short, levels)
    with redis_store(valkey, clock) as remote:
        for move_us, verb, name, cost in story:
            clock.advance(move_us / 1e6)
            limit = levels.partition_name(name)
            if verb == "take":
                take = TakeBoth(levels, name, min(cost, whole.capacity, partition.capacity))
                waits = long.apply(take)
                assert remote.apply(take) == waits
                assert (taken(name, limit, take.cost) or short.apply(take)) == waits
            else:
                numbers = {"drop": (200_000, 100_000), "climb": (100_000, 5_000_000), "pause": (1_000_000,)}
                operation = {"drop": Drop, "climb": Climb, "pause": Pause}[verb]
                for store in (long, short, remote):
                    store.apply(operation(limit, rule.numbers, *numbers[verb]))


@settings(max_examples=examples(200), deadline=None)
@given(partition=limits, floor=st.integers(1, 10**6), moves=st.lists(st.integers(0, 3 * 10**6), max_size=30))
def test_settling__a_state_forgotten_when_it_says_so__changes_no_answer(
    partition: LimitConfig, floor: int, moves: list[int]
) -> None:
    """Undegraded; degraded, a debt is kept for as long as the floor makes it last, a minute at the most."""
    rule = partition.rule()
    kind, state, kept, now_us = Settling(rule, floor), None, None, 1
    for move_us in moves:
        now_us += move_us
        if kept is not None and kind.expires_us(kept) <= now_us:
            kept = None
        new, wait_us = rule.step(state, now_us, 1)
        new_kept, wait_kept_us = rule.step(kept, now_us, 1)
        assert wait_us == wait_kept_us
        state, kept = new or state, new_kept or kept
