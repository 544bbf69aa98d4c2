"""A paused limit lets nothing pass, whoever asks and however; then it goes on with what it holds."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from tests.limits.faces import BEGIN, Bench, Face
from tests.stores.switchable import by_hand, moved
from tests.support import memory_store, redis_store

from comporta import BaseLimiter, LimitConfig, LimitGroup, LimitStrategy
from comporta.flow import Effect, Flow, run
from comporta.limits.verbs import PAUSE_MAX
from comporta.limits.waiting import SPREAD_US_MAX
from comporta.stores.effects import Sleep
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock, Server


def limit_of(strategy: LimitStrategy, **told: Any) -> LimitConfig:
    return LimitConfig(10, 10, 1.0, strategy, **told)


@pytest.mark.parametrize("lease", [False, 0.05])
@pytest.mark.parametrize("strategy", LimitStrategy)
def test_pause__every_strategy__refuses_until_its_end_and_then_goes_on(
    bench: Bench, strategy: LimitStrategy, lease: bool | float
) -> None:
    limiter = bench.limiter(limit_of(strategy, lease=lease))
    assert limiter.acquire()
    limiter.pause(60)
    assert not limiter.acquire()
    decision = limiter.decide()
    assert not decision
    assert decision.retry_after == decision.paused == 60
    assert not limiter.peek()
    assert limiter.peek().retry_after == 60
    assert limiter.stats().paused == 60
    bench.clock.advance(59.999)
    assert not limiter.acquire()
    assert limiter.decide().retry_after == pytest.approx(0.001)
    bench.clock.advance(0.001)
    assert limiter.acquire()
    assert limiter.stats().paused == 0


def test_pause__of_a_limit_that_holds_nothing__waits_for_the_longer_of_both(bench: Bench) -> None:
    limiter = bench.limiter(LimitConfig(0.1, 1))
    assert limiter.acquire()
    limiter.pause(3)
    assert limiter.decide().retry_after == pytest.approx(10)
    assert not limiter.acquire()


def test_pause__again__extends_and_never_shortens(bench: Bench) -> None:
    limiter = bench.limiter("10/s")
    limiter.pause(10)
    limiter.pause(5)
    assert limiter.stats().paused == 10
    limiter.pause(20)
    assert limiter.stats().paused == 20


def test_pause__ended_by_hand__is_over_at_once(bench: Bench) -> None:
    limiter = bench.limiter("10/s")
    for end in (limiter.resume, lambda: limiter.pause(0)):
        limiter.pause(10)
        end()
        assert limiter.acquire()


def test_pause__of_an_operators_limit__leaves_that_in_force(bench: Bench) -> None:
    limiter = bench.limiter("10/s")
    limiter.change("5/s")
    limiter.pause(10)
    assert limiter.stats().limit == 5
    limiter.change("3/s")
    assert limiter.stats().paused == 10
    assert limiter.stats().limit == 3
    limiter.change(None)
    assert limiter.stats().paused == 10
    assert limiter.stats().limit == 10
    bench.clock.advance(10)
    assert [limiter.acquire() for _ in range(11)].count(True) == 10


def test_pause__by_a_worker_configured_otherwise__says_nothing_about_the_limit(bench: Bench) -> None:
    limiter = bench.limiter("10/s")
    limiter.pause(10)
    assert limiter.stats().limit == 10
    bench.degradation(limiter, drop=0.5).record_error()
    assert limiter.stats().limit == 5
    assert limiter.stats().paused == 10
    limiter.resume()
    assert limiter.stats().limit == 5


def test_pause__what_was_taken_before__can_be_given_back(bench: Bench) -> None:
    limiter = bench.limiter("10/s")
    assert limiter.acquire(cost=10)
    limiter.pause(10)
    limiter.release(cost=4)
    assert limiter.peek().remaining == 4


def test_group__one_member_paused__charges_none(bench: Bench) -> None:
    first, second = bench.limiter("10/s", "all"), bench.limiter("10/s", "each")
    group = Face(LimitGroup(first.target, second.target), bench.runner)
    assert group.acquire([None, "k"])
    second.pause(10)
    decision = group.decide([None, "k"])
    assert not decision
    assert decision.retry_after == 10
    assert first.peek().remaining == 9
    bench.clock.advance(10)
    assert group.acquire([None, "k"], timeout=1)


@pytest.mark.parametrize("back", [1, 59, 61, 3600, 10**6])
def test_pause__clock_set_back__lasts_a_minute_longer_at_the_most(bench: Bench, back: float) -> None:
    limiter = bench.limiter("10/s")
    limiter.pause(30)
    bench.clock.advance(-back)
    assert limiter.stats().paused == (30 if back < 60 else 0)
    assert limiter.acquire() == (back > 60)


def test_pause__clock_set_forward__is_over(bench: Bench) -> None:
    limiter = bench.limiter("10/s")
    limiter.pause(30)
    bench.clock.advance(3600)
    assert limiter.acquire()


# waiting ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", LimitStrategy)
def test_waiter__for_a_paused_limit__comes_after_its_end_a_little_later_than_others(
    bench: Bench, strategy: LimitStrategy
) -> None:
    limiter = bench.limiter(limit_of(strategy))
    limiter.pause(5)
    assert limiter.acquire(timeout=10)
    waited = bench.clock.now_ns() / 1e9 - BEGIN
    assert 5 <= waited <= 5 + SPREAD_US_MAX / 1e6 + 0.001


@pytest.mark.parametrize("strategy", LimitStrategy)
def test_waiter__whose_timeout_comes_before_the_end__is_refused_at_once(
    bench: Bench, strategy: LimitStrategy
) -> None:
    limiter = bench.limiter(limit_of(strategy))
    limiter.pause(5)
    assert not limiter.acquire(timeout=4.999)
    assert bench.clock.now_ns() == BEGIN * 10**9


def test_waiters__many__do_not_come_back_at_one_moment(bench: Bench) -> None:
    moments = set()
    for number in range(8):
        limiter = bench.limiter("10/s", f"n{number}")
        limiter.pause(10)
        began_ns = bench.clock.now_ns()
        assert limiter.acquire(timeout=60)
        moments.add(bench.clock.now_ns() - began_ns)
    assert len(moments) > 1


def until_asleep(flow: Flow[bool]) -> Effect:
    """Drive a flow until it wants to sleep."""
    effect = next(flow)
    while not isinstance(effect, Sleep):
        effect = flow.send(effect.block())
    return effect


def to_its_end(flow: Flow[bool], effect: Effect) -> bool:
    """Drive a flow from there."""

    def rest() -> Flow[bool]:
        yield effect
        return (yield from flow)

    return run(rest())


def a_turn_ahead(store: MemoryStore, timeout: float) -> tuple[BaseLimiter, Flow[bool], Effect]:
    """Return a limiter, and somebody who sleeps towards their turn in it."""
    limiter = BaseLimiter(limit_of(LimitStrategy.LEAKY_BUCKET), store, "pncp")
    assert limiter.sync.acquire()
    flow = limiter.verbs.acquire(None, 1, timeout)
    return limiter, flow, until_asleep(flow)


def test_turn__given_out_before_a_pause__waits_for_its_end_and_is_taken_anew() -> None:
    clock = ManualClock(BEGIN)
    with memory_store(clock) as store:
        limiter, flow, asleep = a_turn_ahead(store, 60)
        limiter.sync.pause(30)
        assert to_its_end(flow, asleep)
        assert clock.now_ns() >= (BEGIN + 30) * 10**9
        assert not limiter.sync.acquire()  # the turn after the pause was just taken


def test_turn__after_a_pause_that_ends_just_before_the_timeout__is_taken_within_it() -> None:
    clock = ManualClock(BEGIN)
    with memory_store(clock) as store:
        limiter = BaseLimiter(limit_of(LimitStrategy.LEAKY_BUCKET), store, "pncp")
        for _ in range(10):  # by how much they come apart is luck
            limiter.sync.pause(9.999)
            began_ns = clock.now_ns()
            assert limiter.sync.acquire(timeout=10)
            assert clock.now_ns() <= began_ns + 10 * 10**9


def test_turn__given_out_before_a_pause_longer_than_the_timeout__is_refused() -> None:
    clock = ManualClock(BEGIN)
    with memory_store(clock) as store:
        limiter, flow, asleep = a_turn_ahead(store, 2)
        limiter.sync.pause(30)
        assert not to_its_end(flow, asleep)
        assert clock.now_ns() < (BEGIN + 2) * 10**9


def test_waiters__of_this_process__are_called_when_the_limit_goes_on() -> None:
    with memory_store() as store:
        limiter = BaseLimiter("10/s", store, "pncp")
        limiter.sync.pause(600)
        granted: list[bool] = []
        waiter = threading.Thread(target=lambda: granted.append(limiter.sync.acquire(timeout=3600)))
        waiter.start()
        while not limiter.verbs.lines.by_key:
            time.sleep(0.001)
        limiter.sync.resume()
        waiter.join(60)
        assert granted == [True]


def test_waiter__on_a_server__estimates_the_pause_from_what_is_followed() -> None:
    clock = ManualClock(BEGIN)
    store, primary = by_hand(clock)
    mine = BaseLimiter("10/s", store, "pncp")
    assert mine.verbs.paused_us() == mine.verbs.spread_us() == 0
    BaseLimiter("10/s", primary, "pncp").sync.pause(8)
    moved(store)
    assert mine.verbs.paused_us() == 8_000_000
    clock.advance(2)
    moved(store)
    assert mine.verbs.paused_us() == 6_000_000
    assert 0 <= mine.verbs.spread_us() <= SPREAD_US_MAX
    BaseLimiter("10/s", primary, "pncp").sync.resume()
    moved(store)
    assert mine.verbs.paused_us() == 0


# leases -----------------------------------------------------------------------------------------------


def test_lease__in_the_hand_of_who_pauses__is_given_back_at_once(bench: Bench) -> None:
    limiter = bench.limiter(LimitConfig(100, 100, lease=10))
    for _ in range(20):
        assert limiter.acquire()
        bench.clock.advance(0.01)
    limiter.pause(5)
    assert not limiter.acquire()
    bench.clock.advance(5)
    assert limiter.acquire()
    limiter.pause(5)
    limiter.resume()
    assert limiter.acquire()


def test_lease__in_the_hand_of_another_worker__ends_before_long(valkey: Server) -> None:
    clock = ManualClock(BEGIN)
    with redis_store(valkey, clock) as store:
        limit = LimitConfig(100, 100, lease=0.1)
        holder, other = BaseLimiter(limit, store, "pncp"), BaseLimiter(limit, store, "pncp")
        for _ in range(20):
            assert holder.sync.acquire()
            clock.advance(0.001)
        other.sync.pause(5)
        clock.advance(0.1)
        assert not holder.sync.acquire()


# bad input --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [-1, float("inf"), float("nan"), PAUSE_MAX + 1])
def test_pause__that_is_none__says_what_is_allowed(bench: Bench, seconds: float) -> None:
    with pytest.raises(ValueError, match=r"seconds must be 0 to 86400, got"):
        bench.limiter("10/s").pause(seconds)


@pytest.mark.parametrize("seconds", [True, "5", None])
def test_pause__of_no_number__is_named(bench: Bench, seconds: Any) -> None:
    with pytest.raises(TypeError, match="seconds must be a number, got"):
        bench.limiter("10/s").pause(seconds)
