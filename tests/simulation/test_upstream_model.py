"""The model of an upstream, and the record of what happens to its calls."""

from __future__ import annotations

from random import Random

import pytest

from comporta.limits.config import LimitConfig, LimitStrategy
from comporta.simulation.playback_record import SLOTS_MAX, TokenMeter, UpstreamRecord, WaitTimes
from comporta.simulation.upstream_model import ModelOptions, UpstreamModel


class Caller:
    """Calls a model one after another; sleeping adds up instead of passing time."""

    def __init__(self, options: ModelOptions) -> None:
        self.slept = 0.0
        self.now = 0.0
        self.model = UpstreamModel(options, Random(1), lambda: self.now, self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.slept = seconds

    def call(self, timeout: float | None = None) -> tuple[int, float]:
        return self.model.call(timeout).status_code, round(self.slept, 6)


def test_model__below_its_capacity__takes_its_latency() -> None:
    caller = Caller(ModelOptions(capacity=10, latency=0.3))
    assert [caller.call() for _ in range(3)] == [(200, 0.3)] * 3


def test_model__above_its_capacity__queues_then_refuses() -> None:
    caller = Caller(ModelOptions(capacity=10, latency=0.1, queue=0.2))
    assert [caller.call() for _ in range(4)] == [(200, 0.1), (200, 0.2), (200, 0.3), (503, 0.01)]
    caller.now = 0.3
    assert caller.call() == (200, 0.1)


def test_model__caller_gives_up__is_busy_with_its_call_all_the_same() -> None:
    caller = Caller(ModelOptions(capacity=1, latency=1))
    with pytest.raises(TimeoutError, match="timed out"):
        caller.call(timeout=0.5)
    assert caller.slept == 0.5
    assert caller.call() == (200, 2.0)


def test_model__unlimited_capacity__never_queues() -> None:
    caller = Caller(ModelOptions(latency=0.1))
    assert [caller.call(timeout=5) for _ in range(100)] == [(200, 0.1)] * 100


def test_model__errors__are_a_share_of_the_calls() -> None:
    caller = Caller(ModelOptions(errors=0.5))
    statuses = [caller.call()[0] for _ in range(400)]
    assert set(statuses) == {200, 500}
    assert 150 < statuses.count(500) < 250


def test_model__faults__act_while_they_last() -> None:
    caller = Caller(ModelOptions(latency=0.1))
    fault = caller.model.fault
    fault.extra_seconds = 2.0
    assert caller.call() == (200, 2.1)
    fault.refusing, fault.pause_seconds = 1, 7.0
    assert caller.model.call(None) == (429, {"retry-after": "7"})
    fault.down = 1
    with pytest.raises(ConnectionRefusedError):
        caller.call()


@pytest.mark.parametrize(
    ("config", "fits"),
    [
        (LimitConfig(2, 3), 3),
        (LimitConfig(1, 4, window=2.0, strategy=LimitStrategy.SLIDING_WINDOW), 4),
        (LimitConfig(1, 4, window=2.0, strategy=LimitStrategy.FIXED_WINDOW), 8),
    ],
)
def test_meter__capacity_and_rate__are_all_that_fits(config: LimitConfig, fits: int) -> None:
    meter = TokenMeter(config)
    assert [meter.exceeds(0.0) for _ in range(fits + 1)] == [False] * fits + [True]
    assert [meter.exceeds(1.0) for _ in range(3)] == [False, False, True]


def test_waits__quantiles__are_within_five_percent() -> None:
    waits = WaitTimes()
    assert waits.quantile(0.5) == 0.0
    for hundredth in range(1, 101):
        waits.add(hundredth / 100)
    waits.add(0.0)
    assert waits.quantile(0.5) == pytest.approx(0.5, rel=0.06)
    assert waits.quantile(0.95) == pytest.approx(0.95, rel=0.06)
    assert (waits.quantile(1), waits.quantile(0), waits.longest) == (1.0, 0.0, 1.0)
    assert waits.quantile(2) == 1.0


def test_record__long_playback__has_a_bounded_number_of_slots() -> None:
    record = UpstreamRecord("x", [LimitConfig(5, 5)], 86_400)
    assert len(record.demand) <= SLOTS_MAX + 1
    record.add_call(86_400)
    record.add_attempt(86_400, waited=0.5)
    record.add_attempt(86_400, waited=None)
    record.add_outcome(86_400, "ok")
    record.add_sample(86_400, "open", is_fallback=True)
    summary = record.summary()
    assert (summary["calls"], summary["attempts"], summary["retries"], summary["ok"]) == (1, 2, 1, 1)
    assert summary["open_seconds"] == summary["fallback_seconds"] == pytest.approx(288)
