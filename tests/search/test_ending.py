"""Bad moments for searches over real connections: the shared state dies, the service is told to end."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
from tests.processes.fleet import new_name, remove
from tests.search.rig import DAYS, PATIENT, configured, written
from tests.service.running import CLIENT, PATIENCE_SECONDS, Served, health, served, wait_for
from tests.support import hold_to

from comporta.service.health import cache_health_of
from comporta.service.parts import opened
from comporta.service.search.query import UFS
from comporta.testing import ProcurementServer, Server


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
