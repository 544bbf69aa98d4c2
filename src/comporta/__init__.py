"""Fleet-wide resilience for Python: one limit, obeyed by every worker.

General layout: ``limits/`` holds the strategies (pure Python beside their Lua twins) and the limiters
users call; ``stores/`` the engines that keep state: one process, one machine, a fleet; ``clock``,
``errors``, ``flow`` and ``metrics`` depend on nothing. See ARCHITECTURE.md.
"""

from comporta.errors import (
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

__all__ = [
    "BaseLimiter",
    "CircuitOpenError",
    "ComportaError",
    "Decision",
    "Degradation",
    "FixedWindowLimiter",
    "LeakyBucketLimiter",
    "LimitConfig",
    "LimitGroup",
    "LimitKey",
    "LimitReachedError",
    "LimitStrategy",
    "RateLimitManager",
    "RateLimitMonitor",
    "RedisLimiter",
    "RefusedError",
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
]

__version__ = "0.1.0"
