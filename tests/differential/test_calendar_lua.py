"""The Lua version of calendar windows does exactly what the Python version does, at any time of any zone."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings
from tests.limits.test_calendar_window import ZONES
from tests.limits.test_custom_strategy import _operation
from tests.support import max_examples, redis_store

from comporta import LimitConfig
from comporta.stores.memory import MemoryStore
from comporta.stores.records import DeleteRecord
from comporta.testing import ManualClock, Server

LIMITS = st.builds(
    "{}/{} at {} {}".format,
    st.integers(1, 400),
    st.sampled_from(["day", "month"]),
    st.sampled_from(["00:00", "02:30", "23:59"]),
    st.sampled_from(ZONES),
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["limit", "charge", "acquire", "lease", "settle"]),
        st.one_of(st.integers(0, 10_000_000), st.integers(-90_000_000_000, 3_000_000_000_000)),
        st.integers(-3, 30),
    ),
    min_size=1,
    max_size=25,
)


@settings(
    max_examples=max_examples(200),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(text=LIMITS, begin=st.integers(1_600_000_000, 2_400_000_000), steps=STEPS)
def test_lua__calendar_window__replies_as_python_does(
    server: Server, text: str, begin: int, steps: list[tuple[str, int, int]]
) -> None:
    limit = LimitConfig.parse(text, lease=True)
    clock = ManualClock(begin)
    local, strategy = MemoryStore(clock), limit.build_strategy()
    with redis_store(server, clock) as remote:
        for what, pause_us, amount in steps:
            clock.advance(pause_us / 1e6)
            state = local._space("rate_limiter:n", strategy).table.get("k")
            if state is not None and strategy.expires_us(state) <= clock.now_ns() // 1000:
                remote.apply(DeleteRecord("rate_limiter:n", "k"))
            operation = _operation(what, limit, amount)
            assert remote.apply(operation) == local.apply(operation)
