"""A share that falls and climbs in steps: what degradation and a breaker's ramp have in common.

A share is counted in millionths of the whole, so that steps of 10 % are exact and equal in Python and in Lua.
No clock here and no state: whoever keeps a share says when it last moved.
"""

from __future__ import annotations

WHOLE = 1_000_000
"""The share that is everything."""


def millionths(part: float) -> int:
    """Return a part of 1 as a share; never nothing."""
    return max(1, round(part * WHOLE))


def lowered(share: int, by: int, floor: int) -> int:
    """Return the share after a step down; the floor stops a fall, but lifts nobody."""
    return min(share, max(floor, share - by, 1))


def lowered_to(share: int, target: int, floor: int) -> int:
    """Return the share after a fall to what is known to pass."""
    return min(share, max(floor, target, 1))


def raised(share: int, by: int) -> int:
    """Return the share after a step up."""
    return min(WHOLE, share + by)


def is_due(now_us: int, last_us: int, every_us: int) -> bool:
    """Whether it is time for the next step; a last one that lies ahead is a clock that went back."""
    return not 0 <= now_us - last_us < every_us


def climbed(steps: int, every_us: int, elapsed_us: int) -> int:
    """Return the share that time alone gives back: a step at the start, one each ``every_us``, then all."""
    taken = max(0, elapsed_us) // every_us
    return WHOLE if taken >= steps else max(1, (taken + 1) * WHOLE // (steps + 1))
