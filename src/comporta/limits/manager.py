"""Limiters by name: one place to ask for permission, with figures and log lines about each answer.

The manager decides nothing: it finds the limiter, asks it, and has the monitor write down what it said.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, cast

from comporta.clock import MONOTONIC, Clock
from comporta.limits.config import CAPACITY_MAX, WINDOW_MAX, LimitConfig, LimitStrategy
from comporta.limits.limiter import BaseLimiter
from comporta.limits.monitor import DEFAULT, RateLimitMonitor, namespace_of
from comporta.limits.verbs import Key
from comporta.metrics import Metrics
from comporta.stores.urls import default_url, open_store

if TYPE_CHECKING:
    from comporta.settings import LimitSettings, Settings

NAME_CHARS_MAX = 100


class Limiter(Protocol):
    """Whatever can be registered; every :class:`BaseLimiter` is one.

    ``cost`` and ``timeout`` are passed on, by name, only if a caller asks for others than 1 and 0.
    """

    async def acquire(self, key: Any, /) -> bool:
        """Take from the limit of a key; true if it was there."""


class RateLimitManager:
    """Limiters by name, and policies: which namespace uses which of them.

    ::

        manager = RateLimitManager()
        manager.register_limiter("default", TokenBucketLimiter("10/s"))
        allowed = await manager.acquire("search:user-42")

    ``metrics`` is where the figures go; left out it is the sink of this process at the time of each call.
    """

    def __init__(self, metrics: Metrics | None = None, *, clock: Clock = MONOTONIC) -> None:
        self._clock = clock
        self._monitor = RateLimitMonitor(metrics, clock=clock)
        self._limiters: dict[str, Limiter] = {}
        self._policies: dict[str, str] = {}

    @classmethod
    def from_settings(cls, settings: Settings, metrics: Metrics | None = None) -> RateLimitManager:
        """Make a manager with the limits that were configured, all on the same state."""
        manager = cls(metrics)
        try:
            store = open_store(settings.state or default_url(distributed=True))
        except ValueError as error:
            raise ValueError(f"{settings.state_source}: {error}") from error
        for name, limit in settings.limits.items():
            try:
                limiter = BaseLimiter(config_of(limit), store, name)
            except ValueError as error:
                raise limit.blamed(error) from error
            manager.register_limiter(name, limiter)
        for namespace, name in settings.namespaces.items():
            manager.set_policy(namespace, name)
        return manager

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], metrics: Metrics | None = None) -> RateLimitManager:
        """Make a manager from a TOML file; environment variables override it."""
        return cls.from_settings(_load(path), metrics)

    @classmethod
    def from_env(cls, metrics: Metrics | None = None) -> RateLimitManager:
        """Make a manager from the environment, and the file that ``COMPORTA_CONFIG`` names, if it does."""
        return cls.from_settings(_load(), metrics)

    @property
    def limiters(self) -> Mapping[str, Limiter]:
        """The limiters by name; a view, to look at."""
        return MappingProxyType(self._limiters)

    @property
    def policies(self) -> Mapping[str, str]:
        """Which limiter each namespace uses; a view, to look at."""
        return MappingProxyType(self._policies)

    def register_limiter(self, name: str, limiter: Limiter) -> None:
        """Make a limiter known under a name; one that had the name before is replaced."""
        if not isinstance(name, str):
            raise TypeError(f"name must be a str, got {name!r:.100}")
        if not (0 < len(name) <= NAME_CHARS_MAX and name.isprintable()):
            raise ValueError(f"name must be 1 to {NAME_CHARS_MAX} printable characters, got {name!r:.120}")
        if not callable(getattr(limiter, "acquire", None)):
            raise TypeError(f"limiter must have an awaitable acquire(key), got {limiter!r:.100}")
        self._limiters[name] = limiter

    def unregister_limiter(self, name: str) -> Limiter:
        """Forget a limiter and return it; ``ValueError`` if there is none of that name.

        Policies that use it stay: their namespaces are refused with an error rather than limited by
        another limiter that nobody chose for them.
        """
        limiter = self._find(name)
        del self._limiters[name]
        return limiter

    def set_policy(self, namespace: str, limiter_name: str | None) -> None:
        """Let the keys of a namespace use a limiter when the caller names none; ``None`` revokes it."""
        if not isinstance(namespace, str):
            raise TypeError(f"namespace must be a str, got {namespace!r:.100}")
        if not namespace:
            raise ValueError("namespace must not be empty, got ''")
        if limiter_name is None:
            self._policies.pop(namespace, None)
            return
        self._find(limiter_name)
        self._policies[namespace] = limiter_name
        self._monitor.reserve(namespace)

    async def acquire(
        self, key: Key, limiter_name: str = DEFAULT, cost: int = 1, timeout: float | None = 0
    ) -> bool:
        """Take ``cost`` from the limit of a key; true if it was there within ``timeout`` seconds.

        ``limiter_name`` left out is the one set for the key's namespace, else ``"default"``. The namespace
        of a ``str`` is what stands before its first colon. What the limiter raises goes on to the caller.
        """
        if limiter_name == DEFAULT and self._policies:
            limiter_name = self._policies.get(namespace_of(key), DEFAULT)
        limiter = self._limiters.get(limiter_name) or self._find(limiter_name)
        sink = self._monitor.sink()
        start_ns = 0 if sink is None else self._clock.now_ns()
        try:
            if cost == 1 and timeout == 0:
                allowed = await limiter.acquire(key)
            else:
                allowed = await cast(BaseLimiter, limiter).acquire(key, cost=cost, timeout=timeout)
        except Exception as error:
            self._monitor.failed(limiter_name, key, error)
            raise
        if sink is not None:
            duration = (self._clock.now_ns() - start_ns) / 1e9
            self._monitor.decided(sink, limiter_name, key, allowed, duration)
        if not allowed:
            self._monitor.refused(limiter_name, key)
        return allowed

    async def aclose(self) -> None:
        """Close the connections of the limiters that have any; they open again when needed."""
        for limiter in list(self._limiters.values()):
            if hasattr(limiter, "aclose"):
                await limiter.aclose()

    def _find(self, name: str) -> Limiter:
        limiter = self._limiters.get(name)
        if limiter is None:
            known = ", ".join(map(repr, sorted(self._limiters))) or "none"
            raise ValueError(f"No rate limiter registered for: {name!r:.120} (registered: {known})")
        return limiter


def _load(path: str | os.PathLike[str] | None = None) -> Settings:
    from comporta.settings import load_settings  # noqa: PLC0415 - costs a fifth of the import of all else

    return load_settings(path)


def config_of(limit: LimitSettings) -> LimitConfig:
    """Return what a limit says as it was written; the rate of a window follows from its other numbers."""
    strategy = LimitStrategy(limit.strategy)
    if limit.limit is not None:
        return LimitConfig.parse(limit.limit, strategy, fallback=limit.fallback, lease=limit.lease)
    capacity, window, rate = limit.capacity or 0, limit.window, limit.rate
    if rate is None:
        sane = window is not None and 0 < window <= WINDOW_MAX and 0 < capacity <= CAPACITY_MAX
        rate = capacity / window if window and sane else 1.0  # 1.0: LimitConfig names what is wrong
    return LimitConfig(rate, capacity, window, strategy, fallback=limit.fallback, lease=limit.lease)
