"""Batches: how long clients wait for the sheet of a large job, and for other requests during backfills.

Requests go to the application in this process; the stand-in for Google takes 200 ms for every request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from statistics import median
from tempfile import TemporaryDirectory

import httpx2

from benchmarks.measure import Effort
from benchmarks.report import Goal, Section, Table
from comporta.database.base import Statement
from comporta.database.urls import open_database
from comporta.pipeline.sinks import GoogleAccount
from comporta.service.app import create_app
from comporta.service.batch.factory import BatchComponents
from comporta.service.batch.local_sheets import LocalSheets
from comporta.service.batch.sheets import GoogleSheets, Sheets, sheet_retry
from comporta.service.config import ServiceConfig
from comporta.service.container import Container
from comporta.testing import SheetsServer

LATENCY_SECONDS = 0.2
LARGE = 50_000
BACKFILLS = 10

_UNCONFIGURED = Statement("DELETE FROM batch_sheets")


def run(effort: Effort) -> Section:
    """Run all measurements."""
    configure, whitelist, throughput = asyncio.run(_measure(effort))
    return Section(
        "Batches",
        f"SQLite; the stand-in for Google responds after {LATENCY_SECONDS * 1000:.0f} ms, which "
        "`configure-sheets` waits for three times (search, create, search again). Each whitelist request is "
        "for a new user.",
        [
            Table("Responses", ["", "median", "p95"], [_row("configure-sheets, 50,000 results", configure)]),
            Table("While ten backfills run", ["", "median", "p95"], [_row("check-whitelist", whitelist)]),
            Table("Work", ["", "a second"], throughput),
        ],
        [
            Goal(
                "configure-sheets on a job with 50,000 results: p95 under 1 s",
                f"{_p95(configure):.2f} s",
                _p95(configure) < 1,
            ),
            Goal(
                "check-whitelist while ten backfills run: p95 under 0.1 s",
                f"{_p95(whitelist) * 1000:.1f} ms",
                _p95(whitelist) < 0.1,
            ),
        ],
    )


async def _measure(effort: Effort) -> tuple[list[float], list[float], list[list[str]]]:
    times = 10 if effort.quick else 40
    with SheetsServer() as google, TemporaryDirectory() as folder:
        account = GoogleAccount(endpoint=google.url)
        database = open_database(_url(folder))
        sheets = GoogleSheets(account, database, None, sheet_retry(retries=5))
        async with _service(folder, sheets) as (container, client):
            seconds = await _duration(_post_job(client, "large", LARGE))
            google.latency = LATENCY_SECONDS
            configure = [await _configure_again(container, client, google) for _ in range(times)]
            whitelist = await _while_backfills_run(client, times * 25)
        account.close()
        database.close()
    with TemporaryDirectory() as folder:
        async with _service(folder, LocalSheets(folder)) as (_, client):
            await _post_job(client, "local", LARGE)
            filled = await _duration(_configure_and_fill(client, "local"))
    throughput = [
        ["accounts processed, stored and streamed", f"{LARGE / seconds:,.0f}"],
        ["rows backfilled into a file", f"{LARGE / filled:,.0f}"],
    ]
    return configure, whitelist, throughput


@asynccontextmanager
async def _service(folder: str, sheets: Sheets) -> AsyncIterator[tuple[Container, httpx2.AsyncClient]]:
    environ = {
        "COMPORTA_STATE": "memory://bench-batch",
        "DATABASE_URL": _url(folder),
        "COMPORTA_SERVICE_CLIENT_LIMIT": "false",
        "COMPORTA_SERVICE_BODY_BYTES_MAX": str(2**24),
        "COMPORTA_SERVICE_BATCH_BACKFILLS_MAX": str(BACKFILLS),
    }
    plugs = BatchComponents(_greet, sheets)
    app = create_app(ServiceConfig.load(environ=environ), batch_components=plugs)
    transport = httpx2.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url="http://service", timeout=600) as client,
    ):
        container: Container = app.state.container
        await asyncio.to_thread(container.batches.whitelist.set_user, "ana", digital=True)
        yield container, client


def _url(folder: str) -> str:
    return f"sqlite:///{folder}/bench.db?timeout=30"


async def _greet(account: str) -> str:
    return f"hello {account}"


async def _post_job(client: httpx2.AsyncClient, job_id: str, count: int) -> httpx2.Response:
    accounts = [f"account-{number}" for number in range(count)]
    reply = await client.post("/ultra-batch/jobs", json={"accounts": accounts, "job_id": job_id})
    assert len(reply.content.splitlines()) == count + 2
    return reply


async def _configure_again(container: Container, client: httpx2.AsyncClient, google: SheetsServer) -> float:
    """Configure the sheet as if for the first time. Earlier backfills fail when they notice."""
    await container.database.write_async((_UNCONFIGURED,), {})
    for number in google.spreadsheets():
        google.remove(number)
    return await _duration(_configure(client, "large"))


async def _configure(client: httpx2.AsyncClient, job_id: str) -> httpx2.Response:
    return await client.post("/ultra-batch/configure-sheets", json={"job_id": job_id, "user_id": "ana"})


async def _configure_and_fill(client: httpx2.AsyncClient, job_id: str) -> httpx2.Response:
    await _configure(client, job_id)
    while True:
        reply = await client.get(f"/ultra-batch/sheets-config/{job_id}")
        if reply.json()["backfill_status"] != "pending":
            return reply
        await asyncio.sleep(0.02)


async def _while_backfills_run(client: httpx2.AsyncClient, times: int) -> list[float]:
    """Check users while sheets are filled that are not complete before the end."""
    for number in range(BACKFILLS):
        await _post_job(client, f"job-{number}", 5_000)
    await asyncio.gather(*(_configure(client, f"job-{number}") for number in range(BACKFILLS)))
    durations = []
    for number in range(times):
        body = {"user_id": f"user-{number}"}
        durations.append(await _duration(client.post("/ultra-batch/check-whitelist", json=body)))
    return durations


async def _duration(response: Awaitable[httpx2.Response]) -> float:
    began = time.perf_counter()
    reply = await response
    assert reply.status_code == 200, reply.text
    return time.perf_counter() - began


def _row(name: str, seconds: list[float]) -> list[str]:
    return [name, f"{median(seconds) * 1000:.1f} ms", f"{_p95(seconds) * 1000:.1f} ms"]


def _p95(seconds: list[float]) -> float:
    return sorted(seconds)[round(len(seconds) * 0.95) - 1]
