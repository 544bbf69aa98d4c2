"""Polls the demo over HTTP: the health of the service, the portals' counters and the users' counts.

It knows only the public routes of the service and the control route of the portals.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import httpx2

from comporta.demo.config import LIMITS, PortalLimit
from comporta.demo.crowd import DemoCrowd
from comporta.demo.snapshot import EMPTY_SNAPSHOT, DemoSnapshot

if TYPE_CHECKING:
    from comporta.demo.processes import DemoProcesses

POLL_SECONDS: Final = 0.25
HTTP_TIMEOUT_SECONDS: Final = 1.5
FALLBACK_SAMPLE: Final = 6
"""How many of the latest health answers are checked for a worker in fallback."""


class DemoPoller:
    """Keeps ``snapshot`` up to date, and lets callers wait for a condition on it.

    ``highest_limits`` are the highest limits that were in force, ``overridden`` the portals whose limit or
    breaker an operator changed at any time.
    """

    def __init__(self, processes: DemoProcesses) -> None:
        self.snapshot = EMPTY_SNAPSHOT
        self.highest_limits = dict(LIMITS)
        self.overridden: set[str] = set()
        self._processes = processes
        self._updated = asyncio.Event()
        self._worker_pids: set[int] = set()
        self._fallback_flags: deque[bool] = deque(maxlen=FALLBACK_SAMPLE)
        self._client = httpx2.AsyncClient(
            timeout=HTTP_TIMEOUT_SECONDS,
            limits=httpx2.Limits(
                max_keepalive_connections=0
            ),  # a new connection each time, so that any worker may answer
            trust_env=False,
        )
        self.crowd = DemoCrowd(self._client, processes.address)

    async def run(self) -> None:
        """Poll until cancelled."""
        async with self._client:
            while True:
                await self._poll()
                await asyncio.sleep(POLL_SECONDS)

    async def wait_for(self, condition: Callable[[DemoSnapshot], bool], seconds: float | None) -> bool:
        """Wait until ``condition`` holds, for at most ``seconds``; return whether it does."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not condition(self.snapshot):
                    await self._updated.wait()
                return True
        return False

    def _record_limits(self) -> None:
        """Remember the highest limit that was in force, against which the demo is checked."""
        for name, highest in self.highest_limits.items():
            limit = self.snapshot.limit_in_force(name)
            self.highest_limits[name] = PortalLimit(
                max(highest.rate, limit.rate), max(highest.burst, limit.burst)
            )
            if self.snapshot.is_overridden(name):
                self.overridden.add(name)

    async def set_portal_mode(self, portal: str, switches: Mapping[str, Any]) -> None:
        """Change the behaviour of a portal."""
        await self._client.put(f"{self._processes.control}/control/{portal}", json=dict(switches))

    async def _poll(self) -> None:
        """Poll once; on a failure, keep the previous snapshot."""
        processes = self._processes
        with suppress(httpx2.HTTPError, ValueError, KeyError):  # a refused poll is a problem document
            portals = (await self._client.get(f"{processes.control}/control")).json()
            health = (await self._client.get(f"{processes.address}/v1/health")).json()
            self._fallback_flags.append(health["state"]["fallback"] is not None)
            self._worker_pids.add(int(health["worker"]["name"].rpartition(":")[2]))
            replaced = len(self._worker_pids & processes.replacement_pids)
            counts = {**processes.user_counts, **self.crowd.counts}
            self.snapshot = DemoSnapshot(
                health, portals, counts, replaced, sum(self._fallback_flags), time.time()
            )
            self._record_limits()
        self._updated.set()
        self._updated = asyncio.Event()
