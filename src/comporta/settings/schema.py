"""The settings of limits, breakers and upstreams: frozen values that know where they were written.

This module does not know what a limit or a breaker does. A value is checked as soon as it is created: its
type, its choices, and ranges that need no further knowledge. The code that builds a limit or a breaker checks
the rest and reports the same place with :meth:`SettingsTable.error_with_origin`. ``None`` means that the
field is not set and has the default of that code. Names of strategies are not checked here, because programs
can register more of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from comporta.names import NAME_RULE, is_valid_name
from comporta.settings.field_types import (
    ChoiceField,
    JitterField,
    NumberField,
    TextField,
    TextTableField,
    UnionField,
    quoted_list,
    short_repr,
)
from comporta.settings.reloader import SettingsReloader
from comporta.settings.service_schema import ServiceSettings
from comporta.settings.toml_table import SettingsTable, setting
from comporta.state_schemes import check_scheme

FALLBACKS = ("share", "open", "closed")
"""What a worker may do while the state is unreachable; a test compares them with those of ``limits``."""

COUNTS = ("attempts", "series")
"""Whether the breaker counts each attempt of a call, or only its result."""

JITTERS = ("full", "decorrelated")
DEGRADATION_RULES = ("steps", "accepted", "cubic")

STATE_EXAMPLE = "redis://localhost"

_POSITIVE_INTEGER = NumberField(1, is_integer=True)
_POSITIVE_INTEGER_OR_FALSE = NumberField(1, is_integer=True, allows_false=True)
_INTEGER = NumberField(0, is_integer=True)
_SECONDS = NumberField(above=0, unit="seconds")
_SECONDS_OR_FALSE = NumberField(above=0, unit="seconds", allows_false=True)
_SECONDS_OR_ZERO = NumberField(0, unit="seconds")
_FRACTION = NumberField(above=0, maximum=1)
_BOOLEAN = UnionField("true or false", (bool,))
_LEASE = UnionField("true, false, text such as '50ms' or a number of seconds", (bool, int, float, str))


LIMIT_SHORTCUTS = ("fallback", "lease", "batch_headroom", "normal_headroom")
"""The fields of its limit that may be written directly in an upstream."""


@dataclass(frozen=True)
class LimitSettings(SettingsTable):
    """One limit: ``limit`` as text (``"100/minute burst 20"``), or its numbers."""

    limit: str | None = setting(TextField("text such as '10/s'"))
    rate: float | None = setting(NumberField())
    capacity: int | None = setting(NumberField(is_integer=True))
    window: float | None = setting(NumberField(unit="seconds"))
    strategy: str = setting(TextField("the name of a strategy such as 'token_bucket'"), "token_bucket")
    fallback: str = setting(ChoiceField(FALLBACKS), FALLBACKS[0])
    lease: bool | float | str = setting(_LEASE, False)
    shadow: bool = setting(_BOOLEAN, False)
    limit_for: Mapping[str, str] | None = setting(TextTableField("a table of keys and limits such as '10/s'"))
    batch_headroom: int | None = setting(_INTEGER)
    normal_headroom: int = setting(_INTEGER, 0)
    closed_after: float = setting(NumberField(unit="seconds"), 0.0)
    origin: str = field(default="limit", compare=False, kw_only=True)

    def __post_init__(self) -> None:
        """Check also that the limit is complete, and given once."""
        super().__post_init__()
        numbers = [name for name in ("rate", "capacity", "window") if getattr(self, name) is not None]
        if self.limit is not None and numbers:
            raise ValueError(
                f"{self.origin_of(numbers[0])}: limit must not be combined with {quoted_list(numbers)}: it "
                "already includes them"
            )
        if self.limit is None and ("capacity" not in numbers or len(numbers) == 1):
            raise ValueError(
                f"{self.origin}: limit must be set, or 'capacity' together with 'rate' or 'window', "
                f"got {quoted_list(numbers)}"
            )


@dataclass(frozen=True)
class BreakerSettings(SettingsTable):
    """One breaker; with ``threshold = false`` only the ratios open it."""

    threshold: int | bool | None = setting(_POSITIVE_INTEGER_OR_FALSE)
    cooldown_seconds: float | None = setting(_SECONDS)
    cooldown_factor: float | None = setting(NumberField(1))
    cooldown_max_seconds: float | None = setting(_SECONDS)
    failure_ratio: float | None = setting(_FRACTION)
    slow_seconds: float | None = setting(_SECONDS)
    slow_ratio: float | None = setting(_FRACTION)
    window_seconds: float | None = setting(_SECONDS)
    minimum_calls: int | None = setting(_POSITIVE_INTEGER)
    quorum: int | None = setting(_POSITIVE_INTEGER)
    local_threshold: int | None = setting(_POSITIVE_INTEGER)
    probes: int | None = setting(_POSITIVE_INTEGER)
    probes_at_once: int | None = setting(_POSITIVE_INTEGER)
    probe_seconds: float | None = setting(_SECONDS)
    ramp_steps: int | None = setting(_INTEGER)
    ramp_seconds: float | None = setting(_SECONDS)
    staleness: float | None = setting(_SECONDS)
    shadow: bool | None = setting(_BOOLEAN)
    origin: str = field(default="breaker", compare=False, kw_only=True)


@dataclass(frozen=True)
class RetrySettings(SettingsTable):
    """The retries of an upstream; ``deadline = false`` means no deadline."""

    retries: int | None = setting(_INTEGER)
    base: float | None = setting(_SECONDS_OR_ZERO)
    factor: float | None = setting(NumberField(1))
    jitter: Sequence[float] | str | None = setting(JitterField(JITTERS))
    min_delay: float | None = setting(_SECONDS_OR_ZERO)
    max_delay: float | None = setting(_SECONDS)
    deadline: float | bool | None = setting(_SECONDS_OR_FALSE)
    budget_ratio: float | None = setting(NumberField(0))
    budget_least: int | None = setting(_INTEGER)
    origin: str = field(default="retry", compare=False, kw_only=True)

    def __post_init__(self) -> None:
        """Turn the list from TOML into a pair."""
        super().__post_init__()
        if isinstance(self.jitter, list):
            object.__setattr__(self, "jitter", tuple(self.jitter))


@dataclass(frozen=True)
class DegradationSettings(SettingsTable):
    """How the limit of an upstream goes down after rejections, and up again."""

    drop: float | None = setting(_FRACTION)
    floor: float | None = setting(_FRACTION)
    climb: float | None = setting(_FRACTION)
    every: float | None = setting(_SECONDS)
    rule: str | None = setting(ChoiceField(DEGRADATION_RULES))
    round_trip: float | None = setting(_SECONDS)
    origin: str = field(default="degradation", compare=False, kw_only=True)


_LIMIT = UnionField("text such as '10/s' or a table", (LimitSettings,))
_BREAKER = UnionField("a table, the name of one of the breakers, true or false", (bool, str))
_RETRY = UnionField("a table, true or false", (bool, RetrySettings))
_DEGRADATION = UnionField("a table, true or false", (bool, DegradationSettings))


@dataclass(frozen=True)
class UpstreamSettings(SettingsTable):
    """The policies of one upstream.

    ``breaker`` names one of the breakers; ``True`` and ``None`` mean the breaker with the name of the
    upstream. A table in a file defines that breaker: :meth:`Settings.breaker_of` returns it.
    """

    limit: LimitSettings | None = field(default=None, metadata={"type": _LIMIT})
    max_wait: float | None = setting(_SECONDS_OR_ZERO)
    max_concurrent: int | bool | None = setting(_POSITIVE_INTEGER_OR_FALSE)
    permit_ttl: float | None = setting(_SECONDS)
    timeout: float | bool | None = setting(_SECONDS_OR_FALSE)
    pause_max: float | None = setting(_SECONDS_OR_ZERO)
    count: str | None = setting(ChoiceField(COUNTS))
    breaker: str | bool | None = setting(_BREAKER)
    retry: RetrySettings | bool | None = field(default=None, metadata={"type": _RETRY})
    degradation: DegradationSettings | bool | None = field(default=None, metadata={"type": _DEGRADATION})
    origin: str = field(default="upstream", compare=False, kw_only=True)


NESTED: Mapping[str, type[SettingsTable]] = MappingProxyType(
    {
        "limit": LimitSettings,
        "breaker": BreakerSettings,
        "retry": RetrySettings,
        "degradation": DegradationSettings,
    }
)
"""The tables that an upstream may contain."""


def _empty_mapping() -> Any:
    return field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class Settings(SettingsTable):
    """All settings. ``namespaces`` maps a namespace to the limit that its keys use.

    ``reloader`` applies changes of the file (``load_settings(..., reload=True)``); its ``close()`` ends that.
    """

    state: str | None = field(default=None, repr=False)  # may hold a password
    limits: Mapping[str, LimitSettings] = _empty_mapping()
    namespaces: Mapping[str, str] = _empty_mapping()
    breakers: Mapping[str, BreakerSettings] = _empty_mapping()
    upstreams: Mapping[str, UpstreamSettings] = _empty_mapping()
    service: ServiceSettings = field(default_factory=ServiceSettings)
    state_origin: str = field(default="state", compare=False, kw_only=True)
    reloader: SettingsReloader | None = field(default=None, compare=False, repr=False, kw_only=True)

    def __post_init__(self) -> None:
        """Check names and references."""
        self._check_state()
        _check_names("a limit", self.limits)
        _check_names("an upstream", self.upstreams)
        _check_names("a breaker", self.breakers)
        self._check_namespaces()
        for upstream in self.upstreams.values():
            if isinstance(upstream.breaker, str) and upstream.breaker not in self.breakers:
                raise upstream.field_error(
                    "breaker",
                    f"must be one of the breakers, {quoted_list(self.breakers)}, "
                    f"got {short_repr(upstream.breaker)}",
                )

    def breaker_of(self, upstream: str) -> tuple[str, BreakerSettings] | None:
        """Return the name and the settings of an upstream's breaker; ``None`` if it has none."""
        breaker = self.upstreams[upstream].breaker
        if breaker is False:
            return None
        name = breaker if isinstance(breaker, str) else upstream
        return name, self.breakers.get(name, BreakerSettings())

    def _check_state(self) -> None:
        if self.state is None:
            return
        try:
            check_scheme(self.state)
        except ValueError as error:
            raise ValueError(f"{self.state_origin}: {error}") from None

    def _check_namespaces(self) -> None:
        for namespace, name in self.namespaces.items():
            where = self.origins.get(f"namespaces.{namespace}", f"{self.origin}: [namespaces]")
            if not namespace:
                raise ValueError(f"{where}: a namespace must not be empty, got ''")
            if name not in list(self.limits):  # a list, because a value from TOML may not be hashable
                raise ValueError(
                    f"{where}: {short_repr(namespace)} must be one of the limits, "
                    f"{quoted_list(self.limits)}, got {short_repr(name)}"
                )


def _check_names(noun: str, tables: Mapping[str, SettingsTable]) -> None:
    for name, table in tables.items():
        if not is_valid_name(name):
            raise ValueError(
                f"{table.origin}: the name of {noun} must be {NAME_RULE}, got {short_repr(name, 120)}"
            )
