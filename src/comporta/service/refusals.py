"""Wrong tokens as events: who guesses must not fill the list of what happened, the fleet's least of all."""

from __future__ import annotations

from threading import Lock
from typing import Final

from comporta import events

SAY_SECONDS: Final = 10.0
"""How often wrong tokens are an event."""


class Refusals:
    """Of one worker and one kind of token; ``where`` is what they were for."""

    def __init__(self, kind: str, where: str) -> None:
        self._kind = kind
        self._where = where
        self._lock = Lock()
        self._said = -SAY_SECONDS
        self._wrong = 0

    def add(self, client: str, now: float) -> None:
        """Count one at a moment (seconds), and say how many there were if that was not said just now."""
        with self._lock:
            self._wrong += 1
            if now - self._said < SAY_SECONDS:
                return
            wrong, self._said, self._wrong = self._wrong, now, 0
        many = "a wrong token" if wrong == 1 else f"{wrong} wrong tokens, the last"
        events.publish(self._kind, client, f"{many} for {self._where}")
