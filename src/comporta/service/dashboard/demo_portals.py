"""Controls the simulated portals of a demo, which run in another process.

Requests are forwarded to that process and time out before a page would.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import httpx2

from comporta.service.problems import HttpProblem
from comporta.service.sources.portal import tls_context

MODES: Final = ("ok", "slow", "flaky", "rate-limited", "dead")
"""The modes of a simulated portal in :mod:`comporta.testing.procurement`."""

TIMEOUT_SECONDS: Final = 2.0


class DemoPortals:
    """The simulated portals at one URL."""

    def __init__(self, url: str) -> None:
        self._client = httpx2.AsyncClient(
            base_url=url, timeout=TIMEOUT_SECONDS, trust_env=False, verify=tls_context()
        )

    async def modes(self) -> dict[str, Any]:
        """Return the mode of each portal and the modes that exist."""
        portals = await self._request("GET", "/control")
        try:
            modes = {str(name): str(portal["mode"]) for name, portal in portals.items()}
        except (AttributeError, KeyError, TypeError) as error:
            raise _unavailable_problem(error) from error
        return {"modes": modes, "can": list(MODES)}

    async def set_mode(self, name: str, mode: str) -> None:
        """Change the mode of a portal."""
        await self._request("PUT", f"/control/{name}", {"mode": mode})

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _request(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                reply = await self._client.request(method, path, json=body)
                reply.raise_for_status()
                document: dict[str, Any] = reply.json()
        except (httpx2.HTTPError, TimeoutError, ValueError) as error:
            raise _unavailable_problem(error) from error
        return document


def _unavailable_problem(error: Exception) -> HttpProblem:
    detail = f"the simulated portals do not respond: {type(error).__name__}"
    return HttpProblem(503, "Service Unavailable", detail, retry_after=1)
