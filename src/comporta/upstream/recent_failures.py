"""The latest failed attempts of one upstream in this process, with their texts."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from comporta import fork_safety
from comporta.runtime import RUNTIME
from comporta.threads import snapshot

FAILURES_MAX: Final = 5
TEXT_CHARS_MAX: Final = 200


class RecordedFailure(NamedTuple):
    """A failed attempt at ``at`` (Unix seconds)."""

    at: float
    text: str


class RecentFailures:
    """The latest failures, at most ``FAILURES_MAX``; a new one replaces the oldest."""

    __slots__ = ("__weakref__", "_failures")

    def __init__(self) -> None:
        self._failures: deque[RecordedFailure] = deque(maxlen=FAILURES_MAX)
        fork_safety.register(self)

    def record(self, text: str) -> None:
        """Add the failure of an attempt that has just ended."""
        line = "".join(char if char.isprintable() else " " for char in text[:TEXT_CHARS_MAX])
        self._failures.append(RecordedFailure(RUNTIME.unix_time(), line))

    def latest(self) -> list[RecordedFailure]:
        """Return the failures, the newest last."""
        return snapshot(self._failures)

    def after_fork(self) -> None:
        """Drop the parent's failures in a forked child, which would publish them as its own."""
        self._failures.clear()
