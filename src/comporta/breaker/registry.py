"""``get_circuit_breaker("pncp")``: the one breaker of a name in this process, as the environment says.

``<NAME>_CIRCUIT_BREAKER_THRESHOLD`` and ``<NAME>_CIRCUIT_BREAKER_COOLDOWN`` (seconds) are for any name, with
``-`` and ``.`` written ``_``. ``USE_REDIS_CIRCUIT_BREAKER=false`` keeps every breaker in its own process;
otherwise it is shared through ``COMPORTA_STATE``, else ``REDIS_URL``, else this machine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from threading import Lock

from comporta import forks
from comporta.breaker.breaker import CircuitBreaker
from comporta.breaker.config import BreakerConfig
from comporta.stores.urls import default_url

THRESHOLDS = {"pncp": 50, "pcp": 30}
THRESHOLD_DEFAULT = 50
COOLDOWN_SECONDS = 120.0
NAMES_MAX = 1000
"""How many breakers a process has by name; names are written in programs, not sent by strangers."""

SHARING = "USE_REDIS_CIRCUIT_BREAKER"
_YES = ("true", "1", "yes", "on")
_NO = ("false", "0", "no", "off")

_breakers: dict[str, CircuitBreaker] = {}
_lock = Lock()


class _AfterFork:
    """Frees the lock that another thread of the parent may have held."""

    @staticmethod
    def after_fork() -> None:
        """Free it."""
        forks.renew(_lock)


_after_fork = _AfterFork()
forks.register(_after_fork)


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


def _made(source: str, environ: Mapping[str, str]) -> CircuitBreaker:
    prefix = re.sub("[-.]", "_", source).upper() + "_CIRCUIT_BREAKER_"
    threshold = _read(environ, f"{prefix}THRESHOLD", int, THRESHOLDS.get(source, THRESHOLD_DEFAULT))
    cooldown = _read(environ, f"{prefix}COOLDOWN", float, COOLDOWN_SECONDS)
    state = default_url(distributed=True) if _shared(environ) else "memory://"
    config = _checked(f"{prefix}THRESHOLD", "threshold", lambda: BreakerConfig(int(threshold)))
    config = _checked(
        f"{prefix}COOLDOWN", "cooldown_seconds", lambda: BreakerConfig(config.threshold, float(cooldown))
    )
    return CircuitBreaker(source, state=state, config=config)


def _checked(variable: str, field: str, make: Callable[[], BreakerConfig]) -> BreakerConfig:
    """Say of a bad value which variable it came from."""
    try:
        return make()
    except ValueError as error:
        raise ValueError(str(error).replace(field, variable, 1)) from None


def _read(environ: Mapping[str, str], variable: str, kind: type[int] | type[float], default: float) -> float:
    text = environ.get(variable)
    if not text:
        return default
    try:
        return kind(text)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number of seconds"
        raise ValueError(f"{variable} must be {wanted}, got {text!r:.50}") from None


def _shared(environ: Mapping[str, str]) -> bool:
    said = environ.get(SHARING, "").strip().lower() or _YES[0]
    if said not in (*_YES, *_NO):
        raise ValueError(f"{SHARING} must be one of {', '.join((*_YES, *_NO))}, got {environ[SHARING]!r:.50}")
    return said in _YES
