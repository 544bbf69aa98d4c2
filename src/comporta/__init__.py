"""Fleet-wide resilience for Python: one limit and one circuit breaker, enforced by every worker.

The packages, from the inside out:

- ``stores``: where state is kept: in one process, on one machine or on Redis. ``database``: SQL databases.
- ``limits``, ``breaker``, ``retry``, ``cache``: the policies.
- ``upstream``: combines the policies for one dependency. ``pipeline``: channels, throttles, writers, runs.
- ``fleet``: the status of all workers. ``compat``: older interfaces.
- ``integrations``: ASGI, FastAPI, Prometheus, OpenTelemetry. ``testing``: tools for tests.
- ``service``, ``demo``, ``cli``: the service, its demonstration, the command line. ``settings``: TOML files.

The top-level modules (``clock``, ``errors``, ``flow``, ``metrics``, ...) depend on none of these packages.
ARCHITECTURE.md explains the design.

Each name is imported on first use, so a program that uses only a limiter does not load ``upstream``.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from comporta.breaker.breaker import CircuitBreaker
    from comporta.breaker.config import BreakerConfig
    from comporta.breaker.registry import get_circuit_breaker
    from comporta.cache.cache import HealthCache
    from comporta.cache.coverage import Coverage
    from comporta.cache.entry import Cached, Loaded
    from comporta.cache.health import calculate_backoff_minutes
    from comporta.errors import (
        CachePendingError,
        CacheUnavailableError,
        ChannelClosedError,
        CircuitOpenError,
        ComportaError,
        LimitReachedError,
        RefusedError,
        StateAuthError,
        StateError,
        StateFullError,
        StateMovingError,
        StatePermissionError,
        StateTimeoutError,
        StateTypeError,
        StateUnavailableError,
    )
    from comporta.limits.concurrency.limit import ConcurrencyLimit
    from comporta.limits.concurrency.permits import Permit
    from comporta.limits.config import LimitConfig, LimitStrategy
    from comporta.limits.decision import Decision, Stats
    from comporta.limits.group import LimitGroup
    from comporta.limits.key import LimitKey
    from comporta.limits.limiter import (
        BaseLimiter,
        FixedWindowLimiter,
        LeakyBucketLimiter,
        RedisLimiter,
        SlidingWindowLimiter,
        TokenBucketLimiter,
    )
    from comporta.limits.manager import RateLimitManager
    from comporta.limits.monitor import RateLimitMonitor
    from comporta.limits.overrides.degradation import Degradation
    from comporta.limits.priority import priority
    from comporta.outcome import Outcome, classify
    from comporta.pipeline.channel import Channel
    from comporta.pipeline.run.pipeline import Pipeline
    from comporta.pipeline.throttle.throttle import HierarchicalThrottle
    from comporta.pipeline.writer.writer import BatchWriter
    from comporta.retry.attempts import RetryAttempt, current_attempt
    from comporta.retry.budget import Budget, RetryBudget
    from comporta.retry.retry import Retry
    from comporta.upstream.registry import Upstreams
    from comporta.upstream.report import CallReport, last_call
    from comporta.upstream.upstream import Upstream

__all__ = [
    "BaseLimiter",
    "BatchWriter",
    "BreakerConfig",
    "Budget",
    "CachePendingError",
    "CacheUnavailableError",
    "Cached",
    "CallReport",
    "Channel",
    "ChannelClosedError",
    "CircuitBreaker",
    "CircuitOpenError",
    "ComportaError",
    "ConcurrencyLimit",
    "Coverage",
    "Decision",
    "Degradation",
    "FixedWindowLimiter",
    "HealthCache",
    "HierarchicalThrottle",
    "LeakyBucketLimiter",
    "LimitConfig",
    "LimitGroup",
    "LimitKey",
    "LimitReachedError",
    "LimitStrategy",
    "Loaded",
    "Outcome",
    "Permit",
    "Pipeline",
    "RateLimitManager",
    "RateLimitMonitor",
    "RedisLimiter",
    "RefusedError",
    "Retry",
    "RetryAttempt",
    "RetryBudget",
    "SlidingWindowLimiter",
    "StateAuthError",
    "StateError",
    "StateFullError",
    "StateMovingError",
    "StatePermissionError",
    "StateTimeoutError",
    "StateTypeError",
    "StateUnavailableError",
    "Stats",
    "TokenBucketLimiter",
    "Upstream",
    "Upstreams",
    "calculate_backoff_minutes",
    "classify",
    "current_attempt",
    "get_circuit_breaker",
    "last_call",
    "priority",
]

__version__ = "0.2.0"

_HOMES = {
    "breaker.breaker": ("CircuitBreaker",),
    "breaker.config": ("BreakerConfig",),
    "breaker.registry": ("get_circuit_breaker",),
    "cache.cache": ("HealthCache",),
    "cache.entry": ("Cached", "Loaded"),
    "cache.coverage": ("Coverage",),
    "cache.health": ("calculate_backoff_minutes",),
    "errors": (
        "CachePendingError",
        "CacheUnavailableError",
        "ChannelClosedError",
        "CircuitOpenError",
        "ComportaError",
        "LimitReachedError",
        "RefusedError",
        "StateAuthError",
        "StateError",
        "StatePermissionError",
        "StateFullError",
        "StateMovingError",
        "StateTimeoutError",
        "StateTypeError",
        "StateUnavailableError",
    ),
    "limits.config": (
        "LimitConfig",
        "LimitStrategy",
    ),
    "limits.decision": (
        "Decision",
        "Stats",
    ),
    "limits.overrides.degradation": ("Degradation",),
    "limits.group": ("LimitGroup",),
    "limits.concurrency.permits": ("Permit",),
    "limits.key": ("LimitKey",),
    "limits.limiter": (
        "BaseLimiter",
        "FixedWindowLimiter",
        "LeakyBucketLimiter",
        "RedisLimiter",
        "SlidingWindowLimiter",
        "TokenBucketLimiter",
    ),
    "limits.manager": ("RateLimitManager",),
    "limits.monitor": ("RateLimitMonitor",),
    "limits.priority": ("priority",),
    "limits.concurrency.limit": ("ConcurrencyLimit",),
    "pipeline.channel": ("Channel",),
    "pipeline.run.pipeline": ("Pipeline",),
    "pipeline.throttle.throttle": ("HierarchicalThrottle",),
    "pipeline.writer.writer": ("BatchWriter",),
    "retry.attempts": (
        "RetryAttempt",
        "current_attempt",
    ),
    "retry.budget": (
        "Budget",
        "RetryBudget",
    ),
    "retry.retry": ("Retry",),
    "upstream.report": (
        "CallReport",
        "last_call",
    ),
    "upstream.upstream": ("Upstream",),
    "upstream.registry": ("Upstreams",),
    "outcome": (
        "Outcome",
        "classify",
    ),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


if not TYPE_CHECKING:  # otherwise a type checker would accept any name

    def __getattr__(name: str) -> object:
        """Import a name when it is first used."""
        from importlib import import_module  # noqa: PLC0415 - not needed for the version alone

        if name not in _HOME:
            raise AttributeError(f"module 'comporta' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"comporta.{_HOME[name]}"), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
