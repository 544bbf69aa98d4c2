"""What can be configured, as plain values that know where they were written.

Nothing here knows what a limit or a breaker does. Types, unknown words and ranges that need no knowledge are
checked as soon as a value is made; who builds the real thing checks the rest, and names the same place with
:meth:`Written.blamed`. ``None`` is what nobody wrote: the default is then with whoever builds it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from comporta.names import NAMES_ALLOWED, is_name
from comporta.settings.kinds import Choice, Either, Number, Spread, Text, listed, shown
from comporta.settings.service import ServiceSettings
from comporta.settings.written import Written, of

STRATEGIES = ("token_bucket", "fixed_window", "sliding_window", "leaky_bucket")
"""The names of ``LimitStrategy``; a test holds the two equal."""

FALLBACKS = ("share", "open", "closed")
"""What a worker on its own may do; the same holds for these."""

COUNTS = ("attempts", "series")
"""Whether each attempt of a retry series counts in the breaker, or the series once."""

JITTERS = ("full", "decorrelated")
RULES = ("steps", "accepted")

_SERVERS = ("redis", "rediss", "valkey", "valkeys")
SCHEMES = (
    *("memory", "shared", *_SERVERS, "unix"),
    *(f"{scheme}+sentinel" for scheme in _SERVERS),
    *(f"{scheme}+cluster" for scheme in _SERVERS),
)
"""How the URL of a state may start; a test holds it equal to what can be opened."""

_WINDOWS = ("fixed_window", "sliding_window")

_COUNT = Number("a whole number", "at least 1", least=1, whole=True)
_COUNT_OR_NONE = Number("a whole number", "at least 1", least=1, whole=True, off=True)
_WHOLE = Number("a whole number", "at least 0", least=0, whole=True)
_SECONDS = Number("a number of seconds", "positive", above=0)
_SECONDS_OR_NONE = Number("a number of seconds", "positive", above=0, off=True)
_SECONDS_OR_ZERO = Number("a number of seconds", "at least 0", least=0)
_PART = Number("a number", "more than 0 and at most 1", above=0, most=1)
_LEASE = Either("true, false, text such as '50ms' or a number of seconds", (bool, int, float, str))


@dataclass(frozen=True)
class LimitSettings(Written):
    """One limit as it was written: ``limit`` as text (``"100/minute burst 20"``), or its numbers."""

    limit: str | None = of(Text("text such as '10/s'"))
    rate: float | None = of(Number("a number per second"))
    capacity: int | None = of(Number("a whole number", whole=True))
    window: float | None = of(Number("a number of seconds"))
    strategy: str = of(Choice(STRATEGIES), STRATEGIES[0])
    fallback: str = of(Choice(FALLBACKS), FALLBACKS[0])
    lease: bool | float | str = of(_LEASE, False)
    source: str = field(default="limit", compare=False, kw_only=True)

    def __post_init__(self) -> None:
        """Check also that what belongs together is there together."""
        super().__post_init__()
        given = [name for name in ("rate", "capacity", "window") if getattr(self, name) is not None]
        needed = ["capacity", "window" if self.strategy in _WINDOWS else "rate"]
        if self.limit is not None and given:
            raise ValueError(f"{self.at(given[0])}: limit says it all: leave out {listed(given)}")
        if self.limit is None and not set(needed) <= set(given):
            raise ValueError(
                f"{self.source}: limit, or for {self.strategy} {listed(sorted(needed))} must be given, "
                f"got {listed(given)}"
            )


@dataclass(frozen=True)
class BreakerSettings(Written):
    """One breaker; ``threshold = false`` leaves tripping to the ratios."""

    threshold: int | bool | None = of(_COUNT_OR_NONE)
    cooldown_seconds: float | None = of(_SECONDS)
    failure_ratio: float | None = of(_PART)
    slow_seconds: float | None = of(_SECONDS)
    slow_ratio: float | None = of(_PART)
    window_seconds: float | None = of(_SECONDS)
    minimum_calls: int | None = of(_COUNT)
    quorum: int | None = of(_COUNT)
    probes: int | None = of(_COUNT)
    probe_seconds: float | None = of(_SECONDS)
    ramp_steps: int | None = of(_WHOLE)
    ramp_seconds: float | None = of(_SECONDS)
    staleness: float | None = of(_SECONDS)
    source: str = field(default="breaker", compare=False, kw_only=True)


@dataclass(frozen=True)
class RetrySettings(Written):
    """How an upstream is tried again; ``deadline = false`` is none."""

    retries: int | None = of(_WHOLE)
    base: float | None = of(_SECONDS_OR_ZERO)
    factor: float | None = of(Number("a number", "at least 1", least=1))
    jitter: Sequence[float] | str | None = of(Spread(JITTERS))
    max_delay: float | None = of(_SECONDS)
    deadline: float | bool | None = of(_SECONDS_OR_NONE)
    budget_ratio: float | None = of(Number("a number", "at least 0", least=0))
    budget_least: int | None = of(_WHOLE)
    source: str = field(default="retry", compare=False, kw_only=True)

    def __post_init__(self) -> None:
        """Make a pair of what TOML gives as a list."""
        super().__post_init__()
        if isinstance(self.jitter, list):
            object.__setattr__(self, "jitter", tuple(self.jitter))


@dataclass(frozen=True)
class DegradationSettings(Written):
    """How the limit of an upstream gives way to errors, and comes back."""

    drop: float | None = of(_PART)
    floor: float | None = of(_PART)
    climb: float | None = of(_PART)
    every: float | None = of(_SECONDS)
    rule: str | None = of(Choice(RULES))
    round_trip: float | None = of(_SECONDS)
    source: str = field(default="degradation", compare=False, kw_only=True)


_LIMIT = Either("text such as '10/s' or a table", (LimitSettings,))
_BREAKER = Either("a table, the name of one of the breakers, true or false", (bool, str))
_RETRY = Either("a table, true or false", (bool, RetrySettings))
_DEGRADATION = Either("a table, true or false", (bool, DegradationSettings))


@dataclass(frozen=True)
class UpstreamSettings(Written):
    """How one upstream may be used.

    ``breaker`` names one of the breakers; ``True`` or ``None`` is the one named like the upstream. A table
    written in its place in a file is such a breaker: :meth:`Settings.breaker_of` finds it.
    """

    limit: LimitSettings | None = field(default=None, metadata={"kind": _LIMIT})
    max_wait: float | None = of(_SECONDS_OR_ZERO)
    max_concurrent: int | bool | None = of(_COUNT_OR_NONE)
    hold_seconds: float | None = of(_SECONDS)
    timeout: float | bool | None = of(_SECONDS_OR_NONE)
    pause_max: float | None = of(_SECONDS_OR_ZERO)
    count: str | None = of(Choice(COUNTS))
    breaker: str | bool | None = of(_BREAKER)
    retry: RetrySettings | bool | None = field(default=None, metadata={"kind": _RETRY})
    degradation: DegradationSettings | bool | None = field(default=None, metadata={"kind": _DEGRADATION})
    source: str = field(default="upstream", compare=False, kw_only=True)


NESTED: Mapping[str, type[Written]] = MappingProxyType(
    {
        "limit": LimitSettings,
        "breaker": BreakerSettings,
        "retry": RetrySettings,
        "degradation": DegradationSettings,
    }
)
"""The tables that may be written in an upstream's."""


def _nothing() -> Any:
    return field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class Settings(Written):
    """What was configured. ``namespaces`` says which limit the keys of a namespace use."""

    state: str | None = field(default=None, repr=False)  # it may hold a password
    limits: Mapping[str, LimitSettings] = _nothing()
    namespaces: Mapping[str, str] = _nothing()
    breakers: Mapping[str, BreakerSettings] = _nothing()
    upstreams: Mapping[str, UpstreamSettings] = _nothing()
    service: ServiceSettings = field(default_factory=ServiceSettings)
    state_source: str = field(default="state", compare=False, kw_only=True)

    def __post_init__(self) -> None:
        """Check names, and that whatever is named is there."""
        self._check_state()
        _check_names("a limit", self.limits)
        _check_names("an upstream", self.upstreams)
        _check_names("a breaker", self.breakers)
        self._check_namespaces()
        for upstream in self.upstreams.values():
            if isinstance(upstream.breaker, str) and upstream.breaker not in self.breakers:
                raise upstream.wrong(
                    "breaker",
                    f"must be one of the breakers, {listed(self.breakers)}, got {shown(upstream.breaker)}",
                )

    def breaker_of(self, upstream: str) -> tuple[str, BreakerSettings] | None:
        """Return the name and settings of the breaker an upstream uses; ``None`` if it shall have none."""
        breaker = self.upstreams[upstream].breaker
        if breaker is False:
            return None
        name = breaker if isinstance(breaker, str) else upstream
        return name, self.breakers.get(name, BreakerSettings())

    def _check_state(self) -> None:
        if self.state is None:
            return
        scheme, separator, _ = self.state.partition("://")
        if not separator or scheme not in SCHEMES:
            allowed = ", ".join(f"{scheme}://" for scheme in SCHEMES)
            shown_state = self.state.rpartition("@")[2].partition("?")[0]
            raise ValueError(
                f"{self.state_source}: state must start with one of {allowed}, got {shown(shown_state)}"
            )

    def _check_namespaces(self) -> None:
        for namespace, name in self.namespaces.items():
            where = self.sources.get(f"namespaces.{namespace}", f"{self.source}: [namespaces]")
            if not namespace:
                raise ValueError(f"{where}: a namespace must not be empty, got ''")
            if name not in list(self.limits):  # a list: what TOML gives need not be hashable
                raise ValueError(
                    f"{where}: {shown(namespace)} must be one of the limits, {listed(self.limits)}, "
                    f"got {shown(name)}"
                )


def _check_names(what: str, tables: Mapping[str, Written]) -> None:
    for name, table in tables.items():
        if not is_name(name):
            raise ValueError(
                f"{table.source}: the name of {what} must be {NAMES_ALLOWED}, got {shown(name, 120)}"
            )
