"""The Lua version of the retry budget does exactly what the Python version does."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings
from tests.support import max_examples, redis_store

from comporta.retry.budget import BUDGET, SPACE, Budget, BudgetOperation
from comporta.stores.memory import MemoryStore
from comporta.stores.records import DeleteRecord
from comporta.testing import ManualClock, Server

budgets = st.builds(
    Budget,
    ratio=st.one_of(st.sampled_from([0.0, 0.2, 1.0, 1 / 3]), st.floats(0, 100)),
    least=st.integers(0, 12),
    window=st.one_of(st.sampled_from([1.0, 60.0, 300.0]), st.floats(1, 300)),
)
pauses = st.one_of(
    st.just(0), st.integers(0, 3_000_000), st.integers(0, 100_000_000), st.integers(-700_000_000, 700_000_000)
)
calls = st.one_of(st.just(0), st.integers(0, 40), st.integers(0, 10**9))


@settings(
    max_examples=max_examples(150),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(budget=budgets, steps=st.lists(st.tuples(pauses, calls, st.booleans()), min_size=1, max_size=40))
def test_lua__any_budget_calls_and_times__replies_as_python_does(
    server: Server, budget: Budget, steps: list[tuple[int, int, bool]]
) -> None:
    clock = ManualClock(1_800_000_000)
    local = MemoryStore(clock)
    with redis_store(server, clock) as remote:
        for pause_us, more, retry in steps:
            clock.advance(pause_us / 1e6)
            state = local._space(SPACE, BUDGET).table.get("n")
            if state is not None and BUDGET.expires_us(state) <= clock.now_ns() // 1000:
                remote.apply(DeleteRecord(SPACE, "n"))
            operation = BudgetOperation("n", budget, more, retry=retry)
            assert remote.apply(operation) == local.apply(operation)
