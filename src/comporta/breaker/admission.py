"""What a breaker returns: whether a call may be made, and the state of the circuit for a health page.

Also provides the name by which other workers know this process. Values only: nothing here reads a store.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Final

from comporta.breaker.codec import OWNER_BYTES_MAX
from comporta.breaker.state import FORCED_CLOSED, FORCED_OPEN, WHY_BYTES_MAX
from comporta.errors import CircuitOpenError
from comporta.runtime import RUNTIME
from comporta.stores.outage_info import Fallback

PHASES = ("closed", "open", "half_open", "ramp")
"""The names of the phases; the index is the number that ``state`` uses."""

SUCCESS, FAILURE = "success", "failure"
REFUSED, NEITHER, CANCELLED = "refused", "neither", "cancelled"
"""The outcomes of a call; those in the second line say nothing about whether the upstream works."""

NO_RESULT: Final = object()
"""Passed instead of a result when the call has none to classify."""

FORCE_NAMES = {FORCED_OPEN: "open", FORCED_CLOSED: "closed"}

_HOST_CHARS_MAX = 32


class Admission:
    """Whether a call may be made; true if it may. Pass it back with the result of the call.

    The admission lets the breaker recognize a result that arrives after the circuit has opened or closed. A
    refusal has ``retry_after`` (seconds), ``reason`` and ``since`` (Unix seconds, or ``None``). If an
    operator holds the circuit open, ``forced`` is true and ``retry_after`` is only a suggested interval.
    """

    __slots__ = (
        *("allowed", "forced", "generation", "own_generation", "own_probe", "phase", "probe", "reason"),
        *("retry_after", "since", "started_ns"),
    )

    def __init__(
        self,
        phase: str,
        generation: int,
        probe: int = 0,
        started_ns: int = 0,
        *,
        allowed: bool = True,
        retry_after: float = 0.0,
        reason: str = "",
        since: float | None = None,
        forced: bool = False,
    ) -> None:
        self.phase = phase
        self.generation = generation
        self.probe = probe
        self.started_ns = started_ns
        self.allowed = allowed
        self.retry_after = retry_after
        self.reason = reason
        self.since = since
        self.forced = forced
        self.own_generation = 0  # of the worker's own circuit
        self.own_probe = 0

    def __bool__(self) -> bool:
        return self.allowed

    def __repr__(self) -> str:
        refused = "held open by an operator" if self.forced else f"refused for {self.retry_after:.3f} s"
        answer = "allowed" if self.allowed else refused
        return f"<Admission {answer}, {self.phase}{', a probe' if self.probe else ''}>"

    def refusal(self, name: str) -> CircuitOpenError:
        """Return the error to raise for a refused call to ``name``."""
        return CircuitOpenError(name, self.reason, self.since, self.retry_after, self.forced)


@dataclass(frozen=True, slots=True)
class ProbeState:
    """A running probe: the worker that makes it, and for how many seconds its result still counts."""

    owner: str
    seconds_left: float


@dataclass(frozen=True, slots=True)
class BreakerWindow:
    """The calls of all workers from which the ratios are computed.

    ``since`` is when the first of them ended, in Unix seconds, or ``None`` if there are none. Successes of
    other workers appear up to a few seconds late, because workers report them in batches.
    """

    calls: int
    failures: int
    slow: int
    since: float | None

    @property
    def failure_ratio(self) -> float:
        """The share of failed calls, from 0 to 1."""
        return self.failures / self.calls if self.calls else 0.0

    @property
    def slow_ratio(self) -> float:
        """The share of slow calls, from 0 to 1."""
        return self.slow / self.calls if self.calls else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the counts and the ratios as plain values, for JSON."""
        return {**asdict(self), "failure_ratio": self.failure_ratio, "slow_ratio": self.slow_ratio}


@dataclass(frozen=True, slots=True)
class BreakerState:
    """The state of a circuit, for a health page.

    ``degraded`` is true while the circuit is open; ``degraded_until`` and ``since`` are in Unix seconds.
    ``share`` is the fraction of calls that is admitted, from 0 to 1. ``forced`` is ``"open"`` or ``"closed"``
    while an operator holds the circuit. ``cooldown_seconds`` is the length of the last cooldown if the
    circuit has not closed since, else ``None``. ``window`` is ``None`` unless a ratio can open the circuit.
    ``worker_phase`` is the phase of this worker's own circuit, or ``None`` without a ``local_threshold``.
    ``fallback`` says since when and why this worker cannot reach the store; ``None`` while it can.
    """

    failures: int
    degraded: bool
    degraded_until: float | None
    phase: str
    reason: str
    since: float | None
    probes: tuple[ProbeState, ...]
    forced: str | None
    share: float
    fallback: Fallback | None
    cooldown_seconds: float | None = None
    window: BreakerWindow | None = None
    worker_phase: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the state as plain values, for JSON."""
        plain = asdict(self)
        plain["probes"] = [asdict(probe) for probe in self.probes]
        plain["window"] = None if self.window is None else self.window.as_dict()
        plain["fallback"] = None if self.fallback is None else self.fallback._asdict()
        return plain


def error_summary(error: object) -> str:
    """Return an error as printable text of at most 200 bytes; an empty string for ``None``."""
    if error is None:
        return ""
    try:
        text = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)
    except Exception:  # __str__ of another library may raise
        text = type(error).__name__
    clean = "".join(char if char.isprintable() else " " for char in text[:WHY_BYTES_MAX])
    return clean.strip().encode("utf-8", "replace")[:WHY_BYTES_MAX].decode("utf-8", "ignore").rstrip(": ")


def worker_name() -> str:
    """Return the name under which other workers know this process: ``host:pid``."""
    return format_worker_name(RUNTIME.host(), RUNTIME.pid())


@lru_cache(1024)
def format_worker_name(host: str, pid: int) -> str:
    """Return the name of the worker with this process id on ``host``."""
    plain = "".join(
        char if char.isascii() and (char.isalnum() or char in "_.-") else "_"
        for char in host[:_HOST_CHARS_MAX]
    )
    return f"{plain}:{pid}"[:OWNER_BYTES_MAX]
