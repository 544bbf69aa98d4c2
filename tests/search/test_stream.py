"""Search streams: progress, the result, and revalidation."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.search.rig import DAYS, FRESH, NINE, REFRESH_EVERY, SearchRig, open_rig

from comporta.service.search import progress as boards
from comporta.service.search import stream
from comporta.service.search.query import parse_query
from comporta.service.search.stream import search_events
from comporta.testing import ProcurementServer

QUERY = f"date_from={DAYS['date_from']}&date_to={DAYS['date_to']}&ufs={NINE}".encode()


def run_scenario(tmp_path: Path, scenario: Any, **config: Any) -> None:
    async def run() -> None:
        with ProcurementServer(seed=5, pncp_rate=None, pcp_rate=None) as server:
            async with open_rig(tmp_path, server, **config) as rig:
                await scenario(rig)

    asyncio.run(run())


def test_stream__nothing_cached__sends_progress_then_the_result(tmp_path: Path) -> None:
    async def scenario(rig: SearchRig) -> None:
        events = await rig.events()
        kinds = [kind for kind, _ in events]
        assert kinds[-2:] == ["result", "end"]
        assert set(kinds[:-2]) == {"progress"}
        latest = {data["source"]: data for kind, data in events if kind == "progress"}
        assert latest["pncp"]["listings_total"] == 9
        assert events[-2][1] == {**(await rig.body()), "sources": events[-2][1]["sources"]}
        assert [kind for kind, _ in await rig.events()] == ["result", "end"]

    run_scenario(tmp_path, scenario)


def test_stream__stale__is_served_and_then_revalidated(tmp_path: Path) -> None:
    async def scenario(rig: SearchRig) -> None:
        await rig.body()
        rig.clock.advance(FRESH + 1)
        rig.server.pncp.set(mode="slow", delay=0.3)
        events = [(kind, data) for kind, data in await rig.events() if kind != "progress"]
        assert [kind for kind, _ in events] == ["result", "revalidated", "end"]
        assert events[0][1]["freshness"] == "stale"
        assert "fresh" in {source["status"] for source in events[1][1]["sources"].values()}

    run_scenario(tmp_path, scenario)


def test_stream__stale_and_sources_fail__ends_without_revalidation(tmp_path: Path) -> None:
    async def scenario(rig: SearchRig) -> None:
        await rig.body()
        rig.clock.advance(FRESH + 1)
        rig.server.pncp.set(mode="dead")
        rig.server.pcp.set(mode="dead")
        kinds = [kind for kind, _ in await rig.events() if kind != "progress"]
        assert kinds == ["result", "end"]

    run_scenario(tmp_path, scenario)


def test_stream__nothing_to_serve__sends_a_problem_event(tmp_path: Path) -> None:
    async def scenario(rig: SearchRig) -> None:
        rig.server.pncp.set(mode="dead")
        rig.server.pcp.set(mode="dead")
        events = await rig.events()
        kind, problem = events[-1]
        assert (kind, problem["status"], problem["retry_after"]) == ("problem", 503, 60)

    run_scenario(tmp_path, scenario)


def test_stream__invalid_query__is_refused_before_it_begins(tmp_path: Path) -> None:
    async def scenario(rig: SearchRig) -> None:
        answer = await rig.client.get("/v1/search/stream", params={**DAYS, "ufs": "XX"})
        assert (answer.status_code, answer.json()["field"]) == (422, "ufs")

    run_scenario(tmp_path, scenario)


def test_stream__too_many_subscribers__returns_503(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "SUBSCRIBERS_MAX", 0)

    async def scenario(rig: SearchRig) -> None:
        answer = await rig.client.get("/v1/search/stream", params=DAYS)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")

    run_scenario(tmp_path, scenario)


def test_stream__service_shuts_down__ends_immediately(tmp_path: Path) -> None:
    async def scenario(rig: SearchRig) -> None:
        rig.server.pncp.set(mode="slow", delay=60)
        query = parse_query(QUERY, 31)
        events = search_events(rig.container.search, query, rig.container.shutting_down)
        await anext(events)
        rig.container.shutting_down.set()
        async with asyncio.timeout(60):
            rest = [text async for text in events]
        assert rest[-1] == b"event: end\ndata: {}\n\n"

    run_scenario(tmp_path, scenario)


def test_stream__client_disconnects__removes_the_subscription_and_the_fetch_continues(tmp_path: Path) -> None:
    async def scenario(rig: SearchRig) -> None:
        rig.server.pncp.set(mode="slow", delay=0.5)
        search = rig.container.search
        events = search_events(search, parse_query(QUERY, 31), rig.container.shutting_down)
        await anext(events)
        await events.aclose()  # type: ignore[attr-defined]  # it is an async generator
        assert (search.progress._count, search.progress._subscriptions) == (0, {})
        rig.server.pncp.set(mode="ok")
        assert (await rig.body())["complete"]
        assert rig.server.pncp.requests_by_uf["SP"] == 1

    run_scenario(tmp_path, scenario)


def test_stream__long_silence__sends_keepalive_comments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "KEEPALIVE_SECONDS", 0.05)
    monkeypatch.setattr(stream, "POLL_SECONDS", 0.02)

    async def scenario(rig: SearchRig) -> None:
        params = {**DAYS, "ufs": "SP"}
        rig.server.pncp.set(mode="slow", delay=1)
        rig.server.pcp.set(mode="slow", delay=1)
        first = await rig.client.get("/v1/search/stream", params=params)
        assert ": keep-alive\n\n" in first.text
        rig.clock.advance(FRESH + 1)
        second = await rig.client.get("/v1/search/stream", params=params)
        assert ": keep-alive\n\n" in second.text
        assert "event: revalidated" in second.text

    run_scenario(tmp_path, scenario)


def test_stream__maximum_duration_reached__ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "STREAM_SECONDS", 0.0)

    async def scenario(rig: SearchRig) -> None:
        assert [kind for kind, _ in await rig.events()] == ["end"]

    run_scenario(tmp_path, scenario)


def test_streams__two_waiting_for_revalidation_at_shutdown__both_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(rig: SearchRig) -> None:
        await rig.body()
        rig.clock.advance(FRESH + 1)
        rig.server.pncp.set(mode="slow", delay=30)
        rig.server.pcp.set(mode="slow", delay=30)
        both = [asyncio.create_task(rig.events()) for _ in range(2)]

        search, checks = rig.container.search, 0
        has_newer_results = search.has_newer_results

        async def counted(*args: Any) -> bool | None:
            nonlocal checks
            checks += 1
            return await has_newer_results(*args)

        async def both_wait() -> bool:
            return search.progress._count == 2 and checks >= 2

        monkeypatch.setattr(search, "has_newer_results", counted)
        await rig.wait_until(both_wait)
        rig.container.shutting_down.set()
        async with asyncio.timeout(60):
            for events in await asyncio.gather(*both):
                assert events[-1][0] == "end"

    run_scenario(tmp_path, scenario)


def test_stream__fresh_but_partial__ends_without_waiting_for_a_refresh(tmp_path: Path) -> None:
    async def scenario(rig: SearchRig) -> None:
        rig.server.pncp.set(failing_ufs=["MA"])
        async with asyncio.timeout(60):
            kinds = [kind for kind, _ in await rig.events() if kind != "progress"]
        assert kinds == ["result", "end"]

    run_scenario(tmp_path, scenario)


def test_has_newer_results__fresh_and_complete__is_none_even_after_a_refresh(tmp_path: Path) -> None:
    async def scenario(rig: SearchRig) -> None:
        search, query = rig.container.search, parse_query(QUERY, 31)
        first = await search.answer(query)
        assert await search.has_newer_results(query, first.results) is None
        rig.clock.advance(FRESH + 1)
        stale = await search.answer(query)
        assert {result.status for result in stale.results} == {"stale"}

        async def is_refreshed() -> bool:
            return bool((await rig.body())["freshness"] == "fresh")

        await rig.wait_until(is_refreshed)
        assert await search.has_newer_results(query, stale.results) is True
        assert await search.has_newer_results(query, first.results) is None

    run_scenario(tmp_path, scenario)


def test_has_newer_results__stale_while_refreshing__is_false_until_the_refresh_ends(tmp_path: Path) -> None:
    async def scenario(rig: SearchRig) -> None:
        search, query = rig.container.search, parse_query(QUERY, 31)
        await search.answer(query)
        rig.clock.advance(FRESH + 1)
        rig.server.pncp.set(mode="slow", delay=60)
        rig.server.pcp.set(mode="slow", delay=60)
        stale = await search.answer(query)
        assert await search.has_newer_results(query, stale.results) is False

    run_scenario(tmp_path, scenario)


def test_has_newer_results__partial__is_none_until_the_missing_ufs_were_fetched(tmp_path: Path) -> None:
    async def scenario(rig: SearchRig) -> None:
        search, query = rig.container.search, parse_query(QUERY, 31)
        rig.server.pncp.set(failing_ufs=["MA"])
        partial = await search.answer(query)
        assert {result.status for result in partial.results} == {"fresh"}
        assert await search.has_newer_results(query, partial.results) is None
        rig.server.pncp.set(failing_ufs=[])
        rig.clock.advance(REFRESH_EVERY + 1)

        async def is_complete() -> bool:
            return bool((await rig.body())["complete"])

        await rig.wait_until(is_complete)
        assert await search.has_newer_results(query, partial.results) is True

    run_scenario(tmp_path, scenario)
