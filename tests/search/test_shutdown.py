"""Searches over real connections while Redis dies or the service shuts down."""

from __future__ import annotations

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx2
from tests.processes.fleet import new_state_name, remove_shared_state
from tests.search.rig import DAYS, NINE, PATIENT, load_config, write_config
from tests.service.harness import (
    CLIENT,
    PATIENCE_SECONDS,
    ServedProcess,
    get_health,
    serve_process,
    wait_until,
)
from tests.support import assert_within

from comporta.service.container import open_container
from comporta.service.health import read_cache_health, read_health
from comporta.service.search.query import UFS, parse_query
from comporta.testing import ProcurementServer, Server

TOKENS = 100
LONG_HOLDS = {
    "COMPORTA_UPSTREAM_PNCP_LIMIT": f"{TOKENS}/day",
    "COMPORTA_UPSTREAM_PNCP_LEASE": "10s",
    "COMPORTA_UPSTREAM_PNCP_MAX_CONCURRENT": "1",
    "COMPORTA_UPSTREAM_PNCP_PERMIT_TTL": "600",
    "COMPORTA_BREAKER_PNCP_PROBE_SECONDS": "600",
}
"""Long durations: what a worker does not release is missing for minutes."""


def search(one: ServedProcess, ufs: str, **more: str) -> httpx2.Response:
    params = {**DAYS, "ufs": ufs, **more}
    return CLIENT.get(f"{one.address}/v1/search", params=params)


def test_searches__redis_killed_under_load__return_no_5xx(tmp_path: Path) -> None:
    with (
        ProcurementServer(seed=5, pncp_rate=None, pcp_rate=None) as portals,
        Server() as redis,
    ):
        path = write_config(tmp_path, portals, state=redis.url, **PATIENT)
        with serve_process(tmp_path, "--config", str(path), COMPORTA_STATE=redis.url) as one:

            def ask(number: int) -> list[tuple[int, bool]]:
                statuses = []
                for turn, uf in enumerate(UFS[number : number + 12]):
                    if (number, turn) == (0, 4):
                        redis.kill()
                    answer = search(one, uf, limit="5", modality=str(turn % 2 + 1))
                    statuses.append((answer.status_code, answer.json().get("complete")))
                return statuses

            with ThreadPoolExecutor(8) as pool:
                statuses = [each for all_of_one in pool.map(ask, range(8)) for each in all_of_one]
            fallback = get_health(one.address)["state"]["fallback"]
    assert fallback is not None
    assert set(statuses) == {(200, True)}


def test_serve__sigterm_during_search_and_refresh__finishes_one_and_releases_the_other(
    tmp_path: Path,
) -> None:
    state = new_state_name()
    with ProcurementServer(seed=5, pncp_rate=None, pcp_rate=None) as portals:
        shared = f"shared://{state}"
        options = {"state": shared, "search": "fresh = 1"}
        database = f"sqlite:///{tmp_path}/search.db"
        path = write_config(tmp_path, portals, **PATIENT | options)
        with (
            serve_process(
                tmp_path, "--config", str(path), COMPORTA_STATE=options["state"], DATABASE_URL=database
            ) as one,
            ThreadPoolExecutor(1) as pool,
        ):
            assert search(one, "SP").json()["complete"]
            before = portals.pncp.accepted
            portals.pncp.set(mode="slow", delay=60)
            wait_until(lambda: search(one, "SP").json()["freshness"] == "stale")
            wait_until(lambda: portals.pncp.accepted == before + 1)
            portals.pncp.set(delay=1)
            asking = pool.submit(search, one, "RJ")
            wait_until(lambda: portals.pncp.accepted == before + 2)
            began = time.monotonic()
            status = one.end()
            seconds = time.monotonic() - began
            answer = asking.result(PATIENCE_SECONDS)
        assert (status, answer.status_code, answer.json()["complete"]) == (0, 200, True)
        assert_within(seconds, 10, "shutdown")
        assert "Traceback" not in one.errors.read_text()

        async def fetching() -> int:
            async with open_container(load_config(tmp_path, portals, **PATIENT | options)) as container:
                return int((await read_cache_health(container))["fetching"])

        assert asyncio.run(fetching()) == 0
    remove_shared_state(state)


def test_serve__sigterm_holding_probe_permit_and_lease__releases_all_of_them(
    tmp_path: Path, state: str
) -> None:
    options = {"state": state, "threshold": 1, "cooldown": 0.1, **PATIENT}
    database = f"sqlite:///{tmp_path}/search.db"
    with ProcurementServer(seed=5, pncp_rate=None, pcp_rate=None) as portals:
        pncp, path = portals.pncp, write_config(tmp_path, portals, **options)
        variables = {"COMPORTA_STATE": state, "DATABASE_URL": database, **LONG_HOLDS}
        with (
            serve_process(tmp_path, "--config", str(path), **variables, close_seconds="1") as one,
            ThreadPoolExecutor(1) as pool,
        ):
            assert search(one, NINE).json()["complete"]
            on_lease = get_health(one.address)["rate_limiter"]["tokens_available"] < TOKENS - pncp.accepted
            pncp.set(mode="dead")
            assert search(one, "RO").json()["missing_sources"] == ["pncp"]
            pncp.set(mode="slow", delay=3600)
            wait_until(lambda: get_health(one.address)["sources"]["pncp"]["phase"] == "half_open")
            before = pncp.accepted
            probing = pool.submit(search, one, "SE")
            wait_until(lambda: pncp.accepted > before)
            wait_until(lambda: get_health(one.address)["sources"]["pncp"]["calls_in_flight"] == 1)
            began = time.monotonic()
            status = one.end()
            seconds = time.monotonic() - began
            interrupted = probing.result(PATIENCE_SECONDS)
        pncp.set(mode="ok")

        async def next_one() -> tuple[dict[str, Any], Any]:
            async with open_container(load_config(tmp_path, portals, LONG_HOLDS, **options)) as container:
                health = await read_health(container)
                made = await container.search.answer(parse_query(f"{urlencode(DAYS)}&ufs=TO".encode(), 31))
                return health, json.loads(made.body)

        calls = pncp.accepted + pncp.failed
        health, answer = asyncio.run(next_one())
    assert (on_lease, health["rate_limiter"]["tokens_available"]) == (True, TOKENS - calls)
    assert health["sources"]["pncp"]["calls_in_flight"] == 0
    assert answer["sources"]["pncp"]["status"] == "fresh"  # through the probe, which was released
    assert (interrupted.status_code, interrupted.headers["retry-after"], status) == (503, "1", 0)
    assert "Traceback" not in one.errors.read_text()
    assert_within(seconds, 10, "shutdown")
