"""How many workers share a state: what each of them knows of the others when it has to go on alone."""

from __future__ import annotations

from comporta.clock import MONOTONIC
from comporta.stores.known import at_least, recalled, remember
from comporta.stores.workers import DEAD_SECONDS


class Census:
    """How many workers there are: the most of what was heard in the last few seconds.

    A count that falls is believed only after ``DEAD_SECONDS``, and not at all while nobody can be heard: a
    registry that was just lost, or a clock that jumped, makes the fleet look small, and a share that is too
    large breaks the limit.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._least = at_least()
        self._recalled: int | None = None
        self._latest = self._most = self._before = 0
        self._noted = 0
        self._turn_ns = MONOTONIC.now_ns()

    @property
    def workers(self) -> int:
        """How many there are, as far as this process can know; itself at the least."""
        if self._recalled is None:
            self._recalled = recalled(self._address)
        return max(self._least, self._recalled, self._most, self._before)

    def heard(self, count: int) -> None:
        """Take note of a count that came with a reply; 0 is that nobody can tell."""
        if not count:
            return
        self._latest = count
        if count > self._most:
            self._most = count

    def turn(self) -> None:
        """Let go of what was heard longer ago than workers can be silent; called while all is well."""
        now_ns = MONOTONIC.now_ns()
        if now_ns - self._turn_ns >= DEAD_SECONDS * 1e9:
            self._turn_ns = now_ns
            if self._before:
                self._recalled = 1
            self._before, self._most = self._most, self._latest
            self._noted = recalled(self._address)  # others write it down, too, and may have known less
        if self._latest and self._latest != self._noted:
            self._noted = self._latest
            remember(self._address, self._latest)
