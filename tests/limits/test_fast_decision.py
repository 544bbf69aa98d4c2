"""Fast decisions: the reply of the fast path is the reply of the operation."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from tests.processes.fleet import new_state_name, remove_shared_state
from tests.support import StoreFactory, max_examples, memory_store, shared_store

from comporta import BaseLimiter, LimitConfig, LimitStrategy, TokenBucketLimiter
from comporta.flow import run
from comporta.limits.decision import decision_from_reply
from comporta.limits.fast_decision import decision_path, fast_decider
from comporta.stores.base import Store
from comporta.stores.bound_limit import WouldBlock
from comporta.stores.redis.store import RedisStore
from comporta.stores.shared.store import SharedStore
from comporta.testing import ManualClock

KINDS: dict[str, StoreFactory] = {"memory": memory_store, "shared": shared_store}
_numbers = count()

limits = st.builds(
    LimitConfig,
    rate=st.sampled_from([10.0, 1.0, 0.1, 100 / 60, 1e6]),
    capacity=st.integers(1, 20),
    window=st.sampled_from([1.0, 60.0]),
    strategy=st.sampled_from(LimitStrategy),
    lease=st.sampled_from([False, 1.0]),
)
steps = st.tuples(
    st.one_of(st.just(0.0), st.floats(0, 5), st.sampled_from([61.0, 3600.0])),
    st.sampled_from(["take", "take", "take", "halve", "pause", "revoke"]),
    st.integers(1, 3),
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, clock: ManualClock) -> Iterator[Store]:
    with KINDS[request.param](clock) as found:
        yield found


@settings(
    max_examples=max_examples(60),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(limit=limits, story=st.lists(steps, min_size=1, max_size=20))
def test_fast_decider__overrides_and_pauses__replies_as_the_operation_does(
    store: Store, clock: ManualClock, limit: LimitConfig, story: list[tuple[float, str, int]]
) -> None:
    number = next(_numbers)
    one, two, other = (BaseLimiter(limit, store, f"{name}-{number}") for name in ("one", "two", "long"))
    decide, decide_for_caller = fast_decider(one), decision_path(two._flows)
    assert decide is not None
    assert decide_for_caller is not None
    for seconds, what, cost in story:
        clock.advance(seconds)
        for limiter in (one, two, other):
            if what == "halve":
                halved = replace(limit, rate=limit.rate / 2, capacity=max(1, limit.capacity // 2))
                limiter.sync.set_limit(halved)
            elif what == "pause":
                limiter.sync.pause(2)
            elif what == "revoke":
                limiter.sync.set_limit(None)
        decision = decide("k", min(cost, limit.capacity))
        reply = run(other._flows._apply_flow("k", min(cost, limit.capacity)))
        assert decision.reply == reply
        expected = decision_from_reply(reply, allowed=reply.wait_us == 0)
        assert decide_for_caller("k", min(cost, limit.capacity)) == expected
        assert decision.params == other._flows.current_strategy().params


def test_fast_decider__override_by_another_process__applies_to_the_next_decision(clock: ManualClock) -> None:
    """Another store object of the same name stands for another process."""
    name = new_state_name()
    store, elsewhere = SharedStore(name, clock, 1024), SharedStore(name, clock, 1024)
    limiter = TokenBucketLimiter("10/s", store, "n")
    decide = fast_decider(limiter)
    assert decide is not None
    assert decide("k", 1).reply.capacity == 10
    assert limiter.sync.acquire("k")
    TokenBucketLimiter("10/s", elsewhere, "n").sync.set_limit("5/s")
    assert decide("k", 1).reply.capacity == 5
    assert limiter._flows.current_strategy().params.capacity == 5
    assert [limiter.sync.acquire("k") for _ in range(6)].count(True) == 4
    for each in (store, elsewhere):
        each.close()
    remove_shared_state(name)


def test_fast_decider__lock_held_by_another_process__raises_and_takes_nothing(clock: ManualClock) -> None:
    with shared_store(clock) as store:
        assert isinstance(store, SharedStore)
        decide = fast_decider(TokenBucketLimiter("10/hour", store, "n"))
        assert decide is not None
        decide("k", 1)
        others = store._directory.open_locks()
        for fd in others:
            fcntl.flock(fd, fcntl.LOCK_EX)
        with pytest.raises(WouldBlock):
            decide("k", 1)
        for fd in others:
            os.close(fd)
        assert decide("k", 1).reply.remaining == 8


def test_fast_decider__state_on_a_server__is_none() -> None:
    store = RedisStore("redis://127.0.0.1:1")
    assert fast_decider(TokenBucketLimiter("10/s", store, "n")) is None
