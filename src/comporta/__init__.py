"""Fleet-wide resilience for Python: one limit and one circuit, obeyed by every worker.

General layout: ``limits/`` holds the strategies (pure Python beside their Lua twins) and the limiters
users call, ``breaker/`` the circuit breakers and ``retry/`` trying again, built the same way; ``upstream/``
joins them; ``cache/`` is the cache over ``database/``; ``stores/`` holds the engines that keep state: one
process, one machine, a fleet; ``clock``, ``errors``, ``flow`` and ``metrics`` depend on nothing. See
ARCHITECTURE.md.

A name is imported when it is first asked for: whoever uses a limiter does not pay for upstreams.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from comporta.breaker.breaker import CircuitBreaker
    from comporta.breaker.config import BreakerConfig
    from comporta.breaker.registry import get_circuit_breaker
    from comporta.cache.cache import HealthCache
    from comporta.cache.cached import Cached, Loaded
    from comporta.cache.coverage import Coverage
    from comporta.cache.health import calculate_backoff_minutes
    from comporta.errors import (
        CacheUnavailableError,
        ChannelClosedError,
        CircuitOpenError,
        ComportaError,
        LimitReachedError,
        RefusedError,
        StateDeniedError,
        StateError,
        StateForbiddenError,
        StateFullError,
        StateTimeoutError,
        StateTypeError,
        StateUnavailableError,
    )
    from comporta.limits.config import LimitConfig, LimitStrategy
    from comporta.limits.decision import Decision, Stats
    from comporta.limits.degradation import Degradation
    from comporta.limits.group import LimitGroup
    from comporta.limits.holding import Permit
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
    from comporta.limits.permits import ConcurrencyLimit
    from comporta.pipeline.channel import Channel
    from comporta.pipeline.runs.pipeline import Pipeline
    from comporta.pipeline.throttle.throttle import HierarchicalThrottle
    from comporta.pipeline.writing.writer import BatchWriter
    from comporta.retry.budget import Budget, RetryBudget
    from comporta.retry.retry import Retry
    from comporta.upstream.report import CallReport, last_call
    from comporta.upstream.upstream import Upstream
    from comporta.upstream.upstreams import Upstreams
    from comporta.upstream.verdict import Verdict

__all__ = [
    "BaseLimiter",
    "BatchWriter",
    "BreakerConfig",
    "Budget",
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
    "Permit",
    "Pipeline",
    "RateLimitManager",
    "RateLimitMonitor",
    "RedisLimiter",
    "RefusedError",
    "Retry",
    "RetryBudget",
    "SlidingWindowLimiter",
    "StateDeniedError",
    "StateError",
    "StateForbiddenError",
    "StateFullError",
    "StateTimeoutError",
    "StateTypeError",
    "StateUnavailableError",
    "Stats",
    "TokenBucketLimiter",
    "Upstream",
    "Upstreams",
    "Verdict",
    "calculate_backoff_minutes",
    "get_circuit_breaker",
    "last_call",
]

__version__ = "0.1.0"

_HOMES = {
    "breaker.breaker": ("CircuitBreaker",),
    "breaker.config": ("BreakerConfig",),
    "breaker.registry": ("get_circuit_breaker",),
    "cache.cache": ("HealthCache",),
    "cache.cached": ("Cached", "Loaded"),
    "cache.coverage": ("Coverage",),
    "cache.health": ("calculate_backoff_minutes",),
    "errors": (
        "CacheUnavailableError",
        "ChannelClosedError",
        "CircuitOpenError",
        "ComportaError",
        "LimitReachedError",
        "RefusedError",
        "StateDeniedError",
        "StateError",
        "StateForbiddenError",
        "StateFullError",
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
    "limits.degradation": ("Degradation",),
    "limits.group": ("LimitGroup",),
    "limits.holding": ("Permit",),
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
    "limits.permits": ("ConcurrencyLimit",),
    "pipeline.channel": ("Channel",),
    "pipeline.runs.pipeline": ("Pipeline",),
    "pipeline.throttle.throttle": ("HierarchicalThrottle",),
    "pipeline.writing.writer": ("BatchWriter",),
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
    "upstream.upstreams": ("Upstreams",),
    "upstream.verdict": ("Verdict",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


if not TYPE_CHECKING:  # or a type checker would believe that every name is there

    def __getattr__(name: str) -> object:
        """Import a name when it is first asked for."""
        from importlib import import_module  # noqa: PLC0415 - whoever only wants the version needs none

        if name not in _HOME:
            raise AttributeError(f"module 'comporta' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"comporta.{_HOME[name]}"), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
