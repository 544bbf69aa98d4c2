"""The service with simulated sources, asked directly; what is kept ages by a clock moved by hand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from fastapi import FastAPI

from comporta import HealthCache
from comporta.service.app import create_app
from comporta.service.config import ServiceConfig
from comporta.service.parts import Parts, opened
from comporta.service.search.searching import Search
from comporta.testing import ManualClock, ProcurementServer

DAYS = {"date_from": "2026-01-01", "date_to": "2026-01-10"}
NINE = "AC,BA,CE,MA,MG,PR,RJ,SC,SP"
FRESH, STALE, EVERY = 100, 1000, 50
PATIENCE_SECONDS = 120.0

TOML = """
state = "{state}"

[service]
database = "{database}"
allow_private_addresses = true
{service}

[service.addresses]
pncp = "{pncp}"
pcp = "{pcp}"

[service.search]
timeout = {timeout}
page_timeout = {page_timeout}
{search}

[upstreams.pncp]
limit = "1000/s"
retry = false
max_wait = {max_wait}
[upstreams.pncp.breaker]
threshold = {threshold}
cooldown_seconds = {cooldown}

[upstreams.pcp]
limit = "1000/s"
retry = false
max_wait = {max_wait}
[upstreams.pcp.breaker]
threshold = {threshold}
cooldown_seconds = {cooldown}
"""


PATIENT: dict[str, Any] = {"timeout": 60, "page_timeout": 30, "max_wait": 30}
"""For stories that are not about time, on machines that have little of it."""


def written(folder: Path, server: ProcurementServer, **told: Any) -> Path:
    """Write a configuration file; what is not told is the usual."""
    usual = {
        "state": "memory://",
        "database": f"sqlite:///{folder}/search.db",
        "pncp": server.pncp.url,
        "pcp": server.pcp.url,
        "threshold": 1000,
        "page_timeout": 5,
        "timeout": 10,
        "max_wait": 5,
        "cooldown": 1,
        "service": "client_limit = false",
        "search": "",
    }
    path = folder / "comporta.toml"
    path.write_text(TOML.format(**usual | told))
    return path


def configured(
    folder: Path, server: ProcurementServer, environ: Mapping[str, str] | None = None, **told: Any
) -> ServiceConfig:
    return ServiceConfig.load(written(folder, server, **told), environ or {})


@dataclass
class Rig:
    """A service, its client and its clock."""

    server: ProcurementServer
    app: FastAPI
    parts: Parts
    client: httpx2.AsyncClient
    clock: ManualClock

    async def search(self, ufs: str = NINE, **more: Any) -> httpx2.Response:
        return await self.client.get("/v1/search", params={**DAYS, "ufs": ufs, **more})

    async def found(self, ufs: str = NINE, **more: Any) -> dict[str, Any]:
        answer = await self.search(ufs, **more)
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    async def events(self, ufs: str = NINE, **more: Any) -> list[tuple[str, Any]]:
        """Return the events of a stream, which ends by itself."""
        answer = await self.client.get("/v1/search/stream", params={**DAYS, "ufs": ufs, **more})
        assert answer.status_code == 200, answer.text
        return parsed(answer.text)

    async def until(self, what: Callable[[], Awaitable[bool]]) -> None:
        """Wait for something that happens in the background."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await what():  # noqa: ASYNC110 - nobody tells of what it waits for
                await asyncio.sleep(0.02)


def parsed(text: str) -> list[tuple[str, Any]]:
    found = []
    for block in text.split("\n\n"):
        if block.startswith("event: "):
            kind, _, data = block.removeprefix("event: ").partition("\ndata: ")
            found.append((kind, json.loads(data)))
    return found


@asynccontextmanager
async def rigged(
    folder: Path, server: ProcurementServer, headers: Mapping[str, str] | None = None, **told: Any
) -> AsyncIterator[Rig]:
    config = configured(folder, server, **told)
    clock = ManualClock(1_800_000_000)
    app = create_app(config)
    async with opened(config) as parts:
        cache = HealthCache(
            parts.database,
            fresh=FRESH,
            stale=STALE,
            refresh_every=EVERY,
            state="memory://",
            clock=clock,
            migrate=False,
        )
        parts.search.close()
        parts.search = Search(parts.sources, cache, config.search)
        app.state.parts = parts
        transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
        async with httpx2.AsyncClient(
            transport=transport, base_url="http://service", headers=headers, timeout=30
        ) as client:
            try:
                yield Rig(server, app, parts, client, clock)
            finally:
                await cache.aclose()
