"""How a worker waits while the database of its run cannot be reached, such as during a restart."""

from __future__ import annotations

from typing import Final

from comporta.errors import DatabaseBusyError, DatabaseUnavailableError
from comporta.jitter import uniform
from comporta.runtime import RUNTIME

OUTAGE_SECONDS_MAX: Final = 60.0
"""A worker that cannot reach the database for this long ends; its lines become free."""

PAUSE_SECONDS: Final = 0.05
PAUSE_SECONDS_MAX: Final = 2.0

OUTAGE_ERRORS: Final = (DatabaseBusyError, DatabaseUnavailableError)
"""Errors that may be over soon."""


class OutageBackoff:
    """The pauses between the attempts of one job, each twice as long as the last, until it succeeds."""

    def __init__(self) -> None:
        self._failed_since: float | None = None
        self._pause = PAUSE_SECONDS

    def reset(self) -> None:
        """Record a success."""
        self._failed_since = None
        self._pause = PAUSE_SECONDS

    def next_pause(self, error: Exception | None = None) -> float:
        """Return how long to wait before the next attempt; raise the error if the outage lasts too long.

        No error means that the database answered and that there was nothing to do.
        """
        now = RUNTIME.monotonic()
        if error is None or self._failed_since is None:
            self._failed_since = None if error is None else now
        elif now - self._failed_since > OUTAGE_SECONDS_MAX:
            raise error
        pause = self._pause
        self._pause = min(2 * pause, PAUSE_SECONDS_MAX)
        return pause * uniform(0.7, 1.3)
