"""A paused limit refuses every request; afterwards it continues with the state it has."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tests.limits.faces import BEGIN, Bench, Face
from tests.stores.manual_heartbeat import manual_failover, run_heartbeat
from tests.support import memory_store, redis_store, wait_until

from comporta import BaseLimiter, LimitConfig, LimitGroup, LimitStrategy
from comporta.flow import Effect, Flow, run
from comporta.limits.overrides.flows import PAUSE_MAX
from comporta.limits.wait_queue import PAUSE_JITTER_US_MAX
from comporta.stores.effects import Sleep
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock, Server


def limit_of(strategy: LimitStrategy, **options: Any) -> LimitConfig:
    return LimitConfig(10, 10, 1.0, strategy, **options)


@pytest.mark.unmeasured
@pytest.mark.parametrize("lease", [False, 0.05])
@pytest.mark.parametrize("strategy", LimitStrategy)
def test_pause__every_strategy__refuses_until_its_end_and_then_continues(
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


def test_pause__empty_limit__waits_for_the_longer_of_both(bench: Bench) -> None:
    limiter = bench.limiter(LimitConfig(0.1, 1))
    assert limiter.acquire()
    limiter.pause(3)
    assert limiter.decide().retry_after == pytest.approx(10)
    assert not limiter.acquire()


def test_pause__repeated__extends_and_never_shortens(bench: Bench) -> None:
    limiter = bench.limiter("10/s")
    limiter.pause(10)
    limiter.pause(5)
    assert limiter.stats().paused == 10
    limiter.pause(20)
    assert limiter.stats().paused == 20


def test_resume__paused__ends_the_pause_at_once(bench: Bench) -> None:
    limiter = bench.limiter("10/s")
    for end in (limiter.resume, lambda: limiter.pause(0)):
        limiter.pause(10)
        end()
        assert limiter.acquire()


def test_pause__operators_limit__keeps_it(bench: Bench) -> None:
    limiter = bench.limiter("10/s")
    limiter.set_limit("5/s")
    limiter.pause(10)
    assert limiter.stats().limit == 5
    limiter.set_limit("3/s")
    assert limiter.stats().paused == 10
    assert limiter.stats().limit == 3
    limiter.set_limit(None)
    assert limiter.stats().paused == 10
    assert limiter.stats().limit == 10
    bench.clock.advance(10)
    assert [limiter.acquire() for _ in range(11)].count(True) == 10


def test_pause__by_a_worker_with_another_config__changes_no_limit(bench: Bench) -> None:
    limiter = bench.limiter("10/s")
    limiter.pause(10)
    assert limiter.stats().limit == 10
    bench.degradation(limiter, drop=0.5).record_error()
    assert limiter.stats().limit == 5
    assert limiter.stats().paused == 10
    limiter.resume()
    assert limiter.stats().limit == 5


def test_release__during_a_pause__gives_units_back(bench: Bench) -> None:
    limiter = bench.limiter("10/s")
    assert limiter.acquire(cost=10)
    limiter.pause(10)
    limiter.release(cost=4)
    assert limiter.peek().remaining == 4


def test_group__one_limit_paused__charges_none(bench: Bench) -> None:
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
def test_pause__clock_set_back__lasts_at_most_a_minute_longer(bench: Bench, back: float) -> None:
    limiter = bench.limiter("10/s")
    limiter.pause(30)
    bench.clock.advance(-back)
    assert limiter.stats().paused == (30 if back < 60 else 0)
    assert limiter.acquire() == (back > 60)


def test_pause__clock_set_forward__ends(bench: Bench) -> None:
    limiter = bench.limiter("10/s")
    limiter.pause(30)
    bench.clock.advance(3600)
    assert limiter.acquire()


# waiting ----------------------------------------------------------------------------------------------


@pytest.mark.unmeasured
@pytest.mark.parametrize("strategy", LimitStrategy)
def test_waiter__paused_limit__returns_after_its_end_with_jitter(
    bench: Bench, strategy: LimitStrategy
) -> None:
    limiter = bench.limiter(limit_of(strategy))
    limiter.pause(5)
    assert limiter.acquire(timeout=10)
    waited = bench.clock.now_ns() / 1e9 - BEGIN
    assert 5 <= waited <= 5 + PAUSE_JITTER_US_MAX / 1e6 + 0.001


@pytest.mark.unmeasured
@pytest.mark.parametrize("strategy", LimitStrategy)
def test_waiter__timeout_before_the_end_of_the_pause__is_refused_at_once(
    bench: Bench, strategy: LimitStrategy
) -> None:
    limiter = bench.limiter(limit_of(strategy))
    limiter.pause(5)
    assert not limiter.acquire(timeout=4.999)
    assert bench.clock.now_ns() == BEGIN * 10**9


def test_waiters__many__return_spread_over_time(bench: Bench) -> None:
    moments = set()
    for number in range(8):
        limiter = bench.limiter("10/s", f"n{number}")
        limiter.pause(10)
        began_ns = bench.clock.now_ns()
        assert limiter.acquire(timeout=60)
        moments.add(bench.clock.now_ns() - began_ns)
    assert len(moments) > 1


def until_asleep(flow: Flow[bool]) -> Effect:
    """Drive a flow until it sleeps."""
    effect = next(flow)
    while not isinstance(effect, Sleep):
        effect = flow.send(effect.block())
    return effect


def to_its_end(flow: Flow[bool], effect: Effect) -> bool:
    """Continue to drive a flow."""

    def rest() -> Flow[bool]:
        yield effect
        return (yield from flow)

    return run(rest())


def a_turn_ahead(store: MemoryStore, timeout: float) -> tuple[BaseLimiter, Flow[bool], Effect]:
    """Return a limiter, and the flow of a caller that sleeps until its turn."""
    limiter = BaseLimiter(limit_of(LimitStrategy.LEAKY_BUCKET), store, "pncp")
    assert limiter.sync.acquire()
    flow = limiter._flows.acquire_flow(None, 1, timeout)
    return limiter, flow, until_asleep(flow)


def test_turn__assigned_before_a_pause__waits_and_is_assigned_again() -> None:
    clock = ManualClock(BEGIN)
    with memory_store(clock) as store:
        limiter, flow, asleep = a_turn_ahead(store, 60)
        limiter.sync.pause(30)
        assert to_its_end(flow, asleep)
        assert clock.now_ns() >= (BEGIN + 30) * 10**9
        assert not limiter.sync.acquire()  # the turn after the pause was just taken


def test_turn__pause_ends_just_before_the_timeout__is_granted_in_time() -> None:
    clock = ManualClock(BEGIN)
    with memory_store(clock) as store:
        limiter = BaseLimiter(limit_of(LimitStrategy.LEAKY_BUCKET), store, "pncp")
        for _ in range(10):  # the jitter is random
            limiter.sync.pause(9.999)
            began_ns = clock.now_ns()
            assert limiter.sync.acquire(timeout=10)
            assert clock.now_ns() <= began_ns + 10 * 10**9


def test_turn__pause_longer_than_the_timeout__is_refused() -> None:
    clock = ManualClock(BEGIN)
    with memory_store(clock) as store:
        limiter, flow, asleep = a_turn_ahead(store, 2)
        limiter.sync.pause(30)
        assert not to_its_end(flow, asleep)
        assert clock.now_ns() < (BEGIN + 2) * 10**9


def test_waiters__of_this_process__are_woken_by_resume() -> None:
    with memory_store() as store:
        limiter = BaseLimiter("10/s", store, "pncp")
        limiter.sync.pause(600)
        granted: list[bool] = []
        waiter = threading.Thread(target=lambda: granted.append(limiter.sync.acquire(timeout=3600)))
        waiter.start()
        wait_until(lambda: limiter._flows.wait_queue.waiters_by_key)
        limiter.sync.resume()
        waiter.join(60)
        assert granted == [True]


def test_waiter__on_a_server__estimates_the_pause_from_the_record() -> None:
    clock = ManualClock(BEGIN)
    store, primary = manual_failover(clock)
    mine = BaseLimiter("10/s", store, "pncp")
    assert mine._flows.overrides.pause_left_us() == mine._flows.overrides.pause_jitter_us() == 0
    BaseLimiter("10/s", primary, "pncp").sync.pause(8)
    run_heartbeat(store)
    assert mine._flows.overrides.pause_left_us() == 8_000_000
    clock.advance(2)
    run_heartbeat(store)
    assert mine._flows.overrides.pause_left_us() == 6_000_000
    assert 0 <= mine._flows.overrides.pause_jitter_us() <= PAUSE_JITTER_US_MAX
    BaseLimiter("10/s", primary, "pncp").sync.resume()
    run_heartbeat(store)
    assert mine._flows.overrides.pause_left_us() == 0


# leases -----------------------------------------------------------------------------------------------


def test_lease__of_the_worker_that_pauses__is_returned_at_once(bench: Bench) -> None:
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


def test_lease__of_another_worker__ends_soon_after_a_pause(valkey: Server) -> None:
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
def test_pause__out_of_range__names_range_and_value(bench: Bench, seconds: float) -> None:
    with pytest.raises(ValueError, match=r"seconds must be 0 to 86400, got"):
        bench.limiter("10/s").pause(seconds)


@pytest.mark.parametrize("seconds", [True, "5", None])
def test_pause__wrong_type__is_named(bench: Bench, seconds: Any) -> None:
    with pytest.raises(TypeError, match="seconds must be a number, got"):
        bench.limiter("10/s").pause(seconds)
