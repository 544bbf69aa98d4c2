"""Options of breakers, their settings in the environment, and older class names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.breaker.drivers import Driver
from tests.processes.fleet import new_state_name, remove_shared_state

from comporta import BreakerConfig, CircuitBreaker, get_circuit_breaker
from comporta.breaker import registry
from comporta.breaker.admission import error_summary
from comporta.breaker.registry import forget_circuit_breakers
from comporta.breaker.state import CircuitRules
from comporta.compat.breakers import PNCPCircuitBreaker, RedisCircuitBreaker
from comporta.ramp import FULL_SHARE, ramp_share
from comporta.stores.failover.store import FailoverStore
from comporta.stores.memory import MemoryStore
from comporta.stores.registry import close_stores, open_store
from comporta.testing import Server

BAD: list[tuple[dict[str, Any], str]] = [
    ({"threshold": 0}, "threshold must be 1 to 1000000, got 0"),
    ({"threshold": -3}, "threshold must be 1 to 1000000, got -3"),
    ({"threshold": 10**7}, "threshold must be 1 to 1000000, got 10000000"),
    ({"threshold": None}, "threshold must be at least 1 unless a ratio is given, got None"),
    ({"cooldown_seconds": -1}, "cooldown_seconds must be 0.001 to 86400, got -1"),
    ({"cooldown_seconds": 0}, "cooldown_seconds must be 0.001 to 86400, got 0"),
    ({"cooldown_seconds": float("nan")}, "cooldown_seconds must be 0.001 to 86400, got nan"),
    ({"cooldown_seconds": 90_000}, "cooldown_seconds must be 0.001 to 86400, got 90000"),
    ({"cooldown_factor": 0.5}, "cooldown_factor must be 1 to 100, got 0.5"),
    ({"cooldown_max_seconds": 29}, "cooldown_max_seconds must be 30 to 86400, got 29"),
    ({"local_threshold": 0}, "local_threshold must be 1 to 1000000, got 0"),
    ({"probes": 3, "probes_at_once": 4}, "probes_at_once must be 1 to 3, got 4"),
    ({"failure_ratio": 0}, "failure_ratio must be 1e-06 to 1, got 0"),
    ({"failure_ratio": 1.1}, "failure_ratio must be 1e-06 to 1, got 1.1"),
    ({"slow_ratio": 0.5}, "slow_seconds and slow_ratio must be given together, got None and 0.5"),
    ({"slow_seconds": -1, "slow_ratio": 1}, "slow_seconds must be 1e-06 to 86400, got -1"),
    ({"minimum_calls": 0}, "minimum_calls must be 1 to 1000000, got 0"),
    ({"quorum": 17}, "quorum must be 1 to 16, got 17"),
    ({"probes": 0}, "probes must be 1 to 16, got 0"),
    ({"probe_seconds": 0}, "probe_seconds must be 0.001 to 86400, got 0"),
    ({"ramp_steps": -1}, "ramp_steps must be 0 to 100, got -1"),
    ({"staleness": 0}, "staleness must be 0.001 to 60, got 0"),
]


@pytest.mark.parametrize(("given", "message"), BAD, ids=lambda value: str(value)[:40])
def test_config__out_of_range__raises_naming_field_range_and_value(
    given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        BreakerConfig(**given)
    with pytest.raises(ValueError, match=f"^{message}$"):
        CircuitBreaker("n", state="memory://", **given)


RANGES: list[tuple[str, float, float]] = [
    ("threshold", 1, 1_000_000),
    ("cooldown_seconds", 0.001, 86_400.0),
    ("window_seconds", 0.001, 86_400.0),
    ("probe_seconds", 0.001, 86_400.0),
    ("ramp_seconds", 0.001, 86_400.0),
    ("failure_ratio", 0.000001, 1.0),
    ("slow_ratio", 0.000001, 1.0),
    ("slow_seconds", 0.000001, 86_400.0),
    ("minimum_calls", 1, 1_000_000),
    ("quorum", 1, 16),
    ("local_threshold", 1, 1_000_000),
    ("probes", 1, 16),
    ("probes_at_once", 1, 5),
    ("ramp_steps", 0, 100),
    ("staleness", 0.001, 60.0),
    ("cooldown_factor", 1.0, 100.0),
    ("cooldown_max_seconds", 30.0, 86_400.0),
]


@pytest.mark.parametrize(("field", "lowest", "highest"), RANGES)
def test_config__bounds_of_a_field__are_allowed_and_named(field: str, lowest: float, highest: float) -> None:
    others: dict[str, Any] = {"probes": 5} if field == "probes_at_once" else {}
    if field.startswith("slow"):
        others = {"slow_seconds": 1.0, "slow_ratio": 0.5}
    for allowed in (lowest, highest):
        assert getattr(BreakerConfig(**{**others, field: allowed}), field) == allowed
    step = 1 if isinstance(lowest, int) else lowest / 2
    for value in (lowest - step, highest + step):
        message = f"{field} must be {lowest:g} to {highest:g}, got {value}"
        if isinstance(lowest, int):
            message = f"{field} must be {lowest} to {highest}, got {value}"
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            BreakerConfig(**{**others, field: value})


def test_config__shadow_of_another_type__is_named_with_its_value() -> None:
    with pytest.raises(TypeError, match=r"^shadow must be a bool, got 1$"):
        BreakerConfig(shadow=1)  # type: ignore[arg-type]


def test_rules__of_a_config__are_its_options_in_whole_numbers() -> None:
    config = BreakerConfig(
        threshold=None,
        cooldown_seconds=20.5,
        failure_ratio=0.25,
        slow_ratio=0.5,
        slow_seconds=2.0,
        window_seconds=10.0,
        minimum_calls=7,
        quorum=2,
        probes=3,
        probe_seconds=4.0,
        ramp_steps=6,
        ramp_seconds=8.0,
    )
    assert config._rules == CircuitRules(
        threshold=0,
        cooldown_us=20_500_000,
        cooldown_permille=1000,
        cooldown_max_us=20_500_000,
        failure_ppm=250_000,
        slow_ppm=500_000,
        window_us=10_000_000,
        minimum_calls=7,
        quorum=2,
        probes=3,
        probes_at_once=3,
        probe_us=4_000_000,
        ramp_steps=6,
        ramp_step_us=8_000_000,
    )
    plain = BreakerConfig()._rules
    assert (plain.failure_ppm, plain.slow_ppm) == (0, 0)


@pytest.mark.parametrize(
    ("given", "longest_us"),
    [
        ({}, 20_000_000),
        ({"cooldown_max_seconds": 50.0}, 20_000_000),
        ({"cooldown_factor": 2.0}, 200_000_000),
        ({"cooldown_factor": 2.0, "cooldown_max_seconds": 50.0}, 50_000_000),
        ({"cooldown_factor": 2.0, "cooldown_seconds": 10_000.0}, 86_400_000_000),
    ],
)
def test_rules__cooldown_that_grows__ends_at_ten_times_its_length_or_the_maximum(
    given: dict[str, float], longest_us: int
) -> None:
    rules = BreakerConfig(**{"cooldown_seconds": 20.0, **given})._rules  # type: ignore[arg-type]
    assert rules.cooldown_max_us == longest_us
    assert rules.cooldown_permille == 1000 * given.get("cooldown_factor", 1.0)


def test_config__as_text__shows_what_is_not_the_default() -> None:
    assert str(BreakerConfig()) == "threshold=5, cooldown_seconds=30.0"
    assert str(BreakerConfig(probes=2)) == "threshold=5, cooldown_seconds=30.0, probes=2"


@pytest.mark.parametrize("given", [{"threshold": True}, {"threshold": 1.5}, {"cooldown_seconds": "30"}])
def test_config__wrong_type__raises_naming_the_field(given: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"{next(iter(given))} must be a"):
        BreakerConfig(**given)


def test_config__passed_as_object__is_used_and_excludes_other_options() -> None:
    config = BreakerConfig(7, 8.0, probes=2)
    breaker = CircuitBreaker("n", config=config, state="memory://")
    assert (breaker.threshold, breaker.cooldown_seconds) == (7, 8.0)
    assert str(config) == "threshold=7, cooldown_seconds=8.0, probes=2"
    growing = BreakerConfig(cooldown_factor=2, cooldown_max_seconds=600, local_threshold=3)
    assert str(growing) == (
        "threshold=5, cooldown_seconds=30.0, cooldown_factor=2, cooldown_max_seconds=600, local_threshold=3"
    )
    with pytest.raises(
        TypeError, match="config already has all options: pass either config or probes, not both"
    ):
        CircuitBreaker("n", config=config, state="memory://", probes=2)
    with pytest.raises(
        TypeError,
        match="config already has all options: pass either config or threshold and cooldown_seconds",
    ):
        CircuitBreaker("n", 9, config=config, state="memory://")


def test_breaker__arguments__are_attributes() -> None:
    breaker = CircuitBreaker("n", counts_error=bool, counts_result=callable, state="memory://")
    assert (breaker.name, breaker.counts_error, breaker.counts_result) == ("n", bool, callable)
    assert breaker.config == BreakerConfig()


@pytest.mark.parametrize(
    ("field", "value"),
    [("name", None), ("state", 3), ("config", {}), ("counts_error", OSError("no")), ("counts_result", 500)],
)
def test_breaker__argument_of_the_wrong_type__raises_naming_it(field: str, value: Any) -> None:
    given: dict[str, Any] = {"name": "n", "state": "memory://wrong-types", field: value}
    with pytest.raises(TypeError, match=f"^{field} must be .*, got {re.escape(repr(value))}"):
        CircuitBreaker(**given)


def test_state__unknown_scheme__raises() -> None:
    with pytest.raises(ValueError, match="ftp"):
        CircuitBreaker("n", state="ftp://x")


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    for variable in ("COMPORTA_STATE", "REDIS_URL", "USE_REDIS_CIRCUIT_BREAKER"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("COMPORTA_STATE", "memory://by-name")
    forget_circuit_breakers()
    yield monkeypatch
    forget_circuit_breakers()
    close_stores()


def test_by_name__pncp_and_pcp__have_their_own_defaults(environment: pytest.MonkeyPatch) -> None:
    pncp, pcp, other = get_circuit_breaker(), get_circuit_breaker("pcp"), get_circuit_breaker("x.y")
    assert (pncp.name, pncp.threshold, pncp.cooldown_seconds) == ("pncp", 50, 120)
    assert (pcp.threshold, pcp.cooldown_seconds) == (30, 120)
    assert (other.threshold, other.cooldown_seconds) == (5, 30)
    assert get_circuit_breaker("pncp") is pncp


def test_by_name__environment_variables__override_the_defaults(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("X_Y_Z_CIRCUIT_BREAKER_THRESHOLD", "3")
    environment.setenv("X_Y_Z_CIRCUIT_BREAKER_COOLDOWN", "1.5")
    breaker = get_circuit_breaker("x-y.z")
    assert (breaker.threshold, breaker.cooldown_seconds) == (3, 1.5)


def test_by_name__settings_file__configures_breaker_and_state(
    environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "f.toml").write_text('state = "memory://in-file"\n[breakers.pcp]\nthreshold = 7\n')
    environment.setenv("COMPORTA_CONFIG", str(tmp_path / "f.toml"))
    environment.delenv("COMPORTA_STATE")
    environment.setenv("REDIS_URL", "redis://localhost:1")
    breaker = get_circuit_breaker("pcp")
    assert breaker.threshold == 7
    assert breaker.store is open_store("memory://in-file")


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("THRESHOLD", "0", "THRESHOLD: threshold must be at least 1, got 0"),
        ("THRESHOLD", "many", "THRESHOLD: threshold must be a whole number or false, got 'many'"),
        ("COOLDOWN", "-1", "COOLDOWN: cooldown_seconds must be above 0 seconds, got -1"),
        ("COOLDOWN", "soon", "COOLDOWN: cooldown_seconds must be a number of seconds, got 'soon'"),
        ("COOLDOWN", "100000", "COOLDOWN: cooldown_seconds must be 0.001 to 86400, got 100000"),
    ],
)
def test_by_name__bad_value__raises_naming_the_variable(
    environment: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    environment.setenv(f"PNCP_CIRCUIT_BREAKER_{variable}", value)
    with pytest.raises(ValueError, match=f"^PNCP_CIRCUIT_BREAKER_{message}$"):
        get_circuit_breaker()


@pytest.mark.parametrize("value", ["false", "0", "No", "OFF"])
def test_by_name__sharing_disabled__uses_this_process_only(
    environment: pytest.MonkeyPatch, value: str
) -> None:
    environment.setenv("USE_REDIS_CIRCUIT_BREAKER", value)
    environment.setenv("COMPORTA_STATE", "redis://nowhere.invalid")
    breaker = get_circuit_breaker()
    assert isinstance(breaker.store, MemoryStore)
    Driver(breaker, None).fails(50)
    assert breaker.is_degraded is True


def test_by_name__sharing_variable_invalid__raises(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("USE_REDIS_CIRCUIT_BREAKER", "maybe")
    with pytest.raises(ValueError, match=r"USE_REDIS_CIRCUIT_BREAKER must be one of true, .*'maybe'"):
        get_circuit_breaker()


def test_by_name__redis_url__is_shared_through_it(environment: pytest.MonkeyPatch, valkey: Server) -> None:
    environment.delenv("COMPORTA_STATE")
    environment.setenv("REDIS_URL", f"{valkey.url}?timeout=5")
    environment.setenv("USE_REDIS_CIRCUIT_BREAKER", "true")
    breaker = get_circuit_breaker("shared-one")
    assert isinstance(breaker.store, FailoverStore)
    for _ in range(50):
        breaker.sync.record_failure()
    other = RedisCircuitBreaker("shared-one", 50, 120, f"{valkey.url}?timeout=5.0")
    assert other.is_degraded is True


def test_by_name__no_configuration__shares_on_this_machine(environment: pytest.MonkeyPatch) -> None:
    environment.delenv("COMPORTA_STATE")
    name = new_state_name()
    environment.setenv("COMPORTA_APP", name)
    try:
        breaker = get_circuit_breaker("of-this-machine")
        assert isinstance(breaker.store, FailoverStore)
        assert breaker.store.address == f"shared://{name}"
        assert breaker.store.decides_in_process
    finally:
        close_stores()
        remove_shared_state(name)


def test_by_name__too_many__raises(environment: pytest.MonkeyPatch) -> None:
    environment.setattr(registry, "BREAKERS_MAX", 1)
    get_circuit_breaker("one")
    with pytest.raises(ValueError, match="at most 1 named breakers, got one more: 'two'"):
        get_circuit_breaker("two")


def test_compat__older_class_names__behave_like_the_current_classes() -> None:
    local = PNCPCircuitBreaker()
    assert isinstance(local.store, MemoryStore)
    assert (local.name, local.threshold, local.cooldown_seconds) == ("pncp", 50, 120)
    Driver(local, None).fails(50)
    assert local.is_degraded is True


def test_error_summary__long_with_control_characters__is_truncated_and_cleaned() -> None:
    assert error_summary(None) == ""
    assert error_summary("a\x1b[31m\nb") == "a [31m b"
    assert len(error_summary(ValueError("ç" * 500)).encode()) <= 200
    assert error_summary(ValueError()) == "ValueError"


def test_ramp_share__any_time__rises_in_even_steps_above_zero_up_to_the_full_share() -> None:
    assert [ramp_share(3, 10, at) for at in (-5, 0, 9, 10, 20, 29, 30, 10**9)] == [
        *(250_000, 250_000, 250_000, 500_000, 750_000, 750_000, FULL_SHARE, FULL_SHARE)
    ]
    assert ramp_share(5_000_000, 10, 0) == 1
