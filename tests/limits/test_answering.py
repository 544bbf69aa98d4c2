"""Whole answers on the short way: what a limit says there is what it says as an operation."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from functools import partial
from itertools import count

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from tests.processes.fleet import new_name, remove
from tests.support import MakesStore, examples, memory_store, shared_store

from comporta import BaseLimiter, LimitConfig, LimitStrategy, TokenBucketLimiter
from comporta.flow import run
from comporta.limits.answering import answers_at_once
from comporta.stores.base import Busy, Store
from comporta.stores.redis import RedisStore
from comporta.stores.shared import SharedStore
from comporta.testing import ManualClock

KINDS: dict[str, MakesStore] = {"memory": memory_store, "shared": partial(shared_store, keys=16_384)}
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
    max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(limit=limits, story=st.lists(steps, min_size=1, max_size=20))
def test_short_way__any_limit_changed_and_paused__answers_as_the_operation_does(
    store: Store, clock: ManualClock, limit: LimitConfig, story: list[tuple[float, str, int]]
) -> None:
    number = next(_numbers)
    one, other = (BaseLimiter(limit, store, f"{name}-{number}") for name in ("short", "long"))
    at_once = answers_at_once(one)
    assert at_once is not None
    for seconds, what, cost in story:
        clock.advance(seconds)
        for limiter in (one, other):
            if what == "halve":
                limiter.sync.change(LimitConfig(limit.rate / 2, max(1, limit.capacity // 2), limit.window))
            elif what == "pause":
                limiter.sync.pause(2)
            elif what == "revoke":
                limiter.sync.change(None)
        told = at_once("k", min(cost, limit.capacity))
        assert told.answer == run(other.verbs._ask("k", min(cost, limit.capacity)))
        assert told.numbers == other.verbs.known().numbers


def test_short_way__limit_changed_elsewhere__this_process_knows_it_from_then_on(clock: ManualClock) -> None:
    """By another store of the same name, which is what another process would have."""
    name = new_name()
    store, elsewhere = SharedStore(name, clock, 1024), SharedStore(name, clock, 1024)
    limiter = TokenBucketLimiter("10/s", store, "n")
    at_once = answers_at_once(limiter)
    assert at_once is not None
    assert at_once("k", 1).answer.capacity == 10
    assert limiter.sync.acquire("k")
    TokenBucketLimiter("10/s", elsewhere, "n").sync.change("5/s")
    assert at_once("k", 1).answer.capacity == 5
    assert limiter.verbs.known().numbers.capacity == 5
    assert [limiter.sync.acquire("k") for _ in range(6)].count(True) == 4
    for each in (store, elsewhere):
        each.close()
    remove(name)


def test_short_way__lock_taken_by_another__is_busy_and_takes_nothing(clock: ManualClock) -> None:
    with shared_store(clock) as store:
        assert isinstance(store, SharedStore)
        at_once = answers_at_once(TokenBucketLimiter("10/hour", store, "n"))
        assert at_once is not None
        at_once("k", 1)
        others = store._folder.locks()
        for fd in others:
            fcntl.flock(fd, fcntl.LOCK_EX)
        with pytest.raises(Busy):
            at_once("k", 1)
        for fd in others:
            os.close(fd)
        assert at_once("k", 1).answer.remaining == 8


def test_short_way__state_on_a_server__there_is_none() -> None:
    store = RedisStore("redis://127.0.0.1:1")
    assert answers_at_once(TokenBucketLimiter("10/s", store, "n")) is None
