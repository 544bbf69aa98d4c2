"""The dashboard for tests: asked directly or over real connections, and streams as a page reads them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
from tests.service.running import CLIENT, PATIENCE_SECONDS, Asked, config

from comporta.service.app import create_app

TOKEN = "a-dashboard-token-for-tests"  # noqa: S105 - of tests only
LOCKED = {"COMPORTA_DASHBOARD_TOKEN": TOKEN}
BEARER = {"authorization": f"Bearer {TOKEN}"}


@asynccontextmanager
async def running(folder: Path, *, demo: str | None = None, **variables: str) -> AsyncIterator[Asked]:
    """Run the application in this process, with switches of a demonstration if so asked."""
    app = create_app(config(folder, **variables), demo=demo)
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url="http://service", timeout=60) as client,
    ):
        yield Asked(app, client)


async def document(asked: Asked) -> dict[str, Any]:
    """Return the document that an application gives now."""
    reply = await asked.client.get("/v1/dashboard")
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


async def documented(asked: Asked, what: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """Wait for a document of which something is true."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            found = await document(asked)
            if what(found):
                return found
            await asyncio.sleep(0.05)


def shown(address: str, **headers: str) -> dict[str, Any]:
    """Return the document of one that is served."""
    reply = CLIENT.get(f"{address}/v1/dashboard", headers=headers)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def past(address: str) -> dict[str, Any]:
    """Return the series of one that is served."""
    reply = CLIENT.get(f"{address}/v1/dashboard/history")
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()["series"]
    return found


@contextmanager
def streaming(address: str) -> Iterator[Iterator[tuple[str, Any]]]:
    """Open a page's stream, and give its events as they come."""
    with CLIENT.stream("GET", f"{address}/v1/dashboard/stream") as reply:
        assert reply.status_code == 200
        yield _events(reply.iter_lines())


def _events(lines: Iterator[str]) -> Iterator[tuple[str, Any]]:
    kind = ""
    for line in lines:
        field, _, value = line.partition(": ")
        if field == "event":
            kind = value
        elif field == "data":
            yield kind, json.loads(value)
