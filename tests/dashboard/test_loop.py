"""The event loop while pages are open and asked for: nothing on it waits for a file, a socket or a lock."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from tests.dashboard.rig import LOCKED, TOKEN, running
from tests.service.running import awaited
from tests.support import nothing_blocks

from comporta import events
from comporta.testing import ProcurementServer

PATHS = ("/", "/dashboard/style.css", "/v1/dashboard", "/v1/dashboard/history", "/v1/demo")


@awaited
async def test_loop__pages_open_and_everything_asked_for__never_blocks(tmp_path: Path) -> None:
    began = time.time()
    with ProcurementServer(seed=5) as portals:
        async with running(tmp_path, demo=portals.url, **LOCKED) as asked:
            live = asked.parts.dashboard.live
            headers = {"authorization": f"Bearer {TOKEN}"}

            async def page() -> list[bytes]:
                with live.watched():
                    told = live.told()
                    return [await anext(told) for _ in range(3)]

            async def visit() -> set[int]:
                found = {(await asked.client.get(path, headers=headers)).status_code for path in PATHS}
                wrong = await asked.client.post("/dashboard/signin", data={"token": "not-the-one"})
                return found | {wrong.status_code}

            await visit()
            with nothing_blocks():
                pages = [asyncio.create_task(page()) for _ in range(10)]
                statuses = set().union(*[await visit() for _ in range(3)])
                told = await asyncio.gather(*pages)
    assert statuses <= {200, 401, 429}
    assert all(one.startswith(b"event: document") for page in told for one in page[1:])
    assert not [event for event in events.latest_events() if event.at >= began and "Blocking" in event.text]
