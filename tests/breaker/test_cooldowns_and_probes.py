"""Cooldowns that grow, probes at once, circuits held open by an operator, and the window in ``get_state``."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable

import pytest
from tests.breaker.drivers import Driver
from tests.stores.manual_heartbeat import manual_failover, run_heartbeat
from tests.support import redis_store

from comporta import CircuitBreaker, CircuitOpenError, StateUnavailableError
from comporta.breaker.admission import BreakerWindow
from comporta.testing import ManualClock, Server

MakeDriver = Callable[..., Driver]


def _cooldowns(driver: Driver, clock: ManualClock, times: int) -> list[float]:
    """Let the circuit open and its probes fail; return the length of each cooldown."""
    lengths = []
    for _ in range(times):
        driver.fails()
        refused = driver.refused()
        assert refused is not None
        assert driver.get_state().cooldown_seconds == pytest.approx(refused.retry_after)
        lengths.append(round(refused.retry_after, 3))
        clock.advance(refused.retry_after)
    return lengths


@pytest.mark.unmeasured
@pytest.mark.parametrize(
    ("config", "lengths"),
    [
        ({}, [10, 10, 10, 10]),
        ({"cooldown_factor": 2}, [10, 20, 40, 80, 100, 100]),
        ({"cooldown_factor": 1.5, "cooldown_max_seconds": 20}, [10, 15, 20, 20]),
        ({"cooldown_factor": 100, "cooldown_max_seconds": 86_400}, [10, 1000, 86_400, 86_400]),
    ],
)
def test_cooldown__probes_keep_failing__grows_by_the_factor_up_to_the_maximum(
    make: MakeDriver, clock: ManualClock, config: dict[str, float], lengths: list[float]
) -> None:
    driver = make(threshold=1, cooldown_seconds=10, probe_seconds=5, **config)
    assert _cooldowns(driver, clock, len(lengths)) == lengths


def test_cooldown__circuit_has_closed__starts_again_from_the_first(
    make: MakeDriver, clock: ManualClock
) -> None:
    driver = make(threshold=1, cooldown_seconds=10, cooldown_factor=3)
    assert _cooldowns(driver, clock, 2) == [10, 30]
    assert driver.refused() is None
    assert driver.get_state().cooldown_seconds is None
    assert _cooldowns(driver, clock, 2) == [10, 30]


def test_cooldown__fails_in_the_ramp__grows_because_the_circuit_has_not_closed(
    make: MakeDriver, clock: ManualClock
) -> None:
    driver = make(threshold=1, cooldown_seconds=10, cooldown_factor=3, ramp_steps=1, ramp_seconds=60)
    driver.fails()
    clock.advance(10)
    assert driver.refused() is None
    assert driver.get_state().phase == "ramp"
    driver.record_failure("down", driver.allow() or None)
    assert driver.get_state().cooldown_seconds == 30


def test_cooldown__grown_on_a_server__keys_outlive_it_by_a_minute_at_most(
    valkey: Server, clock: ManualClock
) -> None:
    with redis_store(valkey, clock) as store:
        driver = Driver(
            CircuitBreaker(
                "ttl", 1, 10, cooldown_factor=100, cooldown_max_seconds=900, probe_seconds=5, state=store
            ),
            None,
        )
        assert driver.refused() is None
        _cooldowns(driver, clock, 1)
        assert 290 < valkey.command("TTL", "circuit_breaker:ttl:half_open") <= 300
        driver.fails()
        for key in ("half_open", "calls"):
            assert 950 < valkey.command("TTL", f"circuit_breaker:ttl:{key}") <= 960
        assert 890 < valkey.command("TTL", "circuit_breaker:ttl:degraded_until") <= 900
        clock.advance(900)
        assert driver.refused() is None
        assert 290 < valkey.command("TTL", "circuit_breaker:ttl:calls") <= 300


def test_cooldown__grown_before_an_outage__stays_as_long_and_grows_on(clock: ManualClock) -> None:
    store, primary = manual_failover(clock)
    driver = Driver(CircuitBreaker("pncp", 1, 10, cooldown_factor=2, state=store), None)
    assert _cooldowns(driver, clock, 2) == [10, 20]
    primary.error = StateUnavailableError("the server is gone")
    clock.advance(-5)
    assert driver.refused() is not None
    clock.advance(5)
    assert _cooldowns(driver, clock, 1) == [40]
    driver.fails()
    primary.error = None
    clock.advance(10)
    run_heartbeat(store)
    error = driver.refused()
    assert error is not None
    assert error.retry_after == pytest.approx(70)
    assert driver.get_state().cooldown_seconds == 80


def test_probes_at_once__half_open__admits_only_so_many_at_a_time(
    make: MakeDriver, clock: ManualClock
) -> None:
    driver = make(threshold=1, cooldown_seconds=10, probes=5, probes_at_once=2)
    driver.fails()
    clock.advance(10)
    running = [driver.allow(), driver.allow()]
    assert all(admission.probe for admission in running)
    for _ in range(3):
        assert not driver.allow()
        driver.record_success(running.pop(0))
        running.append(driver.allow())
        assert running[-1].probe
    for admission in running:
        driver.record_success(admission)
    assert driver.get_state().phase == "closed"


def test_forced_open__call__is_refused_with_the_reason_and_without_a_time(
    make: MakeDriver, clock: ManualClock
) -> None:
    driver = make(threshold=1, cooldown_seconds=30)
    driver.force("open", "migration until noon")
    clock.advance(7)
    error = driver.refused()
    assert error is not None
    assert str(error) == "pncp: the circuit is held open by an operator (migration until noon)"
    assert (error.forced, error.reason, error.retry_after) == (True, "migration until noon", 30)
    copied = pickle.loads(pickle.dumps(error))  # noqa: S301 - made here
    assert isinstance(copied, CircuitOpenError)
    assert (str(copied), copied.forced) == (str(error), True)
    assert "held open by an operator" in repr(driver.allow())
    driver.force("open")
    assert str(driver.refused()) == "pncp: the circuit is held open by an operator"
    driver.force(None)
    driver.fails()
    refused = driver.refused()
    assert refused is not None
    assert not refused.forced


def test_get_state__ratio_configured__has_the_calls_of_the_window(
    make: MakeDriver, clock: ManualClock
) -> None:
    driver = make(threshold=None, failure_ratio=0.9, slow_seconds=2, slow_ratio=0.9, window_seconds=60)
    assert driver.get_state().window == BreakerWindow(0, 0, 0, None)
    assert driver.get_state().window.failure_ratio == 0
    assert driver.get_state().window.slow_ratio == 0
    for _ in range(6):
        assert driver.refused() is None
    driver.fails(2)
    driver.guarded(lambda: clock.advance(3))
    window = driver.get_state().window
    assert (window.calls, window.failures, window.slow) == (9, 2, 1)
    assert window.failure_ratio == pytest.approx(2 / 9)
    plain = json.loads(json.dumps(driver.get_state().as_dict()))["window"]
    assert plain["slow_ratio"] == pytest.approx(1 / 9)
    assert plain["since"] == pytest.approx(window.since)
    clock.advance(61)
    assert driver.get_state().window.calls == 0


def test_get_state__no_ratio__has_no_window(make: MakeDriver) -> None:
    state = make().get_state()
    assert state.window is None
    assert state.as_dict()["window"] is None
