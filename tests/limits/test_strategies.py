"""The guarantees of each strategy on every store, blocking and awaiting, with a manual clock."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from tests.support import max_examples, memory_store, redis_store, shared_store

from comporta import BaseLimiter, Decision, LimitConfig, LimitStrategy
from comporta.limits.acquire import AcquireOperation, LimitDefinition
from comporta.limits.strategies.base import ceil_div
from comporta.limits.strategies.sliding_window import SlidingWindowStrategy
from comporta.stores.base import Store
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock, Server

Ask = Callable[..., Any]
MakeStore = Callable[[ManualClock], AbstractContextManager[Store]]


@pytest.fixture(params=["memory", "shared", "redis"])
def make_store(request: pytest.FixtureRequest, valkey: Server) -> MakeStore:
    makers: dict[str, MakeStore] = {
        "memory": memory_store,
        "shared": shared_store,
        "redis": lambda clock: redis_store(valkey, clock),
    }
    return makers[request.param]


class Face:
    """Calls a limiter, blocking or awaiting."""

    def __init__(self, limiter: BaseLimiter, runner: asyncio.Runner | None) -> None:
        self.limiter = limiter
        self.runner = runner

    def __getattr__(self, method: str) -> Ask:
        if self.runner is None:
            blocking: Ask = getattr(self.limiter.sync, method)
            return blocking
        runner = self.runner
        return lambda *args, **kwargs: runner.run(getattr(self.limiter, method)(*args, **kwargs))


@pytest.fixture
def face(make_store: MakeStore, runner: asyncio.Runner | None) -> Iterator[Callable[..., Face]]:
    """Create limiters on one store with one clock; ``face.clock`` moves it."""
    clock = ManualClock()
    with make_store(clock) as store:

        def make(config: LimitConfig | str, name: str | None = None) -> Face:
            return Face(BaseLimiter(config, store, name), runner)

        make.clock = clock  # type: ignore[attr-defined]
        yield make
        if runner is not None and hasattr(store, "aclose"):
            runner.run(store.aclose())


def _clock(face: Callable[..., Face]) -> ManualClock:
    clock: ManualClock = face.clock  # type: ignore[attr-defined]
    return clock


# token bucket -----------------------------------------------------------------------------------------


def test_token_bucket__full__grants_exactly_its_burst(face: Callable[..., Face]) -> None:
    limiter = face("10/s")
    assert [limiter.acquire("k") for _ in range(12)] == [True] * 10 + [False] * 2


def test_token_bucket__after_a_wait__is_refilled_with_fractions(face: Callable[..., Face]) -> None:
    limiter = face("10/s burst 2")
    assert [limiter.acquire("k") for _ in range(3)] == [True, True, False]
    for _ in range(3):
        _clock(face).advance(0.05)
        assert limiter.acquire("k") is False
        _clock(face).advance(0.05)
        assert limiter.acquire("k") is True


@pytest.mark.unmeasured
def test_token_bucket__thirty_a_minute__grants_thirty_a_minute(face: Callable[..., Face]) -> None:
    """A bucket that refills in whole seconds would grant 30 % too little here."""
    limiter = face("30/minute burst 1")
    granted = 0
    for _ in range(600):
        granted += limiter.acquire("k")
        _clock(face).advance(0.1)
    assert granted == 30


def test_token_bucket__long_idle__accumulates_only_its_burst(face: Callable[..., Face]) -> None:
    limiter = face("10/s burst 5")
    limiter.acquire("k")
    _clock(face).advance(3600)
    assert sum(limiter.acquire("k") for _ in range(10)) == 5


@pytest.mark.unmeasured
def test_token_bucket__many_tiny_waits__lose_no_fraction(face: Callable[..., Face]) -> None:
    limiter = face("100/minute")
    granted = 0
    for _ in range(1000):
        granted += limiter.acquire("k")
        _clock(face).advance(0.007)
    assert granted == 100 + math.floor(999 * 0.007 * 100 / 60)


# windows ----------------------------------------------------------------------------------------------


def test_fixed_window__full__refuses_until_the_window_ends(face: Callable[..., Face]) -> None:
    limiter = face(LimitConfig.parse("3/minute", LimitStrategy.FIXED_WINDOW))
    assert [limiter.acquire("k") for _ in range(4)] == [True] * 3 + [False]
    _clock(face).advance(59.999999)
    assert limiter.acquire("k") is False
    _clock(face).advance(0.000001)
    assert [limiter.acquire("k") for _ in range(4)] == [True] * 3 + [False]


def test_fixed_window__first_request__starts_the_window(face: Callable[..., Face]) -> None:
    limiter = face(LimitConfig.parse("1/minute", LimitStrategy.FIXED_WINDOW))
    _clock(face).advance(59)
    assert limiter.acquire("k") is True
    _clock(face).advance(30)
    assert limiter.decide("k").retry_after == 30


def test_sliding_window__each_grant__is_free_again_a_window_later(face: Callable[..., Face]) -> None:
    limiter = face(LimitConfig.parse("2/s", LimitStrategy.SLIDING_WINDOW))
    assert limiter.acquire("k") is True
    _clock(face).advance(0.4)
    assert [limiter.acquire("k") for _ in range(2)] == [True, False]
    _clock(face).advance(0.6)
    assert [limiter.acquire("k") for _ in range(2)] == [True, False]
    _clock(face).advance(0.4)
    assert [limiter.acquire("k") for _ in range(2)] == [True, False]


def test_sliding_window__cost_above_a_lowered_limit__waits_for_an_empty_window() -> None:
    window = SlidingWindowStrategy(2, 10_000_000)
    state, _ = window.step(None, 1_000_000, 1)
    assert window.step(state, 4_000_000, 3) == (None, 7_000_000)
    assert window.step(state, 11_000_000, 3)[1] == 0


@pytest.mark.unmeasured
@pytest.mark.parametrize("capacity", [7, 1000])
def test_sliding_window__under_load__keeps_every_interval_and_grants_what_is_due(
    face: Callable[..., Face], capacity: int
) -> None:
    limiter = face(LimitConfig(1, capacity, 1.0, LimitStrategy.SLIDING_WINDOW))
    clock = _clock(face)
    grants: deque[int] = deque()
    granted, step_us, start_us = 0, 700 if capacity > 100 else 9_300, clock.now_ns() // 1000
    for _ in range(4_000):
        now_us = clock.now_ns() // 1000
        while grants and grants[0] <= now_us - 1_000_000:
            grants.popleft()
        if limiter.acquire("k"):
            granted += 1
            grants.append(now_us)
        assert len(grants) <= capacity
        clock.advance(step_us / 1e6)
    seconds = (clock.now_ns() // 1000 - start_us) / 1e6
    due = min(4_000, capacity * math.ceil(seconds))
    assert granted >= 0.99 * (capacity * math.floor(seconds)) or granted == due


# leaky bucket -----------------------------------------------------------------------------------------


def test_leaky_bucket__without_waiting__grants_one_each_interval(face: Callable[..., Face]) -> None:
    limiter = face(LimitConfig(10, 5, strategy=LimitStrategy.LEAKY_BUCKET))
    assert [limiter.acquire("k") for _ in range(3)] == [True, False, False]
    _clock(face).advance(0.099999)
    assert limiter.acquire("k") is False
    _clock(face).advance(0.000001)
    assert [limiter.acquire("k") for _ in range(2)] == [True, False]


def test_leaky_bucket__with_waiting__assigns_evenly_spaced_turns(face: Callable[..., Face]) -> None:
    limiter = face(LimitConfig(10, 5, strategy=LimitStrategy.LEAKY_BUCKET))
    clock = _clock(face)
    start_ns, turns = clock.now_ns(), []
    for _ in range(5):
        assert limiter.acquire("k", timeout=1) is True
        turns.append((clock.now_ns() - start_ns) // 1_000_000)
    assert turns == [0, 100, 200, 300, 400]


def test_leaky_bucket__queue_full__refuses_the_next(make_store: MakeStore) -> None:
    """Five wait and the sixth is refused; a timeout longer than the queue does not help."""

    class Still(ManualClock):
        """Time stands still, so that callers with a turn keep waiting for it."""

        async def sleep_async(self, seconds: float) -> None:
            slept.append(seconds)

    slept: list[float] = []

    async def ask(store: Store) -> list[bool]:
        limiter = BaseLimiter(LimitConfig(10, 5, strategy=LimitStrategy.LEAKY_BUCKET), store)
        granted = [await limiter.acquire("k", timeout=100) for _ in range(7)]
        await limiter.aclose()
        return granted

    with make_store(Still()) as store:
        assert asyncio.run(ask(store)) == [True] * 6 + [False]
    assert [round(seconds, 6) for seconds in slept] == [0.1, 0.2, 0.3, 0.4, 0.5]


# all strategies ------------------------------------------------------------------------------------------

configs = st.builds(
    LimitConfig,
    rate=st.one_of(st.sampled_from([10.0, 0.1, 100 / 60, 1 / 3600]), st.floats(0.01, 1e5)),
    capacity=st.integers(1, 300),
    window=st.floats(0.01, 4000),
    strategy=st.sampled_from(LimitStrategy),
)


@pytest.mark.unmeasured
@settings(
    max_examples=max_examples(60),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    config=configs,
    history=st.lists(st.tuples(st.integers(0, 3_000_000), st.integers(1, 5)), max_size=30),
    cost=st.integers(1, 5),
)
def test_limiter__refused__is_refused_until_retry_after_and_granted_then(
    make_store: MakeStore, config: LimitConfig, history: list[tuple[int, int]], cost: int
) -> None:
    cost = min(cost, config.capacity)
    clock = ManualClock()
    with make_store(clock) as store:
        limiter = BaseLimiter(config, store).sync
        for pause_us, amount in history:
            clock.advance(pause_us / 1e6)
            limiter.acquire("k", min(amount, config.capacity))
        for _ in range(400):
            decision = limiter.decide("k", cost)
            if decision.allowed:
                continue
            clock.advance(decision.retry_after - 1e-6)
            almost = limiter.decide("k", cost)
            assert not almost.allowed
            assert almost.retry_after == 1e-6
            clock.advance(1e-6)
            assert limiter.decide("k", cost).allowed
            return
        pytest.fail("nothing was ever refused")


@pytest.mark.parametrize("strategy", LimitStrategy)
def test_limiter__every_strategy__reports_the_use_of_a_key(
    face: Callable[..., Face], strategy: LimitStrategy
) -> None:
    limiter = face(LimitConfig(10, 5, 1, strategy))
    assert limiter.peek("k") == Decision(True, 5, 5, 0.0, 0.0)
    taken = limiter.decide("k")
    assert (taken.allowed, taken.limit, taken.remaining, taken.retry_after) == (True, 5, 4, 0.0)
    assert 0 < taken.reset_after <= 1
    assert bool(taken) is True
    assert limiter.peek("k").remaining == 4


@pytest.mark.unmeasured
@pytest.mark.parametrize("strategy", LimitStrategy)
def test_limiter__released__can_be_taken_again_and_never_exceeds_the_capacity(
    face: Callable[..., Face], strategy: LimitStrategy
) -> None:
    limiter = face(LimitConfig(0.01, 2, 100, strategy))
    limiter.release("k")  # nothing was taken, so there is nothing to release
    assert limiter.acquire("k") is True
    limiter.release("k")
    limiter.release("k", 2)
    assert limiter.peek("k").remaining == 2
    expected = 1 if strategy is LimitStrategy.LEAKY_BUCKET else 2
    assert sum(limiter.acquire("k") for _ in range(5)) == expected


def test_fixed_window__released_after_its_end__starts_with_the_next_request(
    face: Callable[..., Face],
) -> None:
    clock, limiter = _clock(face), face(LimitConfig(1, 5, 1, LimitStrategy.FIXED_WINDOW))
    assert limiter.decide("k", 5).allowed
    clock.advance(2.5)
    limiter.release("k")
    clock.advance(0.5)
    assert limiter.decide("k", 5) == Decision(True, 5, 0, 0.0, 1.0)
    assert limiter.decide("k").retry_after == 1


@pytest.mark.parametrize("strategy", LimitStrategy)
def test_limiter__reset__is_unused_again(face: Callable[..., Face], strategy: LimitStrategy) -> None:
    limiter = face(LimitConfig(0.01, 2, 100, strategy))
    limiter.acquire("k")
    limiter.reset("k")
    limiter.reset("k")
    assert limiter.peek("k") == Decision(True, 2, 2, 0.0, 0.0)
    assert limiter.stats("k").requests_last_minute == 0
    assert limiter.acquire("k") is True


@pytest.mark.parametrize("strategy", LimitStrategy)
def test_stats__granted_in_the_last_minute__are_counted(
    face: Callable[..., Face], strategy: LimitStrategy
) -> None:
    limiter = face(LimitConfig(1000, 50, 0.01, strategy))
    for _ in range(5):
        limiter.acquire("k")
        _clock(face).advance(1)
    stats = limiter.stats("k")
    assert (stats.requests_last_minute, stats.tokens_available, stats.limit) == (5, 50, 50)
    _clock(face).advance(40)
    assert limiter.stats("k").requests_last_minute == 5
    _clock(face).advance(40)
    assert limiter.stats("k").requests_last_minute == 0


@pytest.mark.unmeasured
@pytest.mark.parametrize("strategy", LimitStrategy)
def test_set_limit__while_running__applies_limit_and_burst(
    face: Callable[..., Face], strategy: LimitStrategy
) -> None:
    limiter = face(LimitConfig(10, 10, 1, strategy), "changing")
    worker_b = face(LimitConfig(10, 10, 1, strategy), "changing")
    worker_b.acquire("k")
    limiter.set_limit(LimitConfig(2, 2, 1, strategy))
    assert worker_b.peek("other").limit == 2
    grants = sum(worker_b.acquire("other") for _ in range(5))
    assert grants == (1 if strategy is LimitStrategy.LEAKY_BUCKET else 2)
    limiter.set_limit(LimitConfig(40, 40, 1, strategy))
    assert worker_b.peek("fresh").limit == 40
    limiter.set_limit(None)
    assert worker_b.peek("fresh").limit == 10


def test_token_bucket__lowered_below_a_cost__waits_for_a_full_bucket_and_leaves_a_debt(
    face: Callable[..., Face],
) -> None:
    limiter = face("10/s")
    limiter.set_limit("2/s")
    assert limiter.acquire("k", 8) is True
    owing = limiter.decide("k")
    assert (owing.allowed, owing.remaining, owing.retry_after) == (False, 0, 3.5)
    _clock(face).advance(3.5)
    assert limiter.acquire("k") is True


@pytest.mark.parametrize("strategy", LimitStrategy)
def test_limiter__cost_above_one__is_taken_as_a_whole(
    face: Callable[..., Face], strategy: LimitStrategy
) -> None:
    limiter = face(LimitConfig(0.01, 5, 100, strategy))
    assert limiter.acquire("k", 3) is True
    before = limiter.peek("k").remaining
    assert limiter.acquire("k", 3) is False
    assert limiter.peek("k").remaining == before == 2


@pytest.mark.parametrize("strategy", LimitStrategy)
def test_limiter__several_keys__have_separate_limits(
    face: Callable[..., Face], strategy: LimitStrategy
) -> None:
    limiter = face(LimitConfig(0.01, 1, 100, strategy))
    assert [limiter.acquire(key) for key in ("a", "b", None, "a", "b", None)] == [True] * 3 + [False] * 3


def test_ceil_div__remainder__rounds_up() -> None:
    assert [ceil_div(n, 3) for n in (-3, -1, 0, 1, 3, 4)] == [-1, 0, 0, 1, 1, 2]


def test_undo__acquired_or_refused__releases_only_a_grant() -> None:
    store = MemoryStore(ManualClock())
    operation = AcquireOperation(LimitDefinition(LimitConfig(1, 2).build_strategy(), "n"), "k", 2)
    undo = operation.undo(store.apply(operation))
    assert undo is not None
    [reply] = store.apply(undo)
    assert reply.remaining == 2
    assert operation.undo(1_000_000) is None


@pytest.mark.parametrize("strategy", LimitStrategy)
def test_lua__texts_of_each_strategy__exist(strategy: LimitStrategy) -> None:
    kind = type(LimitConfig(1, 2, 1, strategy).build_strategy())
    texts = [kind.lua(), kind.acquire_lua(), kind.settle_lua(), kind.lease_lua()]
    assert all(text.startswith("-- ") for text in texts if text)
    assert kind.lua()
    assert kind.lease_lua()
