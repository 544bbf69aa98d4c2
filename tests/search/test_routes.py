"""The search routes: invalid queries, client limits, and refreshes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.search.rig import DAYS, SearchRig, open_rig

from comporta.service import cache_admin
from comporta.service.search.query import UFS, parse_query
from comporta.service.search.response import SourceResult
from comporta.service.search.search import Search
from comporta.service.sources.base import PortalError
from comporta.testing import ProcurementServer


def run_scenario(tmp_path: Path, scenario: Any, **config: Any) -> None:
    async def run() -> None:
        with ProcurementServer(seed=5, pncp_rate=None, pcp_rate=None) as server:
            async with open_rig(tmp_path, server, **config) as rig:
                await scenario(rig)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"date_from": "2026-02-30"}, "date_from"),
        ({"date_to": "2025-12-31"}, "date_to"),
        ({"ufs": "SP,XX"}, "ufs"),
        ({"terms": "\x00\x00"}, "terms"),
        ({"limit": "many"}, "limit"),
        ({"colour": "red"}, "query"),
    ],
)
def test_search__invalid_query__is_a_problem_that_names_the_field(
    tmp_path: Path, wrong: dict[str, str], field: str
) -> None:
    async def scenario(rig: SearchRig) -> None:
        answer = await rig.client.get("/v1/search", params={**DAYS, **wrong})
        assert answer.status_code == 422
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["field"] == field
        assert rig.server.pncp.accepted == 0

    run_scenario(tmp_path, scenario)


def test_search__thousand_forged_addresses__share_one_limit(tmp_path: Path) -> None:
    async def scenario(rig: SearchRig) -> None:
        statuses = []
        for number in range(1000):
            forged = {"x-forwarded-for": f"198.51.{number // 250}.{number % 250}, 10.0.0.{number % 250}"}
            answer = await rig.client.get("/v1/search", params={"ufs": "XX"}, headers=forged)
            statuses.append(answer.status_code)
        assert statuses == [422] * 20 + [429] * 980

    run_scenario(tmp_path, scenario, service='client_limit = "20/hour"')


def test_openapi__search__is_described_with_its_bounds(tmp_path: Path) -> None:
    async def scenario(rig: SearchRig) -> None:
        described = (await rig.client.get("/openapi.json")).json()["paths"]
        for path in ("/v1/search", "/v1/search/stream"):
            fields = {one["name"]: one for one in described[path]["get"]["parameters"]}
            assert fields["date_from"]["required"]
            assert fields["limit"]["schema"]["maximum"] == 5000

    run_scenario(tmp_path, scenario)


def test_refresh__cached_scope__is_fetched_again_and_unknown_source_refused(tmp_path: Path) -> None:
    async def scenario(rig: SearchRig) -> None:
        search = rig.container.search
        scope = parse_query(b"date_from=2026-01-01&date_to=2026-01-02&ufs=SP", 31).scope
        loaded = await search.refresh(scope.cache_params("pncp"))
        assert loaded.coverage is not None
        with pytest.raises(PortalError, match="search must be one of pncp, pcp"):
            await search.refresh({"q": 1})

    run_scenario(tmp_path, scenario)


@asynccontextmanager
async def expect_refresh(rig: SearchRig, interval: float) -> AsyncIterator[None]:
    """Run the refresh loop during the block, and wait until the source is called again."""
    before = rig.server.pncp.accepted
    refreshing = asyncio.create_task(rig.container.search.run_refresh_loop(interval))
    yield

    async def is_fetched() -> bool:
        return rig.server.pncp.accepted > before

    await rig.wait_until(is_fetched)
    refreshing.cancel()
    await asyncio.gather(refreshing, return_exceptions=True)


def test_refresh_loop__hot_key_soon_stale__is_fetched_without_a_request(tmp_path: Path) -> None:
    async def scenario(rig: SearchRig) -> None:
        for _ in range(12):
            await rig.body("SP")
        await asyncio.to_thread(rig.container.search._cache._core._maintenance.flush)
        async with expect_refresh(rig, interval=0.05):
            rig.clock.advance(95)

    run_scenario(tmp_path, scenario)


def test_request_refresh__marked_by_an_operator__does_not_wait_for_the_interval(tmp_path: Path) -> None:
    async def scenario(rig: SearchRig) -> None:
        await rig.body("SP")
        async with expect_refresh(rig, interval=3600):
            for row in await cache_admin.list_keys(rig.container, 10, None, degraded=False):
                assert await cache_admin.refresh_key(rig.container, row["params_hash"], None) == 1

    run_scenario(tmp_path, scenario)


def test_search__many_anonymous_queries__are_all_cached(tmp_path: Path) -> None:
    async def scenario(rig: SearchRig) -> None:
        rig.container.search = Search(
            rig.container.sources,
            rig.container.cache,
            rig.container.listings,
            rig.container.config.search,
        )
        for uf in UFS[:12]:
            await rig.body(uf)
        rig.container.cache.clear_local_cache()
        rig.server.pncp.set(mode="dead")
        rig.server.pcp.set(mode="dead")
        assert all([(await rig.body(uf))["complete"] for uf in UFS[:12]])
        rig.container.search.close()

    run_scenario(tmp_path, scenario)


def test_source_result__other_reason__does_not_reuse_the_response() -> None:
    fingerprint = SourceResult("pncp", None, "failed", "it failed").fingerprint()
    assert fingerprint.matches(SourceResult("pncp", None, "failed", "it failed"))
    assert not fingerprint.matches(SourceResult("pncp", None, "failed", "it failed a moment ago"))
