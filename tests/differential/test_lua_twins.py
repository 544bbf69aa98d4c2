"""The Lua twin of every strategy does exactly what the Python does.

The same random operations, at the same random times, under the same random limits, go to a store in memory
and to a real server; every answer must be equal, number by number.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from tests.support import command, examples, redis_store

from comporta.limits.config import LimitConfig, LimitStrategy
from comporta.limits.lease import NO_LEASE, LeaseOperation, Lender
from comporta.limits.operation import LimitOperation, Question
from comporta.limits.rule import CHARGE, Ended, Lending
from comporta.limits.take import Asked, Take
from comporta.stores.memory import MemoryStore
from comporta.stores.records import Delete, Write
from comporta.stores.redis import RedisStore
from comporta.testing import ManualClock, Server

rates = st.one_of(
    st.sampled_from([10.0, 1.0, 0.1, 100 / 60, 1 / 3600, 3.0, 1e6, 30 / 7]),
    st.floats(0.001, 1e6, allow_nan=False, allow_infinity=False),
)
limits = st.builds(
    LimitConfig,
    rate=rates,
    capacity=st.one_of(st.integers(1, 20), st.integers(1, 2000)),
    window=st.one_of(st.sampled_from([0.001, 1.0, 60.0, 3600.0]), st.floats(0.001, 5000)),
    strategy=st.sampled_from(LimitStrategy),
    lease=st.sampled_from([False, False, 0.001, 0.05, 1.0, 10.0]),
)
amounts = st.one_of(st.just(1), st.integers(0, 5), st.integers(-3, 30))
pauses = st.one_of(
    st.just(0),
    st.integers(1, 50),
    st.integers(0, 2_000_000),
    st.integers(0, 100_000_000),
    st.integers(-5_000_000_000, 5_000_000_000),  # the server's clock is set by hand, to and fro
)
patience = st.sampled_from([0, 0, 0, 1, 500_000, 10_000_000, CHARGE])


def _ask(
    store: MemoryStore | RedisStore, asked: list[tuple[LimitConfig, str, int]], patience_us: int
) -> list[tuple[int, ...]]:
    questions = [Question(limit.rule(), name, "k", amount) for limit, name, amount in asked]
    return [tuple(answer) for answer in store.apply(LimitOperation(questions, patience_us))]


def _expire_alike(local: MemoryStore, remote: RedisStore, limit: LimitConfig, name: str) -> None:
    """Let the server forget what its clock, which is not moved by hand, would have let it forget."""
    now_us, rule = local.clock.now_ns() // 1000, limit.rule()
    state = local._space(f"rate_limiter:{name}", rule).table.get("k")
    if state is not None and rule.expires_us(state) <= now_us:
        remote.apply(Delete(f"rate_limiter:{name}", "k"))


@settings(
    max_examples=examples(400), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(limit=limits, steps=st.lists(st.tuples(pauses, amounts, patience), min_size=1, max_size=40))
def test_lua__any_limit_any_time__answers_as_python_does(
    server: Server, limit: LimitConfig, steps: list[tuple[int, int, int]]
) -> None:
    clock = ManualClock(1_800_000_000)
    local = MemoryStore(clock)
    with redis_store(server, clock) as remote:
        for pause_us, amount, patience_us in steps:
            clock.advance(pause_us / 1e6)
            _expire_alike(local, remote, limit, "n")
            asked = [(limit, "n", min(amount, limit.capacity))]
            assert _ask(remote, asked, patience_us) == _ask(local, asked, patience_us)


@settings(
    max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(limit=limits, steps=st.lists(st.tuples(pauses, st.integers(1, 5)), min_size=1, max_size=40))
def test_lua__on_the_short_way__answers_as_python_does(
    server: Server, limit: LimitConfig, steps: list[tuple[int, int]]
) -> None:
    clock = ManualClock(1_800_000_000)
    local = MemoryStore(clock)
    asked = Asked(limit.rule(), "n")
    with redis_store(server, clock) as remote:
        for pause_us, amount in steps:
            clock.advance(pause_us / 1e6)
            _expire_alike(local, remote, limit, "n")
            take = Take(asked, "k", min(amount, limit.capacity))
            assert remote.apply(take) == local.apply(take)


@settings(
    max_examples=examples(400), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    limit=limits,
    steps=st.lists(
        st.tuples(
            st.one_of(pauses, st.integers(0, 60_000)),
            st.integers(0, 3),  # needed; 0: only end a lease
            st.integers(0, 40),  # wanted on top of it
            st.integers(-1, 3),  # which of the leases made so far ends; -1: none, others: again
            st.floats(0, 1),  # how much of it is not used
            st.integers(-2, 2),  # what is taken, looked at or given back besides
        ),
        min_size=1,
        max_size=30,
    ),
)
def test_lua__leases__answer_as_python_does(
    server: Server, limit: LimitConfig, steps: list[tuple[int, int, int, int, float, int]]
) -> None:
    limit = replace(limit, lease=limit.lease or True)
    clock = ManualClock(1_800_000_000)
    local = MemoryStore(clock)
    lender = Lender(cast(Lending, limit.rule()), Asked(limit.rule(), "n"), limit.lease_us // 2)
    made: list[Ended] = []
    with redis_store(server, clock) as remote:
        for pause_us, need, more, which, part, amount in steps:
            clock.advance(pause_us / 1e6)
            _expire_alike(local, remote, limit, "n")
            ended = made[-1 - which] if 0 <= which < len(made) else NO_LEASE
            ended = ended._replace(unused=int(part * ended.unused))
            need = min(need, limit.capacity)  # noqa: PLW2901 - what is asked
            operation = LeaseOperation(lender, "k", need, need + more, ended)
            lease = local.apply(operation)
            assert remote.apply(operation) == lease
            made.append(Ended(lease.name, max(0, lease.granted - need), lease.granted))
            asked = [(limit, "n", min(amount, limit.capacity))]
            assert _ask(remote, asked, 0) == _ask(local, asked, 0)


@settings(
    max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    group=st.lists(limits, min_size=1, max_size=4),
    steps=st.lists(st.tuples(st.integers(0, 3_000_000), st.integers(-2, 4)), min_size=1, max_size=25),
)
def test_lua__several_limits_at_once__answers_as_python_does(
    server: Server, group: list[LimitConfig], steps: list[tuple[int, int]]
) -> None:
    clock = ManualClock(1_800_000_000)
    local = MemoryStore(clock)
    most = min(limit.capacity for limit in group)
    with redis_store(server, clock) as remote:
        for pause_us, amount in steps:
            clock.advance(pause_us / 1e6)
            for i, limit in enumerate(group):
                _expire_alike(local, remote, limit, f"n{i}")
            asked = [(limit, f"n{i}", min(amount, most)) for i, limit in enumerate(group)]
            assert _ask(remote, asked, 0) == _ask(local, asked, 0)


@settings(
    max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    strategy=st.sampled_from(
        [LimitStrategy.TOKEN_BUCKET, LimitStrategy.LEAKY_BUCKET, LimitStrategy.FIXED_WINDOW]
    ),
    first=limits,
    second=limits,
    steps=st.lists(st.tuples(st.integers(0, 3_000_000), st.integers(1, 4)), min_size=4, max_size=25),
)
def test_lua__limit_changed_while_running__answers_as_python_does(
    server: Server,
    strategy: LimitStrategy,
    first: LimitConfig,
    second: LimitConfig,
    steps: list[tuple[int, int]],
) -> None:
    first, second = (LimitConfig.of(limit, strategy) for limit in (first, second))
    change = second.rule().numbers.written("changed")
    changed = first.rule().revised(change)
    clock = ManualClock(1_800_000_000)
    local = MemoryStore(clock)
    with redis_store(server, clock) as remote:
        for number, (pause_us, amount) in enumerate(steps):
            clock.advance(pause_us / 1e6)
            if number == len(steps) // 2:
                remote.apply(Write("rate_limiter_change", "n", change, None, followed=True))
            rule = first.rule() if number < len(steps) // 2 else changed
            asked = min(amount, first.capacity)
            [near] = local.apply(LimitOperation([Question(rule, "n", "k", asked)]))
            [far] = remote.apply(LimitOperation([Question(first.rule(), "n", "k", asked)]))
            assert far == near


@pytest.mark.parametrize("strategy", LimitStrategy)
def test_lua__a_key_without_traffic__takes_few_bytes(server: Server, strategy: LimitStrategy) -> None:
    limit = LimitConfig(100, 50, 1, strategy)
    clock = ManualClock(1_800_000_000)
    with redis_store(server, clock) as remote:
        for pause in (0.0, 17, 17, 17, 17, 17):
            clock.advance(pause)
            for _ in range(60):
                _ask(remote, [(limit, "pncp", 1)], 0)
                clock.advance(0.01)
    used = int(command(server, "MEMORY", "USAGE", "rate_limiter:pncp:k")[1:])
    entries = min(limit.capacity, 60) if strategy is LimitStrategy.SLIDING_WINDOW else 0
    assert used < 200 + 75 * entries
