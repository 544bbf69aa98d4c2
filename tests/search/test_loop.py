"""The event loop while fifty clients ask at once: nothing on it waits for a file, a socket or a lock.

Exempt are reads of the cache by primary key from SQLite, which take microseconds. How long steps compute is
measured by ``make bench ARGS='--only service-loop'``: a figure of the day, which fails nobody.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from tests.search.rig import DAYS, FRESH, PATIENT, Rig, rigged
from tests.service.running import OPERATOR, TOKEN
from tests.support import nothing_blocks

from comporta import events
from comporta.service import health
from comporta.testing import ProcurementServer

CLIENTS = 50


async def visit(rig: Rig, number: int) -> set[int]:
    """Ask for everything there is: kept, new, stale, and what operators look at."""
    mine = {**DAYS, "ufs": "MG,SP", "user": f"user-{number}"}
    key = "0" * 64
    asked: list[tuple[str, str, dict[str, Any]]] = [
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
    begin = number % len(asked)  # so that everything is asked for while everything else is
    turned = asked[begin:] + asked[:begin]
    return {(await rig.client.request(method, path, **told)).status_code for method, path, told in turned}


def test_loop__fifty_clients_ask_for_everything__never_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "DATABASE_SECONDS", 60.0)  # fifty at once on a slow machine is no outage

    async def story(rig: Rig) -> None:
        await rig.found("RJ")
        rig.clock.advance(FRESH + 1)  # from now on that is stale, and fetched anew by who asks
        await rig.found("SP")
        with nothing_blocks():
            found = await asyncio.gather(*(visit(rig, number) for number in range(CLIENTS)))
        assert set().union(*found) == {200, 404}

        async def fetched_anew() -> bool:
            return bool((await rig.found("RJ"))["freshness"] == "fresh")

        await rig.until(fetched_anew)

    async def telling() -> None:
        with ProcurementServer(seed=5, pncp_rate=None, pcp_rate=None) as server:
            service = f'client_limit = false\nadmin_token = "{TOKEN}"'
            async with rigged(tmp_path, server, service=service, **PATIENT) as rig:
                await story(rig)

    began = time.time()
    asyncio.run(telling())
    assert not [event for event in events.latest_events() if event.at >= began and "Blocking" in event.text]
