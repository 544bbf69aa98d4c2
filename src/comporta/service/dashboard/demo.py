"""The switches of simulated portals, for whoever plays with a demonstration; elsewhere there are none.

They are somewhere else, in the process that simulates; here they are passed on, and nothing is waited for
longer than a page would wait.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import httpx2

from comporta.service.problems import Problem

MODES: Final = ("ok", "slow", "flaky", "rate-limited", "dead")
"""What a portal can be told to be, as :mod:`comporta.testing.procurement` has it."""

SECONDS: Final = 2.0


class Demo:
    """The portals at one address."""

    def __init__(self, address: str) -> None:
        self._client = httpx2.AsyncClient(base_url=address, timeout=SECONDS, trust_env=False)

    async def modes(self) -> dict[str, Any]:
        """Return how each of them behaves, and how they can."""
        found = await self._asked("GET", "/control")
        try:
            modes = {str(name): str(one["mode"]) for name, one in found.items()}
        except (AttributeError, KeyError, TypeError) as error:
            raise _silent(error) from error
        return {"modes": modes, "can": list(MODES)}

    async def set(self, name: str, mode: str) -> None:
        """Have one behave in another way."""
        await self._asked("PUT", f"/control/{name}", {"mode": mode})

    async def aclose(self) -> None:
        """Give the connections back."""
        await self._client.aclose()

    async def _asked(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        try:
            async with asyncio.timeout(SECONDS):
                reply = await self._client.request(method, path, json=body)
                reply.raise_for_status()
                found: dict[str, Any] = reply.json()
        except (httpx2.HTTPError, TimeoutError, ValueError) as error:
            raise _silent(error) from error
        return found


def _silent(error: Exception) -> Problem:
    detail = f"the simulated portals do not answer: {type(error).__name__}"
    return Problem(503, "Service Unavailable", detail, retry_after=1)
