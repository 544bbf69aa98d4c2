"""Limiters by name: one place to request permission, with metrics and log lines for each decision.

The manager makes no decisions itself: it finds the limiter, calls it, and records the decision.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, cast

from comporta.clock import MONOTONIC, Clock
from comporta.limits.config import CAPACITY_MAX, WINDOW_MAX, LimitConfig
from comporta.limits.flows import Key
from comporta.limits.group import LimitGroup
from comporta.limits.limiter import BaseLimiter
from comporta.limits.monitor import DEFAULT_NAMESPACE, DecisionRecorder, key_namespace
from comporta.limits.strategies.registry import strategy_type
from comporta.metrics import Metrics
from comporta.stores.base import Store
from comporta.stores.name_claims import replacing_names
from comporta.stores.registry import default_url, open_store
from comporta.validators import require_text

if TYPE_CHECKING:
    from comporta.settings import LimitSettings, Settings
    from comporta.settings.reloader import PreparedChange

NAME_CHARS_MAX = 100


class Limiter(Protocol):
    """What a manager accepts as a limiter; every :class:`BaseLimiter` is one.

    The manager passes ``cost`` and ``timeout``, by name, only if they are not 1 and 0.
    """

    async def acquire(self, key: Any, /) -> bool:
        """Take from the limit of a key; true if it was granted."""


class RateLimitManager:
    """Limiters by name, and policies that say which namespace uses which of them.

    ::

        manager = RateLimitManager()
        manager.register_limiter("default", TokenBucketLimiter("10/s"))
        allowed = await manager.acquire("search:user-42")

    ``metrics`` is the sink; by default it is the sink of this process at the time of each call.
    """

    def __init__(self, metrics: Metrics | None = None, *, clock: Clock = MONOTONIC) -> None:
        self._clock = clock
        self._recorder = DecisionRecorder(metrics, clock=clock)
        self._limiters: dict[str, Limiter] = {}
        self._policies: dict[str, str] = {}
        self._store: Store | None = None
        self._reloader: object = None  # keeps the thread that reloads the settings

    @classmethod
    def from_settings(cls, settings: Settings, metrics: Metrics | None = None) -> RateLimitManager:
        """Create a manager with the configured limits, all on the same store."""
        manager = cls(metrics)
        try:
            store = open_store(settings.state or default_url(distributed=True))
        except ValueError as error:
            raise ValueError(f"{settings.state_origin}: {error}") from error
        manager._store = store
        for name, limit in settings.limits.items():
            manager.register_limiter(name, _limiter_from_settings(name, limit, store))
        for namespace, name in settings.namespaces.items():
            manager.set_policy(namespace, name)
        manager._reloader = settings.reloader
        if settings.reloader is not None:
            settings.reloader.subscribe(manager)
        return manager

    def _prepare_settings(self, old: Settings, new: Settings) -> PreparedChange:
        """Build the limiters of changed settings; applying the result puts them into effect."""
        from comporta.settings.reloader import PreparedChange  # noqa: PLC0415 - see _load

        require_same_state(old, new)
        store = cast(Store, self._store)
        changed = {name: limit for name, limit in new.limits.items() if limit != old.limits.get(name)}
        for name, limit in changed.items():
            check_same_strategy(old.limits.get(name), limit)
        with replacing_names() as undo:
            limiters = {name: _limiter_from_settings(name, limit, store) for name, limit in changed.items()}
        return PreparedChange(partial(self._apply_settings, old, new, limiters), undo)

    def _apply_settings(
        self, old: Settings, new: Settings, limiters: dict[str, BaseLimiter | LimitGroup]
    ) -> None:
        for name, limiter in limiters.items():
            current = self._limiters.get(name)
            if isinstance(current, BaseLimiter) and isinstance(limiter, BaseLimiter):
                current._become(limiter)
            else:
                self.register_limiter(name, limiter)
        for namespace in old.namespaces.keys() - new.namespaces.keys():
            self.set_policy(namespace, None)
        for namespace, name in new.namespaces.items():
            self.set_policy(namespace, name)
        for name in old.limits.keys() - new.limits.keys():
            self._limiters.pop(name, None)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], metrics: Metrics | None = None) -> RateLimitManager:
        """Create a manager from a TOML file; environment variables override the file."""
        return cls.from_settings(_load(path), metrics)

    @classmethod
    def from_env(cls, metrics: Metrics | None = None) -> RateLimitManager:
        """Create a manager from the environment and from the file that ``COMPORTA_CONFIG`` names, if set."""
        return cls.from_settings(_load(), metrics)

    @property
    def limiters(self) -> Mapping[str, Limiter]:
        """The limiters by name, read-only."""
        return MappingProxyType(self._limiters)

    @property
    def policies(self) -> Mapping[str, str]:
        """Which limiter each namespace uses, read-only."""
        return MappingProxyType(self._policies)

    def register_limiter(self, name: str, limiter: Limiter) -> None:
        """Register a limiter under a name; it replaces a limiter that had the name before."""
        require_text("name", name, NAME_CHARS_MAX)
        if not callable(getattr(limiter, "acquire", None)):
            raise TypeError(f"limiter must have an awaitable acquire(key), got {limiter!r:.100}")
        self._limiters[name] = limiter

    def unregister_limiter(self, name: str) -> Limiter:
        """Remove a limiter and return it; ``ValueError`` if no limiter has that name.

        Policies that use the limiter stay: a call for one of their namespaces raises an error instead of
        using a limiter that you did not choose.
        """
        limiter = self._find(name)
        del self._limiters[name]
        return limiter

    def set_policy(self, namespace: str, limiter_name: str | None) -> None:
        """Set the limiter for a namespace's keys when the caller names none; ``None`` removes the policy."""
        if not isinstance(namespace, str):
            raise TypeError(f"namespace must be a str, got {namespace!r:.100}")
        if not namespace:
            raise ValueError("namespace must not be empty, got ''")
        if limiter_name is None:
            self._policies.pop(namespace, None)
            return
        self._find(limiter_name)
        self._policies[namespace] = limiter_name
        self._recorder.reserve(namespace)

    async def acquire(
        self, key: Key, limiter_name: str = DEFAULT_NAMESPACE, cost: int = 1, timeout: float | None = 0
    ) -> bool:
        """Take ``cost`` from the limit of a key; true if it was granted within ``timeout`` seconds.

        By default the policy of the key's namespace chooses the limiter, else it is ``"default"``. The
        namespace of a ``str`` is the text before its first colon. Errors of the limiter are counted, logged
        and raised.
        """
        if limiter_name == DEFAULT_NAMESPACE and self._policies:
            limiter_name = self._policies.get(key_namespace(key), DEFAULT_NAMESPACE)
        limiter = self._limiters.get(limiter_name) or self._find(limiter_name)
        sink = self._recorder.sink()
        start_ns = 0 if sink is None else self._clock.now_ns()
        try:
            if cost == 1 and timeout == 0:
                allowed = await limiter.acquire(key)
            else:
                allowed = await cast(BaseLimiter, limiter).acquire(key, cost=cost, timeout=timeout)
        except Exception as error:
            self._recorder.record_error(limiter_name, key, error)
            raise
        if sink is not None:
            duration = (self._clock.now_ns() - start_ns) / 1e9
            self._recorder.record_decision(sink, limiter_name, key, allowed, duration)
        if not allowed:
            self._recorder.log_refusal(limiter_name, key)
        return allowed

    async def aclose(self) -> None:
        """Close the connections of all limiters; they reopen them when needed."""
        for limiter in list(self._limiters.values()):
            close = getattr(limiter, "aclose", None)  # a limiter of the program's own may have none
            if close is not None:
                await close()

    def _find(self, name: str) -> Limiter:
        limiter = self._limiters.get(name)
        if limiter is None:
            names = ", ".join(map(repr, sorted(self._limiters))) or "none"
            raise ValueError(f"No rate limiter registered for: {name!r:.120} (registered: {names})")
        return limiter


def _limiter_from_settings(name: str, limit: LimitSettings, store: Store) -> BaseLimiter | LimitGroup:
    try:
        return make_limiter(name, limit, store)
    except ValueError as error:
        raise limit.error_with_origin(error) from error


def require_same_state(old: Settings, new: Settings) -> None:
    """Raise ``ValueError`` if changed settings name another state."""
    if old.state != new.state:
        raise ValueError(f"{new.state_origin}: state cannot change while the program runs: restart it")


def check_same_strategy(old: LimitSettings | None, new: LimitSettings | None) -> None:
    """Raise ``ValueError`` if a limit in changed settings has another strategy."""
    if old is None or new is None:
        return
    before = [config.strategy_name for config in limit_configs_from_settings(old)]
    try:
        after = [config.strategy_name for config in limit_configs_from_settings(new)]
    except ValueError as error:
        raise new.error_with_origin(error) from error
    if len(before) == len(after) and before != after:
        names = f"from {', '.join(before)}, got {', '.join(after)}"
        raise new.field_error("strategy", f"cannot change while the program runs, {names}: restart it")


def _load(path: str | os.PathLike[str] | None = None) -> Settings:
    from comporta.settings import load_settings  # noqa: PLC0415 - a fifth of the cost of importing comporta

    return load_settings(path)


def make_limiter(name: str, limit: LimitSettings, store: Store) -> BaseLimiter | LimitGroup:
    """Return the limiter of a limit in the settings, or a group if its text has several limits."""
    configs = limit_configs_from_settings(limit)
    if len(configs) == 1:
        return BaseLimiter(configs[0], store, name, limit_for=limit.limit_for)
    if limit.limit_for is not None:
        raise ValueError(f"limit_for applies to one limit, got {len(configs)}")
    return LimitGroup(limit=configs, state=store, name=name)


def limit_configs_from_settings(limit: LimitSettings) -> list[LimitConfig]:
    """Return the configurations in the settings of a limit; text such as ``"10/s; 1000/day"`` has several."""
    if limit.limit is None:
        return [_config_from_numbers(limit)]
    return [
        LimitConfig.parse(text, limit.strategy, **_common_options(limit)) for text in limit.limit.split(";")
    ]


def _common_options(limit: LimitSettings) -> dict[str, Any]:
    names = ("fallback", "lease", "shadow", "batch_headroom", "normal_headroom", "closed_after")
    return {name: getattr(limit, name) for name in names}


def _config_from_numbers(limit: LimitSettings) -> LimitConfig:
    """Return the configuration of a limit given as numbers, which imply the rate of a window."""
    capacity, window, rate = limit.capacity or 0, limit.window, limit.rate
    if rate is None and not strategy_type(limit.strategy).needs_window:
        raise ValueError(f"rate is required for {limit.strategy}, got None")
    if rate is None:
        usable = window is not None and 0 < window <= WINDOW_MAX and 0 < capacity <= CAPACITY_MAX
        rate = capacity / window if window and usable else 1.0  # LimitConfig then names the wrong value
    return LimitConfig(rate, capacity, window, limit.strategy, **_common_options(limit))
