"""A strategy that a program registers works on every store, in scripts, during an outage and in settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from tests.limits.custom_strategy import GcraStrategy
from tests.limits.faces import Bench
from tests.stores.manual_heartbeat import manual_failover, run_heartbeat
from tests.support import max_examples, redis_store

from comporta import BaseLimiter, LimitConfig, LimitGroup, LimitStrategy, RateLimitManager
from comporta.clock import MONOTONIC
from comporta.errors import StateUnavailableError
from comporta.limits.acquire import AcquireOperation, LimitDefinition
from comporta.limits.budgets.operation import SettleOperation
from comporta.limits.charge import ChargeOperation
from comporta.limits.leases.operation import LeaseOperation, LeaseSource
from comporta.limits.manager import limit_configs_from_settings
from comporta.limits.operation import LimitDemand, LimitOperation
from comporta.limits.overrides.record import ExpiringStrategy
from comporta.limits.scripts import settle_script
from comporta.limits.strategies.base import EndedLease
from comporta.limits.strategies.fixed_window import FixedWindowStrategy
from comporta.limits.strategies.outage_share import fallback_strategy
from comporta.limits.strategies.registry import register_strategy, strategy_names, strategy_type
from comporta.settings import LimitSettings
from comporta.stores.memory import MemoryStore
from comporta.stores.outage_info import Outage
from comporta.stores.records import DeleteRecord
from comporta.testing import ManualClock, Server


def test_limiter__registered_strategy__keeps_the_limit_on_every_store(bench: Bench) -> None:
    limiter = bench.limiter(LimitConfig(10, 5, strategy="gcra"))
    assert [limiter.acquire("k") for _ in range(7)] == [True] * 5 + [False] * 2
    assert limiter.decide("k").retry_after == pytest.approx(0.1)
    bench.clock.advance(0.1)
    assert limiter.acquire("k")
    assert not limiter.acquire("k")
    limiter.release("k")
    assert limiter.peek("k").remaining == 1
    limiter.reset("k")
    assert limiter.stats("k").tokens_available == 5


def test_limiter__registered_strategy_without_a_pace__refuses_no_waiter_early(bench: Bench) -> None:
    limiter = BaseLimiter(LimitConfig(10, 5, strategy="gcra"), bench.store, "paceless")
    pace = limiter._flows.pace_after(1, now_us=1000, wait_us=500)
    assert [pace(units) for units in (1, 100)] == [1500, 1500]


def test_limiter__registered_strategy_overridden__obeys_pause_degradation_and_operator(bench: Bench) -> None:
    limiter = bench.limiter(LimitConfig(10, 10, strategy="gcra"))
    degradation = bench.degradation(limiter, drop=0.5)
    degradation.record_error()
    assert limiter.stats().limit == 5
    limiter.pause(1)
    assert not limiter.acquire()
    limiter.resume()
    limiter.set_limit(LimitConfig(2, 2, strategy="gcra"))
    assert sum(limiter.acquire() for _ in range(5)) == 2


def test_limiter__registered_strategy_with_a_lease__grants_unit_by_unit(bench: Bench) -> None:
    limiter = bench.limiter(LimitConfig(10, 5, strategy="gcra", lease=True))
    assert sum(limiter.acquire("k") for _ in range(7)) == 5


def test_group__registered_and_built_in_strategy__charges_both_or_none(bench: Bench) -> None:
    first = bench.limiter(LimitConfig(10, 3, strategy="gcra"), "group.first").target
    second = bench.limiter(LimitConfig(10, 2), "group.second").target
    group = LimitGroup(first, second).sync
    assert [group.acquire([None, "k"]) for _ in range(3)] == [True, True, False]
    assert first.sync.peek().remaining == 1


def test_failover__registered_strategy__divides_the_limit_and_reports_after_the_outage() -> None:
    clock = ManualClock()
    store, primary = manual_failover(clock)
    limiter = BaseLimiter(LimitConfig(10, 5, strategy="gcra"), store, "n").sync
    assert limiter.acquire("k")
    primary.error = StateUnavailableError("gone")
    assert not limiter.acquire("k")
    clock.advance(10)
    assert sum(limiter.acquire("k") for _ in range(7)) == 5
    primary.error = None
    while store.fallback is not None:
        run_heartbeat(store)
    assert limiter.peek("k").remaining < 5
    store.close()


LIMITS = st.builds(
    LimitConfig,
    rate=st.sampled_from([10.0, 1.0, 0.1, 100 / 60, 3.0, 1e6, 30 / 7]),
    capacity=st.integers(1, 20),
    strategy=st.just("gcra"),
    lease=st.sampled_from([False, 0.05]),
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["limit", "charge", "acquire", "lease", "settle"]),
        st.integers(0, 5_000_000),
        st.integers(-3, 20),
    ),
    min_size=1,
    max_size=30,
)


def _operation(what: str, limit: LimitConfig, amount: int) -> Any:
    strategy = limit.build_strategy()
    definition, cost = LimitDefinition(strategy, "n"), max(1, min(amount, limit.capacity))
    if what == "acquire":
        return AcquireOperation(definition, "k", cost)
    if what == "lease":
        return LeaseOperation(LeaseSource(strategy, definition, 25_000), "k", cost, 5, EndedLease(0, 1, 1))
    if what == "charge":
        return ChargeOperation(strategy, "n", "k", cost)
    if what == "settle":
        script, demand = settle_script(strategy.name, "n", tuple(strategy.params)), amount or 1
        return SettleOperation(script, LimitDemand(strategy, "n", "k", demand), None, MONOTONIC)
    return LimitOperation([LimitDemand(strategy, "n", "k", min(amount, limit.capacity))])


@settings(
    max_examples=max_examples(100),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(limit=LIMITS, steps=STEPS)
def test_lua__registered_strategy__replies_as_python_does(
    server: Server, limit: LimitConfig, steps: list[tuple[str, int, int]]
) -> None:
    clock = ManualClock(1_800_000_000)
    local, strategy = MemoryStore(clock), limit.build_strategy()
    with redis_store(server, clock) as remote:
        for what, pause_us, amount in steps:
            clock.advance(pause_us / 1e6)
            state = local._space("rate_limiter:n", strategy).table.get("k")
            if state is not None and strategy.expires_us(state) <= clock.now_ns() // 1000:
                remote.apply(DeleteRecord("rate_limiter:n", "k"))  # a credit asks whether there is a state
            operation = _operation(what, limit, amount)
            assert remote.apply(operation) == local.apply(operation)


def test_manager__settings_file_names_a_registered_strategy__uses_it(tmp_path: Path) -> None:
    path = tmp_path / "comporta.toml"
    path.write_text('state = "memory://"\n[limits.api]\nrate = 10\ncapacity = 5\nstrategy = "gcra"\n')
    limiter = RateLimitManager.from_file(path).limiters["api"]
    assert isinstance(limiter, BaseLimiter)
    assert limiter.strategy == "gcra"
    assert [limiter.sync.acquire() for _ in range(6)] == [True] * 5 + [False]


def test_settings__registered_strategy__is_the_strategy_of_the_limit() -> None:
    [config] = limit_configs_from_settings(LimitSettings(rate=10, capacity=5, strategy="gcra"))
    assert config == LimitConfig(10, 5, strategy="gcra")
    assert isinstance(config.build_strategy(), GcraStrategy)
    [text] = limit_configs_from_settings(LimitSettings(limit="10/s", strategy="gcra"))
    assert text.strategy == "gcra"


def test_settings__bucket_with_a_window_and_no_rate__is_refused() -> None:
    with pytest.raises(ValueError, match="rate is required for gcra, got None"):
        limit_configs_from_settings(LimitSettings(capacity=5, window=1, strategy="gcra"))


def test_config__name_of_a_built_in_strategy__is_the_member_of_limit_strategy() -> None:
    assert LimitConfig(1, 1, strategy="token_bucket") == LimitConfig(1, 1)
    assert LimitConfig.parse("5/s", "fixed_window").strategy is LimitStrategy.FIXED_WINDOW
    assert [strategy.value for strategy in LimitStrategy] == list(strategy_names()[:4])


def test_config__registered_strategy__has_its_name_in_text_and_default_name() -> None:
    config = LimitConfig(10, 5, strategy="gcra")
    assert str(config) == "10/s burst 5 (gcra)"
    assert BaseLimiter(config).name == "gcra-10-5"


@pytest.mark.parametrize("name", ["no_such_strategy", ""])
def test_config__unknown_strategy__names_the_registered_ones(name: str) -> None:
    with pytest.raises(ValueError, match=r"strategy must be one of token_bucket, .*gcra.*, got .*register"):
        LimitConfig(1, 1, strategy=name)


def test_register_strategy__same_class_again__has_no_effect() -> None:
    register_strategy(GcraStrategy)
    assert strategy_type("gcra") is GcraStrategy


@pytest.mark.parametrize("name", ["Gcra", "g-cra", "", "1st", "x" * 51])
def test_register_strategy__name_that_lua_cannot_use__is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name of a strategy must be 1 to 50 of a-z 0-9 _"):
        register_strategy(type("Other", (GcraStrategy,), {"name": name, "__slots__": ()}))


def test_register_strategy__name_of_another_strategy__is_refused() -> None:
    with pytest.raises(ValueError, match="must be unique, got 'fixed_window': FixedWindowStrategy has it"):
        register_strategy(type("Other", (FixedWindowStrategy,), {"__slots__": ()}))


def test_fallback_strategy__strategy_without_a_share__raises_instead_of_guessing() -> None:
    outage = Outage(0.0, 0, "gone", 2)
    share = fallback_strategy(LimitConfig(10, 5, strategy="gcra").build_strategy(), "n", "share", outage)
    with pytest.raises(TypeError, match="strategy must be a RegisteredStrategy"):
        fallback_strategy(share, "n", "share", outage)


def test_expiring_strategy__of_a_registered_strategy__leases_nothing() -> None:
    strategy = LimitConfig(10, 5, strategy="gcra").build_strategy()
    paused = strategy.with_override(b"5 1 100000 0 [paused until 10 for 10; not set by hand]")
    assert isinstance(paused, ExpiringStrategy)
    assert paused.lease_size_max(1) == 1
    assert paused.name == "gcra"


def test_used_units__fixed_window__counts_the_current_window() -> None:
    strategy = LimitConfig(1, 5, 60, LimitStrategy.FIXED_WINDOW).build_strategy()
    state, _ = strategy.step(None, 0, 3)
    assert state is not None
    assert strategy.used_units(state, 1) == 3
    assert strategy.used_units(state, 60_000_000) == 0
