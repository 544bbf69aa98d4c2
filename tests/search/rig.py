"""Runs the service in this process with simulated portals; a manual clock ages the cache."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from fastapi import FastAPI

from comporta import HealthCache
from comporta.service.app import create_app
from comporta.service.config import ServiceConfig
from comporta.service.container import Container, open_container
from comporta.service.search.search import Search
from comporta.testing import ManualClock, ProcurementServer
from comporta.testing.procurement import SimulatedPortal

DAYS = {"date_from": "2026-01-01", "date_to": "2026-01-10"}
NINE = "AC,BA,CE,MA,MG,PR,RJ,SC,SP"
FRESH, STALE, REFRESH_EVERY, LISTING_FRESH = 100, 1000, 50, 40
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
"""Long time-outs, for scenarios that do not test time-outs."""


def write_config(folder: Path, server: ProcurementServer, **options: Any) -> Path:
    """Write a configuration file; ``options`` replace its defaults."""
    defaults = {
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
    path.write_text(TOML.format(**defaults | options))
    return path


def load_config(
    folder: Path, server: ProcurementServer, environ: Mapping[str, str] | None = None, **options: Any
) -> ServiceConfig:
    return ServiceConfig.load(write_config(folder, server, **options), environ or {})


@dataclass
class SearchRig:
    """A running service with its portals, client and clock."""

    server: ProcurementServer
    app: FastAPI
    container: Container
    client: httpx2.AsyncClient
    clock: ManualClock

    async def search(self, ufs: str = NINE, **more: Any) -> httpx2.Response:
        return await self.client.get("/v1/search", params={**DAYS, "ufs": ufs, **more})

    async def body(self, ufs: str = NINE, **more: Any) -> dict[str, Any]:
        answer = await self.search(ufs, **more)
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    async def events(self, ufs: str = NINE, **more: Any) -> list[tuple[str, Any]]:
        """Return all events of a stream."""
        answer = await self.client.get("/v1/search/stream", params={**DAYS, "ufs": ufs, **more})
        assert answer.status_code == 200, answer.text
        return parse_events(answer.text)

    async def wait_until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        """Wait until a condition in the background holds."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await condition():  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.02)


class Gate:
    """Holds the requests to a portal until it is opened, except the first ones."""

    def __init__(self, portal: SimulatedPortal, passes: int = 0) -> None:
        self.open = False
        self.came = 0
        self._passes = passes
        portal._simulate_latency = self._wait  # type: ignore[method-assign]

    async def _wait(self) -> None:
        self.came += 1
        number = self.came
        while number > self._passes and not self.open:  # noqa: ASYNC110 - another thread opens it
            await asyncio.sleep(0.02)  # sleeps: the simulated portal holds its reply until it is opened


def parse_events(text: str) -> list[tuple[str, Any]]:
    events = []
    for block in text.split("\n\n"):
        if block.startswith("event: "):
            kind, _, data = block.removeprefix("event: ").partition("\ndata: ")
            events.append((kind, json.loads(data)))
    return events


@asynccontextmanager
async def open_rig(
    folder: Path,
    server: ProcurementServer,
    headers: Mapping[str, str] | None = None,
    *,
    is_real_time: bool = False,
    **options: Any,
) -> AsyncIterator[SearchRig]:
    """Run the service; with ``is_real_time`` the clock does not move it, and several share a database."""
    config = load_config(folder, server, **options)
    clock = ManualClock(1_800_000_000)
    app = create_app(config)
    async with open_container(config) as container, AsyncExitStack() as stack:
        if not is_real_time:
            await stack.enter_async_context(_replaced_search(container, clock))
        app.state.container = container
        transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
        client = await stack.enter_async_context(
            httpx2.AsyncClient(transport=transport, base_url="http://service", headers=headers, timeout=30)
        )
        yield SearchRig(server, app, container, client, clock)


@asynccontextmanager
async def _replaced_search(container: Container, clock: ManualClock) -> AsyncIterator[None]:
    """Give a container a search whose caches a manual clock ages."""
    shared: Any = {"state": "memory://", "clock": clock, "migrate": False}
    cache = HealthCache(container.database, fresh=FRESH, stale=STALE, refresh_every=REFRESH_EVERY, **shared)
    listings = HealthCache(
        container.database, name="listings", fresh=LISTING_FRESH, stale=LISTING_FRESH, **shared
    )
    container.search.close()
    container.search = Search(container.sources, cache, listings, container.config.search)
    try:
        yield
    finally:
        await cache.aclose()
        await listings.aclose()
