"""Publishes events about wrong tokens, at most one every 10 s.

The interval keeps a client that guesses tokens from filling the fleet's event list.
"""

from __future__ import annotations

from threading import Lock
from typing import Final

from comporta import events

EVENT_INTERVAL_SECONDS: Final = 10.0
"""The shortest time between two events about wrong tokens."""


class AuthFailureLog:
    """Counts wrong tokens of one kind in this worker; ``protected`` names what the token protects."""

    def __init__(self, kind: str, protected: str) -> None:
        self._kind = kind
        self._protected = protected
        self._lock = Lock()
        self._published_at = -EVENT_INTERVAL_SECONDS
        self._count = 0

    def record(self, client: str, now: float) -> None:
        """Count a wrong token at ``now`` (seconds) and publish an event unless one was published recently."""
        with self._lock:
            self._count += 1
            if now - self._published_at < EVENT_INTERVAL_SECONDS:
                return
            count, self._published_at, self._count = self._count, now, 0
        tokens = "a wrong token" if count == 1 else f"{count} wrong tokens, the last"
        events.publish(self._kind, client, f"{tokens} for {self._protected}", label="clients")
