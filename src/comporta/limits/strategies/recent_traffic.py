"""How many units a key was granted in the last minute, kept inside the state of the limit.

Time is divided into slices of 2**24 µs (16.8 s). A state holds the count of the slice of its last grant and
of the four slices before it, so the figure needs no second key and no second round trip. Its precision is one
slice. The length of a slice is a power of two so that "is this the same slice?" is one xor and one shift.

Lua version: ``recent_traffic.lua``.
"""

from __future__ import annotations

from struct import Struct

SLICE_BITS = 24
SLICE_US = 1 << SLICE_BITS
MINUTE_US = 60_000_000
COUNT_MAX = 2**32 - 1
_PAST = Struct("<4I")
NO_PAST = bytes(_PAST.size)


def shift_past(past: bytes, count: int, last_us: int, now_us: int) -> bytes:
    """Return the past slices relative to ``now_us``, whose slice differs from the slice of ``last_us``.

    The past is empty after a minute without a grant, and after the clock went back (an operator set the
    server's clock), because then the old slices cannot be placed.
    """
    slices = (now_us >> SLICE_BITS) - (last_us >> SLICE_BITS)
    if slices < 0 or now_us - last_us >= MINUTE_US:
        return NO_PAST
    newest = min(count, COUNT_MAX).to_bytes(4, "little")
    return (bytes(4 * (slices - 1)) + newest + past)[: _PAST.size]


def subtract_released(past: bytes, count: int, last_us: int, now_us: int, amount: int) -> tuple[int, bytes]:
    """Return the count and the past slices after ``amount`` units were released."""
    if now_us ^ last_us >= SLICE_US:
        past, count = shift_past(past, count, last_us, now_us), 0
    return max(0, count - amount), past


def recent_count(past: bytes, count: int, last_us: int, now_us: int) -> int:
    """Return the units granted in the minute before ``now_us``; the oldest slice counts partially."""
    count, past = subtract_released(past, count, last_us, now_us, 0)
    oldest_us = MINUTE_US - (now_us & (SLICE_US - 1))
    whole, part_us = divmod(oldest_us, SLICE_US)
    slices: tuple[int, ...] = _PAST.unpack(past)
    return count + sum(slices[:whole]) + -(-slices[whole] * part_us // SLICE_US)
