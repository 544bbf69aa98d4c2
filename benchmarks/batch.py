"""Batches: how long clients wait for a sheet of a large job, and for anything else while backfills run.

The service is asked directly in this process; Google's stand-in takes 200 ms for every request.
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
from comporta.service.batch.local import LocalSheets
from comporta.service.batch.opening import BatchPlugs
from comporta.service.batch.sheets import GoogleSheets, Sheets, patient
from comporta.service.config import ServiceConfig
from comporta.service.parts import Parts
from comporta.testing import SheetsServer

LATENCY_SECONDS = 0.2
LARGE = 50_000
BACKFILLS = 10

_UNCONFIGURED = Statement("DELETE FROM batch_sheets")


def run(effort: Effort) -> Section:
    """Measure all of it."""
    configure, whitelist, figures = asyncio.run(_measured(effort))
    return Section(
        "Batches",
        f"SQLite; Google's stand-in answers after {LATENCY_SECONDS * 1000:.0f} ms, which `configure-sheets` "
        "waits for three times (look, make, look again). The whitelist is asked about a new user each time.",
        [
            Table("Answers", ["", "median", "p95"], [_row("configure-sheets, 50,000 results", configure)]),
            Table("While ten backfills run", ["", "median", "p95"], [_row("check-whitelist", whitelist)]),
            Table("Work", ["", "a second"], figures),
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


async def _measured(effort: Effort) -> tuple[list[float], list[float], list[list[str]]]:
    times = 10 if effort.quick else 40
    with SheetsServer() as google, TemporaryDirectory() as folder:
        account = GoogleAccount(endpoint=google.url)
        database = open_database(_url(folder))
        sheets = GoogleSheets(account, database, None, patient(retries=5))
        async with _service(folder, sheets) as (parts, client):
            seconds = await _timed(_posted(client, "large", LARGE))
            google.latency = LATENCY_SECONDS
            configure = [await _configured(parts, client, google) for _ in range(times)]
            whitelist = await _while_backfills_run(client, times * 25)
        account.close()
        database.close()
    with TemporaryDirectory() as folder:
        async with _service(folder, LocalSheets(folder)) as (_, client):
            await _posted(client, "local", LARGE)
            filled = await _timed(_filled(client, "local"))
    figures = [
        ["accounts done, stored and streamed", f"{LARGE / seconds:,.0f}"],
        ["rows backfilled into a file", f"{LARGE / filled:,.0f}"],
    ]
    return configure, whitelist, figures


@asynccontextmanager
async def _service(folder: str, sheets: Sheets) -> AsyncIterator[tuple[Parts, httpx2.AsyncClient]]:
    environ = {
        "COMPORTA_STATE": "memory://bench-batch",
        "DATABASE_URL": _url(folder),
        "COMPORTA_SERVICE_CLIENT_LIMIT": "false",
        "COMPORTA_SERVICE_BODY_BYTES_MAX": str(2**24),
        "COMPORTA_SERVICE_BATCH_BACKFILLS_MAX": str(BACKFILLS),
    }
    plugs = BatchPlugs(_greet, sheets)
    app = create_app(ServiceConfig.load(environ=environ), plugs=plugs)
    transport = httpx2.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url="http://service", timeout=600) as client,
    ):
        parts: Parts = app.state.parts
        await asyncio.to_thread(parts.batches.whitelist.set_user, "ana", digital=True)
        yield parts, client


def _url(folder: str) -> str:
    return f"sqlite:///{folder}/bench.db?timeout=30"


async def _greet(account: str) -> str:
    return f"hello {account}"


async def _posted(client: httpx2.AsyncClient, job_id: str, count: int) -> httpx2.Response:
    accounts = [f"account-{number}" for number in range(count)]
    reply = await client.post("/ultra-batch/jobs", json={"accounts": accounts, "job_id": job_id})
    assert len(reply.content.splitlines()) == count + 2
    return reply


async def _configured(parts: Parts, client: httpx2.AsyncClient, google: SheetsServer) -> float:
    """Configure it as if nobody ever had; backfills from before are left to find that out."""
    await parts.database.write_async((_UNCONFIGURED,), {})
    for number in google.spreadsheets():
        google.remove(number)
    return await _timed(_configure(client, "large"))


async def _configure(client: httpx2.AsyncClient, job_id: str) -> httpx2.Response:
    return await client.post("/ultra-batch/configure-sheets", json={"job_id": job_id, "user_id": "ana"})


async def _filled(client: httpx2.AsyncClient, job_id: str) -> httpx2.Response:
    await _configure(client, job_id)
    while True:
        reply = await client.get(f"/ultra-batch/sheets-config/{job_id}")
        if reply.json()["backfill_status"] != "pending":
            return reply
        await asyncio.sleep(0.02)


async def _while_backfills_run(client: httpx2.AsyncClient, times: int) -> list[float]:
    """Ask about users while sheets are filled that never get there before the end."""
    for number in range(BACKFILLS):
        await _posted(client, f"job-{number}", 5_000)
    await asyncio.gather(*(_configure(client, f"job-{number}") for number in range(BACKFILLS)))
    found = []
    for number in range(times):
        body = {"user_id": f"user-{number}"}
        found.append(await _timed(client.post("/ultra-batch/check-whitelist", json=body)))
    return found


async def _timed(asked: Awaitable[httpx2.Response]) -> float:
    began = time.perf_counter()
    reply = await asked
    assert reply.status_code == 200, reply.text
    return time.perf_counter() - began


def _row(name: str, seconds: list[float]) -> list[str]:
    return [name, f"{median(seconds) * 1000:.1f} ms", f"{_p95(seconds) * 1000:.1f} ms"]


def _p95(seconds: list[float]) -> float:
    return sorted(seconds)[round(len(seconds) * 0.95) - 1]
