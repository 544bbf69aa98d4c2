"""The network between workers and the server: delay, loss, partitions.

It behaves as TCP does. A lost packet is sent again after increasing delays, even after its sender has closed
the connection, so a request can be carried out long after its caller gave up. A black hole swallows
everything that is sent through it. TCP drops duplicates, so a request arrives twice only if a proxy in front
of the server sends it again.

This module does not know what it carries.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

from comporta.simulation.virtual_time import NANOSECONDS, Scheduler

REQUESTS: Final = 0
"""The direction from a worker to the server."""

REPLIES: Final = 1
"""The direction from the server to a worker."""

_DUPLICATE_NS_MAX = 50_000_000
_RESEND_NS = 200_000_000
_RESENDS_MAX = 6


class Link:
    """The current faults between one worker and the server. The lists count faults that act together.

    ``is_clear``: nothing is wrong.
    """

    __slots__ = ("blocked", "is_clear", "loss", "swallowed")

    def __init__(self) -> None:
        self.blocked = [0, 0]
        self.swallowed = [0, 0]
        self.loss = 0.0
        self.is_clear = True

    def add_fault(self, direction: int, change: int, *, swallows: bool) -> None:
        """Begin (``change`` 1) or end (-1) a fault in one direction that swallows packets or delays them."""
        (self.swallowed if swallows else self.blocked)[direction] += change
        self._update()

    def set_loss(self, share: float) -> None:
        """Lose this fraction of all packets."""
        self.loss = share
        self._update()

    def _update(self) -> None:
        self.is_clear = not (self.loss or any(self.blocked) or any(self.swallowed))


class Network:
    """Delivers messages after ``latency_ns`` and up to ``jitter_ns`` more, in each direction."""

    def __init__(
        self, scheduler: Scheduler, workers: int, random: Random, *, latency_ns: int, jitter_ns: int
    ) -> None:
        self.links = [Link() for _ in range(workers)]
        self.latency_ns = latency_ns
        self.jitter_ns = jitter_ns
        self.extra_ns = 0
        self.duplicate_share = 0.0
        self._scheduler = scheduler
        self._random = random.random

    def send(self, index: int, direction: int, deliver: Callable[[Any], object], message: Any) -> None:
        """Send a message between worker ``index`` and the server; ``deliver`` gets it when it arrives."""
        delay_ns = self.latency_ns + self.extra_ns + int(self.jitter_ns * self._random())
        if self.links[index].is_clear:
            self._scheduler.call_after(delay_ns, deliver, message)
        else:
            self._try_to_send((index, direction, deliver, message, delay_ns, 0))

    def duplicate(self, deliver: Callable[[Any], object], message: Any) -> None:
        """Deliver a request that has arrived once more, shortly afterwards, if a proxy sends it again."""
        if self.duplicate_share and self._random() < self.duplicate_share:
            self._scheduler.call_after(int(_DUPLICATE_NS_MAX * self._random()), deliver, message)

    def wait_round_trip(self) -> None:
        """Suspend the running thread for as long as a request and its reply take while nothing is wrong."""
        jitter_ns = int(self.jitter_ns * self._random()) + int(self.jitter_ns * self._random())
        self._scheduler.sleep_until(self._scheduler.now_ns + 2 * self.latency_ns + jitter_ns)

    def _try_to_send(self, packet: tuple[int, int, Callable[[Any], object], Any, int, int]) -> None:
        index, direction, deliver, message, delay_ns, resends = packet
        link = self.links[index]
        if link.swallowed[direction]:
            return
        if not link.blocked[direction] and (not link.loss or self._random() >= link.loss):
            self._scheduler.call_after(delay_ns, deliver, message)
        elif resends < _RESENDS_MAX:
            again = (index, direction, deliver, message, delay_ns, resends + 1)
            self._scheduler.call_after(_RESEND_NS << resends, self._try_to_send, again)


def seconds_ns(seconds: float) -> int:
    """Convert seconds into whole nanoseconds."""
    return round(seconds * NANOSECONDS)
