"""What an upstream is made of: what it may be given, and that bad input is named."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, cast, get_args

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
    settings,
)
from comporta.database.sqlite import SqliteDatabase
from comporta.limits import degradation
from comporta.retry import backoff
from comporta.settings import (
    BreakerSettings,
    DegradationSettings,
    RetrySettings,
    UpstreamSettings,
)
from comporta.settings.written import names
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
        ({"max_concurrent": 1, "hold_seconds": 0}, "hold_seconds must be 0.01 to 86400, got 0"),
        ({"count": "calls"}, "count must be one of 'attempts', 'series', got 'calls'"),
        ({"breaker": 5}, "breaker must be a CircuitBreaker, a BreakerConfig or a bool, got 5"),
        ({"retry": 5}, "retry must be a Retry or a bool, got 5"),
        ({"degradation": 5}, "degradation must be a bool, or make a Degradation for a limiter, got 5"),
        ({"judge": 5}, "judge must be a function of a result and an error, got 5"),
        ({"state": "http://x"}, "state must start with one of memory://"),
        ({"state": 5}, "state must be a URL or a store, got 5"),
        ({"limit": "ten"}, "limit must look like '10/s'"),
        ({"name": "a b"}, "name must be 1 to 100 of A-Z a-z 0-9 _ . -, got 'a b'"),
    ],
)
def test_option__makes_no_sense__is_named_with_what_is_allowed(options: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"name": "pncp", "limit": "10/s", "state": MemoryStore(), **options}
    with pytest.raises((TypeError, ValueError)) as raised:
        Upstream(**given)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    "made",
    [
        lambda state: CircuitBreaker("pncp", state=state),
        lambda state: ConcurrencyLimit("pncp", 1, state=state),
        lambda state: HealthCache(SqliteDatabase(":memory:"), state=state),
        lambda state: HierarchicalThrottle(10, 10, state=state),
        lambda state: Retry(name="pncp", state=state),
        lambda state: TokenBucketLimiter(LimitConfig(1, 1), state),
    ],
)
def test_state__of_whatever_has_one__is_a_url_or_a_store(made: Callable[[Any], object]) -> None:
    with pytest.raises(TypeError, match="state must be a URL or a store, got 5"):
        made(5)


def test_options__left_out__breaker_retry_and_degradation_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPORTA_STATE", "memory://left-out")
    upstream = Upstream("plain", "10/s")
    assert upstream.breaker is not None
    assert upstream.retry is not None
    assert upstream.parts.degradation is not None
    assert upstream.permits is None
    assert (upstream.parts.max_wait, upstream.parts.pause_max) == (5, 300)
    assert repr(upstream) == "<Upstream 'plain', 10/s burst 10 (token_bucket)>"


def test_breaker__of_a_known_name__has_its_usual_numbers() -> None:
    breaker = Upstream("pncp", "10/s", state=MemoryStore()).breaker
    assert breaker is not None
    assert (breaker.threshold, breaker.cooldown_seconds) == (50, 120)


@pytest.mark.parametrize(
    ("timeout", "hold", "seconds"), [(30.0, None, 45.0), (None, None, 86_400.0), (30.0, 7.0, 7.0)]
)
def test_permits__hold__outlives_the_longest_call(
    timeout: float | None, hold: float | None, seconds: float
) -> None:
    upstream = Upstream(
        "pncp", "10/s", timeout=timeout, max_concurrent=1, hold_seconds=hold, state=MemoryStore()
    )
    assert upstream.permits is not None
    assert upstream.permits.hold_seconds == seconds


def test_guard__any_function__stays_what_it_is() -> None:
    upstream = Upstream("pncp", "10/s", state=MemoryStore())

    @upstream.guard
    def plain() -> None:
        """Say so."""

    @upstream.guard
    async def awaited() -> None:
        """Say so."""

    class Callable:
        async def __call__(self) -> str:
            return "called"

    assert (plain.__name__, awaited.__doc__) == ("plain", "Say so.")
    assert not inspect.iscoroutinefunction(plain)
    assert inspect.iscoroutinefunction(awaited)
    assert inspect.iscoroutinefunction(upstream.guard(partial(awaited)))
    assert inspect.iscoroutinefunction(upstream.guard(Callable()))


def test_guard__what_yields__is_refused() -> None:
    upstream = Upstream("pncp", "10/s", state=MemoryStore())

    def pages() -> Iterator[int]:
        yield 1

    async def more() -> AsyncIterator[int]:
        yield 1

    for function in (pages, more):
        with pytest.raises(TypeError, match="what yields cannot be decorated"):
            upstream.guard(cast(Any, function))


def test_transport__unknown_client__is_named() -> None:
    upstream = Upstream("pncp", "10/s", state=MemoryStore())
    with pytest.raises(ValueError, match="client must be one of 'httpx2', 'httpx', got 'aiohttp'"):
        upstream.transport(client="aiohttp")


def test_transport__package_is_missing__says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from comporta.upstream.httpx_like import transports  # noqa: PLC0415 - an extra

    transports.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "httpx", None)
    with pytest.raises(ImportError, match=r"pip install 'comporta\[httpx\]'"):
        Upstream("pncp", "10/s", state=MemoryStore()).sync.transport(client="httpx")


def test_settings__names__are_those_of_what_is_built_from_them() -> None:
    def parameters(made: Any) -> list[str]:
        return [name for name in inspect.signature(made).parameters if name != "self"]

    assert list(names(BreakerSettings)) == [field.name for field in fields(BreakerConfig)]
    assert ["limiter", *names(DegradationSettings)] == parameters(Degradation)
    own = {"on", "budget", "name", "state", "clock", "draw"}
    budget = [f"budget_{field.name}" for field in fields(Budget) if field.name != "window"]
    assert list(names(RetrySettings)) == [
        *(name for name in parameters(Retry) if name not in own),
        *budget,
    ]
    assert set(names(UpstreamSettings)) == set(parameters(Upstream)) - {"name", "judge", "state"}


def test_settings__choices__are_those_of_what_is_built_from_them() -> None:
    assert settings.COUNTS == module.COUNTS
    assert settings.RULES == degradation.RULES
    [_, words] = get_args(backoff.Jitter)
    assert get_args(words) == settings.JITTERS


def test_page__options__are_all_there_with_their_defaults() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "upstream.md").read_text()
    for name, option in list(inspect.signature(Upstream).parameters.items())[1:]:
        default = "" if option.default is option.empty else f"`{option.default!r}` "
        assert f"| `{name}` | {default}|" in page, name
