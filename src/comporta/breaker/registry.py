"""``get_circuit_breaker("pncp")``: the one breaker of a name in this process, as file and environment say.

``<NAME>_CIRCUIT_BREAKER_THRESHOLD`` and ``<NAME>_CIRCUIT_BREAKER_COOLDOWN`` (seconds) are for any name, with
``-`` and ``.`` written ``_``; the rest of them, and the file, are in :mod:`comporta.settings`.
``USE_REDIS_CIRCUIT_BREAKER=false`` keeps every breaker in its own process; otherwise it is shared through
``COMPORTA_STATE``, else what the file says, else ``REDIS_URL``, else this machine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from comporta import forks
from comporta.breaker.breaker import CircuitBreaker
from comporta.breaker.config import BreakerConfig
from comporta.stores.urls import default_url

if TYPE_CHECKING:
    from comporta.settings import BreakerSettings, Settings

DEFAULTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "pncp": {"threshold": 50, "cooldown_seconds": 120.0},
        "pcp": {"threshold": 30, "cooldown_seconds": 120.0},
    }
)
"""What is different for these names where nobody says otherwise."""

NAMES_MAX = 1000
"""How many breakers a process has by name; names are written in programs, not sent by strangers."""

SHARING = "USE_REDIS_CIRCUIT_BREAKER"
_YES = ("true", "1", "yes", "on")
_NO = ("false", "0", "no", "off")

_breakers: dict[str, CircuitBreaker] = {}
_lock = Lock()

forks.renew_after_fork(_lock)


def get_circuit_breaker(source: str = "pncp") -> CircuitBreaker:
    """Return the breaker of a source; the same one to all who ask in this process."""
    with _lock:
        if source not in _breakers:
            if len(_breakers) >= NAMES_MAX:
                raise ValueError(
                    f"breakers by name must be at most {NAMES_MAX}, got one more: {source!r:.100}"
                )
            _breakers[source] = _made(source, os.environ)
        return _breakers[source]


def forget_circuit_breakers() -> None:
    """Let all be made anew when next asked for, as the environment says then; for tests."""
    with _lock:
        _breakers.clear()


def config_for(name: str) -> BreakerConfig:
    """Return how the breaker of a name is to behave: as file and environment say, or as is usual for it."""
    return _config(name, _settings())


def _settings() -> Settings:
    from comporta.settings import load_settings  # noqa: PLC0415 - a fifth of all that importing comporta costs

    return load_settings()


def _config(name: str, settings: Settings) -> BreakerConfig:
    from comporta.settings.environment import capitals  # noqa: PLC0415 - see above

    own = [written for other, written in settings.breakers.items() if capitals(other) == capitals(name)]
    return configured(name, own[0]) if own else BreakerConfig(**DEFAULTS.get(name, {}))


def configured(name: str, written: BreakerSettings) -> BreakerConfig:
    """Return what the settings of a breaker say; what they leave open is as is usual for its name."""
    try:
        return BreakerConfig(**{**DEFAULTS.get(name, {}), **written.given()})
    except (TypeError, ValueError) as error:
        raise written.blamed(error) from error


def _made(source: str, environ: Mapping[str, str]) -> CircuitBreaker:
    settings = _settings()
    state = settings.state or default_url(distributed=True)
    return CircuitBreaker(
        source, state=state if sharing(environ) else "memory://", config=_config(source, settings)
    )


def sharing(environ: Mapping[str, str]) -> bool:
    """Whether breakers are shared: ``USE_REDIS_CIRCUIT_BREAKER`` says no, if anything."""
    said = environ.get(SHARING, "").strip().lower() or _YES[0]
    if said not in (*_YES, *_NO):
        raise ValueError(f"{SHARING} must be one of {', '.join((*_YES, *_NO))}, got {environ[SHARING]!r:.50}")
    return said in _YES
