"""The deadline of calls to one server: the configured one, or a longer one for a distant server.

A deadline just above the usual round trip would be missed repeatedly, and each time the worker would begin an
outage although the server answers every call. The deadline is therefore at least ``FACTOR`` times the usual
round trip of this server, within bounds. A server that suddenly hangs has answered quickly before, so its
callers wait only for the configured time.
"""

from __future__ import annotations

FACTOR = 3
TIMEOUT_MAX_FACTOR = 4
"""The largest deadline, if none is configured, as a multiple of the smallest."""

_DECAY_BITS = 3


class AdaptiveDeadline:
    """The deadline in seconds, and the round trips from which it is derived.

    ``answered_ns`` is when the server last answered a blocking caller, including the heartbeat; 0 means
    never.

    Threads update it without a lock: the next update makes up for a lost one.
    """

    __slots__ = ("_seconds_max", "_seconds_min", "_usual_ns", "answered_ns", "seconds")

    def __init__(self, seconds_min: float, seconds_max: float) -> None:
        self.seconds = self._seconds_min = seconds_min
        self._seconds_max = seconds_max
        self._usual_ns = 0
        self.answered_ns = 0

    def record(self, round_trip_ns: int) -> None:
        """Record how long an answered call took: a longer time counts at once, a shorter one slowly."""
        usual_ns = self._usual_ns
        if round_trip_ns < usual_ns:
            round_trip_ns = usual_ns - ((usual_ns - round_trip_ns) >> _DECAY_BITS)
        self._usual_ns = round_trip_ns
        self.seconds = min(max(self._seconds_min, FACTOR * round_trip_ns / 1e9), self._seconds_max)
