"""How errors lower the limit of a partition, and how it climbs back: options only."""

from __future__ import annotations

from dataclasses import dataclass

from comporta.validators import require_number

EVERY_MAX = 300.0
"""A degradation ends after this many seconds without a step, so steps cannot be further apart."""


@dataclass(frozen=True)
class PartitionDegradation:
    """How errors lower a partition's limit; ``drop``, ``floor`` and ``climb`` are fractions of the limit.

    Each error lowers the limit by ``drop``, but not below ``floor``. The limit climbs by ``climb``, at most
    once in ``every`` seconds and no sooner than that after an error. ``errors`` are the exceptions that
    count; a cancellation never does.
    """

    drop: float = 0.1
    floor: float = 0.1
    climb: float = 0.1
    every: float = 5.0
    errors: type[Exception] | tuple[type[Exception], ...] = Exception

    def __post_init__(self) -> None:
        """Validate the options."""
        for name in ("drop", "floor", "climb"):
            require_number(name, getattr(self, name), above=0, maximum=1)
        require_number("every", self.every, above=0, maximum=EVERY_MAX, unit="seconds")
        try:
            issubclass(Exception, self.errors)
        except TypeError:
            text = f"errors must be an exception type, or a tuple of them, got {self.errors!r:.50}"
            raise TypeError(text) from None
