"""The event loop while fifty clients ask at once: nothing on it waits for a file, a socket or a lock.

Exempt are reads of the cache by primary key from SQLite, which take microseconds. How long steps compute is
measured by ``make bench ARGS='--only service-loop'``: a figure of the day, which fails no test.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from tests.search.rig import DAYS, FRESH, PATIENT, SearchRig, open_rig
from tests.service.harness import OPERATOR, TOKEN
from tests.support import fail_on_blocking_calls

from comporta import events
from comporta.service import health
from comporta.testing import ProcurementServer

CLIENTS = 50


async def visit(rig: SearchRig, number: int) -> set[int]:
    """Call every route: cached, new and stale searches, and the admin routes."""
    mine = {**DAYS, "ufs": "MG,SP", "user": f"user-{number}"}
    key = "0" * 64
    requests: list[tuple[str, str, dict[str, Any]]] = [
        ("GET", "/v1/health", {}),
        ("GET", "/v1/health/cache", {}),
        ("GET", "/metrics", {}),
        ("GET", "/readyz", {}),
        ("GET", "/v1/search", {"params": {**DAYS, "ufs": "SP"}}),
        ("GET", "/v1/search", {"params": {**mine, "date_from": f"2026-01-0{number % 9 + 1}"}}),
        ("GET", "/v1/search", {"params": {**mine, "ufs": "RJ", "terms": "uniformes"}}),
        ("GET", "/v1/search/stream", {"params": {**mine, "ufs": "RJ"}}),
        ("GET", "/v1/admin/audit", {"headers": OPERATOR}),
        ("GET", "/v1/admin/cache/keys", {"headers": OPERATOR}),
        ("POST", f"/v1/admin/cache/keys/{key}/refresh", {"headers": OPERATOR}),
        ("POST", "/v1/admin/upstreams/pcp/resume", {"headers": OPERATOR}),
    ]
    begin = number % len(requests)  # so that all routes run concurrently
    rotated = requests[begin:] + requests[:begin]
    return {
        (await rig.client.request(method, path, **options)).status_code for method, path, options in rotated
    }


@pytest.mark.unmeasured
def test_event_loop__fifty_clients_search__is_never_blocked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        health, "DATABASE_TIMEOUT_SECONDS", 60.0
    )  # fifty clients on a slow machine are not an outage

    async def scenario(rig: SearchRig) -> None:
        await rig.body("RJ")
        rig.clock.advance(FRESH + 1)  # now stale: the next search refreshes it
        await rig.body("SP")
        with fail_on_blocking_calls():
            statuses = await asyncio.gather(*(visit(rig, number) for number in range(CLIENTS)))
        assert set().union(*statuses) == {200, 404}

        async def is_refreshed() -> bool:
            return bool((await rig.body("RJ"))["freshness"] == "fresh")

        await rig.wait_until(is_refreshed)

    async def run() -> None:
        with ProcurementServer(seed=5, pncp_rate=None, pcp_rate=None) as server:
            service = f'client_limit = false\nadmin_token = "{TOKEN}"'
            async with open_rig(tmp_path, server, service=service, **PATIENT) as rig:
                await scenario(rig)

    began = time.time()
    asyncio.run(run())
    assert not [event for event in events.latest_events() if event.at >= began and "Blocking" in event.text]
