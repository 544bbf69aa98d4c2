"""The options of an upstream, and the errors for invalid ones."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest

from comporta import (
    BreakerConfig,
    Budget,
    CircuitBreaker,
    ConcurrencyLimit,
    Degradation,
    HealthCache,
    HierarchicalThrottle,
    LimitConfig,
    Retry,
    TokenBucketLimiter,
    Upstream,
    classify,
    settings,
)
from comporta.database.sqlite import SqliteDatabase
from comporta.limits.overrides import degradation
from comporta.retry import backoff
from comporta.settings import (
    BreakerSettings,
    DegradationSettings,
    RetrySettings,
    UpstreamSettings,
)
from comporta.settings.toml_table import setting_names
from comporta.stores.memory import MemoryStore
from comporta.upstream import upstream as module


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_wait": -1}, "max_wait must be 0 to 86400 seconds, got -1"),
        ({"max_wait": float("nan")}, "max_wait must be 0 to 86400 seconds, got nan"),
        ({"max_wait": "5"}, "max_wait must be a number of seconds, got '5'"),
        ({"max_wait": True}, "max_wait must be a number of seconds, got True"),
        ({"pause_max": 1e9}, "pause_max must be 0 to 86400 seconds, got 1000000000.0"),
        ({"timeout": 0}, "timeout must be above 0 and at most 3.16224e+07 seconds, got 0"),
        ({"max_concurrent": 0}, "max_concurrent must be 1 to 10000, got 0"),
        ({"max_concurrent": 1, "permit_ttl": 0}, "permit_ttl must be 0.01 to 86400 seconds, got 0"),
        ({"count": "calls"}, "count must be one of 'attempts', 'series', got 'calls'"),
        ({"breaker": 5}, "breaker must be a CircuitBreaker, a BreakerConfig or a bool, got 5"),
        ({"retry": 5}, "retry must be a Retry or a bool, got 5"),
        (
            {"degradation": 5},
            "degradation must be a bool or a function from a limiter to a Degradation, got 5",
        ),
        ({"classify": 5}, "classify must be a function of a result and an error, got 5"),
        (
            {"ignore": 5},
            "ignore must be a subclass of Exception, a tuple of them or a function of one, got 5",
        ),
        ({"failures": int}, "failures must be a subclass of Exception, a tuple of them or a function of one"),
        ({"state": "http://x"}, "state must start with one of memory://"),
        ({"state": 5}, "state must be a URL or a store, got 5"),
        ({"limit": "ten"}, "limit must look like '10/s'"),
        ({"name": "a b"}, "name must be 1 to 100 of A-Z a-z 0-9 _ . -, got 'a b'"),
    ],
)
def test_option__invalid__raises_naming_it_and_the_allowed_range(
    options: dict[str, Any], message: str
) -> None:
    given: dict[str, Any] = {"name": "pncp", "limit": "10/s", "state": MemoryStore(), **options}
    with pytest.raises((TypeError, ValueError)) as raised:
        Upstream(**given)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    "create",
    [
        lambda state: CircuitBreaker("pncp", state=state),
        lambda state: ConcurrencyLimit("pncp", 1, state=state),
        lambda state: HealthCache(SqliteDatabase(":memory:"), state=state),
        lambda state: HierarchicalThrottle(10, 10, state=state),
        lambda state: Retry(name="pncp", state=state),
        lambda state: TokenBucketLimiter(LimitConfig(1, 1), state),
    ],
)
def test_state__wrong_type__raises_in_every_class_that_takes_one(create: Callable[[Any], object]) -> None:
    with pytest.raises(TypeError, match="state must be a URL or a store, got 5"):
        create(5)


def test_options__defaults__include_breaker_retry_and_degradation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPORTA_STATE", "memory://left-out")
    upstream = Upstream("plain", "10/s")
    assert upstream.breaker is not None
    assert upstream.retry is not None
    assert upstream._policies.degradation is not None
    assert upstream.permits is None
    assert (upstream._policies.max_wait, upstream._policies.pause_max) == (5, 300)
    assert repr(upstream) == "<Upstream 'plain', 10/s burst 10 (token_bucket)>"


def test_breaker__name_with_defaults__has_its_defaults() -> None:
    breaker = Upstream("pncp", "10/s", state=MemoryStore()).breaker
    assert breaker is not None
    assert (breaker.threshold, breaker.cooldown_seconds) == (50, 120)


@pytest.mark.parametrize(
    ("timeout", "hold", "seconds"), [(30.0, None, 45.0), (None, None, 86_400.0), (30.0, 7.0, 7.0)]
)
def test_permit_ttl__default__is_longer_than_the_longest_call(
    timeout: float | None, hold: float | None, seconds: float
) -> None:
    upstream = Upstream(
        "pncp", "10/s", timeout=timeout, max_concurrent=1, permit_ttl=hold, state=MemoryStore()
    )
    assert upstream.permits is not None
    assert upstream.permits.permit_ttl == seconds


def test_guard__any_function__keeps_its_kind_and_name() -> None:
    upstream = Upstream("pncp", "10/s", state=MemoryStore())

    @upstream.guard
    def plain() -> None:
        """Documented."""

    @upstream.guard
    async def awaited() -> None:
        """Documented."""

    class Callable:
        async def __call__(self) -> str:
            return "called"

    assert (plain.__name__, awaited.__doc__) == ("plain", "Documented.")
    assert not inspect.iscoroutinefunction(plain)
    assert inspect.iscoroutinefunction(awaited)
    assert inspect.iscoroutinefunction(upstream.guard(partial(awaited)))
    assert inspect.iscoroutinefunction(upstream.guard(Callable()))


def test_transport__unknown_client__raises_naming_it() -> None:
    upstream = Upstream("pncp", "10/s", state=MemoryStore())
    client: Any = "aiohttp"
    with pytest.raises(ValueError, match="client must be one of 'httpx2', 'httpx', got 'aiohttp'"):
        upstream.transport(client=client)


def test_transport__package_is_missing__says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from comporta.upstream.httpx_transport import transport_classes  # noqa: PLC0415 - an extra

    transport_classes.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "httpx", None)
    with pytest.raises(ImportError, match=r"pip install 'comporta\[httpx\]'"):
        Upstream("pncp", "10/s", state=MemoryStore()).sync.transport(client="httpx")


def test_settings__fields__match_the_parameters_of_the_classes() -> None:
    def parameters(cls: Any) -> list[str]:
        return [name for name in inspect.signature(cls).parameters if name != "self"]

    assert list(setting_names(BreakerSettings)) == [field.name for field in fields(BreakerConfig)]
    assert ["limiter", *setting_names(DegradationSettings)] == parameters(Degradation)
    own = {"on", "retry_if", "before_attempt", "after_attempt", "budget", "name", "state", "clock", "draw"}
    budget = [f"budget_{field.name}" for field in fields(Budget) if field.name != "window"]
    assert list(setting_names(RetrySettings)) == [
        *(name for name in parameters(Retry) if name not in own),
        *budget,
    ]
    own = {"name", "classify", "ignore", "failures", "on_refusal", "state"}
    assert set(setting_names(UpstreamSettings)) == set(parameters(Upstream)) - own


def test_settings__choices__match_those_of_the_classes() -> None:
    assert settings.COUNTS == module.COUNT_MODES
    assert settings.DEGRADATION_RULES == degradation.RULES
    [_, words] = get_args(backoff.Jitter)
    assert get_args(words) == settings.JITTERS


def test_guide__options__lists_all_with_their_defaults() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "upstreams.md").read_text()
    for name, option in list(inspect.signature(Upstream).parameters.items())[1:]:
        shown = "comporta.classify" if option.default is classify else repr(option.default)
        default = "" if option.default is option.empty else f"`{shown}` "
        assert f"| `{name}` | {default}|" in page, name
