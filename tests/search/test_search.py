"""Searches against simulated portals: healthy, partial, stale, unavailable and recovered."""

from __future__ import annotations

import asyncio
import gc
import uuid
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.search.rig import FRESH, LISTING_FRESH, NINE, REFRESH_EVERY, STALE, SearchRig, open_rig

from comporta import events
from comporta.cache.entry import Cached
from comporta.errors import DatabaseUnavailableError
from comporta.limits.priority import Caller, resolve_caller
from comporta.service.search import fetcher, search
from comporta.service.search.query import parse_query
from comporta.service.sources.base import Listing, NoticePage, PortalError
from comporta.service.sources.portal import PortalSource
from comporta.testing import ProcurementServer
from comporta.testing.postgres_server import PostgresServer

Scenario = Callable[[SearchRig], Coroutine[Any, Any, None]]


@pytest.fixture
def server() -> Iterator[ProcurementServer]:
    with ProcurementServer(seed=5, pncp_rate=None, pcp_rate=None) as started:
        yield started


def run_scenario(server: ProcurementServer, folder: Path, scenario: Scenario, **config: Any) -> None:
    """Run a scenario with its own service."""

    async def run() -> None:
        async with open_rig(folder, server, **config) as rig:
            await scenario(rig)

    asyncio.run(run())


def test_search__healthy__has_every_notice_once_from_both_sources(
    server: ProcurementServer, tmp_path: Path
) -> None:
    async def scenario(rig: SearchRig) -> None:
        answer = await rig.search()
        body = answer.json()
        assert (body["freshness"], body["complete"], body["warnings"]) == ("fresh", True, [])
        assert body["coverage"]["text"] == answer.headers["comporta-coverage"] == "9 of 9 UFs"
        assert answer.headers["cache-status"] == "comporta; fwd=miss; stored; detail=fresh"
        numbers = [notice["id"] for notice in body["notices"]]
        assert len(set(numbers)) == len(numbers) == body["total"] > 100
        assert {tuple(notice["sources"]) for notice in body["notices"]} == {
            ("pncp",),
            ("pcp",),
            ("pncp", "pcp"),
        }
        days = [notice["published_at"] for notice in body["notices"]]
        assert days == sorted(days, reverse=True)
        before = server.pncp.accepted, server.pcp.accepted
        again = await rig.search(user="bob", terms="UNIFORMES")
        assert again.headers["cache-status"] == "comporta; hit; detail=fresh"
        assert 0 < again.json()["total"] < body["total"]
        assert (server.pncp.accepted, server.pcp.accepted) == before
        counted = 'http_requests_total{method="GET",route="/v1/search",status="200"} 2.0'
        assert counted in (await rig.client.get("/metrics")).text

    run_scenario(server, tmp_path, scenario)


def test_search__one_source_dead__is_partial_and_names_it(server: ProcurementServer, tmp_path: Path) -> None:
    async def scenario(rig: SearchRig) -> None:
        server.pcp.set(mode="dead")
        answer = await rig.search()
        body = answer.json()
        assert (answer.status_code, body["freshness"], body["complete"]) == (200, "fresh", False)
        assert body["missing_sources"] == ["pcp"]
        assert answer.headers["comporta-missing-sources"] == "pcp"
        assert body["sources"]["pcp"] == {"status": "failed", "reason": "it failed"}
        assert body["warnings"] == ["pcp was left out: it failed"]
        assert {source for notice in body["notices"] for source in notice["sources"]} == {"pncp"}
        failed = server.pcp.failed
        later = await rig.body()
        assert later["sources"]["pcp"] == {"status": "failed", "reason": "it failed a moment ago"}
        assert server.pcp.failed == failed
        server.pcp.set(mode="ok")
        rig.clock.advance(61)
        assert (await rig.body())["complete"]

    run_scenario(server, tmp_path, scenario)


def test_search__some_ufs_fail__reports_coverage_and_refetches_only_those(
    server: ProcurementServer, tmp_path: Path
) -> None:
    async def scenario(rig: SearchRig) -> None:
        server.pncp.set(failing_ufs=["MA", "SP"])
        answer = await rig.search()
        body = answer.json()
        assert answer.headers["comporta-coverage"] == "7 of 9 UFs"
        assert body["coverage"]["failed_ufs"] == ["MA", "SP"]
        assert body["warnings"] == ["results of 7 of 9 UFs, without MA, SP"]
        server.pncp.set(failing_ufs=[])
        server.pncp.requests_by_uf.clear()
        rig.clock.advance(REFRESH_EVERY + 1)
        assert not (await rig.body())["complete"]

        async def whole() -> bool:
            return bool((await rig.body())["complete"])

        await rig.wait_until(whole)
        assert server.pncp.requests_by_uf == {"MA": 1, "SP": 1}
        states = {notice["uf"] for notice in (await rig.body())["notices"] if "pncp" in notice["sources"]}
        assert ",".join(sorted(states)) == NINE

    run_scenario(server, tmp_path, scenario)


async def both_sources_die(rig: SearchRig) -> None:
    """Both portals die, their answers expire, and the portals recover."""
    server = rig.server
    whole = await rig.body()
    server.pncp.set(mode="dead")
    server.pcp.set(mode="dead")
    rig.clock.advance(FRESH + 1)
    assert (await rig.body())["freshness"] == "stale"

    async def known() -> bool:
        warnings = (await rig.body())["warnings"]
        return len(warnings) == 2 and all("its circuit is open" in warning for warning in warnings)

    await rig.wait_until(known)
    answer = await rig.search()
    body = answer.json()
    assert (answer.headers["comporta-freshness"], body["total"]) == ("stale", whole["total"])
    assert int(answer.headers["age"]) >= FRESH
    elsewhere = await rig.search("RO")
    problem = elsewhere.json()
    assert elsewhere.status_code == 503
    assert elsewhere.headers["content-type"] == "application/problem+json"
    assert int(elsewhere.headers["retry-after"]) == problem["retry_after"] >= 1
    assert problem["sources"]["pncp"] == {"status": "skipped", "reason": "its circuit is open"}
    rig.clock.advance(STALE)
    assert (await rig.search()).status_code == 503
    server.pncp.set(mode="ok")
    server.pcp.set(mode="ok")
    rig.clock.advance(3600)

    async def back() -> bool:
        response = await rig.search()
        return response.status_code == 200 and response.json()["complete"]

    await rig.wait_until(back)


def test_search__both_dead__is_stale_then_503_then_fresh_again(
    server: ProcurementServer, tmp_path: Path
) -> None:
    run_scenario(server, tmp_path, both_sources_die, threshold=9)


def test_search__on_postgresql__behaves_the_same(
    server: ProcurementServer, postgres: PostgresServer, tmp_path: Path
) -> None:
    async def scenario(rig: SearchRig) -> None:
        assert rig.container.database.dialect == "postgresql"
        server.pncp.set(failing_ufs=["MA", "SP"])
        assert (await rig.search(date_to="2026-01-05")).headers["comporta-coverage"] == "7 of 9 UFs"
        server.pncp.set(failing_ufs=[])
        await both_sources_die(rig)

    schema = f"t_{uuid.uuid4().hex}"
    postgres.command(f"CREATE SCHEMA {schema}")
    run_scenario(server, tmp_path, scenario, threshold=9, database=postgres.schema_url(schema))
    postgres.command(f"DROP SCHEMA {schema} CASCADE")


def test_search__one_circuit_open__skips_it_and_serves_its_stale_results(
    server: ProcurementServer, tmp_path: Path
) -> None:
    async def scenario(rig: SearchRig) -> None:
        breaker = rig.container.upstreams["pcp"].breaker
        assert breaker is not None
        await rig.body()
        await breaker.force("open", "maintenance")
        before = server.pcp.accepted
        rig.clock.advance(FRESH + 1)
        body = await rig.body()
        assert body["sources"]["pcp"]["status"] == "stale"
        assert body["sources"]["pcp"]["reason"] == "its circuit is open"

        async def pncp_again() -> bool:
            return bool((await rig.body())["sources"]["pncp"]["status"] == "fresh")

        await rig.wait_until(pncp_again)
        assert (await rig.body())["freshness"] == "stale"
        other = await rig.body("RO")
        assert other["sources"]["pcp"] == {
            "status": "skipped",
            "reason": "an operator holds its circuit open",
        }
        assert server.pcp.accepted == before
        pncp = rig.container.upstreams["pncp"].breaker
        assert pncp is not None
        await pncp.force("open", "maintenance")
        refused = await rig.search("TO")
        assert refused.status_code == 503
        assert "retry-after" not in refused.headers
        assert "retry_after" not in refused.json()

    run_scenario(server, tmp_path, scenario)


def test_search__stale__is_served_immediately_and_refreshed_in_the_background(
    server: ProcurementServer, tmp_path: Path
) -> None:
    async def scenario(rig: SearchRig) -> None:
        await rig.body("SP")
        before = server.pncp.accepted
        rig.clock.advance(FRESH + 1)
        body = await rig.body("SP")
        assert body["freshness"] == "stale"
        assert all("newer results are being fetched" in warning for warning in body["warnings"])

        async def fresh() -> bool:
            return bool((await rig.body("SP"))["freshness"] == "fresh")

        await rig.wait_until(fresh)
        assert server.pncp.accepted == 2 * before

    run_scenario(server, tmp_path, scenario)


def test_search__pages_bounded__names_the_truncated_ufs(server: ProcurementServer, tmp_path: Path) -> None:
    async def scenario(rig: SearchRig) -> None:
        body = await rig.body("SP,RJ", date_to="2026-01-31")
        assert body["sources"]["pncp"]["truncated_ufs"] == ["RJ", "SP"]
        assert server.pncp.requests_by_uf == {"RJ": 1, "SP": 1}

    run_scenario(server, tmp_path, scenario, search="pages_max = 1")


def test_search__pages_of_a_day_bounded__names_the_truncated_days(
    server: ProcurementServer, tmp_path: Path
) -> None:
    async def scenario(rig: SearchRig) -> None:
        body = await rig.body("SP,RJ", date_to="2026-01-02")
        assert body["sources"]["pcp"]["truncated_days"] == ["2026-01-01", "2026-01-02"]
        assert body["warnings"] == ["pcp: only the first pages of 2026-01-01, 2026-01-02"]
        assert (body["complete"], body["coverage"]["text"], server.pcp.accepted) == (False, "2 of 2 UFs", 2)

    run_scenario(server, tmp_path, scenario, search="pcp_pages_max = 1")


def test_search__day_fails__keeps_the_others_and_names_it(server: ProcurementServer, tmp_path: Path) -> None:
    async def scenario(rig: SearchRig) -> None:
        server.pcp.set(failing_days=["2026-01-02"])
        body = await rig.body("SP,RJ", date_to="2026-01-03")
        assert body["sources"]["pcp"]["missing_days"] == ["2026-01-02"]
        assert body["warnings"][0] == "pcp: without all notices of 2026-01-02"
        days = {one["published_at"][:10] for one in body["notices"] if one["sources"] == ["pcp"]}
        assert days == {"2026-01-01", "2026-01-03"}
        server.pcp.set(failing_days=[])
        rig.clock.advance(REFRESH_EVERY + 1)

        async def whole() -> bool:
            return bool((await rig.body("SP,RJ", date_to="2026-01-03"))["complete"])

        await rig.wait_until(whole)

    run_scenario(server, tmp_path, scenario)


def test_search__limit_and_offset__select_a_slice(server: ProcurementServer, tmp_path: Path) -> None:
    async def scenario(rig: SearchRig) -> None:
        whole = (await rig.body())["notices"]
        part = await rig.body(offset=3, limit=5)
        assert part["notices"] == whole[3:8]
        assert part["total"] == len(whole)

    run_scenario(server, tmp_path, scenario)


def test_search__slow_source__serves_the_other_source(server: ProcurementServer, tmp_path: Path) -> None:
    async def scenario(rig: SearchRig) -> None:
        server.pcp.set(mode="slow", delay=30)
        body = await rig.body("SP")
        assert body["sources"]["pcp"]["status"] == "failed"
        assert body["sources"]["pncp"]["status"] == "fresh"

    run_scenario(server, tmp_path, scenario, page_timeout=1)


def test_search__listings_that_others_read__are_not_read_again(
    server: ProcurementServer, tmp_path: Path
) -> None:
    async def scenario(rig: SearchRig) -> None:
        before = await rig.body("SP,RJ", date_to="2026-01-03")
        days, server.pncp.requests_by_uf["SP"] = server.pcp.accepted, 0
        await asyncio.gather(*(rig.body(f"SP,{uf}", date_to="2026-01-03", user=uf) for uf in ("MA", "AC")))
        assert server.pncp.requests_by_uf == {"RJ": 1, "SP": 0, "MA": 1, "AC": 1}
        assert server.pcp.accepted == days
        assert before["complete"]
        rig.clock.advance(LISTING_FRESH + 1)
        await rig.body("SP,PR", date_to="2026-01-03")
        assert (server.pncp.requests_by_uf["SP"], server.pcp.accepted) == (1, 2 * days)

    run_scenario(server, tmp_path, scenario)


def test_refresh__listing__is_read_again_in_the_background(server: ProcurementServer, tmp_path: Path) -> None:
    async def scenario(rig: SearchRig) -> None:
        await rig.body("SP", date_to="2026-01-01")
        search = rig.container.search
        loaded = await search.refresh(
            {"listing": "pncp", "days": ["2026-01-01", "2026-01-01"], "modality": 6, "uf": "SP"}
        )
        assert {one["uf"] for one in loaded.value["notices"]} == {"SP"}
        assert server.pncp.requests_by_uf["SP"] == 2
        with pytest.raises(PortalError, match="listing must be one of pncp, pcp"):
            await search.refresh({"listing": "other"})

    run_scenario(server, tmp_path, scenario)


def test_search__more_notices_than_the_maximum__reads_first_pages(
    server: ProcurementServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher, "NOTICES_MAX", 1)
    monkeypatch.setattr(fetcher, "LISTING_CONCURRENCY", 1)

    async def scenario(rig: SearchRig) -> None:
        body = await rig.body("SP", date_to="2026-01-03")
        assert body["sources"]["pcp"]["truncated_days"] == ["2026-01-02", "2026-01-03"]
        assert not body["complete"]

    run_scenario(server, tmp_path, scenario)


def test_search__more_queries_than_cached_responses__answers_all(
    server: ProcurementServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "RESPONSES_MAX", 2)

    async def scenario(rig: SearchRig) -> None:
        for limit in (1, 2, 3, 1):
            assert len((await rig.body("SP", limit=limit))["notices"]) == limit
        search = rig.container.search
        assert len(search._responses) == 2
        assert search._response_bytes == sum(len(made.body) for made in search._responses.values())

    run_scenario(server, tmp_path, scenario)


def test_search__cached_response__does_not_keep_the_notices_in_memory(
    server: ProcurementServer, tmp_path: Path
) -> None:
    """Responses of one notice each: the full answers belong to the local cache, which has its own bound."""

    async def scenario(rig: SearchRig) -> None:
        ufs = set(NINE.split(","))
        for uf in ufs:
            assert len((await rig.body(uf, limit=1))["notices"]) == 1
        search = rig.container.search
        assert len(search._responses) == 9
        search._cache.clear_local_cache()
        gc.collect()
        answers = [one.value for one in gc.get_objects() if type(one) is Cached]
        assert len([value for value in answers if ufs & set(value)]) <= 4  # those of the last responses
        assert (await rig.search("SP", limit=1)).status_code == 200

    run_scenario(server, tmp_path, scenario)


def test_refresh_loop__database_unreachable__publishes_an_event_and_continues(
    server: ProcurementServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(rig: SearchRig) -> None:
        tries = 0

        async def unreachable(_: object) -> int:
            nonlocal tries
            tries += 1
            raise DatabaseUnavailableError("gone")

        monkeypatch.setattr(rig.container.search._cache, "refresh_due", unreachable)
        refreshing = asyncio.create_task(rig.container.search.run_refresh_loop(interval_seconds=0.01))

        async def tried() -> bool:
            return tries > 1

        await rig.wait_until(tried)
        refreshing.cancel()
        await asyncio.gather(refreshing, return_exceptions=True)
        assert events.latest_events()[-1].kind == "search_refresh_failed"

    run_scenario(server, tmp_path, scenario)


def test_fetch__for_a_user_or_scheduled__has_its_class_and_owner(
    server: ProcurementServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    callers: set[Caller] = set()
    fetch_page = PortalSource.fetch_page

    async def record(source: PortalSource, listing: Listing, number: int, *more: Any) -> NoticePage:
        callers.add(resolve_caller(None, None))
        return await fetch_page(source, listing, number, *more)

    async def scenario(rig: SearchRig) -> None:
        monkeypatch.setattr(PortalSource, "fetch_page", record)
        await rig.search("SP,RJ", user="ana")
        assert callers == {Caller(0, "ana")}
        callers.clear()
        scope = parse_query(b"date_from=2026-01-01&date_to=2026-01-10&ufs=MG", 366).scope
        await rig.container.search.refresh(scope.cache_params("pncp"))
        assert callers == {Caller(1, "scheduled refresh")}

    run_scenario(server, tmp_path, scenario)


def test_fetch__behind_a_stale_answer__has_the_class_of_a_refresh(
    server: ProcurementServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    callers: set[Caller] = set()
    fetch_page = PortalSource.fetch_page

    async def record(source: PortalSource, listing: Listing, number: int, *more: Any) -> NoticePage:
        callers.add(resolve_caller(None, None))
        return await fetch_page(source, listing, number, *more)

    async def scenario(rig: SearchRig) -> None:
        await rig.body("SP", user="ana")
        monkeypatch.setattr(PortalSource, "fetch_page", record)
        rig.clock.advance(FRESH + 1)
        assert (await rig.body("SP", user="ana"))["freshness"] == "stale"

        async def fresh() -> bool:
            return bool((await rig.body("SP", user="ana"))["freshness"] == "fresh")

        await rig.wait_until(fresh)
        assert callers == {Caller(1, "scheduled refresh")}

    run_scenario(server, tmp_path, scenario)
