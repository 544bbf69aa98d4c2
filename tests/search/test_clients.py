"""Clients who ask for nonsense, and clients who pretend to be many."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.search.rig import DAYS, Rig, rigged

from comporta.service import keys
from comporta.service.search.answers import Part
from comporta.service.search.query import UFS, read_query
from comporta.service.search.searching import Search
from comporta.service.sources.base import SourceError
from comporta.testing import ProcurementServer


def told(tmp_path: Path, story: Any, **config: Any) -> None:
    async def telling() -> None:
        with ProcurementServer(seed=5, pncp_rate=None, pcp_rate=None) as server:
            async with rigged(tmp_path, server, **config) as rig:
                await story(rig)

    asyncio.run(telling())


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
def test_search__nonsense__is_a_problem_that_names_the_field(
    tmp_path: Path, wrong: dict[str, str], field: str
) -> None:
    async def story(rig: Rig) -> None:
        answer = await rig.client.get("/v1/search", params={**DAYS, **wrong})
        assert answer.status_code == 422
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["field"] == field
        assert rig.server.pncp.accepted == 0

    told(tmp_path, story)


def test_search__a_thousand_forged_addresses__have_the_limit_of_one_client(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        statuses = []
        for number in range(1000):
            forged = {"x-forwarded-for": f"198.51.{number // 250}.{number % 250}, 10.0.0.{number % 250}"}
            answer = await rig.client.get("/v1/search", params={"ufs": "XX"}, headers=forged)
            statuses.append(answer.status_code)
        assert statuses == [422] * 20 + [429] * 980

    told(tmp_path, story, service='client_limit = "20/hour"')


def test_openapi__search__is_described_with_its_bounds(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        described = (await rig.client.get("/openapi.json")).json()["paths"]
        for path in ("/v1/search", "/v1/search/stream"):
            fields = {one["name"]: one for one in described[path]["get"]["parameters"]}
            assert fields["date_from"]["required"]
            assert fields["limit"]["schema"]["maximum"] == 5000

    told(tmp_path, story)


def test_refresh__kept_question__is_fetched_anew_and_a_stranger_refused(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        search = rig.parts.search
        question = read_query(b"date_from=2026-01-01&date_to=2026-01-02&ufs=SP", 31).question
        loaded = await search.refresh(question.params("pncp"))
        assert loaded.coverage is not None
        with pytest.raises(SourceError, match="search must be one of pncp, pcp"):
            await search.refresh({"q": 1})

    told(tmp_path, story)


@asynccontextmanager
async def fetches_anew(rig: Rig, every: float) -> AsyncIterator[None]:
    """Look for what is due beside something, until the source is asked once more."""
    asked = rig.server.pncp.accepted
    keeping = asyncio.create_task(rig.parts.search.keep_fresh(every))
    yield

    async def renewed() -> bool:
        return rig.server.pncp.accepted > asked

    await rig.until(renewed)
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)


def test_keep_fresh__hot_and_soon_stale__is_fetched_without_anybody_asking(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        for _ in range(12):
            await rig.found("SP")
        await asyncio.to_thread(rig.parts.search._cache._asking._chores.flush)
        async with fetches_anew(rig, every=0.05):
            rig.clock.advance(95)

    told(tmp_path, story)


def test_refresh_soon__marked_by_an_operator__does_not_wait_for_the_next_time(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        await rig.found("SP")
        async with fetches_anew(rig, every=3600):
            for row in await keys.listed(rig.parts, 10, None, degraded=False):
                assert await keys.refreshed(rig.parts, row["params_hash"], None) == 1

    told(tmp_path, story)


def test_search__many_by_those_who_do_not_say_who_they_are__are_all_kept(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        rig.parts.search = Search(rig.parts.sources, rig.parts.cache, rig.parts.config.search)
        for uf in UFS[:12]:
            await rig.found(uf)
        rig.parts.cache.forget_memory()
        rig.server.pncp.set(mode="dead")
        rig.server.pcp.set(mode="dead")
        assert all([(await rig.found(uf))["complete"] for uf in UFS[:12]])
        rig.parts.search.close()

    told(tmp_path, story)


def test_part__other_reason__is_not_the_same_body() -> None:
    part = Part("pncp", None, "failed", "it failed").trace()
    assert part.same(Part("pncp", None, "failed", "it failed"))
    assert not part.same(Part("pncp", None, "failed", "it failed a moment ago"))
