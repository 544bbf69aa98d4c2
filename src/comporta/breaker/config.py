"""How a breaker behaves: frozen, and checked once."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, fields
from math import isfinite

from comporta.breaker.state import Rules
from comporta.clock import to_us

_SECONDS_MAX = 86_400.0
_PARTS = 1_000_000


@dataclass(frozen=True)
class BreakerConfig:
    """When a breaker opens, for how long, and how it comes back.

    It opens after ``threshold`` failures in a row (``None``: not for that), or if of at least
    ``minimum_calls`` in the last ``window_seconds`` a part of ``failure_ratio`` failed, or one of
    ``slow_ratio`` took ``slow_seconds`` or longer; and only if ``quorum`` different workers had trouble, or
    all there are. It stays open for ``cooldown_seconds``. Then the fleet may try ``probes`` calls, each for
    ``probe_seconds`` at the most; when all have succeeded it closes: at once, or, with ``ramp_steps``,
    letting through one more part of the calls every ``ramp_seconds``.

    A worker decides by what it knows, which is at most ``staleness`` seconds old.
    """

    threshold: int | None = 5
    cooldown_seconds: float = 30.0
    _: KW_ONLY
    failure_ratio: float | None = None
    slow_seconds: float | None = None
    slow_ratio: float | None = None
    window_seconds: float = 60.0
    minimum_calls: int = 20
    quorum: int = 1
    probes: int = 1
    probe_seconds: float = 30.0
    ramp_steps: int = 0
    ramp_seconds: float = 5.0
    staleness: float = 0.25

    def __post_init__(self) -> None:
        """Check every field, and that there is something to open for."""
        if self.threshold is not None:
            _whole("threshold", self.threshold, 1, 1_000_000)
        for name in ("cooldown_seconds", "window_seconds", "probe_seconds", "ramp_seconds"):
            _number(name, getattr(self, name), 0.001, _SECONDS_MAX)
        for name in ("failure_ratio", "slow_ratio"):
            if getattr(self, name) is not None:
                _number(name, getattr(self, name), 0.000001, 1.0)
        if self.slow_seconds is not None:
            _number("slow_seconds", self.slow_seconds, 0.000001, _SECONDS_MAX)
        _whole("minimum_calls", self.minimum_calls, 1, 1_000_000)
        _whole("quorum", self.quorum, 1, 16)
        _whole("probes", self.probes, 1, 16)
        _whole("ramp_steps", self.ramp_steps, 0, 100)
        _number("staleness", self.staleness, 0.001, 60.0)
        self._check_rules()

    def _check_rules(self) -> None:
        if (self.slow_seconds is None) != (self.slow_ratio is None):
            raise ValueError(
                "slow_seconds and slow_ratio must be given together, "
                f"got {self.slow_seconds} and {self.slow_ratio}"
            )
        if self.threshold is None and self.failure_ratio is None and self.slow_ratio is None:
            raise ValueError("threshold must be at least 1 where no ratio is given, got None")

    @property
    def rules(self) -> Rules:
        """The same in whole numbers, for the machine and its twin."""
        return Rules(
            threshold=self.threshold or 0,
            cooldown_us=to_us(self.cooldown_seconds),
            failure_ppm=round((self.failure_ratio or 0) * _PARTS),
            slow_ppm=round((self.slow_ratio or 0) * _PARTS),
            window_us=to_us(self.window_seconds),
            minimum_calls=self.minimum_calls,
            quorum=self.quorum,
            probes=self.probes,
            probe_us=to_us(self.probe_seconds),
            ramp_steps=self.ramp_steps,
            ramp_us=to_us(self.ramp_seconds),
        )

    def __str__(self) -> str:
        """Return what differs from the defaults, for messages."""
        said = [
            f"{field.name}={getattr(self, field.name)}"
            for field in fields(self)
            if field.name in ("threshold", "cooldown_seconds") or getattr(self, field.name) != field.default
        ]
        return ", ".join(said)


def _whole(name: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {value!r:.50}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    if value > most:
        raise ValueError(f"{name} must be at most {most}, got {value}")


def _number(name: str, value: object, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {value!r:.50}")
    if not (isfinite(value) and least <= value <= most):
        raise ValueError(f"{name} must be {least:g} to {most:g}, got {value}")
