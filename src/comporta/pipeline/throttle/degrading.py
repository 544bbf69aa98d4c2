"""By how much errors lower the limit of a partition, and how it climbs back. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

EVERY_MAX = 300.0
"""A degradation that nobody touches for this long is over, so steps cannot be further apart."""


@dataclass(frozen=True)
class PartitionDegradation:
    """How errors lower a partition's limit: ``drop``, ``floor`` and ``climb`` are parts of the original.

    It climbs at most once in ``every`` seconds, and first that long after a drop. ``errors`` are the
    exceptions of what is executed that count; a cancellation never does.
    """

    drop: float = 0.1
    floor: float = 0.1
    climb: float = 0.1
    every: float = 5.0
    errors: type[Exception] | tuple[type[Exception], ...] = Exception

    def __post_init__(self) -> None:
        """Check as soon as it is made."""
        for name in ("drop", "floor", "climb"):
            check_number(name, getattr(self, name), 1)
        check_number("every", self.every, EVERY_MAX)
        try:
            issubclass(Exception, self.errors)
        except TypeError:
            text = f"errors must be an exception type, or a tuple of them, got {self.errors!r:.50}"
            raise TypeError(text) from None


def check_number(name: str, value: float, most: float) -> None:
    """Raise for what is not a number above 0 and at most ``most``."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {value!r:.50}")
    if not (isfinite(value) and 0 < value <= most):
        raise ValueError(f"{name} must be above 0 and at most {most:g}, got {value}")
