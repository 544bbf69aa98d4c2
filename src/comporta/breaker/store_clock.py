"""The store's clock, estimated from the times in the store's replies.

A reply was made between the moment its request was sent and the moment the reply arrived. That bounds how far
the store's clock is ahead of this machine's. This module reads no clock itself.
"""

from __future__ import annotations

_DRIFT_PPM = 200
"""By how much the two clocks may run at different speeds."""


class StoreClock:
    """Converts times of this machine's monotonic clock to times of the store's clock.

    A converted time is never later than the true one, and earlier by at most the fastest transit time of a
    reply.
    """

    __slots__ = ("_offset_us", "_updated_us")

    def __init__(self) -> None:
        self._offset_us: int | None = None
        self._updated_us = 0

    def record(self, store_us: int, sent_us: int, received_us: int) -> None:
        """Update the estimate from a reply that the store made at ``store_us``."""
        known, low, high = self._offset_us, store_us - received_us, store_us - sent_us
        drift_us = 1 + max(0, received_us - self._updated_us) * _DRIFT_PPM // 1_000_000
        if known is None or known > high:  # a clock was set
            self._offset_us = low
        else:
            self._offset_us = max(low, known - drift_us)
        self._updated_us = received_us

    def to_store_us(self, local_us: int) -> int:
        """Return a time of this machine's clock as the store sees it; -1 if either is unknown."""
        if local_us < 0 or self._offset_us is None:
            return -1
        return max(0, local_us + self._offset_us)


class SameClock(StoreClock):
    """The clock of a store that uses this machine's clock: no time has to be converted."""

    __slots__ = ()

    def record(self, store_us: int, sent_us: int, received_us: int) -> None:
        """Do nothing: there is no difference to estimate."""

    def to_store_us(self, local_us: int) -> int:
        """Return the same time; -1 if it is unknown."""
        return max(-1, local_us)
