"""Those who watch: how far a search is, its answer, and word of a newer one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.search.rig import DAYS, FRESH, NINE, Rig, rigged

from comporta.service.search import board as boards
from comporta.service.search import streaming
from comporta.service.search.query import read_query
from comporta.service.search.streaming import streamed
from comporta.testing import ProcurementServer

QUERY = f"date_from={DAYS['date_from']}&date_to={DAYS['date_to']}&ufs={NINE}".encode()


def told(tmp_path: Path, story: Any, **config: Any) -> None:
    async def telling() -> None:
        with ProcurementServer(seed=5, pncp_rate=None, pcp_rate=None) as server:
            async with rigged(tmp_path, server, **config) as rig:
                await story(rig)

    asyncio.run(telling())


def test_stream__nothing_known__tells_progress_then_the_result(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        found = await rig.events()
        kinds = [kind for kind, _ in found]
        assert kinds[-2:] == ["result", "end"]
        assert set(kinds[:-2]) == {"progress"}
        latest = {data["source"]: data for kind, data in found if kind == "progress"}
        assert latest["pncp"]["ufs_total"] == 9
        assert found[-2][1] == {**(await rig.found()), "sources": found[-2][1]["sources"]}
        assert [kind for kind, _ in await rig.events()] == ["result", "end"]

    told(tmp_path, story)


def test_stream__stale__is_served_and_then_revalidated(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        await rig.found()
        rig.clock.advance(FRESH + 1)
        rig.server.pncp.set(mode="slow", delay=0.3)
        found = [(kind, data) for kind, data in await rig.events() if kind != "progress"]
        assert [kind for kind, _ in found] == ["result", "revalidated", "end"]
        assert found[0][1]["freshness"] == "stale"
        assert "fresh" in {told["status"] for told in found[1][1]["sources"].values()}

    told(tmp_path, story)


def test_stream__stale_and_the_sources_fail__ends_without_a_newer_one(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        await rig.found()
        rig.clock.advance(FRESH + 1)
        rig.server.pncp.set(mode="dead")
        rig.server.pcp.set(mode="dead")
        kinds = [kind for kind, _ in await rig.events() if kind != "progress"]
        assert kinds == ["result", "end"]

    told(tmp_path, story)


def test_stream__nothing_to_serve__is_a_problem_in_the_stream(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        rig.server.pncp.set(mode="dead")
        rig.server.pcp.set(mode="dead")
        found = await rig.events()
        kind, problem = found[-1]
        assert (kind, problem["status"], problem["retry_after"]) == ("problem", 503, 60)

    told(tmp_path, story)


def test_stream__wrong_question__is_refused_before_it_begins(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        answer = await rig.client.get("/v1/search/stream", params={**DAYS, "ufs": "XX"})
        assert (answer.status_code, answer.json()["field"]) == (422, "ufs")

    told(tmp_path, story)


def test_stream__too_many_watch__is_a_503(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "WATCHERS_MAX", 0)

    async def story(rig: Rig) -> None:
        answer = await rig.client.get("/v1/search/stream", params=DAYS)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")

    told(tmp_path, story)


def test_stream__service_is_to_end__ends_at_once(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        rig.server.pncp.set(mode="slow", delay=60)
        query = read_query(QUERY, 31)
        events = streamed(rig.parts.search, query, rig.parts.leaving)
        await anext(events)
        rig.parts.leaving.set()
        async with asyncio.timeout(60):
            rest = [text async for text in events]
        assert rest[-1] == b"event: end\ndata: {}\n\n"

    told(tmp_path, story)


def test_stream__client_goes_away__leaves_nobody_watching_and_the_fetch_goes_on(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        rig.server.pncp.set(mode="slow", delay=0.5)
        search = rig.parts.search
        events = streamed(search, read_query(QUERY, 31), rig.parts.leaving)
        await anext(events)
        await events.aclose()  # type: ignore[attr-defined]  # it is a generator
        assert (search.board._count, search.board._watches) == (0, {})
        rig.server.pncp.set(mode="ok")
        assert (await rig.found())["complete"]
        assert rig.server.pncp.asked["SP"] == 1

    told(tmp_path, story)


def test_stream__long_silence__says_that_it_is_still_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "QUIET_SECONDS", 0.05)
    monkeypatch.setattr(streaming, "LOOK_SECONDS", 0.02)

    async def story(rig: Rig) -> None:
        params = {**DAYS, "ufs": "SP"}
        rig.server.pncp.set(mode="slow", delay=1)
        rig.server.pcp.set(mode="slow", delay=1)
        first = await rig.client.get("/v1/search/stream", params=params)
        assert ": still at it\n\n" in first.text
        rig.clock.advance(FRESH + 1)
        second = await rig.client.get("/v1/search/stream", params=params)
        assert ": still at it\n\n" in second.text
        assert "event: revalidated" in second.text

    told(tmp_path, story)


def test_stream__as_long_as_it_may_be__ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "STREAM_SECONDS", 0.0)

    async def story(rig: Rig) -> None:
        assert [kind for kind, _ in await rig.events()] == ["end"]

    told(tmp_path, story)


def test_stream__two_wait_for_something_newer_when_the_service_is_to_end__both_end(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        await rig.found()
        rig.clock.advance(FRESH + 1)
        rig.server.pncp.set(mode="slow", delay=30)
        rig.server.pcp.set(mode="slow", delay=30)
        both = [asyncio.create_task(rig.events()) for _ in range(2)]

        async def watched() -> bool:
            return rig.parts.search.board._count == 2

        await rig.until(watched)
        await asyncio.sleep(0.2)  # both have their stale answer by now, or soon; either way they end
        rig.parts.leaving.set()
        async with asyncio.timeout(60):
            for found in await asyncio.gather(*both):
                assert found[-1][0] == "end"

    told(tmp_path, story)
