"""Nothing blocks the event loop: every endpoint under load, with slow sheets and a slow whitelist."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.service.batch.rig import accounts, filled, google_sheets, in_google, once, slowly
from tests.service.batch.test_routes import running
from tests.service.running import Asked, awaited
from tests.support import nothing_blocks

from comporta.database.base import Database
from comporta.pipeline.sinks import GoogleAccount
from comporta.testing import SheetsServer

CLIENTS = 50


def slow_whitelist(user_id: str) -> bool:
    time.sleep(0.05)
    return user_id.startswith("ana")


async def everybody(ask: Callable[[int], Awaitable[int]]) -> None:
    """Let fifty clients ask at once; all are answered well."""
    assert set(await asyncio.gather(*(ask(number) for number in range(CLIENTS)))) == {200}


async def _ask(asked: Asked, method: str, path: str, **body: Any) -> int:
    reply = await asked.client.request(method, f"/ultra-batch/{path}", json=body or None)
    return reply.status_code


@awaited
async def test_loop__fifty_clients_on_every_endpoint__is_never_blocked(
    plain: Database, tmp_path: Path, google: SheetsServer, account: GoogleAccount
) -> None:
    google.latency = 0.2
    sheets = google_sheets(account, plain)
    quick = {"batch_concurrency": "32"}  # so that the large job is done soon
    async with running(tmp_path, slowly, sheets, is_digital=slow_whitelist, **quick) as asked:
        with nothing_blocks():
            await everybody(lambda n: _ask(asked, "POST", "check-whitelist", user_id=f"ana-{n}"))
            await everybody(lambda n: _ask(asked, "POST", "jobs", accounts=accounts(20), job_id=f"job-{n}"))
            await everybody(lambda n: _ask(asked, "GET", f"jobs/job-{n}"))
            await everybody(
                lambda n: _ask(asked, "POST", "configure-sheets", job_id=f"job-{n % 8}", user_id="ana")
            )
            await everybody(lambda n: _ask(asked, "GET", f"sheets-config/job-{n % 8}"))
            assert await _ask(asked, "POST", "jobs", accounts=accounts(3000), job_id="large") == 200
            done = [await filled(asked.parts.batches, f"job-{number}") for number in range(8)]
    assert all(in_google(google, config.spreadsheet_id) == once(20) for config in done)


@awaited
async def test_watch__step_that_blocks__is_noticed(tmp_path: Path) -> None:
    async def blocks(account: str) -> str:
        time.sleep(0.001)  # noqa: ASYNC251 - on purpose
        return account

    async with running(tmp_path, blocks) as asked:
        with nothing_blocks():
            reply = await asked.client.post("/ultra-batch/jobs", json={"accounts": ["a"]})
    assert "BlockingError" in reply.text
