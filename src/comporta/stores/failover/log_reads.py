"""Reads of the change log that travel with the operations of callers, so that a busy worker need not poll.

While a subscriber of the heartbeat follows changes closely, the log must be read every 0.2 s. A decision that
calls the store anyway can carry that read. If the read finds no change, as is nearly always the case, the
copies of subscribers are confirmed at once; otherwise the heartbeat reads the changed records.

This module sends nothing and starts no thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from comporta.clock import Clock
from comporta.errors import StateError
from comporta.stores.failover.change_follower import ChangeFollower
from comporta.stores.failover.read_changes import ReadChanges
from comporta.stores.heartbeat_subscriber import HeartbeatSubscriber

CARRY_AFTER_SECONDS = 0.15
"""An operation carries a read of the log if the last one is this old: most of the time between two polls."""

_CARRY_AFTER_NS = round(CARRY_AFTER_SECONDS * 1e9)
_MARGIN_SECONDS = 0.005
_NEVER_NS = -(2**62)


class LogRead(NamedTuple):
    """A read of the change log, and when it was started."""

    operation: ReadChanges[Any]
    asked_ns: int


class LogReads:
    """When the log was last read, and the next read for a caller to carry.

    ``is_wanted`` is true if a subscriber follows changes closely. ``polled_ns`` is when the heartbeat itself
    last read the log.
    """

    __slots__ = (
        *("_carried_ns", "_clock", "_follower", "_poll_soon", "_subscribers", "_taken_ns"),
        *("is_wanted", "polled_ns"),
    )

    def __init__(
        self,
        follower: ChangeFollower,
        subscribers: Callable[[], Iterable[HeartbeatSubscriber]],
        poll_soon: Callable[[], None],
        clock: Clock,
    ) -> None:
        self.is_wanted = False
        self.polled_ns = self._taken_ns = self._carried_ns = _NEVER_NS
        self._follower = follower
        self._subscribers = subscribers
        self._poll_soon = poll_soon
        self._clock = clock

    def take(self) -> LogRead | None:
        """Return the read for a caller's operation to carry; ``None`` if none is due."""
        now_ns = self._clock.now_ns()
        if now_ns - max(self.polled_ns, self._taken_ns) < _CARRY_AFTER_NS:
            return None
        self._taken_ns = now_ns
        return LogRead(ReadChanges(self._follower.version), now_ns)

    def handle(self, read: LogRead, reply: Any) -> None:
        """Confirm to subscribers that nothing changed, or wake the heartbeat to read the changes."""
        if isinstance(reply, StateError):
            return  # the heartbeat asks itself, and handles the error
        if self._follower.is_current(reply.changes, read.asked_ns):
            self._carried_ns = read.asked_ns
            self._confirm(read.asked_ns)
        else:
            self._carried_ns = self.polled_ns = _NEVER_NS
            self._poll_soon()

    def confirm_recent(self, poll_seconds: float) -> bool:
        """Whether the log was read recently; if so, confirm the result to subscribers once more."""
        is_recent = self._seconds_left(poll_seconds) > _MARGIN_SECONDS
        if is_recent:
            self._confirm(self._read_ns)
        return is_recent

    def poll_pause(self, poll_seconds: float) -> float:
        """Return the seconds until the last read is too old, which is when the next poll is due."""
        left = self._seconds_left(poll_seconds)
        return left if left > _MARGIN_SECONDS else poll_seconds

    def _seconds_left(self, poll_seconds: float) -> float:
        age = (self._clock.now_ns() - self._read_ns) / 1e9
        return poll_seconds - age if age >= 0 else 0.0

    @property
    def _read_ns(self) -> int:
        """When the log was last read, by the heartbeat or with a caller's operation."""
        return max(self._carried_ns, self.polled_ns)

    def _confirm(self, asked_ns: int) -> None:
        for subscriber in self._subscribers():
            if subscriber.change_name is not None:
                subscriber.on_confirmed(asked_ns)
