"""Climbing back in steps, as arithmetic: a part of the whole, in thousandths, by the time that has passed.

Whole numbers only, so that a Lua twin gives the same; never 0, never above the whole.
"""

from __future__ import annotations

WHOLE = 1000
"""All of it, in thousandths."""


def climbed(steps: int, every_us: int, elapsed_us: int) -> int:
    """Return the part that is allowed: one step at the start, one more each ``every_us``, then all."""
    taken = max(0, elapsed_us) // every_us
    return WHOLE if taken >= steps else max(1, (taken + 1) * WHOLE // (steps + 1))
