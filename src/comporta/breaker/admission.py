"""What a breaker answers: whether a call may be made, and how the circuit stands."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Final

from comporta.breaker.codec import OWNER_BYTES_MAX
from comporta.breaker.state import FORCED_CLOSED, FORCED_OPEN, WHY_BYTES_MAX
from comporta.errors import CircuitOpenError, RefusedError
from comporta.stores.failover import Fallback

PHASES = ("closed", "open", "half_open", "ramp")
"""The names of the phases, by their numbers in ``state.py``."""

SUCCESS, FAILURE, REFUSED, CANCELLED = "success", "failure", "refused", "cancelled"
"""What became of a call; the last two say nothing of the upstream."""

NOTHING: Final = object()
"""In place of a result: there is none to be judged."""

FORCES = {FORCED_OPEN: "open", FORCED_CLOSED: "closed"}

_HOST_CHARS_MAX = 32
_TOO_MANY_REQUESTS = 429


class Admission:
    """Whether a call may be made; true if so. Its result is told with it, so that a late one can be known.

    ``retry_after`` (seconds), ``why`` and ``since`` (Unix seconds, or ``None``) are for a refusal.
    """

    __slots__ = ("allowed", "began_ns", "generation", "phase", "probe", "retry_after", "since", "why")

    def __init__(
        self,
        phase: str,
        generation: int,
        probe: int = 0,
        began_ns: int = 0,
        *,
        allowed: bool = True,
        retry_after: float = 0.0,
        why: str = "",
        since: float | None = None,
    ) -> None:
        self.phase = phase
        self.generation = generation
        self.probe = probe
        self.began_ns = began_ns
        self.allowed = allowed
        self.retry_after = retry_after
        self.why = why
        self.since = since

    def __bool__(self) -> bool:
        return self.allowed

    def __repr__(self) -> str:
        said = "allowed" if self.allowed else f"refused for {self.retry_after:.3f} s"
        return f"<Admission {said}, {self.phase}{', a probe' if self.probe else ''}>"

    def refusal(self, name: str) -> CircuitOpenError:
        """Return the error of a refusal."""
        return CircuitOpenError(name, self.why, self.since, self.retry_after)


class BadResultError(Exception):
    """Stands for a result that counts as a failure; it is told to the breaker, and never raised."""

    def __str__(self) -> str:
        return f"{self.args[0]!r:.100}"


@dataclass(frozen=True, slots=True)
class ProbeState:
    """A probe that is out: whose it is, and for how many seconds its result still counts."""

    owner: str
    seconds_left: float


@dataclass(frozen=True, slots=True)
class BreakerState:
    """How a circuit stands, for a health page.

    ``degraded`` is that it is open; ``degraded_until`` and ``since`` are in Unix seconds. ``share`` is the
    part of calls that is let through. ``forced`` is what an operator said, ``"open"`` or ``"closed"``.
    ``fallback``: since when and why this worker is on its own.
    """

    failures: int
    degraded: bool
    degraded_until: float | None
    phase: str
    why: str
    since: float | None
    probes: tuple[ProbeState, ...]
    forced: str | None
    share: float
    fallback: Fallback | None

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        plain = asdict(self)
        plain["probes"] = [asdict(probe) for probe in self.probes]
        plain["fallback"] = None if self.fallback is None else self.fallback._asdict()
        return plain


def was_refused(error: Exception) -> bool:
    """Whether nobody tried, or the upstream only wants fewer calls: an HTTP client's error with a 429."""
    if isinstance(error, RefusedError):
        return True
    with suppress(Exception):  # somebody else's property
        return bool(getattr(getattr(error, "response", None), "status_code", None) == _TOO_MANY_REQUESTS)
    return False


def why_of(error: object) -> str:
    """Return a failure in a few printable words; nothing for no error."""
    if error is None:
        return ""
    try:
        text = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)
    except Exception:  # an error that cannot even be shown is still one
        text = type(error).__name__
    clean = "".join(letter if letter.isprintable() else " " for letter in text[:WHY_BYTES_MAX])
    return clean.strip().encode("utf-8", "replace")[:WHY_BYTES_MAX].decode("utf-8", "ignore").rstrip(": ")


def owner() -> str:
    """Return who this process is to the others."""
    return _owner(os.getpid())


@cache
def _owner(pid: int) -> str:
    return owner_named(os.uname().nodename or "localhost", pid)


def owner_named(host: str, pid: int) -> str:
    """Return who a process of some machine is to the others."""
    plain = "".join(
        letter if letter.isascii() and (letter.isalnum() or letter in "_.-") else "_"
        for letter in host[:_HOST_CHARS_MAX]
    )
    return f"{plain}:{pid}"[:OWNER_BYTES_MAX]
