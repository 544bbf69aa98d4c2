"""Nothing blocks the event loop: every endpoint under load, with slow sheets and a slow whitelist."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
from tests.service.batch.processors import COMPUTED_SECONDS
from tests.service.batch.rig import accounts, in_google, once, until
from tests.service.batch.test_served import whitelisted
from tests.service.running import PATIENCE_SECONDS, served
from tests.support import hold_to

from comporta.testing import SheetsServer

CLIENTS = 50
SHEETS = 4
STALL_SECONDS = 0.05


async def everybody(ask: Callable[[int], Awaitable[int]]) -> None:
    """Let fifty clients ask at once; all are answered well."""
    assert set(await asyncio.gather(*(ask(number) for number in range(CLIENTS)))) == {200}


def test_loop__fifty_clients_over_connections__is_never_blocked_and_computes_briefly(
    tmp_path: Path, google: SheetsServer
) -> None:
    google.latency = 0.2
    told = {
        "client_limit": "false",
        "batch_processor": "tests.service.batch.processors:Watched",
        "batch_poll_seconds": "0.05",
        "batch_google_endpoint": google.url,
        "DATABASE_URL": whitelisted(tmp_path, "ana"),
    }
    with served(tmp_path, **told) as one:
        said = asyncio.run(_visited(one.address))
    assert "BlockingError" in said["block"]  # it was watched
    assert float(said["rest"]) >= COMPUTED_SECONDS
    assert "BlockingError" not in one.errors.read_text()
    assert [in_google(google, sheet) for sheet in google.spreadsheets()] == [once(20)] * SHEETS
    hold_to(float(said["report"]), STALL_SECONDS, "a step of the loop")


async def _visited(address: str) -> dict[str, str]:
    """Have fifty clients ask a watched process for everything; returns what it says of itself."""
    limits = httpx2.Limits(max_connections=CLIENTS, max_keepalive_connections=0)
    async with httpx2.AsyncClient(base_url=address, timeout=PATIENCE_SECONDS, limits=limits) as client:

        async def ask(method: str, path: str, **body: Any) -> int:
            return (await client.request(method, f"/ultra-batch/{path}", json=body or None)).status_code

        async def say(account: str) -> str:
            reply = await client.post("/ultra-batch/jobs", json={"accounts": [account]})
            return str(json.loads(reply.text.splitlines()[1])["message"])

        async def is_filled(number: int) -> bool:
            reply = await client.get(f"/ultra-batch/sheets-config/job-{number}")
            return bool(reply.json()["backfill_status"] == "completed")

        await say("watch")
        await everybody(lambda n: ask("POST", "check-whitelist", user_id=f"ana-{n}"))
        await everybody(lambda n: ask("POST", "jobs", accounts=accounts(20), job_id=f"job-{n}"))
        await everybody(lambda n: ask("GET", f"jobs/job-{n}"))
        await everybody(lambda n: ask("POST", "configure-sheets", job_id=f"job-{n % SHEETS}", user_id="ana"))
        await everybody(lambda n: ask("GET", f"sheets-config/job-{n % SHEETS}"))
        assert await ask("POST", "jobs", accounts=accounts(2000)) == 200
        for number in range(SHEETS):
            await until(partial(is_filled, number))
        return {word: await say(word) for word in ("report", "block", "compute", "rest")}
