"""Shadow mode: limits and breakers decide and count, and refuse nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.limits.faces import Bench

from comporta import (
    BaseLimiter,
    BreakerConfig,
    CircuitBreaker,
    CircuitOpenError,
    Decision,
    LimitConfig,
    LimitGroup,
    LimitStrategy,
    Upstream,
    Upstreams,
)
from comporta.fleet.reader import summary_flow
from comporta.flow import run
from comporta.integrations.inbound_limit import InboundLimit
from comporta.limits.fast_decision import fast_decider
from comporta.metrics import InMemoryMetrics
from comporta.settings import load_settings
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock


def _shadow(strategy: LimitStrategy = LimitStrategy.TOKEN_BUCKET, lease: bool = False) -> LimitConfig:
    return LimitConfig(1, 2, 60, strategy, lease=lease, shadow=True)


@pytest.mark.parametrize("lease", [False, True])
@pytest.mark.parametrize("strategy", LimitStrategy)
def test_limiter__shadow__grants_everything_and_counts_refusals(
    bench: Bench, metrics: InMemoryMetrics, strategy: LimitStrategy, lease: bool
) -> None:
    limiter = bench.limiter(_shadow(strategy, lease))
    assert all(limiter.acquire("k", cost=2, timeout=timeout) for timeout in (0, 5, None))
    assert all(limiter.acquire("k") for _ in range(2))
    assert bench.clock.now_ns() == 1_800_000_000 * 10**9
    assert metrics.value("would_refuse", policy="limit", name="pncp", upstream="") == 4


def test_limiter__shadow__decides_and_says_what_it_would_have_done(
    bench: Bench, metrics: InMemoryMetrics
) -> None:
    limiter = bench.limiter(_shadow())
    first, _, third = (limiter.decide("k") for _ in range(3))
    assert (first.would_refuse, third.would_refuse, third.allowed, third.retry_after) == (
        False,
        True,
        True,
        0,
    )
    assert limiter.peek("k").would_refuse
    assert limiter.acquire_up_to("k", 3) == 3
    assert limiter.acquire_up_to("other", 2) == 2
    assert metrics.value("would_refuse") == 2
    limiter.pause(5)
    assert limiter.acquire("fresh")
    assert metrics.value("would_refuse") == 3
    assert str(limiter.target.config) == "1/s burst 2 (token_bucket, shadow)"


def test_limiter__shadow_with_limit_for__is_in_shadow_for_every_key(metrics: InMemoryMetrics) -> None:
    limiter = BaseLimiter(LimitConfig(1, 1, shadow=True), name="api", limit_for={"k": "2/s"}).sync
    assert all(limiter.acquire(key) for key in ("k", "k", "k", "other", "other"))
    assert metrics.value("would_refuse") == 2


def test_group__limiter_in_shadow_mode__counts_and_leaves_the_decision_to_the_others(
    bench: Bench, metrics: InMemoryMetrics
) -> None:
    limits = {"trial": LimitConfig(1, 1, shadow=True), "in_force": LimitConfig(1, 3)}
    group = LimitGroup(limit=limits, state=bench.store, name="group").sync
    assert group.acquire("k")
    assert group.decide("k") == Decision(True, 3, 1, 0.0, 2.0, 0.0, would_refuse=True)
    assert group.acquire("k")
    assert not group.acquire("k")
    assert not group.decide("k").would_refuse
    assert metrics.value("would_refuse", name="group.trial") == 2


def test_fast_decider__shadow__leaves_it_to_the_flow() -> None:
    limiter = BaseLimiter(LimitConfig(1, 1, shadow=True))
    assert fast_decider(limiter) is None
    assert limiter._flows.bound.remote is None
    assert limiter._flows.bound.algorithm is limiter._flows.bound.cached_algorithm


@pytest.mark.parametrize("make", [lambda: LimitConfig(1, 1, shadow=1), lambda: BreakerConfig(shadow="no")])  # type: ignore[arg-type]
def test_config__shadow_that_is_no_boolean__is_refused(make: Any) -> None:
    with pytest.raises(TypeError, match="shadow must be a bool, got"):
        make()


def test_inbound__shadow__passes_requests_without_headers(metrics: InMemoryMetrics) -> None:
    limiter = BaseLimiter(LimitConfig(1, 1, shadow=True), name="inbound")
    inbound = InboundLimit(limiter, key=lambda _: "k", trusted_proxies=(), cost=1, name=None, on_error="open")
    decisions = [inbound.admit_sync({}), asyncio.run(inbound.admit({})), inbound.admit_sync({})]
    assert [(decision.headers, decision.problem) for decision in decisions] == [([], None)] * 3
    assert metrics.value("would_refuse", name="inbound") == 2


def _fail() -> None:
    raise ConnectionError("down")


def test_breaker__shadow__opens_and_closes_and_refuses_nothing(
    bench: Bench, metrics: InMemoryMetrics
) -> None:
    breaker = CircuitBreaker(
        "pncp", config=BreakerConfig(threshold=2, cooldown_seconds=10, shadow=True), state=bench.store
    )
    call: Callable[[], str] = breaker(lambda: "answer")
    fail: Callable[[], None] = breaker(_fail)
    for _ in range(4):
        with pytest.raises(ConnectionError):
            fail()
    state = breaker.sync.get_state()
    assert (state.phase, state.degraded) == ("open", True)
    assert [call() for _ in range(3)] == ["answer"] * 3
    assert metrics.value("would_refuse", policy="breaker", name="pncp") == 5
    assert breaker.sync.get_state().phase == "open"
    bench.clock.advance(11)
    assert call() == "answer"
    assert breaker.sync.get_state().phase == "closed"
    breaker.sync.force("open", "maintenance")
    bench.clock.advance(1)
    with pytest.raises(CircuitOpenError, match="held open by an operator"):
        call()


@pytest.mark.parametrize("max_concurrent", [None, 5])
def test_upstream__shadow__calls_pass_and_are_counted_for_it(
    bench: Bench, metrics: InMemoryMetrics, max_concurrent: int | None
) -> None:
    upstream = Upstream(
        "pncp",
        _shadow(),
        breaker=BreakerConfig(threshold=1, shadow=True),
        retry=False,
        max_concurrent=max_concurrent,
        state=bench.store,
    )
    assert [upstream.sync.call(str, 1) for _ in range(4)] == ["1"] * 4
    assert metrics.value("would_refuse", policy="limit", upstream="pncp") == 2
    with pytest.raises(ConnectionError):
        upstream.sync.call(_fail)
    assert upstream.sync.call(str, 2) == "2"
    assert metrics.value("would_refuse", policy="breaker", upstream="pncp") == 1
    summary = run(summary_flow(upstream))
    assert summary["shadow"] == ["limit", "breaker"]
    assert summary["in_words"].endswith(" In shadow mode, refusing nothing: limit and breaker.")


def test_upstream__breaker_in_shadow_mode_and_a_wait__counts_the_call_once(
    bench: Bench, metrics: InMemoryMetrics
) -> None:
    upstream = Upstream(
        "pncp",
        "1/s",
        breaker=BreakerConfig(threshold=1, cooldown_seconds=100, shadow=True),
        retry=False,
        max_wait=10,
        state=bench.store,
    )
    with pytest.raises(ConnectionError):
        upstream.sync.call(_fail)
    assert [upstream.sync.call(str, number) for number in range(3)] == ["0", "1", "2"]  # each waits for 1 s
    assert metrics.value("would_refuse", policy="breaker", upstream="pncp") == 3


def test_upstreams__shadow_in_a_settings_file__is_in_force(tmp_path: Path) -> None:
    path = tmp_path / "comporta.toml"
    path.write_text(
        'state = "memory://"\n[upstreams.u]\nlimit = {limit = "1/minute", shadow = true}\n'
        "breaker = {shadow = true}\n"
    )
    upstream = Upstreams(load_settings(path))["u"]
    assert upstream.limiter.config.shadow
    assert upstream.breaker is not None
    assert upstream.breaker.config.shadow
    assert [upstream.sync.call(str, 1) for _ in range(3)] == ["1"] * 3


def test_memory__shadow_bound_limit__reads_the_algorithm_without_blocking() -> None:
    limiter = BaseLimiter(_shadow(), MemoryStore(ManualClock()), "n")
    assert asyncio.run(limiter._flows.bound.algorithm_async()) is limiter._flows.current_strategy()
