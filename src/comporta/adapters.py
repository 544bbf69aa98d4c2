"""Older names on top of ours, so that programs written for them go on unchanged.

Each is the real thing with the arguments its callers know; there is no logic here.
"""

from __future__ import annotations

from comporta.breaker.breaker import CircuitBreaker


class RedisCircuitBreaker(CircuitBreaker):
    """A breaker that the fleet shares; ``redis_url`` left out is what the environment says."""

    def __init__(
        self,
        name: str,
        threshold: int = 50,
        cooldown_seconds: float = 120.0,
        redis_url: str | None = None,
    ) -> None:
        super().__init__(name, threshold, cooldown_seconds, state=redis_url)


class PNCPCircuitBreaker(CircuitBreaker):
    """A breaker of this process alone."""

    def __init__(self, name: str = "pncp", threshold: int = 50, cooldown_seconds: float = 120.0) -> None:
        super().__init__(name, threshold, cooldown_seconds, state="memory://")
