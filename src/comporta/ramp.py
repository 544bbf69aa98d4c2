"""A share that falls and rises in steps or along a curve, for degradation and for the ramp of a breaker.

A share is an integer, in millionths, so that steps of 10 % are exact and identical in Python and in Lua. The
functions keep no state and read no clock: the time of the last step is an argument.
"""

from __future__ import annotations

FULL_SHARE = 1_000_000
"""100 %, in millionths."""


def millionths(part: float) -> int:
    """Return a number from 0 to 1 as a share of at least one millionth."""
    return max(1, round(part * FULL_SHARE))


def step_down(share: int, by: int, floor: int) -> int:
    """Return the share after a step down by ``by``, not below ``floor``; a share below it stays."""
    return min(share, max(floor, share - by, 1))


def step_down_to(share: int, target: int, floor: int) -> int:
    """Return the share after a step down to ``target``, not below ``floor``; a share below it stays."""
    return min(share, max(floor, target, 1))


def step_up(share: int, by: int) -> int:
    """Return the share after a step up by ``by``."""
    return min(FULL_SHARE, share + by)


def cubic_share(peak: int, by: int, every_us: int, elapsed_us: int) -> int:
    """Return the share on a cubic curve, ``elapsed_us`` after it was lowered from ``peak`` by ``peak * by``.

    This is the window of CUBIC (RFC 9438), with a fixed time to return to the peak: the share rises fast at
    first, slowly around the peak after ``every_us``, and then faster and faster. After 11 times ``every_us``
    it is full.
    """
    position = (elapsed_us - every_us) * 1000 // every_us  # thousandths: -1000 at the start, 0 at the peak
    if position >= 10_000:
        return FULL_SHARE
    # each product is below 2**53, so that it is exact in Lua
    cube = position**3 // 1000
    return min(FULL_SHARE, peak + peak * by // FULL_SHARE * cube // FULL_SHARE)


def is_due(now_us: int, last_us: int, every_us: int) -> bool:
    """Whether the next step is due; a last step in the future means that the clock was set back."""
    return not 0 <= now_us - last_us < every_us


def ramp_share(steps: int, every_us: int, elapsed_us: int) -> int:
    """Return the share of a ramp: one step at the start, one more every ``every_us``, then the full share."""
    done = max(0, elapsed_us) // every_us
    return FULL_SHARE if done >= steps else max(1, (done + 1) * FULL_SHARE // (steps + 1))
