"""Breakers by name: ``get_circuit_breaker("pncp")``, configured from the settings file and the environment.

``<NAME>_CIRCUIT_BREAKER_THRESHOLD`` and ``<NAME>_CIRCUIT_BREAKER_COOLDOWN`` (seconds) configure a breaker of
any name (write ``-`` and ``.`` as ``_``); :mod:`comporta.settings` reads the other variables and the file.
``USE_REDIS_CIRCUIT_BREAKER=false`` keeps every breaker in its own process. Otherwise workers share them
through ``COMPORTA_STATE``, else the file's ``state``, else ``REDIS_URL``, else on this machine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from comporta import fork_safety
from comporta.breaker.breaker import CircuitBreaker
from comporta.breaker.config import BreakerConfig
from comporta.runtime import PerProcess
from comporta.stores.registry import default_url

if TYPE_CHECKING:
    from comporta.settings import BreakerSettings, Settings

DEFAULTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "pncp": {"threshold": 50, "cooldown_seconds": 120.0},
        "pcp": {"threshold": 30, "cooldown_seconds": 120.0},
    }
)
"""The defaults of these names that differ from the defaults of ``BreakerConfig``."""

BREAKERS_MAX = 1000
"""The largest number of named breakers in a process. Names belong to the program, not to its input."""

SHARING_VARIABLE = "USE_REDIS_CIRCUIT_BREAKER"
_YES = ("true", "1", "yes", "on")
_NO = ("false", "0", "no", "off")

_breakers: PerProcess[dict[str, CircuitBreaker]] = PerProcess(dict)
_lock = Lock()

fork_safety.reinit_lock_after_fork(_lock)


def get_circuit_breaker(source: str = "pncp") -> CircuitBreaker:
    """Return the breaker of a source: the same object for every caller in this process."""
    with _lock:
        breakers = _breakers.get()
        if source not in breakers:
            if len(breakers) >= BREAKERS_MAX:
                raise ValueError(
                    f"a process has at most {BREAKERS_MAX} named breakers, got one more: {source!r:.100}"
                )
            breakers[source] = _create(source, os.environ)
        return breakers[source]


def forget_circuit_breakers() -> None:
    """Drop all named breakers, so that the next call creates them from the current environment; for tests."""
    with _lock:
        _breakers.get().clear()


def config_for(name: str) -> BreakerConfig:
    """Return the configuration of a named breaker: from the file and the environment, else its defaults."""
    return _config_for(name, _load_settings())


def _load_settings() -> Settings:
    from comporta.settings import load_settings  # noqa: PLC0415 - a fifth of the import time of comporta

    return load_settings()


def _config_for(name: str, settings: Settings) -> BreakerConfig:
    from comporta.settings.environment import upper_snake  # noqa: PLC0415 - as above

    tables = [table for other, table in settings.breakers.items() if upper_snake(other) == upper_snake(name)]
    return (
        breaker_config_from_settings(name, tables[0]) if tables else BreakerConfig(**DEFAULTS.get(name, {}))
    )


def breaker_config_from_settings(name: str, table: BreakerSettings) -> BreakerConfig:
    """Return the configuration that a settings table describes; what it omits has the name's defaults."""
    try:
        return BreakerConfig(**{**DEFAULTS.get(name, {}), **table.keyword_arguments()})
    except (TypeError, ValueError) as error:
        raise table.error_with_origin(error) from error


def _create(source: str, environ: Mapping[str, str]) -> CircuitBreaker:
    settings = _load_settings()
    state = settings.state or default_url(distributed=True)
    return CircuitBreaker(
        source,
        state=state if is_sharing_enabled(environ) else "memory://",
        config=_config_for(source, settings),
    )


def is_sharing_enabled(environ: Mapping[str, str]) -> bool:
    """Whether workers share breakers: yes, unless ``USE_REDIS_CIRCUIT_BREAKER`` is false."""
    value = environ.get(SHARING_VARIABLE, "").strip().lower() or _YES[0]
    if value not in (*_YES, *_NO):
        choices = ", ".join((*_YES, *_NO))
        raise ValueError(f"{SHARING_VARIABLE} must be one of {choices}, got {value!r:.50}")
    return value in _YES
