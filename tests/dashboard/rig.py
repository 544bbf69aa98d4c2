"""Runs the dashboard for tests, in this process or over connections."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
from tests.service.harness import CLIENT, PATIENCE_SECONDS, RunningService, service_config

from comporta.service.app import create_app

TOKEN = "a-dashboard-token-for-tests"  # noqa: S105 - of tests only
LOCKED = {"COMPORTA_DASHBOARD_TOKEN": TOKEN}
BEARER = {"authorization": f"Bearer {TOKEN}"}


@asynccontextmanager
async def run_service(
    folder: Path, *, demo: str | None = None, **variables: str
) -> AsyncIterator[RunningService]:
    """Run the application in this process, optionally as a demo."""
    app = create_app(service_config(folder, **variables), demo_url=demo)
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url="http://service", timeout=60) as client,
    ):
        yield RunningService(app, client)


async def read_document(service: RunningService) -> dict[str, Any]:
    """Return the current document of an application."""
    reply = await service.client.get("/v1/dashboard")
    assert reply.status_code == 200, reply.text
    document: dict[str, Any] = reply.json()
    return document


async def wait_for_document(
    service: RunningService, condition: Callable[[dict[str, Any]], Any]
) -> dict[str, Any]:
    """Wait for a document that meets a condition."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            document = await read_document(service)
            if condition(document):
                return document
            await asyncio.sleep(0.05)


def get_document(address: str, **headers: str) -> dict[str, Any]:
    """Return the document of a served process."""
    reply = CLIENT.get(f"{address}/v1/dashboard", headers=headers)
    assert reply.status_code == 200, reply.text
    document: dict[str, Any] = reply.json()
    return document


def get_history(address: str) -> dict[str, Any]:
    """Return the history of a served process."""
    reply = CLIENT.get(f"{address}/v1/dashboard/history")
    assert reply.status_code == 200, reply.text
    series: dict[str, Any] = reply.json()["series"]
    return series


@contextmanager
def open_stream(address: str) -> Iterator[Iterator[tuple[str, Any]]]:
    """Open the stream of a page and yield its events."""
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
