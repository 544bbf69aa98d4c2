"""Bad moments for searches over real connections: the shared state dies, the service is told to end."""

from __future__ import annotations

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx2
from tests.processes.fleet import new_name, remove
from tests.search.rig import DAYS, NINE, PATIENT, configured, written
from tests.service.running import CLIENT, PATIENCE_SECONDS, Served, health, served, wait_for
from tests.support import hold_to

from comporta.service.health import cache_health_of, health_of
from comporta.service.parts import opened
from comporta.service.search.query import UFS, read_query
from comporta.testing import ProcurementServer, Server

TOKENS = 100
HELD_FOR_LONG = {
    "COMPORTA_UPSTREAM_PNCP_LIMIT": f"{TOKENS}/day",
    "COMPORTA_UPSTREAM_PNCP_LEASE": "10s",
    "COMPORTA_UPSTREAM_PNCP_MAX_CONCURRENT": "1",
    "COMPORTA_UPSTREAM_PNCP_HOLD_SECONDS": "600",
    "COMPORTA_BREAKER_PNCP_PROBE_SECONDS": "600",
}
"""What a worker keeps of PNCP is missed for minutes by all others, unless it is given back."""


def search(one: Served, ufs: str, **more: str) -> httpx2.Response:
    told = {**DAYS, "ufs": ufs, **more}
    return CLIENT.get(f"{one.address}/v1/search", params=told)


def test_searches__redis_killed_under_load__answer_no_5xx(tmp_path: Path) -> None:
    with (
        ProcurementServer(seed=5, pncp_rate=None, pcp_rate=None) as portals,
        Server() as redis,
    ):
        path = written(tmp_path, portals, state=redis.url, **PATIENT)
        with served(tmp_path, "--config", str(path), COMPORTA_STATE=redis.url) as one:

            def ask(number: int) -> list[tuple[int, bool]]:
                found = []
                for turn, uf in enumerate(UFS[number : number + 12]):
                    if (number, turn) == (0, 4):
                        redis.kill()
                    answer = search(one, uf, limit="5", modality=str(turn % 2 + 1))
                    found.append((answer.status_code, answer.json().get("complete")))
                return found

            with ThreadPoolExecutor(8) as pool:
                found = [each for all_of_one in pool.map(ask, range(8)) for each in all_of_one]
            fallback = health(one.address)["state"]["fallback"]
    assert fallback is not None
    assert set(found) == {(200, True)}


def test_serve__sigterm_with_a_search_and_a_refresh_under_way__finishes_one_and_gives_the_turn_back(
    tmp_path: Path,
) -> None:
    state = new_name()
    with ProcurementServer(seed=5, pncp_rate=None, pcp_rate=None) as portals:
        shared = f"shared://{state}"
        told = {"state": shared, "search": "fresh = 1"}
        database = f"sqlite:///{tmp_path}/search.db"
        path = written(tmp_path, portals, **PATIENT | told)
        with (
            served(
                tmp_path, "--config", str(path), COMPORTA_STATE=told["state"], DATABASE_URL=database
            ) as one,
            ThreadPoolExecutor(1) as pool,
        ):
            assert search(one, "SP").json()["complete"]
            before = portals.pncp.accepted
            portals.pncp.set(mode="slow", delay=60)
            wait_for(lambda: search(one, "SP").json()["freshness"] == "stale")
            wait_for(lambda: portals.pncp.accepted == before + 1)
            portals.pncp.set(delay=1)
            asking = pool.submit(search, one, "RJ")
            wait_for(lambda: portals.pncp.accepted == before + 2)
            began = time.monotonic()
            status = one.end()
            seconds = time.monotonic() - began
            answer = asking.result(PATIENCE_SECONDS)
        assert (status, answer.status_code, answer.json()["complete"]) == (0, 200, True)
        hold_to(seconds, 10, "the end")
        assert "Traceback" not in one.errors.read_text()

        async def fetching() -> int:
            async with opened(configured(tmp_path, portals, **PATIENT | told)) as parts:
                return int((await cache_health_of(parts))["fetching"])

        assert asyncio.run(fetching()) == 0
    remove(state)


def test_serve__sigterm_with_a_probe_a_permit_and_a_lease_in_hand__gives_all_of_them_back(
    tmp_path: Path, state: str
) -> None:
    told = {"state": state, "threshold": 1, "cooldown": 0.1, **PATIENT}
    database = f"sqlite:///{tmp_path}/search.db"
    with ProcurementServer(seed=5, pncp_rate=None, pcp_rate=None) as portals:
        pncp, path = portals.pncp, written(tmp_path, portals, **told)
        variables = {"COMPORTA_STATE": state, "DATABASE_URL": database, **HELD_FOR_LONG}
        with (
            served(tmp_path, "--config", str(path), **variables, close_seconds="1") as one,
            ThreadPoolExecutor(1) as pool,
        ):
            assert search(one, NINE).json()["complete"]
            on_lease = health(one.address)["rate_limiter"]["tokens_available"] < TOKENS - pncp.accepted
            pncp.set(mode="dead")
            assert search(one, "RO").json()["missing_sources"] == ["pncp"]
            pncp.set(mode="slow", delay=3600)
            wait_for(lambda: health(one.address)["sources"]["pncp"]["phase"] == "half_open")
            before = pncp.accepted
            probing = pool.submit(search, one, "SE")
            wait_for(lambda: pncp.accepted > before)
            assert health(one.address)["sources"]["pncp"]["calls_in_flight"] == 1
            began = time.monotonic()
            status = one.end()
            seconds = time.monotonic() - began
            cut_short = probing.result(PATIENCE_SECONDS)
        pncp.set(mode="ok")

        async def next_one() -> tuple[dict[str, Any], Any]:
            async with opened(configured(tmp_path, portals, HELD_FOR_LONG, **told)) as parts:
                found = await health_of(parts)
                made = await parts.search.answer(read_query(f"{urlencode(DAYS)}&ufs=TO".encode(), 31))
                return found, json.loads(made.body)

        calls = pncp.accepted + pncp.failed
        found, answer = asyncio.run(next_one())
    assert (on_lease, found["rate_limiter"]["tokens_available"]) == (True, TOKENS - calls)
    assert found["sources"]["pncp"]["calls_in_flight"] == 0
    assert answer["sources"]["pncp"]["status"] == "fresh"  # by the probe, which was free
    assert (cut_short.status_code, cut_short.headers["retry-after"], status) == (503, "1", 0)
    assert "Traceback" not in one.errors.read_text()
    hold_to(seconds, 10, "the end")
