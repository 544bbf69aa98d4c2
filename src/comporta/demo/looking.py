"""How things are, asked again and again: of whichever worker answers, of the portals, and of the users."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import httpx2

from comporta.demo.picture import NOTHING, Picture

if TYPE_CHECKING:
    from comporta.demo.processes import Stage

LOOK_SECONDS: Final = 0.25
ASK_SECONDS: Final = 1.5
ALONE_LATEST: Final = 6
"""How many of the latest answers of workers are looked at for who is on its own."""


class Lookout:
    """Sees the stage as anybody could: over HTTP."""

    def __init__(self, stage: Stage) -> None:
        self.picture = NOTHING
        self._stage = stage
        self._seen = asyncio.Event()
        self._answered: set[int] = set()
        self._alone: deque[bool] = deque(maxlen=ALONE_LATEST)
        self._client = httpx2.AsyncClient(
            timeout=ASK_SECONDS,
            limits=httpx2.Limits(max_keepalive_connections=0),  # so that any worker may answer
            trust_env=False,
        )

    async def look(self) -> None:
        """Look for ever."""
        async with self._client:
            while True:
                await self._look()
                await asyncio.sleep(LOOK_SECONDS)

    async def until(self, true: Callable[[Picture], bool], seconds: float | None) -> bool:
        """Wait until something is so, for so many seconds at the most; whether it is."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not true(self.picture):
                    await self._seen.wait()
                return True
        return False

    async def switch(self, portal: str, switches: Mapping[str, Any]) -> None:
        """Have a portal behave otherwise from now on."""
        await self._client.put(f"{self._stage.control}/control/{portal}", json=dict(switches))

    async def _look(self) -> None:
        """Look once; what cannot be seen just now stays as it was seen last."""
        stage = self._stage
        with suppress(httpx2.HTTPError, ValueError):
            portals = (await self._client.get(f"{stage.control}/control")).json()
            health = (await self._client.get(f"{stage.address}/v1/health")).json()
            self._alone.append(health["state"]["fallback"] is not None)
            self._answered.add(int(health["worker"]["name"].rpartition(":")[2]))
            replaced = len(self._answered & stage.replacements)
            self.picture = Picture(health, portals, stage.counts, replaced, sum(self._alone))
        self._seen.set()
        self._seen = asyncio.Event()
