"""Configuration from one place: a TOML file, and environment variables that override it.

::

    state = "redis://localhost:6379/0"

    [limits.default]
    limit = "10/s"

    [limits.search]
    capacity = 100
    window = 60
    strategy = "sliding_window"

    [namespaces]
    search = "search"

Everything is checked here, once, as far as it can be without knowing what a limit is; who builds the limits
checks the rest and names the same ``source``. What nobody understands is an error, never ignored.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

CONFIG_VARIABLE = "COMPORTA_CONFIG"
STATE_VARIABLES = ("COMPORTA_STATE", "REDIS_URL")
LIMIT_PREFIX = "COMPORTA_LIMIT_"

STRATEGIES = ("token_bucket", "fixed_window", "sliding_window", "leaky_bucket")
"""The names of ``LimitStrategy``; a test holds the two equal."""

FALLBACKS = ("share", "open", "closed")
"""What a worker on its own may do; the same holds for these."""

_WINDOWS = ("fixed_window", "sliding_window")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_NAMES_ALLOWED = "1 to 100 of A-Z a-z 0-9 _ . -"
_TABLES = ("state", "limits", "namespaces")


@dataclass(frozen=True)
class LimitSettings:
    """One limit as it was written: ``limit`` as text (``"100/minute burst 20"``), or its numbers.

    ``source`` is where it was written, for the messages of whoever finds fault with it.
    """

    limit: str | None = None
    rate: float | None = None
    capacity: int | None = None
    window: float | None = None
    strategy: str = STRATEGIES[0]
    fallback: str = FALLBACKS[0]
    lease: bool | float | str = False
    source: str = field(default="limit", compare=False)

    def __post_init__(self) -> None:
        """Check types, and that what belongs together is there together."""
        self._check("limit", "text such as '10/s'", str)
        self._check("rate", "a number per second", int | float)
        self._check("capacity", "a whole number", int)
        self._check("window", "a number of seconds", int | float)
        if self.strategy not in STRATEGIES:
            raise ValueError(
                f"{self.source}: strategy must be one of {_listed(STRATEGIES)}, got {self.strategy!r:.100}"
            )
        if self.fallback not in FALLBACKS:
            raise ValueError(
                f"{self.source}: fallback must be one of {_listed(FALLBACKS)}, got {self.fallback!r:.100}"
            )
        if not isinstance(self.lease, bool | int | float | str):
            raise ValueError(
                f"{self.source}: lease must be true, false, text such as '50ms' or a number of seconds, "
                f"got {self.lease!r:.100}"
            )
        given = [name for name in ("rate", "capacity", "window") if getattr(self, name) is not None]
        needed = ["capacity", "window" if self.strategy in _WINDOWS else "rate"]
        if self.limit is not None and given:
            raise ValueError(f"{self.source}: limit says it all: leave out {_listed(given)}")
        if self.limit is None and not set(needed) <= set(given):
            raise ValueError(
                f"{self.source}: limit, or for {self.strategy} {_listed(sorted(needed))} must be given, "
                f"got {_listed(given)}"
            )

    def _check(self, name: str, allowed: str, kind: Any) -> None:
        value = getattr(self, name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, kind)):
            raise ValueError(f"{self.source}: {name} must be {allowed}, got {value!r:.100}")


@dataclass(frozen=True)
class Settings:
    """What was configured. ``namespaces`` says which limit the keys of a namespace use."""

    state: str | None = field(default=None, repr=False)  # it may hold a password
    limits: Mapping[str, LimitSettings] = field(default_factory=lambda: MappingProxyType({}))
    namespaces: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    source: str = field(default="settings", compare=False)
    state_source: str = field(default="state", compare=False)

    def __post_init__(self) -> None:
        """Check names, and that every namespace uses a limit there is."""
        for name, limit in self.limits.items():
            if not _NAME.fullmatch(name):
                raise ValueError(
                    f"{limit.source}: the name of a limit must be {_NAMES_ALLOWED}, got {name!r:.120}"
                )
        for namespace, name in self.namespaces.items():
            where = f"{self.source}: [namespaces]"
            if not namespace:
                raise ValueError(f"{where}: a namespace must not be empty, got ''")
            if name not in list(self.limits):  # a list: what TOML gives need not be hashable
                raise ValueError(
                    f"{where}: {namespace!r:.100} must be one of the limits, {_listed(self.limits)}, "
                    f"got {name!r:.100}"
                )


def load_settings(
    path: str | os.PathLike[str] | None = None, environ: Mapping[str, str] | None = None
) -> Settings:
    """Read the file, if there is one, and the environment.

    ``path`` left out is what ``COMPORTA_CONFIG`` says, else no file. ``COMPORTA_STATE`` and
    ``COMPORTA_LIMIT_<NAME>`` override the file; ``REDIS_URL``, which others use too, only fills in for a
    ``state`` that nobody gave. A variable set to nothing counts as not set. Raises ``ValueError`` for what
    is wrong with either, and ``OSError`` if the file cannot be read.
    """
    environ = os.environ if environ is None else environ
    path = path or environ.get(CONFIG_VARIABLE) or None
    source = "environment" if path is None else os.fspath(path)
    written = {} if path is None else _read(source)
    _known(source, written, _TABLES)
    limits = {
        name: _limit(f"{source}: [limits.{name}]", table)
        for name, table in _table(source, written, "limits").items()
    }
    _override(limits, environ)
    state, state_source = _state(source, written, environ)
    namespaces = MappingProxyType(_table(source, written, "namespaces"))
    return Settings(state, MappingProxyType(limits), namespaces, source, state_source)


def _read(path: str) -> dict[str, Any]:
    import tomllib  # noqa: PLC0415 - costs 5 ms, and most programs have no file

    with open(path, "rb") as file:  # noqa: PTH123 - a path is shown in messages as it was given
        try:
            return tomllib.load(file)
        except ValueError as error:  # not TOML, or not UTF-8
            raise ValueError(f"{path}: {error}") from None


def _table(source: str, written: dict[str, Any], name: str) -> dict[str, Any]:
    table = written.get(name, {})
    if not isinstance(table, dict):
        raise ValueError(f"{source}: {name} must be a table, got {table!r:.100}")
    return table


def _known(where: str, table: dict[str, Any], allowed: tuple[str, ...]) -> None:
    unknown = sorted(set(table) - set(allowed))
    if unknown:
        raise ValueError(f"{where}: fields must be among {_listed(allowed)}, got {unknown[0]!r:.100}")


def _limit(where: str, table: Any) -> LimitSettings:
    if not isinstance(table, dict):
        raise ValueError(f"{where} must be a table, got {table!r:.100}")
    _known(where, table, tuple(field.name for field in fields(LimitSettings) if field.name != "source"))
    return LimitSettings(**table, source=where)


def _override(limits: dict[str, LimitSettings], environ: Mapping[str, str]) -> None:
    """Let the environment say the limits anew; the rest of each stays."""
    for variable in sorted(environ):
        text = environ[variable]
        if not (variable.startswith(LIMIT_PREFIX) and text):
            continue
        names = [name for name in limits if limit_variable(name) == variable]
        if len(names) > 1:
            raise ValueError(f"{variable} must mean one limit, got {_listed(names)}")
        name = names[0] if names else variable.removeprefix(LIMIT_PREFIX).lower()
        kept = limits[name] if names else LimitSettings(limit=text)
        limits[name] = replace(kept, limit=text, rate=None, capacity=None, window=None, source=variable)


def limit_variable(name: str) -> str:
    """Return the environment variable that overrides a limit."""
    return LIMIT_PREFIX + re.sub("[-.]", "_", name).upper()


def _state(source: str, written: dict[str, Any], environ: Mapping[str, str]) -> tuple[str | None, str]:
    state = written.get("state")
    if state is not None and (not isinstance(state, str) or not state):
        raise ValueError(f"{source}: state must be a URL such as 'redis://localhost', got {state!r:.100}")
    ours, others = STATE_VARIABLES
    for url, where in (
        (environ.get(ours), ours),
        (state, f"{source}: state"),
        (environ.get(others), others),
    ):
        if url:
            return url, where
    return None, "state"


def _listed(names: Any) -> str:
    return ", ".join(map(repr, names)) or "none"
