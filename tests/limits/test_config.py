"""The configuration of a limit: notations, ranges and types."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from comporta import BaseLimiter, LimitConfig, LimitStrategy
from comporta.limits.config import CAPACITY_MAX, class_headrooms
from comporta.limits.priority import Headroom
from comporta.limits.strategies.bucket import LEVEL_MAX, exact_rate


@pytest.mark.parametrize(
    ("text", "rate", "capacity", "window"),
    [
        ("10/s", 10, 10, 1),
        (" 10 / SECOND ", 10, 10, 1),
        ("100/minute", 100 / 60, 100, 60),
        ("100/minute burst 20", 100 / 60, 20, 60),
        ("100/min, burst 20", 100 / 60, 20, 60),
        ("5 per 15m", 5 / 900, 5, 900),
        ("7/1.5h", 7 / 5400, 7, 5400),
        ("3/day", 3 / 86400, 3, 86400),
        ("1/100ms", 10, 1, 0.1),
    ],
)
def test_parse__common_notations__gives_the_limit(
    text: str, rate: float, capacity: int, window: float
) -> None:
    config = LimitConfig.parse(text)
    assert config.rate == pytest.approx(rate)
    assert (config.capacity, config.window) == (capacity, window)
    assert config.strategy is LimitStrategy.TOKEN_BUCKET


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10",
        "10/",
        "/s",
        "ten/s",
        "-1/s",
        "10/fortnight",
        "1/s burst",
        "1/s x",
        "0/s",
        "1/0s",
        "1/s burst 0",
        "9" * 30 + "/s",
        "9" * 5000 + "/s",
    ],
)
def test_parse__invalid_text__is_refused_and_shown(text: str) -> None:
    with pytest.raises(ValueError, match="must") as raised:
        LimitConfig.parse(text)
    assert text[:20] in str(raised.value) or "got 0" in str(raised.value)


@pytest.mark.parametrize(
    ("lease", "seconds"),
    [(True, 0.05), ("50ms", 0.05), (" 2 S ", 2), ("0.5s", 0.5), (0.001, 0.001), (10, 10), (False, False)],
)
def test_lease__common_notations__gives_the_seconds(lease: bool | float | str, seconds: float) -> None:
    config = LimitConfig(10, 10, lease=lease)
    assert config.lease == LimitConfig.parse("10/s", lease=seconds).lease == pytest.approx(seconds)
    assert config == replace(config, rate=10)


@pytest.mark.parametrize(
    "lease", ["", "50", "ms", "50 fortnights", "-1s", 0, 0.0009, 10.1, -1, math.nan, 10**400]
)
def test_lease__invalid_text__is_refused(lease: float | str) -> None:
    with pytest.raises(ValueError, match="lease must"):
        LimitConfig(10, 10, lease=lease)


def test_lease__other_type__is_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"lease must be a bool, a number of seconds or a str, got \[1\]"):
        LimitConfig(10, 10, lease=[1])  # type: ignore[arg-type]


def test_config__with_a_lease__shows_it_as_text() -> None:
    assert str(LimitConfig(10, 10, lease=True)) == "10/s burst 10 (token_bucket, lease 0.05 s)"
    window = LimitConfig(1, 5, 60, LimitStrategy.SLIDING_WINDOW, lease="1s")
    assert str(window) == "5 in 60 s (sliding_window, lease 1 s)"


def test_lease__of_a_window__is_at_most_a_hundredth_of_it() -> None:
    window = LimitConfig(1, 5, 60, LimitStrategy.SLIDING_WINDOW, lease=10)
    assert window.lease_us == 600_000
    assert window.build_strategy().params.window_us == 60_600_000
    assert LimitConfig(1, 5, 60, lease=10).lease_us == 10_000_000
    assert replace(window, lease=False).build_strategy().params.window_us == 60_000_000


def test_coerce__neither_config_nor_text__is_a_type_error() -> None:
    with pytest.raises(TypeError, match="limit must be a LimitConfig or a str such as '10/s', got 10"):
        LimitConfig.coerce(10)  # type: ignore[arg-type]


def test_parse__burst_for_a_window__is_refused() -> None:
    with pytest.raises(ValueError, match="burst does not apply to fixed_window"):
        LimitConfig.parse("10/s burst 5", LimitStrategy.FIXED_WINDOW)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("rate", value) for value in (10**400, 0, -1, math.nan, math.inf, -math.inf, 1e10)),
        *(("capacity", value) for value in (0, -1, CAPACITY_MAX + 1, 10**400)),
        *(("window", value) for value in (0, -1, 0.0001, math.nan, math.inf, 1e9)),
    ],
)
def test_config__out_of_range__names_field_range_and_value(field: str, value: float) -> None:
    fields: dict[str, Any] = {"rate": 10.0, "capacity": 10, "window": 60, field: value}
    with pytest.raises(ValueError, match=f"^{field} must be .*, got {str(value)[:50]}"):
        LimitConfig(**fields)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rate", "10"),
        ("rate", True),
        ("capacity", 1.5),
        ("capacity", True),
        ("window", "60"),
        ("strategy", 1),
    ],
)
def test_config__wrong_type__is_a_type_error_naming_the_field(field: str, value: object) -> None:
    fields: dict[str, Any] = {"rate": 10.0, "capacity": 10, "window": 60, field: value}
    with pytest.raises(TypeError, match=f"{field} must be"):
        LimitConfig(**fields)


@pytest.mark.parametrize("strategy", [LimitStrategy.FIXED_WINDOW, LimitStrategy.SLIDING_WINDOW])
def test_config__window_strategy_without_window__is_refused(strategy: LimitStrategy) -> None:
    with pytest.raises(ValueError, match=f"window is required for {strategy.value}"):
        LimitConfig(rate=10.0, capacity=10, strategy=strategy)


def test_config__bucket_that_takes_centuries_to_refill__is_refused() -> None:
    with pytest.raises(ValueError, match="capacity must be refilled within 70 years"):
        LimitConfig(rate=1e-9, capacity=1000)


def test_coerce__config__keeps_it_or_sets_the_strategy() -> None:
    config = LimitConfig(rate=10.0, capacity=10, window=1)
    assert LimitConfig.coerce(config) is config
    assert LimitConfig.coerce(config, LimitStrategy.FIXED_WINDOW).strategy is LimitStrategy.FIXED_WINDOW


def test_config__as_text__names_limit_and_strategy() -> None:
    assert str(LimitConfig.parse("10/s")) == "10/s burst 10 (token_bucket)"
    assert str(LimitConfig.parse("9/minute", LimitStrategy.FIXED_WINDOW)) == "9 in 60 s (fixed_window)"


@given(st.floats(1e-6, 1e9), st.integers(1, CAPACITY_MAX))
def test_exact_rate__any_rate__is_never_above_and_barely_below(rate: float, capacity: int) -> None:
    try:
        per_us, unit = exact_rate(rate, capacity)
    except ValueError:
        assert capacity / rate > 60 * 365 * 86400
        return
    assert 2 * capacity * unit <= LEVEL_MAX
    found, meant = Fraction(per_us, unit) * 1_000_000, Fraction(rate)
    assert found <= meant * (1 + Fraction(1, 10**12))
    assert meant - found <= Fraction(1_000_000, unit)


@pytest.mark.parametrize(
    ("rate", "exact"),
    [
        (10, (1, 100_000)),
        (100 / 60, (1, 600_000)),
        (0.1, (1, 10_000_000)),
        (1e6, (1, 1)),
        (3, (3, 1_000_000)),
    ],
)
def test_exact_rate__common_rates__are_exact(rate: float, exact: tuple[int, int]) -> None:
    assert exact_rate(rate, 100) == exact


@pytest.mark.parametrize("cost", [0, -1])
def test_limiter__cost_below_one__is_refused(cost: int) -> None:
    limiter = BaseLimiter("10/s").sync
    for ask in (limiter.acquire, limiter.decide, limiter.release):
        with pytest.raises(ValueError, match=f"cost must be at least 1, got {cost}"):
            ask("k", cost)


@pytest.mark.parametrize("cost", [1.5, True, "1"])
def test_limiter__cost_of_wrong_type__is_a_type_error(cost: Any) -> None:
    with pytest.raises(TypeError, match="cost must be an int"):
        BaseLimiter("10/s").sync.decide("k", cost)


def test_limiter__cost_above_the_capacity__is_refused_naming_both() -> None:
    limiter = BaseLimiter("10/s").sync
    with pytest.raises(ValueError, match="cost must be at most the capacity, 10, got 11"):
        limiter.acquire("k", 11)
    limiter.set_limit("20/s")
    assert limiter.acquire("k", 11) is True


@pytest.mark.parametrize("timeout", [-1, math.nan, math.inf, 1e12])
def test_limiter__timeout_out_of_range__is_refused(timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout must be 0 to"):
        BaseLimiter("10/s").sync.acquire("k", timeout=timeout)


@pytest.mark.parametrize("timeout", ["1", True])
def test_limiter__timeout_of_wrong_type__is_a_type_error(timeout: Any) -> None:
    with pytest.raises(TypeError, match="timeout must be a number"):
        BaseLimiter("10/s").sync.acquire("k", 2, timeout=timeout)


@pytest.mark.parametrize(
    "text", ["0/s", "0/s burst 5", "1000000001/s burst 5", "1000000001/day at 00:00 UTC"]
)
def test_parse__amount_out_of_range__names_its_range_and_the_amount(text: str) -> None:
    amount = text.partition("/")[0]
    with pytest.raises(ValueError, match=f"^amount must be 1 to 1000000000, got {amount}$"):
        LimitConfig.parse(text)


def test_parse__calendar_window__has_its_mean_rate_and_the_options() -> None:
    config = LimitConfig.parse("172800/day at 00:00 UTC", shadow=True, fallback="closed", closed_after=5)
    assert (config.rate, config.capacity, config.window) == (2.0, 172_800, 86_400)
    assert (config.shadow, config.fallback, config.closed_after) == (True, "closed", 5)


def test_closed_after__out_of_range__names_its_range_in_seconds() -> None:
    for value in (-1, 86_401):
        with pytest.raises(ValueError, match=f"^closed_after must be 0 to 86400 seconds, got {value}$"):
            LimitConfig(1, 1, fallback="closed", closed_after=value)


def test_class_headrooms__odd_capacity__leaves_its_half_rounded_down() -> None:
    assert class_headrooms(LimitConfig(5, 5)) == (Headroom(0, 5), Headroom(0, 5), Headroom(2, 5))
