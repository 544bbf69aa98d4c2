"""Many refusals at once lower a limit once, and the cubic rule follows a quota that moves."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, TypeVar

import pytest
from tests.limits.faces import BEGIN, Bench, Face
from tests.stores.manual_heartbeat import manual_failover
from tests.support import command, memory_store, redis_store, shared_store

from comporta import BaseLimiter, Degradation, LimitConfig, LimitStrategy
from comporta.events import latest_events
from comporta.limits.overrides.operation import LowerByStep
from comporta.limits.overrides.record import OverrideRecord, limit_text, rate_text
from comporta.stores.base import Operation
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock, Server

R = TypeVar("R")

RULES = {"steps": 900, "accepted": 850, "cubic": 800}
"""The limit after one refusal, of 1000."""


def make_degradation(bench: Bench, rule: str = "cubic", **options: Any) -> Face:
    """Return a degradation of a limit of 1000/s."""
    return bench.degradation(bench.limiter(LimitConfig(1000, 1000)), rule=rule, **options)


def limit_of(degradation: Face) -> float:
    return float(degradation.target.current)


def successes(bench: Bench, degradation: Face, seconds: float) -> float:
    """Record a success every 0.25 s, as a busy upstream would, and return the limit at the end."""
    for _ in range(round(seconds / 0.25)):
        bench.clock.advance(0.25)
        degradation.record_success()
    return limit_of(degradation)


# one drop for all refusals of one moment ---------------------------------------------------------------


@pytest.mark.parametrize(("rule", "once"), RULES.items())
def test_refusals__twenty_at_once__lower_the_limit_once(bench: Bench, rule: str, once: int) -> None:
    degradation = make_degradation(bench, rule)
    for _ in range(20):
        degradation.record_error(took=0.1)
        bench.clock.advance(0.001)
    assert limit_of(degradation) == once


@pytest.mark.parametrize("rule", RULES)
def test_refusal__of_a_call_sent_after_the_last_drop__lowers_the_limit_again(bench: Bench, rule: str) -> None:
    degradation = make_degradation(bench, rule, round_trip=0.01)
    degradation.record_error(took=0.1)
    once = limit_of(degradation)
    bench.clock.advance(0.2)
    degradation.record_error(took=0.2)
    degradation.record_error(took=0.16)  # sent 40 ms after the drop: the worker may not have known of it
    assert limit_of(degradation) == once
    degradation.record_error(took=0.1)
    assert limit_of(degradation) < once


@pytest.mark.parametrize(("rule", "once"), RULES.items())
def test_refusals__within_the_pause_of_a_drop__lower_the_limit_once(
    bench: Bench, rule: str, once: int
) -> None:
    degradation = make_degradation(bench, rule)
    limiter = Face(degradation.target.limiter, bench.runner)
    limiter.pause(10)
    degradation.record_error(took=0.1)
    bench.clock.advance(9.9)
    degradation.record_error(took=0.1)
    assert limit_of(degradation) == once
    bench.clock.advance(0.2)
    degradation.record_error(took=0.1)
    assert limit_of(degradation) < once


def test_refusals__each_extends_the_pause__lower_the_limit_once_until_it_ends(bench: Bench) -> None:
    """A worker that has leased tokens does not know of the pause, and its calls are refused."""
    degradation = make_degradation(bench)
    limiter = Face(degradation.target.limiter, bench.runner)
    for _ in range(20):
        limiter.pause(1)
        degradation.record_error(took=0.1)
        bench.clock.advance(0.5)
    assert limit_of(degradation) == 800
    limiter.set_limit(None)  # the pause continues
    assert limiter.stats().paused == pytest.approx(0.5)
    bench.clock.advance(0.5)
    degradation.record_error(took=0.1)
    limiter.pause(1)
    bench.clock.advance(1)
    degradation.record_error(took=0.1)
    assert limit_of(degradation) == 640


def test_refusal__pause_later_than_the_last_drop__lowers_the_limit_again(bench: Bench) -> None:
    degradation = make_degradation(bench)
    degradation.record_error(took=0.1)
    bench.clock.advance(1)
    Face(degradation.target.limiter, bench.runner).pause(10)
    degradation.record_error(took=0.1)
    assert limit_of(degradation) == 640


@pytest.mark.parametrize("rule", ["steps", "cubic"])
def test_errors__without_took__each_lower_the_limit_in_a_pause_too(bench: Bench, rule: str) -> None:
    degradation = make_degradation(bench, rule)
    Face(degradation.target.limiter, bench.runner).pause(10)
    for _ in range(20):
        degradation.record_error()
    assert limit_of(degradation) == 100


def test_refusal__clock_set_back_since_the_last_drop__lowers_the_limit_again(bench: Bench) -> None:
    degradation = make_degradation(bench)
    degradation.record_error(took=0.1)
    bench.clock.advance(-60)
    degradation.record_error(took=0.1)
    assert limit_of(degradation) == 640


class SlowStore(MemoryStore):
    """A store that is reached 0.3 s late: the event loop, a lock or the network was slow."""

    async def apply_async(self, operation: Operation[R]) -> R:
        assert isinstance(self.clock, ManualClock)
        await asyncio.sleep(0)
        self.clock.advance(0.3)
        return self.apply(operation)


@pytest.mark.parametrize(("rule", "once"), RULES.items())
def test_refusals__of_two_workers_whose_store_is_reached_late__lower_the_limit_once(
    rule: str, once: int
) -> None:
    store = SlowStore(ManualClock(BEGIN))
    workers = [Degradation(BaseLimiter("1000/s", store, "pncp"), rule=rule) for _ in range(2)]

    async def refuse_all() -> None:
        await asyncio.gather(*(worker.record_error(took=0.1) for worker in workers * 10))

    asyncio.run(refuse_all())
    assert BaseLimiter("1000/s", store, "pncp").sync.stats().limit == once


@pytest.mark.parametrize(("rule", "once"), RULES.items())
def test_refusal__operation_applied_long_after_its_call__has_the_age_of_then(
    bench: Bench, rule: str, once: int
) -> None:
    degradation = make_degradation(bench, rule, round_trip=0.01)
    late = degradation.target._flows._lower_operation(None, 150_000)
    degradation.record_error(took=0.1)
    bench.clock.advance(0.5)
    assert not bench.store.apply(late).changed
    assert limit_of(degradation) == once


@pytest.mark.parametrize("rule", RULES)
def test_refusal__clock_of_the_store_steps_back_a_little__is_answered_by_the_last_drop(
    bench: Bench, rule: str
) -> None:
    degradation, other = (make_degradation(bench, rule, round_trip=0.01) for _ in range(2))
    degradation.record_error(took=0.1)
    once = limit_of(degradation)
    bench.clock.advance(-0.02)
    other.record_error(took=0.01)
    bench.clock.advance(0.02)
    assert limit_of(other) == once


def test_refusal__arrives_after_the_limit_has_recovered_from_the_drop__lowers_nothing(bench: Bench) -> None:
    degradation = make_degradation(bench)
    degradation.record_error(took=0.1)
    assert successes(bench, degradation, 10) == 1000
    degradation.record_error(took=11)
    assert limit_of(degradation) == 1000
    degradation.record_error(took=9)
    assert limit_of(degradation) == 800


def test_refusals__twenty_threads_of_two_workers__lower_the_limit_once(valkey: Server) -> None:
    for made in (memory_store(), shared_store(), redis_store(valkey)):
        with made as store:
            workers = [Degradation(BaseLimiter("1000/s", store, "pncp"), rule="cubic").sync for _ in range(2)]
            threads = [
                threading.Thread(target=lambda worker=worker: worker.record_error(took=30))
                for worker in workers * 10
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert BaseLimiter("1000/s", store, "pncp").sync.stats().limit == 800


async def _twenty_at_once(url: str) -> int:
    limiter = BaseLimiter("1000/s", f"{url}?timeout=5", "pncp")
    degradation = Degradation(limiter, rule="cubic")
    await asyncio.gather(*(degradation.record_error(took=30) for _ in range(20)))
    limit = (await limiter.stats()).limit
    await limiter.aclose()
    return limit


def test_refusals__twenty_coroutines__lower_the_limit_once(valkey: Server) -> None:
    command(valkey, "FLUSHALL")
    assert asyncio.run(_twenty_at_once(valkey.url)) == 800


# the cubic rule ----------------------------------------------------------------------------------------


@pytest.mark.unmeasured
@pytest.mark.parametrize("strategy", LimitStrategy)
def test_cubic__errors__lower_the_limit_by_a_fifth_of_itself_to_the_floor(
    bench: Bench, strategy: LimitStrategy
) -> None:
    limiter = bench.limiter(LimitConfig(1000, 1000, 1.0, strategy))
    degradation = bench.degradation(limiter, rule="cubic")
    seen = []
    for _ in range(12):
        degradation.record_error()
        seen.append(limiter.stats().limit)
    assert seen == [800, 640, 512, 409, 327, 262, 209, 167, 134, 107, 100, 100]


@pytest.mark.parametrize("strategy", LimitStrategy)
def test_cubic__successes__raise_the_limit_fast_then_slowly_then_ever_faster(
    bench: Bench, strategy: LimitStrategy
) -> None:
    limiter = bench.limiter(LimitConfig(1000, 1000, 1.0, strategy))
    degradation = bench.degradation(limiter, rule="cubic")
    degradation.record_error()
    degradation.record_error()
    seen = []
    for _ in range(8):
        successes(bench, degradation, 1)
        seen.append(limiter.stats().limit)
    assert seen == [752, 794, 800, 805, 847, 960, 1000, 1000]
    assert not degradation.target.get_state()["degraded"]


def test_cubic__refused_on_the_way_up__returns_to_that_level(bench: Bench) -> None:
    degradation = make_degradation(bench)
    degradation.record_error()
    level = successes(bench, degradation, 1)
    degradation.record_error()
    assert limit_of(degradation) == pytest.approx(0.8 * level, rel=0.001)
    assert successes(bench, degradation, 3) == pytest.approx(level, rel=0.001)


def test_cubic__at_the_floor__reaches_the_full_limit_again(bench: Bench) -> None:
    degradation = make_degradation(bench, drop=1.0)
    degradation.record_error()
    degradation.record_error()
    assert limit_of(degradation) == 100
    assert successes(bench, degradation, 10) == 1000


def test_cubic__tiny_drop__is_full_after_eleven_times_every(bench: Bench) -> None:
    degradation = make_degradation(bench, drop=0.000001, every=1)
    degradation.record_error()
    for _ in range(3):  # each at once: the limit stays where it is
        degradation.record_error()
    assert successes(bench, degradation, 11) == 1000


def test_cubic__long_time_without_successes__returns_to_the_last_level_first(bench: Bench) -> None:
    degradation = make_degradation(bench)
    degradation.record_error()
    degradation.record_error()
    bench.clock.advance(60)
    degradation.record_success()
    assert limit_of(degradation) == 800
    bench.clock.advance(60)
    degradation.record_success()
    assert limit_of(degradation) == 960
    bench.clock.advance(60)
    degradation.record_success()
    assert limit_of(degradation) == 1000


def test_cubic__success_soon_after_the_last_step__changes_nothing(bench: Bench) -> None:
    degradation = make_degradation(bench)
    degradation.record_error()
    bench.clock.advance(0.29)
    degradation.record_success()
    assert limit_of(degradation) == 800
    bench.clock.advance(0.01)
    degradation.record_success()
    assert limit_of(degradation) == pytest.approx(854.2)


def test_cubic__lowered_in_steps_by_another_worker__climbs_from_there(bench: Bench) -> None:
    degradation = make_degradation(bench)
    name, params = degradation.target.limiter.name, degradation.target.limiter._flows.params
    bench.store.apply(LowerByStep(name, params, 500_000, 100_000))
    limiter = Face(degradation.target.limiter, bench.runner)
    assert limiter.stats().limit == 500
    for _ in range(4):
        bench.clock.advance(1)
        degradation.record_success()
    assert limiter.stats().limit == pytest.approx(503, abs=1)
    bench.store.apply(LowerByStep(name, params, 100_000, 100_000))  # and leaves no curve
    assert limiter.stats().limit == pytest.approx(403, abs=1)


def test_cubic__clock_set_back__lowers_nothing_and_recovers(bench: Bench) -> None:
    degradation = make_degradation(bench)
    degradation.record_error()
    degradation.record_error()
    successes(bench, degradation, 1)
    bench.clock.advance(-3600)
    degradation.record_success()
    limit = limit_of(degradation)
    assert 640 <= limit <= 800
    assert limit <= successes(bench, degradation, 3) <= 810
    assert successes(bench, degradation, 9) == 1000


def test_cubic__recovery__publishes_each_drop_and_the_end(bench: Bench) -> None:
    degradation = make_degradation(bench)
    name = degradation.target.limiter.name
    degradation.record_error()
    degradation.record_error()
    successes(bench, degradation, 12)
    published = [event for event in latest_events() if event.source == name][-3:]
    assert [event.kind for event in published] == ["limit_degraded", "limit_degraded", "limit_recovered"]
    assert published[0].text == "lowered from 1000 to 800 requests per second, of 1000"
    assert published[2].text.endswith("to 1000 requests per second, of 1000")


def test_cubic__operator_sets_a_limit__restarts_from_it(bench: Bench) -> None:
    degradation = make_degradation(bench)
    limiter = Face(degradation.target.limiter, bench.runner)
    degradation.record_error()
    limiter.set_limit(LimitConfig(100, 100))
    assert limiter.stats().limit == 100
    degradation.record_error()
    assert limiter.stats().limit == 80
    assert successes(bench, degradation, 3) == 100


def test_cubic__record__names_the_level_and_the_start_of_the_curve(server: Server) -> None:
    with redis_store(server) as store:
        degradation = Degradation(BaseLimiter("10/s", store, "pncp"), rule="cubic")
        degradation.sync.record_error()
        text = command(server, "GET", "rate_limiter_change:pncp").split(b"\r\n")[1]
        assert text.startswith(b"8 800000 100000000000 0 [degraded to 800000 of 10 1 100000 0 ends ")
        assert b" climbed 0 from 1000000 since " in text
        record = OverrideRecord.parse(text)
        assert record is not None
        assert (record.peak, record.curve_start_us) == (1_000_000, record.last_drop_us)
        assert OverrideRecord.parse(record.encode()) == record


@pytest.mark.parametrize(("workers", "calls"), [(1, 10), (4, 2), (100, 1)])
def test_cubic__attempts_of_one_worker__are_fewer_the_more_workers_there_are(
    monkeypatch: pytest.MonkeyPatch, workers: int, calls: int
) -> None:
    clock = ManualClock(BEGIN)
    store, primary = manual_failover(clock)
    monkeypatch.setattr(type(store), "worker_count", workers)
    degradation = Degradation(BaseLimiter("1000/s", store, "pncp"), rule="cubic").sync
    degradation.record_error()
    degradation.record_error()
    before = primary.calls
    for _ in range(30):
        clock.advance(0.1)
        degradation.record_success()
    assert primary.calls - before == calls


# options -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "drop", "every"), [("steps", 0.1, 5.0), ("accepted", 0.1, 5.0), ("cubic", 0.2, 3.0)]
)
def test_degradation__no_options__has_the_defaults_of_its_rule(rule: str, drop: float, every: float) -> None:
    with memory_store() as store:
        degradation = Degradation(BaseLimiter("10/s", store), rule=rule)
    assert (degradation.drop, degradation.every, degradation.rule) == (drop, every, rule)


@pytest.mark.parametrize(("took", "error"), [(-1, ValueError), (float("nan"), ValueError), ("1", TypeError)])
def test_record_error__took_that_is_no_duration__names_field_and_range(
    took: Any, error: type[Exception]
) -> None:
    with memory_store() as store, pytest.raises(error, match="took must be"):
        Degradation(BaseLimiter("10/s", store)).sync.record_error(took=took)


@pytest.mark.parametrize(
    ("rate", "text"),
    [(10, "10"), (39.30921, "39.31"), (0.000278, "0.000278"), (1000, "1000"), (123456.7, "123457")],
)
def test_rate_text__any_rate__has_as_few_digits_as_people_need(rate: float, text: str) -> None:
    assert rate_text(rate) == text


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (LimitConfig.parse("10/s"), "10/s"),
        (LimitConfig.parse("5/s burst 3"), "5/s burst 3"),
        (LimitConfig.parse("30/minute burst 5"), "30/minute burst 5"),
        (LimitConfig.parse("90/minute"), "90/minute"),
        (LimitConfig.parse("7/day"), "7/day"),
        (LimitConfig.parse("100/15m", LimitStrategy.SLIDING_WINDOW), "100/900 s"),
        (LimitConfig(1 / 7, 3), "0.1429/s burst 3"),
    ],
)
def test_limit_text__any_limit__is_as_people_write_it(config: LimitConfig, text: str) -> None:
    assert limit_text(config.build_strategy().params) == text
