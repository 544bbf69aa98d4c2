"""The event loop while pages are open and requested: nothing on it waits for a file, a socket or a lock."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from tests.dashboard.rig import LOCKED, TOKEN, run_service
from tests.service.harness import async_test
from tests.support import fail_on_blocking_calls

from comporta import events
from comporta.testing import ProcurementServer

PATHS = ("/", "/dashboard/style.css", "/v1/dashboard", "/v1/dashboard/history", "/v1/demo")


@async_test
async def test_event_loop__pages_open_and_all_routes_requested__is_never_blocked(tmp_path: Path) -> None:
    began = time.time()
    with ProcurementServer(seed=5) as portals:
        async with run_service(tmp_path, demo=portals.url, **LOCKED) as service:
            live = service.container.dashboard.live
            headers = {"authorization": f"Bearer {TOKEN}"}

            async def page() -> list[bytes]:
                with live.open_page():
                    events = live.page_events()
                    return [await anext(events) for _ in range(3)]

            async def visit() -> set[int]:
                statuses = {(await service.client.get(path, headers=headers)).status_code for path in PATHS}
                wrong = await service.client.post("/dashboard/signin", data={"token": "not-the-one"})
                return statuses | {wrong.status_code}

            await visit()
            with fail_on_blocking_calls():
                pages = [asyncio.create_task(page()) for _ in range(10)]
                statuses = set().union(*[await visit() for _ in range(3)])
                pages_events = await asyncio.gather(*pages)
    assert statuses <= {200, 401, 429}
    assert all(
        one.startswith((b"event: document", b"event: changes")) for page in pages_events for one in page[1:]
    )
    assert not [event for event in events.latest_events() if event.at >= began and "Blocking" in event.text]
