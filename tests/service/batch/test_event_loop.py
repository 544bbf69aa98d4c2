"""Nothing blocks the event loop: every endpoint under load, with slow sheets and a slow whitelist."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.service.batch.processors import COMPUTED_SECONDS
from tests.service.batch.rig import accounts, each_once, google_accounts, wait_until
from tests.service.batch.test_serve import allow_user
from tests.service.harness import PATIENCE_SECONDS, serve_process
from tests.support import assert_within

from comporta.testing import SheetsServer

CLIENTS = 50
SHEETS = 4
WORKBOOKS = 8
STALL_SECONDS = 0.05


async def run_clients(ask: Callable[[int], Awaitable[int]]) -> None:
    """Run 50 clients concurrently; all of them must get a 200."""
    assert set(await asyncio.gather(*(ask(number) for number in range(CLIENTS)))) == {200}


@pytest.mark.unmeasured
def test_event_loop__fifty_clients_over_connections__is_never_blocked(
    tmp_path: Path, google: SheetsServer
) -> None:
    google.latency = 0.2
    options = {
        "client_limit": "false",
        "batch_processor": "tests.service.batch.processors:WatchedProcessor",
        "batch_poll_seconds": "0.05",
        "batch_google_endpoint": google.url,
        "DATABASE_URL": allow_user(tmp_path, "ana"),
    }
    with serve_process(tmp_path, **options) as one:
        reports = asyncio.run(_visit(one.address))
    assert "BlockingError" in reports["block"]  # the watch works
    assert float(reports["rest"]) >= COMPUTED_SECONDS
    assert "BlockingError" not in one.errors.read_text()
    assert [google_accounts(google, sheet) for sheet in google.spreadsheets()] == [each_once(20)] * SHEETS
    assert_within(float(reports["report"]), STALL_SECONDS, "a step of the loop")


async def _visit(address: str) -> dict[str, str]:
    """Have 50 clients call every endpoint of a watched process; return what the process reports."""
    limits = httpx2.Limits(max_connections=CLIENTS, max_keepalive_connections=0)
    async with httpx2.AsyncClient(base_url=address, timeout=PATIENCE_SECONDS, limits=limits) as client:

        async def ask(method: str, path: str, **body: Any) -> int:
            return (await client.request(method, f"/ultra-batch/{path}", json=body or None)).status_code

        async def process(account: str) -> str:
            reply = await client.post("/ultra-batch/jobs", json={"accounts": [account]})
            return str(json.loads(reply.text.splitlines()[1])["message"])

        async def is_filled(number: int) -> bool:
            reply = await client.get(f"/ultra-batch/sheets-config/job-{number}")
            return bool(reply.json()["backfill_status"] == "completed")

        await process("watch")
        await run_clients(lambda n: ask("POST", "check-whitelist", user_id=f"ana-{n}"))
        await run_clients(lambda n: ask("POST", "jobs", accounts=accounts(20), job_id=f"job-{n}"))
        await run_clients(lambda n: ask("GET", f"jobs/job-{n}"))
        await run_clients(
            lambda n: ask("POST", "configure-sheets", job_id=f"job-{n % SHEETS}", user_id="ana")
        )
        await run_clients(lambda n: ask("GET", f"sheets-config/job-{n % SHEETS}"))
        assert await ask("POST", "jobs", accounts=accounts(2000)) == 200
        for number in range(SHEETS):
            await wait_until(partial(is_filled, number))
        return {word: await process(word) for word in ("report", "block", "compute", "rest")}


def test_event_loop__fifty_clients_download_sheets__is_never_blocked(tmp_path: Path) -> None:
    options = {
        "client_limit": "false",
        "batch_processor": "tests.service.batch.processors:WatchedProcessor",
        "batch_poll_seconds": "0.05",
        "DATABASE_URL": allow_user(tmp_path, "ana"),
    }
    with serve_process(tmp_path, **options) as one:
        longest = asyncio.run(_download(one.address))
    assert "BlockingError" not in one.errors.read_text()
    assert_within(longest, STALL_SECONDS, "a step of the loop")


async def _download(address: str) -> float:
    """Have 50 clients download a sheet from a watched process; return the longest step of its loop."""
    limits = httpx2.Limits(max_connections=CLIENTS, max_keepalive_connections=0)
    async with httpx2.AsyncClient(base_url=address, timeout=PATIENCE_SECONDS, limits=limits) as client:

        async def process(names: list[str], job_id: str) -> list[dict[str, Any]]:
            body = {"accounts": names, "job_id": job_id}
            reply = await client.post("/ultra-batch/jobs", json=body)
            return [json.loads(line) for line in reply.text.splitlines()]

        async def download(number: int) -> int:
            kind = "xlsx" if number < WORKBOOKS else "csv"
            reply = await client.get(f"/ultra-batch/sheets/{sheet_id}.{kind}")
            return reply.status_code

        await process(accounts(1000), "job")
        body = {"job_id": "job", "user_id": "ana"}
        configured = await client.post("/ultra-batch/configure-sheets", json=body)
        sheet_id = configured.json()["spreadsheet_id"]
        await process(["watch"], "watch")
        await run_clients(download)
        return float((await process(["report"], "report"))[1]["message"])
