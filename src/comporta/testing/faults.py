"""The faults that a :class:`~comporta.testing.FaultProxy` applies to the bytes it forwards.

Conditions last until they are switched off. Planned faults apply to a number of coming replies or requests.
All of this runs in the proxy's thread, so nothing here needs a lock.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, replace
from typing import Literal

Direction = Literal["requests", "replies"]
DirectionOption = Literal["both", "requests", "replies"]
FaultKind = Literal["lose", "truncate", "stall", "garble"]


@dataclass(frozen=True)
class LinkConditions:
    """What applies to all bytes in one direction, until it is changed."""

    latency_s: float = 0.0
    jitter_s: float = 0.0
    hang: bool = False
    blackhole: bool = False
    packet_bytes: int = 0  # 0: no limit
    bytes_per_second: float = 0.0  # 0: no limit

    @property
    def has_delay(self) -> bool:
        """Whether bytes are delayed."""
        return self.latency_s + self.jitter_s > 0

    def draw_delay_s(self) -> float:
        """Return a random delay, in seconds, for the bytes that just arrived."""
        return self.latency_s + random.uniform(0, self.jitter_s)


NO_FAULTS = LinkConditions()


@dataclass
class PlannedFault:
    """A fault for the next ``remaining`` replies (or requests) whose request contains ``matching``."""

    direction: Direction
    kind: FaultKind
    remaining: int
    matching: bytes
    after_bytes: int | None = None  # bytes that pass first; None: half of those in the first packet
    garbage: bytes = b""


class ProxyFaults:
    """The switches and counters of a proxy."""

    def __init__(self) -> None:
        self.conditions: dict[Direction, LinkConditions] = {"requests": NO_FAULTS, "replies": NO_FAULTS}
        self.reset_on_accept = False
        self.planned: list[PlannedFault] = []
        self.dropped_at = 0.0
        self.connections = 0
        self.forwarded_bytes: dict[Direction, int] = {"requests": 0, "replies": 0}
        self.replies_lost = 0
        self._changed = asyncio.Event()

    def set_conditions(self, direction: DirectionOption, **changes: float | bool) -> None:
        """Change conditions and wake the tasks that wait because of the old ones."""
        for each in self.conditions:
            if direction in ("both", each):
                # mypy cannot match the type of each change to its field: only the names tell.
                self.conditions[each] = replace(self.conditions[each], **changes)  # type: ignore[arg-type]
        self._notify()

    def drop_held_bytes(self) -> None:
        """Discard all bytes that ``hang`` holds now, and stop hanging."""
        self.dropped_at = time.monotonic()
        self.set_conditions("both", hang=False)

    def heal(self) -> None:
        """Switch every fault off."""
        self.conditions = dict.fromkeys(self.conditions, NO_FAULTS)
        self.reset_on_accept = False
        self.planned.clear()
        self._notify()

    def consume(self, direction: Direction, request: bytes) -> PlannedFault | None:
        """Return the fault planned for this request or its reply, if any, and reduce its count by 1."""
        for fault in self.planned:
            if fault.direction == direction and fault.matching in request:
                fault.remaining -= 1
                if not fault.remaining:
                    self.planned.remove(fault)
                self.replies_lost += fault.kind == "lose"
                return fault
        return None

    async def wait_for_change(self, seconds: float | None = None) -> None:
        """Wait until a switch changes, for at most ``seconds``."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
