"""The options of a breaker: frozen, and validated once.

Knows nothing about stores or running circuits; ``_rules`` is what the state machine receives.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, fields

from comporta.breaker.state import CircuitRules
from comporta.clock import to_us
from comporta.validators import require_bool, require_integer, require_number

_SECONDS_MAX = 86_400.0
_FACTOR_MAX = 100.0
_PARTS = 1_000_000


@dataclass(frozen=True)
class BreakerConfig:
    """When a circuit opens, how long it stays open, and how it closes again. Times are in seconds.

    A circuit opens after ``threshold`` failures in a row. It also opens when there were at least
    ``minimum_calls`` calls in the last ``window_seconds`` and a share of ``failure_ratio`` of them failed, or
    a share of ``slow_ratio`` took ``slow_seconds`` or longer. With a ``quorum`` it opens only if that many
    different workers (or all of them, if there are fewer) had failed or slow calls. After ``local_threshold``
    failures in a row of one worker, that worker alone stops calling, whatever results the others get; its
    failures count in both circuits.

    An open circuit admits no calls for ``cooldown_seconds``. Then it is half-open: it admits ``probes`` calls
    from all workers together, at most ``probes_at_once`` at a time, and waits up to ``probe_seconds`` for the
    result of each. When all of them have succeeded it closes, immediately or in ``ramp_steps`` steps of
    ``ramp_seconds``, each of which admits a larger share of the calls. If one fails, the circuit opens again
    for ``cooldown_factor`` times as long as before, at most ``cooldown_max_seconds``.
    """

    threshold: int | None = 5
    """Failures in a row, over all workers, that open the circuit; ``None``: only the ratios open it."""

    cooldown_seconds: float = 30.0
    """How long the circuit stays open."""

    _: KW_ONLY

    cooldown_factor: float = 1.0
    """By what factor each cooldown is longer than the one before, until the circuit has closed."""

    cooldown_max_seconds: float | None = None
    """The longest cooldown; ``None``: ten times ``cooldown_seconds``, at most one day."""

    failure_ratio: float | None = None
    """Share of failed calls in the window that opens the circuit, above 0 and up to 1."""

    slow_seconds: float | None = None
    """Duration from which on a call counts as slow."""

    slow_ratio: float | None = None
    """Share of slow calls in the window that opens the circuit, above 0 and up to 1."""

    window_seconds: float = 60.0
    """The period over which the two ratios are computed."""

    minimum_calls: int = 20
    """The ratios open the circuit only if the window has at least this many calls."""

    quorum: int = 1
    """How many different workers must have failed or slow calls before the circuit opens."""

    local_threshold: int | None = None
    """Failures in a row of one worker that open the circuit in that worker only; ``None``: never."""

    probes: int = 1
    """How many test calls must succeed before the circuit closes."""

    probes_at_once: int | None = None
    """How many test calls may be in progress at the same time; ``None``: all of ``probes``."""

    probe_seconds: float = 30.0
    """After this time a probe without a result no longer counts, and another worker may make one."""

    ramp_steps: int = 0
    """In how many steps the circuit closes; 0: immediately."""

    ramp_seconds: float = 5.0
    """The duration of one step of the ramp."""

    staleness: float = 0.25
    """A worker decides from its local view, which is at most this many seconds old."""

    shadow: bool = False
    """Whether the breaker only counts what it would refuse (metric ``would_refuse``), and refuses nothing."""

    def __post_init__(self) -> None:
        """Validate every field, and that at least one rule can open the circuit."""
        if self.threshold is not None:
            require_integer("threshold", self.threshold, 1, 1_000_000)
        for name in ("cooldown_seconds", "window_seconds", "probe_seconds", "ramp_seconds"):
            require_number(name, getattr(self, name), 0.001, _SECONDS_MAX)
        for name in ("failure_ratio", "slow_ratio"):
            if getattr(self, name) is not None:
                require_number(name, getattr(self, name), 0.000001, 1.0)
        if self.slow_seconds is not None:
            require_number("slow_seconds", self.slow_seconds, 0.000001, _SECONDS_MAX)
        require_integer("minimum_calls", self.minimum_calls, 1, 1_000_000)
        require_integer("quorum", self.quorum, 1, 16)
        if self.local_threshold is not None:
            require_integer("local_threshold", self.local_threshold, 1, 1_000_000)
        require_integer("probes", self.probes, 1, 16)
        if self.probes_at_once is not None:
            require_integer("probes_at_once", self.probes_at_once, 1, self.probes)
        require_integer("ramp_steps", self.ramp_steps, 0, 100)
        require_number("staleness", self.staleness, 0.001, 60.0)
        require_bool("shadow", self.shadow)
        self._check_cooldowns()
        self._check_trip_conditions()

    def _check_cooldowns(self) -> None:
        require_number("cooldown_factor", self.cooldown_factor, 1.0, _FACTOR_MAX)
        if self.cooldown_max_seconds is not None:
            require_number(
                "cooldown_max_seconds", self.cooldown_max_seconds, self.cooldown_seconds, _SECONDS_MAX
            )

    def _check_trip_conditions(self) -> None:
        if (self.slow_seconds is None) != (self.slow_ratio is None):
            raise ValueError(
                "slow_seconds and slow_ratio must be given together, "
                f"got {self.slow_seconds} and {self.slow_ratio}"
            )
        if self.threshold is None and self.failure_ratio is None and self.slow_ratio is None:
            raise ValueError("threshold must be at least 1 unless a ratio is given, got None")

    @property
    def _rules(self) -> CircuitRules:
        """The options as integers, for the state machine and its Lua form."""
        return CircuitRules(
            threshold=self.threshold or 0,
            cooldown_us=to_us(self.cooldown_seconds),
            cooldown_permille=round(self.cooldown_factor * 1000),
            cooldown_max_us=to_us(self._cooldown_max()),
            failure_ppm=round((self.failure_ratio or 0) * _PARTS),
            slow_ppm=round((self.slow_ratio or 0) * _PARTS),
            window_us=to_us(self.window_seconds),
            minimum_calls=self.minimum_calls,
            quorum=self.quorum,
            probes=self.probes,
            probes_at_once=self.probes_at_once or self.probes,
            probe_us=to_us(self.probe_seconds),
            ramp_steps=self.ramp_steps,
            ramp_step_us=to_us(self.ramp_seconds),
        )

    def _cooldown_max(self) -> float:
        """Return the longest cooldown in seconds."""
        if self.cooldown_factor == 1.0:
            return self.cooldown_seconds
        if self.cooldown_max_seconds is None:
            return min(10 * self.cooldown_seconds, _SECONDS_MAX)
        return self.cooldown_max_seconds

    def __str__(self) -> str:
        """Return the threshold, the cooldown and the options that are not the default, for messages."""
        shown = [
            f"{field.name}={getattr(self, field.name)}"
            for field in fields(self)
            if field.name in ("threshold", "cooldown_seconds") or getattr(self, field.name) != field.default
        ]
        return ", ".join(shown)
