"""Random numbers that spread waits. They keep no secret, and forked children do not draw the same ones.

The standard library's own take a tenth of all that importing comporta costs, and are copied by a fork.
"""

from __future__ import annotations

from os import urandom

_BITS = 53


def fraction() -> float:
    """Return a number from 0 up to, but never, 1."""
    return (int.from_bytes(urandom(7), "little") >> 3) / (1 << _BITS)


def uniform(low: float, high: float) -> float:
    """Return a number between two."""
    return low + (high - low) * fraction()
