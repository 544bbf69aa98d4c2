"""Random numbers that spread waits. They are not meant for secrets.

Importing the ``random`` module would take a tenth of comporta's import time, and a fork copies its state, so
that parent and child would draw the same numbers. This module uses random bytes of the system instead.
"""

from __future__ import annotations

from comporta.runtime import RUNTIME

_BITS = 53


def fraction() -> float:
    """Return a random number from 0 up to, but not including, 1."""
    return (int.from_bytes(RUNTIME.random_bytes(7), "little") >> 3) / (1 << _BITS)


def uniform(low: float, high: float) -> float:
    """Return a random number between ``low`` and ``high``."""
    return low + (high - low) * fraction()
