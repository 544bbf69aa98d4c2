"""Validates the arguments that every limit takes: a cost and a timeout."""

from __future__ import annotations

from comporta.limits.wait_queue import TIMEOUT_MAX
from comporta.validators import require_integer, require_number


def check_cost(cost: int) -> None:
    """Raise an error for a cost that is not a positive integer."""
    if type(cost) is not int or cost < 1:  # first the cheap check: this runs for every decision
        require_integer("cost", cost, 1)


def check_timeout(timeout: float | None) -> None:
    """Raise an error for a timeout that is neither ``None`` nor from 0 s to a year."""
    if timeout is not None:
        require_number("timeout", timeout, 0, TIMEOUT_MAX, unit="seconds, or None")


def is_timeout(timeout: float | None) -> bool:
    """Whether a timeout is ``None`` or a number of seconds of a type that needs no further check."""
    return timeout is None or (
        (type(timeout) is float or type(timeout) is int) and 0 < timeout <= TIMEOUT_MAX
    )
