"""What a :class:`~comporta.testing.FaultProxy` is told to do to the bytes that pass through it.

Lasting conditions hold until they are switched off; planned faults happen to the next so many replies or
requests. All of it lives in the proxy's own thread, so nothing here needs a lock.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, replace
from typing import Literal

Way = Literal["requests", "replies"]
Direction = Literal["both", "requests", "replies"]
Kind = Literal["lose", "cut", "stall", "garble"]


@dataclass(frozen=True)
class Conditions:
    """What holds for all bytes of one way, until it is changed."""

    latency_s: float = 0.0
    jitter_s: float = 0.0
    hang: bool = False
    blackhole: bool = False
    packet_bytes: int = 0  # 0: as many as there are
    bytes_per_second: float = 0.0  # 0: as fast as it goes

    @property
    def delays(self) -> bool:
        """Whether bytes are kept for a while on purpose."""
        return self.latency_s + self.jitter_s > 0

    def delay_s(self) -> float:
        """Draw how long the bytes that just came have to wait."""
        return self.latency_s + random.uniform(0, self.jitter_s)


CLEAR = Conditions()


@dataclass
class Planned:
    """What happens to the next ``left`` replies (or requests) that are about ``to``."""

    way: Way
    kind: Kind
    left: int
    to: bytes
    after: int | None = None  # bytes that pass before it happens; None: half of what is there
    garbage: bytes = b""


class Faults:
    """The switches and the counters of a proxy."""

    def __init__(self) -> None:
        self.conditions: dict[Way, Conditions] = {"requests": CLEAR, "replies": CLEAR}
        self.reset_on_accept = False
        self.planned: list[Planned] = []
        self.dropped_at = 0.0
        self.connections = 0
        self.passed_bytes: dict[Way, int] = {"requests": 0, "replies": 0}
        self.replies_lost = 0
        self._changed = asyncio.Event()

    def set(self, direction: Direction, **changes: float | bool) -> None:
        """Change conditions; whoever waits because of the old ones looks again."""
        for way in self.conditions:
            if direction in ("both", way):
                # Each change has the type of its field, which only the names could tell.
                self.conditions[way] = replace(self.conditions[way], **changes)  # type: ignore[arg-type]
        self._tell()

    def drop(self) -> None:
        """Throw away all that is held at this moment."""
        self.dropped_at = time.monotonic()
        self.set("both", hang=False)

    def heal(self) -> None:
        """Switch everything off."""
        self.conditions = dict.fromkeys(self.conditions, CLEAR)
        self.reset_on_accept = False
        self.planned.clear()
        self._tell()

    def take(self, way: Way, request: bytes) -> Planned | None:
        """Return what was planned for this request or its reply, and count it as done."""
        for planned in self.planned:
            if planned.way == way and planned.to in request:
                planned.left -= 1
                if not planned.left:
                    self.planned.remove(planned)
                self.replies_lost += planned.kind == "lose"
                return planned
        return None

    async def change(self, seconds: float | None = None) -> None:
        """Wait until something is switched, for so many seconds at the most."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
