"""Errors lower a limit for every worker, successes raise it again (E3, E4)."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from tests.limits.faces import BEGIN, Bench
from tests.stores.manual_heartbeat import manual_failover, run_heartbeat
from tests.support import command, memory_store, redis_store, shared_store

from comporta import BaseLimiter, Degradation, LimitConfig, LimitStrategy, StateUnavailableError
from comporta.events import latest_events
from comporta.limits.overrides.operation import LowerByStep, SetLimit
from comporta.limits.overrides.record import ExpiringStrategy, OverrideRecord, scale_params
from comporta.limits.strategies.base import EndedLease
from comporta.metrics import InMemoryMetrics, use_metrics
from comporta.stores.records import WriteRecord
from comporta.stores.redis.store import RedisStore
from comporta.testing import ManualClock, Server

HUGE = "9" * 40
RECORD_KEY = "rate_limiter_change:pncp"
WINDOWED = [LimitStrategy.FIXED_WINDOW, LimitStrategy.SLIDING_WINDOW]


def limit_of(strategy: LimitStrategy, rate: float = 1000, capacity: int = 1000) -> LimitConfig:
    return LimitConfig(rate, capacity, 1.0, strategy)


# steps (E3, E4) -------------------------------------------------------------------------------------------


@pytest.mark.unmeasured
@pytest.mark.parametrize("strategy", LimitStrategy)
def test_errors__repeated__lower_the_limit_by_a_tenth_of_the_original_to_the_floor(
    bench: Bench, strategy: LimitStrategy
) -> None:
    limiter = bench.limiter(limit_of(strategy))
    degradation = bench.degradation(limiter)
    seen = []
    for _ in range(11):
        degradation.record_error()
        seen.append((degradation.target.current, limiter.stats().limit))
    assert seen == [(n, n) for n in (900, 800, 700, 600, 500, 400, 300, 200, 100, 100, 100)]
    assert degradation.target.original == 1000
    assert limiter.stats().original == 1000


@pytest.mark.unmeasured
@pytest.mark.parametrize("strategy", LimitStrategy)
def test_successes__after_errors__raise_the_limit_every_five_seconds_to_the_original(
    bench: Bench, strategy: LimitStrategy
) -> None:
    limiter = bench.limiter(limit_of(strategy))
    degradation = bench.degradation(limiter)
    for _ in range(3):
        degradation.record_error()
    seen = []
    for _ in range(12):
        degradation.record_success()
        seen.append(limiter.stats().limit)
        bench.clock.advance(2.5)
    assert seen == [700, 700, 800, 800, 900, 900, 1000, 1000, 1000, 1000, 1000, 1000]
    assert degradation.target.current == degradation.target.original == 1000


def test_burst__of_a_throttle__is_a_tenth_of_the_current_limit_and_at_least_one(bench: Bench) -> None:
    limiter = bench.limiter(LimitConfig(25, 2))
    degradation = bench.degradation(limiter)
    seen = []
    for _ in range(4):
        degradation.record_error()
        seen.append(limiter.stats().limit)
    assert seen == [1, 1, 1, 1]
    throttle = bench.limiter(LimitConfig(1000, 100), "throttle")
    lowering = bench.degradation(throttle)
    for limit in (900, 800, 700):
        lowering.record_error()
        assert throttle.stats().limit == limit // 10
        assert lowering.target.current == limit


def test_burst__accumulated_before_an_error__shrinks_with_the_limit(bench: Bench) -> None:
    limiter = bench.limiter("10/s")
    bench.degradation(limiter, drop=0.5).record_error()
    assert [limiter.acquire() for _ in range(7)] == [True] * 5 + [False] * 2
    assert limiter.decide().retry_after == pytest.approx(0.2)


def test_limit__of_one_request__never_reaches_zero_and_climbs_by_one(bench: Bench) -> None:
    limiter = bench.limiter(LimitConfig(1, 1))
    degradation = bench.degradation(limiter)
    for _ in range(20):
        degradation.record_error()
    assert degradation.target.current == pytest.approx(0.1)
    assert limiter.acquire()
    assert limiter.decide().retry_after == pytest.approx(10)
    bench.clock.advance(5)
    degradation.record_success()
    assert degradation.target.current == 1


def test_floor__above_the_current_limit__does_not_raise_it(bench: Bench) -> None:
    limiter = bench.limiter("100/s")
    bench.degradation(limiter, drop=0.9).record_error()
    bench.degradation(limiter, floor=0.5).record_error()
    assert limiter.stats().limit == 10


def test_climb__clock_set_back__waits_no_longer_than_usual(bench: Bench) -> None:
    limiter = bench.limiter("100/s")
    degradation = bench.degradation(limiter)
    degradation.record_error()
    bench.clock.advance(-3600)
    degradation.record_success()
    assert limiter.stats().limit == 100


# the accepted rule ------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", LimitStrategy)
def test_accepted__error__lowers_below_the_accepted_rate_once_in_a_round_trip(
    bench: Bench, strategy: LimitStrategy
) -> None:
    limiter = bench.limiter(limit_of(strategy, 100, 100))
    degradation = bench.degradation(limiter, rule="accepted")
    degradation.record_error(40)
    assert degradation.target.current == 34
    bench.clock.advance(0.9)
    degradation.record_error(20)
    assert degradation.target.current == 34
    bench.clock.advance(0.1)
    degradation.record_error(20)
    assert degradation.target.current == 17
    bench.clock.advance(1)
    degradation.record_error(90)
    assert degradation.target.current == 17
    bench.clock.advance(1)
    degradation.record_error(0)
    assert degradation.target.current == 10


def test_accepted__no_rate_given__uses_the_current_limit(bench: Bench) -> None:
    limiter = bench.limiter("100/s")
    degradation = bench.degradation(limiter, rule="accepted")
    degradation.record_error()
    assert degradation.target.current == 85


# several workers ---------------------------------------------------------------------------------------


def test_errors__ten_threads__lower_ten_times(valkey: Server) -> None:
    for made in (memory_store(), shared_store(), redis_store(valkey)):
        with made as store:
            limiter = BaseLimiter("1000/s", store, "pncp")
            degradation = Degradation(limiter, drop=0.05)
            threads = [threading.Thread(target=degradation.sync.record_error) for _ in range(10)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert limiter.sync.stats().limit == 500


async def _ten_at_once(url: str) -> int:
    limiter = BaseLimiter("1000/s", f"{url}?timeout=5", "pncp")
    degradation = Degradation(limiter, drop=0.05)
    await asyncio.gather(*(degradation.record_error() for _ in range(10)))
    limit = (await limiter.stats()).limit
    await limiter.aclose()
    return limit


def test_errors__ten_coroutines__lower_ten_times(valkey: Server) -> None:
    command(valkey, "FLUSHALL")
    assert asyncio.run(_ten_at_once(valkey.url)) == 500


def test_other_worker__after_a_drop__obeys_at_its_next_decision(bench: Bench) -> None:
    """Two limiters on one store stand for two workers; other tests use processes."""
    limiter = bench.limiter("10/s")
    other = bench.limiter("10/s")
    assert other.acquire()
    bench.degradation(limiter, drop=0.5).record_error()
    assert [other.acquire() for _ in range(6)] == [True] * 5 + [False]


# operators --------------------------------------------------------------------------------------------


def test_set_limit__degraded_limit__restarts_from_the_new_numbers(bench: Bench) -> None:
    limiter = bench.limiter("1000/s")
    degradation = bench.degradation(limiter)
    degradation.record_error()
    limiter.set_limit("500/s")
    assert limiter.stats().limit == 500
    degradation.record_error()
    assert degradation.target.current == 450
    assert degradation.target.original == 500
    bench.clock.advance(5)
    degradation.record_success()
    assert limiter.stats().limit == limiter.stats().original == 500
    limiter.set_limit(None)
    assert limiter.stats().limit == 1000


def test_set_limit__degraded_and_idle_for_five_minutes__is_restored(bench: Bench) -> None:
    limiter = bench.limiter("1000/s")
    limiter.set_limit("500/s")
    bench.degradation(limiter).record_error()
    assert limiter.stats().limit == 450
    bench.clock.advance(300)
    assert limiter.stats().limit == 500
    assert [limiter.acquire() for _ in range(501)].count(True) == 500


def test_degradation__idle_for_five_minutes__ends(bench: Bench) -> None:
    limiter = bench.limiter(LimitConfig(1, 100, 3600, LimitStrategy.FIXED_WINDOW))
    degradation = bench.degradation(limiter, drop=0.9)
    degradation.record_error()
    assert [limiter.acquire() for _ in range(11)].count(True) == 10
    bench.clock.advance(299.9)
    assert not limiter.acquire()
    bench.clock.advance(0.1)
    assert limiter.acquire()
    if bench.store.__class__ is not RedisStore:  # the server expires records by its own clock
        assert degradation.target.current == degradation.target.original
    degradation.record_success()
    assert not degradation.target.get_state()["degraded"]


@pytest.mark.parametrize(
    "garbage",
    [
        *(
            "nonsense",
            "0 1 1 0 x",
            "5 0 0 0 x",
            "5 1 0 0",
            "-5 1 1 0",
            "5.5 1 1 0",
            "[degraded to 1]",
            " 5 1 1 0",
        ),
        *(
            f"{HUGE} 1 100000 0",
            f"5 {HUGE} 1 0",
            f"5 1 {HUGE} 0",
            f"5 1 1 {HUGE}",
            "99999999999 1 99999999 0",
        ),
        f"5 1 100000 0 [degraded to 5 of {HUGE} 1 1 0 ends 9000000000000000 dropped 1 climbed 1]",
    ],
)
def test_record__invalid__has_no_effect_and_is_replaced(bench: Bench, garbage: str) -> None:
    limiter = bench.limiter("10/s")
    bench.store.apply(
        WriteRecord("rate_limiter_change", "pncp", garbage.encode(), None, changes_override=True)
    )
    assert limiter.stats().limit == 10
    bench.degradation(limiter, drop=0.5).record_error()
    assert limiter.stats().limit == 5


@pytest.mark.parametrize(
    ("said", "limit", "original"),
    [
        ("degraded to 500000 of 0 0 0 0 ends 9 dropped 1 climbed 1", 10, 10),
        ("degraded to 500000 of 8 0 0 0 ends 9 dropped 1 climbed 1", 10, 10),
        ("degraded to 500000 of 8 1 100000 0 ends 9 dropped 1 climbed 1", 8, 8),
        ("degraded to 500000 of 8 1 100000 0 ends 9000000000000000 dropped 1 climbed 1", 5, 8),
        ("degraded to 1000000 of 8 1 100000 0 ends 9000000000000000 dropped 1 climbed 1", 5, 5),
        (f"degraded to 500000 of 8 1 100000 0 ends {HUGE} dropped {HUGE} climbed {HUGE}", 5, 8),
        ("degraded to a lot", 5, 5),
        ("", 5, 5),
        ("paused until 99999999999999999999 for 99999999999999999999", 5, 5),
    ],
)
def test_record__written_by_an_operator__is_obeyed_if_valid(
    bench: Bench, said: str, limit: int, original: int
) -> None:
    limiter = bench.limiter("10/s")
    text = f"5 1 100000 0 [{said}] by hand"
    bench.store.apply(WriteRecord("rate_limiter_change", "pncp", text.encode(), None, changes_override=True))
    if "of 0" in said:
        limit = original = 5  # the pattern does not match, so the four numbers apply
    stats = limiter.stats()
    assert (stats.limit, stats.original, stats.paused) == (limit, original, 0)
    limiter.pause(5)  # the record can be written again
    assert limiter.stats().paused == 5


@pytest.mark.parametrize("lowered", [False, True])
@pytest.mark.parametrize("theirs", LimitStrategy)
@pytest.mark.parametrize("ours", LimitStrategy)
def test_record__of_another_kind_of_limit__applies_only_its_pause(
    bench: Bench, ours: LimitStrategy, theirs: LimitStrategy, lowered: bool
) -> None:
    """A rolling deployment changes the strategy of a limit that an operator has overridden."""
    set_by_hand = LimitConfig(rate=0.5, capacity=4, window=60, strategy=theirs)
    operations: list[Any] = [SetLimit("pncp", set_by_hand.build_strategy().params, "by hand")]
    if lowered:
        operations.append(LowerByStep("pncp", set_by_hand.build_strategy().params, 500_000, 100_000))
    for operation in operations:
        bench.store.apply(operation)
    limiter = bench.limiter(LimitConfig(rate=10, capacity=10, window=1, strategy=ours))
    limit = limiter.stats().limit
    buckets = {LimitStrategy.TOKEN_BUCKET, LimitStrategy.LEAKY_BUCKET}
    if ours is theirs or {ours, theirs} == buckets:
        assert limit == (2 if lowered else 4)
    elif (ours in buckets) != (theirs in buckets):
        assert limit == 10
    assert limiter.acquire()
    decision = limiter.peek()
    assert 0 <= decision.remaining < limit
    assert 0 <= decision.reset_after <= 60
    limiter.pause(5)
    assert not limiter.acquire()
    assert limiter.stats().paused == 5


# what operators see --------------------------------------------------------------------------------


def test_record__on_a_server__is_readable_and_expires(server: Server) -> None:
    with redis_store(server) as store:
        limiter = BaseLimiter("10/s", store, "pncp")
        degradation = Degradation(limiter)
        degradation.sync.record_error()
        text = command(server, "GET", RECORD_KEY)
        assert text.split(b"\r\n")[1].startswith(
            b"9 900000 100000000000 0 [degraded to 900000 of 10 1 100000 0"
        )
        assert 290_000 < int(command(server, "PTTL", RECORD_KEY)[1:]) <= 300_000
        limiter.sync.pause(1000)
        assert 1_050_000 < int(command(server, "PTTL", RECORD_KEY)[1:]) <= 1_060_000
        limiter.sync.set_limit("20/s")
        assert command(server, "PTTL", RECORD_KEY) == b":-1\r\n"
        degradation.sync.record_error()
        assert command(server, "PTTL", RECORD_KEY) == b":-1\r\n"
        limiter.sync.set_limit(None)
        assert 900_000 < int(command(server, "PTTL", RECORD_KEY)[1:]) <= 1_060_000
        limiter.sync.resume()
        assert command(server, "EXISTS", RECORD_KEY) == b":0\r\n"


def test_record__key_of_another_type__is_left_and_raises_nothing(server: Server) -> None:
    with redis_store(server) as store:
        command(server, "LPUSH", RECORD_KEY, "x")
        limiter = BaseLimiter("10/s", store, "pncp")
        Degradation(limiter).sync.record_error()
        assert command(server, "TYPE", RECORD_KEY) == b"+list\r\n"
        assert limiter.sync.stats().limit == 10
        limiter.sync.set_limit("5/s")
        assert limiter.sync.stats().limit == 5


def test_events_and_metrics__of_each_change__are_published_once(bench: Bench) -> None:
    metrics = InMemoryMetrics()
    before = use_metrics(metrics)
    try:
        limiter = bench.limiter("10/s")
        degradation = bench.degradation(limiter, drop=0.9)
        degradation.record_error()
        degradation.record_error()
        bench.clock.advance(5)
        degradation.record_success()
        limiter.pause(5)
        limiter.pause(1)
        limiter.resume()
        limiter.resume()
    finally:
        use_metrics(before)
    published = [event for event in latest_events() if event.source == "pncp"][-4:]
    kinds = ["limit_degraded", "limit_recovered", "limit_paused", "limit_resumed"]
    assert [event.kind for event in published] == kinds
    assert published[0].text == "lowered from 10 to 1 requests per second, of 10"
    assert published[1].text == "raised from 1 to 2 requests per second, of 10"
    for kind in kinds:
        assert metrics.value("limit_changes", limiter="pncp", what=kind.removeprefix("limit_")) == 1


# round trips ----------------------------------------------------------------------------------------


def test_success__limit_not_lowered__makes_no_call() -> None:
    store, primary = manual_failover(ManualClock(BEGIN))
    degradation = Degradation(BaseLimiter("10/s", store, "pncp"))
    calls = primary.calls
    for _ in range(100):
        degradation.sync.record_success()
    assert primary.calls == calls
    degradation.sync.record_error()
    assert degradation.current == 9
    for _ in range(100):
        degradation.sync.record_success()
    assert primary.calls == calls + 1


def test_success__lowered_by_another_worker__is_known_through_the_heartbeat() -> None:
    clock = ManualClock(BEGIN)
    store, primary = manual_failover(clock)
    mine = Degradation(BaseLimiter("10/s", store, "pncp"))
    Degradation(BaseLimiter("10/s", primary, "pncp")).sync.record_error()
    assert mine.current == 10
    run_heartbeat(store)
    assert mine.current == 9
    clock.advance(5)
    mine.sync.record_success()
    assert mine.current == mine.original == 10


def test_success__store_without_heartbeat__reads_the_record_at_intervals(valkey: Server) -> None:
    clock = ManualClock(BEGIN)
    with redis_store(valkey, clock) as store:
        Degradation(BaseLimiter("10/s", store, "pncp")).sync.record_error()
        clock.advance(5)
        fresh = Degradation(BaseLimiter("10/s", store, "pncp"))
        fresh.sync.record_success()
        assert fresh.current == 10


# outages -----------------------------------------------------------------------------


def test_outage__degraded_limit__divides_it_and_ignores_errors() -> None:
    clock = ManualClock(BEGIN)
    store, primary = manual_failover(clock)
    limiter = BaseLimiter("10/s", store, "pncp")
    degradation = Degradation(limiter, drop=0.5)
    degradation.sync.record_error()
    limiter.sync.pause(60)
    run_heartbeat(store)
    primary.error = StateUnavailableError("gone")
    degradation.sync.record_error()
    clock.advance(5)
    degradation.sync.record_success()
    assert degradation.current == 5
    assert limiter.sync.stats().limit == 5
    clock.advance(10)
    assert [limiter.sync.acquire() for _ in range(6)] == [True] * 5 + [False]
    with pytest.raises(StateUnavailableError):
        limiter.sync.pause(1)


# leases -----------------------------------------------------------------------------------------------


def test_lease__of_the_worker_that_records_an_error__is_returned_at_once(bench: Bench) -> None:
    limiter = bench.limiter(LimitConfig(100, 100, lease=10))
    for _ in range(20):
        limiter.acquire()
        bench.clock.advance(0.01)
    degradation = bench.degradation(limiter, drop=0.9)
    degradation.record_error()
    assert [limiter.acquire() for _ in range(12)].count(True) <= 11
    bench.clock.advance(5)
    degradation.record_success()
    assert limiter.stats().limit == 20


# invalid values --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drop": 0}, "drop must be above 0 and at most 1, got 0"),
        ({"floor": 1.5}, "floor must be above 0 and at most 1, got 1.5"),
        ({"climb": float("nan")}, "climb must be above 0 and at most 1, got nan"),
        ({"every": 301}, "every must be above 0 and at most 300 seconds, got 301"),
        ({"round_trip": -1}, "round_trip must be above 0 and at most 300 seconds, got -1"),
        ({"rule": "guess"}, "rule must be one of 'steps', 'accepted', 'cubic', got 'guess'"),
    ],
)
def test_degradation__value_out_of_range__names_field_range_and_value(
    options: dict[str, Any], message: str
) -> None:
    with memory_store() as store, pytest.raises(ValueError, match="must be") as raised:
        Degradation(BaseLimiter("10/s", store), **options)
    assert str(raised.value) == message


def test_degradation__value_of_wrong_type__is_named() -> None:
    with memory_store() as store:
        limiter = BaseLimiter("10/s", store)
        with pytest.raises(TypeError, match="drop must be a number, got True"):
            Degradation(limiter, drop=True)
        with pytest.raises(
            ValueError, match="accepted_rate must be 0 to 1000000000 requests per second, got -1"
        ):
            Degradation(limiter).sync.record_error(-1)


# parameters ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "capacity", "error"),
    [
        *((10, 10, 0), (1e6, 1000, 0), (100 / 60, 100, 0), (1 / 3600, 1, 0), (1 / 86400, 1, 0), (3.7, 5, 0)),
        *((1 / 86400, 1000, 0), (1e9, 10**9, 0), (999_999_999.123, 1, 1e-9), (0.123456789123, 10**6, 0.04)),
    ],
)
def test_scale_params__steps_of_a_tenth__are_exact(rate: float, capacity: int, error: float) -> None:
    base = LimitConfig(rate, capacity).build_strategy().params
    for tenths in range(1, 10):
        params = scale_params(base, tenths * 100_000)
        assert params.capacity * params.unit < 2**53
        exact = base.per_us * params.unit * tenths / (base.unit * 10)
        assert exact * (1 - error - 1e-12) <= params.per_us <= exact * (1 + 1e-12)


def test_expiring_strategy__all_methods__delegate_to_the_strategy_in_effect() -> None:
    strategy = LimitConfig(10, 10, lease=1.0).build_strategy()
    record = OverrideRecord(
        strategy.params, share=500_000, degraded_until_us=100, paused_until_us=50, pause_length_us=50
    )
    expiring = strategy.with_override(record.encode())
    assert isinstance(expiring, ExpiringStrategy)
    state, _ = strategy.step(None, 0, 5)
    assert state is not None
    assert (
        expiring.usage(state, 60).remaining
        == strategy.with_params(expiring.params).usage(state, 60).remaining
    )
    released = expiring.release(state, 60, 1)
    assert released == strategy.with_params(expiring.params).release(state, 60, 1)
    grant = expiring.grant_lease(state, 60, 1, 1000)
    assert expiring.return_lease(grant.state, 60, EndedLease(grant.lease_id, 1, 1), 1000) is not None
    assert expiring.expires_us(state) >= strategy.expires_us(state)
    assert expiring.with_override(None) is strategy
    assert expiring.with_params(strategy.params).params == strategy.params
