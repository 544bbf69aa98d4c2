"""Limiters by name, and the metrics and log lines of each call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from comporta import (
    BaseLimiter,
    FixedWindowLimiter,
    LimitConfig,
    LimitGroup,
    LimitKey,
    LimitStrategy,
    StateUnavailableError,
    TokenBucketLimiter,
)
from comporta.limits.manager import RateLimitManager
from comporta.metrics import HistogramSummary, InMemoryMetrics, use_metrics
from comporta.settings import LimitSettings, Settings
from comporta.stores.memory import MemoryStore
from comporta.stores.redis.store import RedisStore
from comporta.testing import ManualClock, Server


class OnlyKey:
    """The smallest object that a manager accepts."""

    def __init__(self, allowed: bool = True) -> None:
        self.allowed = allowed
        self.keys: list[object] = []

    async def acquire(self, key: LimitKey | str) -> bool:
        self.keys.append(key)
        return self.allowed


@pytest.fixture(autouse=True)
def restore_metrics(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for variable in ("COMPORTA_CONFIG", "COMPORTA_STATE", "REDIS_URL"):
        monkeypatch.delenv(variable, raising=False)
    previous = use_metrics(None)
    yield
    use_metrics(previous)


def run_acquire(acquire: Callable[..., Awaitable[bool]], *args: Any, **named: Any) -> bool:
    async def ask() -> bool:
        return await acquire(*args, **named)

    return asyncio.run(ask())


def test_manager__limiters_of_every_kind__are_found_by_name() -> None:
    manager = RateLimitManager()
    manager.register_limiter("token", TokenBucketLimiter("1/hour"))
    manager.register_limiter("window", FixedWindowLimiter("2/hour"))
    manager.register_limiter("own", OnlyKey(False))
    key = LimitKey("test", "a", "v1")
    assert [run_acquire(manager.acquire, key, "token") for _ in range(2)] == [True, False]
    assert [run_acquire(manager.acquire, "test:a", "window") for _ in range(3)] == [True, True, False]
    assert run_acquire(manager.acquire, key, "own") is False


def test_manager__string_key__is_passed_unchanged() -> None:
    manager, limiter = RateLimitManager(), OnlyKey()
    manager.register_limiter("default", limiter)
    for key in ("ip:::1", "a:b:c:d", "plain", LimitKey("a", "b")):
        assert run_acquire(manager.acquire, key)
    assert limiter.keys == ["ip:::1", "a:b:c:d", "plain", LimitKey("a", "b")]


def test_manager__unknown_limiter__raises_value_error_naming_it() -> None:
    manager = RateLimitManager()
    with pytest.raises(ValueError, match=r"^No rate limiter registered for: 'default' \(registered: none\)$"):
        run_acquire(manager.acquire, "a")
    manager.register_limiter("window", OnlyKey())
    manager.register_limiter("token", OnlyKey())
    expected = r"^No rate limiter registered for: 'x\\n' \(registered: 'token', 'window'\)$"
    with pytest.raises(ValueError, match=expected):
        run_acquire(manager.acquire, "a", "x\n")
    with pytest.raises(ValueError, match=expected):
        manager.unregister_limiter("x\n")
    with pytest.raises(ValueError, match=expected):
        manager.set_policy("a", "x\n")


def test_manager__name_registered_twice__uses_the_later_limiter() -> None:
    manager, first, second = RateLimitManager(), OnlyKey(), OnlyKey(False)
    manager.register_limiter("default", first)
    manager.register_limiter("default", second)
    assert not run_acquire(manager.acquire, "a")
    assert dict(manager.limiters) == {"default": second}


def test_unregister__limiter__returns_and_removes_it() -> None:
    manager, limiter = RateLimitManager(), OnlyKey()
    manager.register_limiter("default", limiter)
    assert manager.unregister_limiter("default") is limiter
    assert not manager.limiters


@pytest.mark.parametrize("name", ["", "x" * 101, "a\nb"])
def test_register__invalid_name__is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"^name must be 1 to 100 printable characters, got"):
        RateLimitManager().register_limiter(name, OnlyKey())


def test_register__wrong_types__are_refused() -> None:
    manager: Any = RateLimitManager()
    with pytest.raises(TypeError, match=r"^name must be a str, got 7"):
        manager.register_limiter(7, OnlyKey())
    with pytest.raises(TypeError, match=r"^limiter must have an awaitable acquire\(key\), got 7"):
        manager.register_limiter("a", 7)


def test_limiters_and_policies__assigned_to__are_read_only() -> None:
    manager: Any = RateLimitManager()
    with pytest.raises(TypeError):
        manager.limiters["a"] = OnlyKey()
    with pytest.raises(TypeError):
        manager.policies["a"] = "b"


# cost and timeout -----------------------------------------------------------------------------------------


def test_acquire__with_cost_and_timeout__passes_them_on() -> None:
    clock = ManualClock()
    manager = RateLimitManager()
    manager.register_limiter("default", TokenBucketLimiter("10/s", MemoryStore(clock)))
    assert run_acquire(manager.acquire, "a", cost=10)
    assert not run_acquire(manager.acquire, "a", cost=5)
    start_ns = clock.now_ns()
    assert run_acquire(manager.acquire, "a", cost=5, timeout=1)
    assert clock.now_ns() - start_ns == 500_000_000
    assert run_acquire(manager.acquire, "a", timeout=None)


def test_acquire__cost_for_a_limiter_without_costs__raises_its_error() -> None:
    manager = RateLimitManager()
    manager.register_limiter("default", OnlyKey())
    with pytest.raises(TypeError, match="cost"):
        run_acquire(manager.acquire, "a", cost=2)


# policies -------------------------------------------------------------------------------------------------


def test_policy__for_a_namespace__chooses_the_limiter_unless_one_is_named() -> None:
    manager, usual, strict = RateLimitManager(), OnlyKey(), OnlyKey(False)
    manager.register_limiter("default", usual)
    manager.register_limiter("strict", strict)
    manager.register_limiter("usual", usual)
    manager.set_policy("auth", "strict")
    assert dict(manager.policies) == {"auth": "strict"}
    assert not run_acquire(manager.acquire, "auth:a")
    assert not run_acquire(manager.acquire, LimitKey("auth", "a"))
    assert run_acquire(manager.acquire, "auth:a", "usual")
    assert run_acquire(manager.acquire, "search:a")
    manager.set_policy("auth", None)
    manager.set_policy("auth", None)
    assert run_acquire(manager.acquire, "auth:a")


def test_policy__limiter_unregistered__raises() -> None:
    manager = RateLimitManager()
    manager.register_limiter("default", OnlyKey())
    manager.register_limiter("strict", OnlyKey())
    manager.set_policy("auth", "strict")
    manager.unregister_limiter("strict")
    with pytest.raises(ValueError, match=r"'strict' \(registered: 'default'\)"):
        run_acquire(manager.acquire, "auth:a")


def test_policy__bad_namespace__is_refused() -> None:
    manager: Any = RateLimitManager()
    manager.register_limiter("default", OnlyKey())
    with pytest.raises(ValueError, match="namespace must not be empty"):
        manager.set_policy("", "default")
    with pytest.raises(TypeError, match="namespace must be a str, got 7"):
        manager.set_policy(7, "default")


# metrics --------------------------------------------------------------------------------------------------


def test_metrics__allowed_and_refused__are_counted_and_timed_by_limiter_and_namespace() -> None:
    clock, metrics = ManualClock(), InMemoryMetrics()
    manager = RateLimitManager(metrics, clock=clock)
    manager.register_limiter("token", TokenBucketLimiter("1/hour"))

    class Slow:
        async def acquire(self, key: object) -> bool:
            clock.advance(0.25)
            return True

    manager.register_limiter("slow", Slow())
    for key in ("test:a", LimitKey("test", "b"), "test:a"):
        run_acquire(manager.acquire, key, "token")
    run_acquire(manager.acquire, "plain", "slow")
    assert metrics.snapshot() == {
        'rate_limit_requests{allowed="true",limiter="token",namespace="test"}': 2,
        'rate_limit_requests{allowed="false",limiter="token",namespace="test"}': 1,
        'rate_limit_requests{allowed="true",limiter="slow",namespace="default"}': 1,
        'rate_limit_exceeded{limiter="token",namespace="test"}': 1,
        'rate_limit_duration{limiter="token",namespace="test"}': HistogramSummary(3, 0, 0, 0),
        'rate_limit_duration{limiter="slow",namespace="default"}': HistogramSummary(1, 0.25, 0.25, 0.25),
    }


def test_metrics__none_given__uses_the_process_sink_at_each_call() -> None:
    manager, metrics = RateLimitManager(), InMemoryMetrics()
    manager.register_limiter("default", OnlyKey())
    run_acquire(manager.acquire, "a")
    use_metrics(metrics)
    run_acquire(manager.acquire, "a")
    use_metrics(None)
    run_acquire(manager.acquire, "a")
    assert metrics.value("rate_limit_requests") == 1


def test_metrics__many_namespaces__are_bounded_and_policies_keep_their_label() -> None:
    metrics = InMemoryMetrics()
    manager = RateLimitManager(metrics)
    manager.register_limiter("default", OnlyKey())

    async def flood() -> None:
        for number in range(1500):
            await manager.acquire(f"n{number}:x")
        manager.set_policy("late", "default")
        await manager.acquire("late:x")

    asyncio.run(flood())
    labels = {series for series in metrics.snapshot() if series.startswith("rate_limit_requests")}
    assert len(labels) <= 1002
    assert metrics.value("rate_limit_requests", namespace="other") >= 500
    assert metrics.value("rate_limit_requests", namespace="late") == 1
    assert metrics.value("rate_limit_requests") == 1501


def test_metrics__sink_raises__changes_no_decision(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def counter(self, name: str, value: float, /, **labels: str) -> None:
            raise RuntimeError("no room")

        def histogram(self, name: str, value: float, /, **labels: str) -> None:
            raise RuntimeError("no room")

    manager = RateLimitManager(Broken())
    manager.register_limiter("default", TokenBucketLimiter("1/hour"))
    assert run_acquire(manager.acquire, "a")
    assert not run_acquire(manager.acquire, "a")
    assert "Metrics were lost: RuntimeError: no room" in caplog.messages


# log lines and errors -------------------------------------------------------------------------------------


def test_log__refused__is_a_single_line_warning(caplog: pytest.LogCaptureFixture) -> None:
    manager = RateLimitManager()
    manager.register_limiter("default", OnlyKey(False))
    run_acquire(manager.acquire, "a:b\nERROR forged")
    assert caplog.record_tuples == [
        ("comporta.limits", logging.WARNING, r"Rate limit exceeded: limiter default, key a:b\nERROR forged")
    ]


def test_log__allowed__is_empty(caplog: pytest.LogCaptureFixture) -> None:
    manager = RateLimitManager()
    manager.register_limiter("default", OnlyKey())
    run_acquire(manager.acquire, "a")
    assert not caplog.records


def test_error__server_unreachable__is_counted_logged_and_raised(caplog: pytest.LogCaptureFixture) -> None:
    metrics = InMemoryMetrics()
    manager = RateLimitManager(metrics)
    with Server() as server:
        url = server.url
    manager.register_limiter("default", BaseLimiter("1/s", RedisStore(url)))

    async def ask() -> None:
        try:
            for _ in range(3):
                with pytest.raises(StateUnavailableError):
                    await manager.acquire("test:a")
        finally:
            await manager.aclose()

    asyncio.run(ask())
    assert metrics.snapshot() == {'rate_limit_errors{limiter="default",namespace="test"}': 3}
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert record.getMessage().startswith("Rate limit check failed: limiter default, key test:a: State")


def test_error__cancelled_while_waiting__is_not_counted(caplog: pytest.LogCaptureFixture) -> None:
    metrics = InMemoryMetrics()
    manager = RateLimitManager(metrics)
    manager.register_limiter("default", TokenBucketLimiter("1/hour"))

    async def cancel() -> None:
        await manager.acquire("a")
        waiting = asyncio.create_task(manager.acquire("a", timeout=None))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(cancel())
    assert metrics.value("rate_limit_errors") == 0
    assert metrics.value("rate_limit_requests") == 1
    assert not caplog.records


def test_aclose__limiters_with_connections__closes_them(valkey: Server) -> None:
    async def use() -> bool:
        manager = RateLimitManager()
        manager.register_limiter("redis", BaseLimiter("1/s", valkey.url + "?timeout=5", "manager-aclose"))
        manager.register_limiter("own", OnlyKey())
        allowed = await manager.acquire("a", "redis")
        await manager.aclose()
        return allowed

    assert asyncio.run(use())


# from a configuration -------------------------------------------------------------------------------------


def test_from_settings__numbers_and_text__create_the_limits() -> None:
    settings = Settings(
        "memory://",
        {
            "default": LimitSettings(limit="10/s"),
            "bucket": LimitSettings(rate=2, capacity=5, strategy="leaky_bucket"),
            "window": LimitSettings(capacity=100, window=60, strategy="sliding_window"),
            "same": LimitSettings(limit="100/60s", strategy="sliding_window"),
            "leased": LimitSettings(limit="10/s", lease=True),
            "for_longer": LimitSettings(rate=10, capacity=10, lease="1s"),
        },
        {"search": "window"},
    )
    manager = RateLimitManager.from_settings(settings)
    configs = {
        name: limiter.config for name, limiter in manager.limiters.items() if isinstance(limiter, BaseLimiter)
    }
    sliding = LimitConfig(100 / 60, 100, 60, LimitStrategy.SLIDING_WINDOW)
    assert configs == {
        "default": LimitConfig.parse("10/s"),
        "bucket": LimitConfig(2, 5, strategy=LimitStrategy.LEAKY_BUCKET),
        "window": sliding,
        "same": sliding,
        "leased": LimitConfig.parse("10/s", lease=0.05),
        "for_longer": LimitConfig(10, 10, lease=1),
    }
    assert dict(manager.policies) == {"search": "window"}


def test_from_settings__all_limits__share_one_store() -> None:
    limits = {"a": LimitSettings(limit="1/s"), "b": LimitSettings(limit="2/s")}
    manager = RateLimitManager.from_settings(Settings("memory://", limits))
    a, b = manager.limiters.values()
    assert isinstance(a, BaseLimiter)
    assert isinstance(b, BaseLimiter)
    assert run_acquire(LimitGroup(a, b).acquire, ["k", "k"])


def test_from_settings__no_state__uses_the_default_of_distributed_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COMPORTA_STATE", "memory://of-the-environment")
    manager = RateLimitManager.from_settings(Settings(limits={"default": LimitSettings(limit="1/s")}))
    [limiter] = manager.limiters.values()
    assert isinstance(limiter, BaseLimiter)
    assert limiter.store is BaseLimiter("1/s", "memory://of-the-environment").store


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ({"limit": "lots"}, "limit must look like"),
        ({"limit": "5/s burst 3", "strategy": "fixed_window"}, "burst does not apply"),
        ({"limit": "1/s", "lease": "soon"}, "lease must look like '50ms'"),
        ({"rate": 1, "capacity": 1, "lease": 11}, "lease must be 0.001 to 10 seconds"),
        ({"rate": 0, "capacity": 1}, "rate must be above 0 and at most"),
        ({"rate": float("nan"), "capacity": 1}, "rate must be above 0 and at most"),
        ({"rate": 1, "capacity": 0}, "capacity must be 1 to 1000000000"),
        ({"capacity": 0, "window": 1, "strategy": "fixed_window"}, "capacity must be 1 to 1000000000"),
        (
            {"capacity": 1, "window": 0, "strategy": "fixed_window"},
            "window must be 0.001 to 31622400 seconds",
        ),
        (
            {"capacity": 1, "window": float("inf"), "strategy": "fixed_window"},
            "window must be 0.001 to 31622400 seconds",
        ),
        ({"capacity": 10**10, "window": 1, "strategy": "fixed_window"}, "capacity must be 1 to 1000000000"),
    ],
)
def test_from_settings__invalid_limit__names_its_origin(limit: dict[str, Any], message: str) -> None:
    settings = Settings("memory://", {"a": LimitSettings(**limit, origin="x.toml: [limits.a]")})
    with pytest.raises(ValueError, match=rf"^x\.toml: \[limits\.a\]: {message}"):
        RateLimitManager.from_settings(settings)


def test_from_settings__invalid_state__names_its_origin_without_password() -> None:
    with pytest.raises(ValueError, match=r"^REDIS_URL: state must start with .* got 'host'$"):
        RateLimitManager.from_settings(Settings("http://user:secret@host", state_origin="REDIS_URL"))


def test_from_settings__unreadable_state__names_its_origin() -> None:
    settings = Settings("redis://localhost:port", state_origin="limits.toml:1: state")
    with pytest.raises(ValueError, match=r"^limits\.toml:1: state: state cannot be read"):
        RateLimitManager.from_settings(settings)


def test_from_file__on_a_real_server__limits_all_its_workers(tmp_path: Path, valkey: Server) -> None:
    path = tmp_path / "comporta.toml"
    text = f'state = "{valkey.url}?timeout=5"\n[limits.default]\nlimit = "2/hour"\n'
    path.write_text(text, encoding="utf-8")

    async def use() -> list[bool]:
        workers = [RateLimitManager.from_file(path) for _ in range(2)]
        try:
            return [await worker.acquire("test:from-file") for worker in workers * 2]
        finally:
            await workers[0].aclose()

    assert asyncio.run(use()) == [True, True, False, False]


def test_from_env__only_variables__creates_a_manager_with_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPORTA_STATE", "memory://")
    monkeypatch.setenv("COMPORTA_LIMIT_DEFAULT", "1/hour")
    metrics = InMemoryMetrics()
    manager = RateLimitManager.from_env(metrics)
    assert [run_acquire(manager.acquire, "a") for _ in range(2)] == [True, False]
    assert metrics.value("rate_limit_exceeded") == 1
