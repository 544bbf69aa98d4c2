"""A search from a healthy day to the worst one and back, against the simulated portals."""

from __future__ import annotations

import asyncio
import gc
import uuid
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.search.rig import EVERY, FRESH, NINE, STALE, Rig, rigged

from comporta import events
from comporta.cache.cached import Cached
from comporta.errors import DatabaseUnavailableError
from comporta.service.search import searching
from comporta.testing import ProcurementServer
from comporta.testing.postgres import PostgresServer

Story = Callable[[Rig], Coroutine[Any, Any, None]]


@pytest.fixture
def server() -> Iterator[ProcurementServer]:
    with ProcurementServer(seed=5, pncp_rate=None, pcp_rate=None) as started:
        yield started


def told(server: ProcurementServer, folder: Path, story: Story, **config: Any) -> None:
    """Run a story with a service of its own."""

    async def telling() -> None:
        async with rigged(folder, server, **config) as rig:
            await story(rig)

    asyncio.run(telling())


def test_search__healthy__has_every_notice_once_from_both(server: ProcurementServer, tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
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
        asked = server.pncp.accepted, server.pcp.accepted
        again = await rig.search(user="bob", terms="UNIFORMES")
        assert again.headers["cache-status"] == "comporta; hit; detail=fresh"
        assert 0 < again.json()["total"] < body["total"]
        assert (server.pncp.accepted, server.pcp.accepted) == asked
        counted = 'http_requests_total{method="GET",route="/v1/search",status="200"} 2.0'
        assert counted in (await rig.client.get("/metrics")).text

    told(server, tmp_path, story)


def test_search__one_source_dead__is_partial_and_names_it(server: ProcurementServer, tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        server.pcp.set(mode="dead")
        answer = await rig.search()
        body = answer.json()
        assert (answer.status_code, body["freshness"], body["complete"]) == (200, "fresh", False)
        assert body["missing_sources"] == ["pcp"]
        assert answer.headers["comporta-missing-sources"] == "pcp"
        assert body["sources"]["pcp"] == {"status": "failed", "why": "it failed"}
        assert body["warnings"] == ["pcp was left out: it failed"]
        assert {source for notice in body["notices"] for source in notice["sources"]} == {"pncp"}
        failed = server.pcp.failed
        later = await rig.found()
        assert later["sources"]["pcp"] == {"status": "failed", "why": "it failed a moment ago"}
        assert server.pcp.failed == failed
        server.pcp.set(mode="ok")
        rig.clock.advance(61)
        assert (await rig.found())["complete"]

    told(server, tmp_path, story)


def test_search__some_ufs_fail__says_how_many_and_asks_for_those_alone_later(
    server: ProcurementServer, tmp_path: Path
) -> None:
    async def story(rig: Rig) -> None:
        server.pncp.set(failing_ufs=["MA", "SP"])
        answer = await rig.search()
        body = answer.json()
        assert answer.headers["comporta-coverage"] == "7 of 9 UFs"
        assert body["coverage"]["failed_ufs"] == ["MA", "SP"]
        assert body["warnings"] == ["results of 7 of 9 UFs, without MA, SP"]
        server.pncp.set(failing_ufs=[])
        server.pncp.asked.clear()
        rig.clock.advance(EVERY + 1)
        assert not (await rig.found())["complete"]

        async def whole() -> bool:
            return bool((await rig.found())["complete"])

        await rig.until(whole)
        assert server.pncp.asked == {"MA": 1, "SP": 1}
        states = {notice["uf"] for notice in (await rig.found())["notices"] if "pncp" in notice["sources"]}
        assert ",".join(sorted(states)) == NINE

    told(server, tmp_path, story)


async def worst_day(rig: Rig) -> None:
    """Both portals die, what they brought expires, they come back."""
    server = rig.server
    whole = await rig.found()
    server.pncp.set(mode="dead")
    server.pcp.set(mode="dead")
    rig.clock.advance(FRESH + 1)
    assert (await rig.found())["freshness"] == "stale"

    async def known() -> bool:
        said = (await rig.found())["warnings"]
        return len(said) == 2 and all("its circuit is open" in one for one in said)

    await rig.until(known)
    answer = await rig.search()
    body = answer.json()
    assert (answer.headers["comporta-freshness"], body["total"]) == ("stale", whole["total"])
    assert int(answer.headers["age"]) >= FRESH
    elsewhere = await rig.search("RO")
    problem = elsewhere.json()
    assert elsewhere.status_code == 503
    assert elsewhere.headers["content-type"] == "application/problem+json"
    assert int(elsewhere.headers["retry-after"]) == problem["retry_after"] >= 1
    assert problem["sources"]["pncp"] == {"status": "skipped", "why": "its circuit is open"}
    rig.clock.advance(STALE)
    assert (await rig.search()).status_code == 503
    server.pncp.set(mode="ok")
    server.pcp.set(mode="ok")
    rig.clock.advance(3600)

    async def back() -> bool:
        found = await rig.search()
        return found.status_code == 200 and found.json()["complete"]

    await rig.until(back)


def test_search__both_dead__is_stale_with_a_warning_then_nothing_then_back_again(
    server: ProcurementServer, tmp_path: Path
) -> None:
    told(server, tmp_path, worst_day, threshold=9)


def test_search__on_postgresql__is_the_same_story(
    server: ProcurementServer, postgres: PostgresServer, tmp_path: Path
) -> None:
    async def story(rig: Rig) -> None:
        assert rig.parts.database.dialect == "postgresql"
        server.pncp.set(failing_ufs=["MA", "SP"])
        assert (await rig.search(date_to="2026-01-05")).headers["comporta-coverage"] == "7 of 9 UFs"
        server.pncp.set(failing_ufs=[])
        await worst_day(rig)

    schema = f"t_{uuid.uuid4().hex}"
    postgres.command(f"CREATE SCHEMA {schema}")
    told(server, tmp_path, story, threshold=9, database=postgres.schema_url(schema))
    postgres.command(f"DROP SCHEMA {schema} CASCADE")


def test_search__one_circuit_open__skips_it_without_a_call_and_serves_what_it_had(
    server: ProcurementServer, tmp_path: Path
) -> None:
    async def story(rig: Rig) -> None:
        breaker = rig.parts.upstreams["pcp"].breaker
        assert breaker is not None
        await rig.found()
        await breaker.force("open", "maintenance")
        asked = server.pcp.accepted
        rig.clock.advance(FRESH + 1)
        body = await rig.found()
        assert body["sources"]["pcp"]["status"] == "stale"
        assert body["sources"]["pcp"]["why"] == "its circuit is open"

        async def pncp_again() -> bool:
            return bool((await rig.found())["sources"]["pncp"]["status"] == "fresh")

        await rig.until(pncp_again)
        assert (await rig.found())["freshness"] == "stale"
        other = await rig.found("RO")
        assert other["sources"]["pcp"] == {"status": "skipped", "why": "its circuit is open"}
        assert server.pcp.accepted == asked

    told(server, tmp_path, story)


def test_search__stale__is_served_at_once_and_fetched_anew_behind_it(
    server: ProcurementServer, tmp_path: Path
) -> None:
    async def story(rig: Rig) -> None:
        await rig.found("SP")
        asked = server.pncp.accepted
        rig.clock.advance(FRESH + 1)
        body = await rig.found("SP")
        assert body["freshness"] == "stale"
        assert all("newer ones are being fetched" in said for said in body["warnings"])

        async def fresh() -> bool:
            return bool((await rig.found("SP"))["freshness"] == "fresh")

        await rig.until(fresh)
        assert server.pncp.accepted == 2 * asked

    told(server, tmp_path, story)


def test_search__pages_are_bounded__says_where_it_was_cut(server: ProcurementServer, tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        body = await rig.found("SP,RJ", date_to="2026-01-31")
        assert body["sources"]["pncp"]["truncated_ufs"] == ["RJ", "SP"]
        assert server.pncp.asked == {"RJ": 1, "SP": 1}

    told(server, tmp_path, story, search="pages_max = 1")


def test_search__limit_and_offset__are_parts_of_one_answer(server: ProcurementServer, tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        whole = (await rig.found())["notices"]
        part = await rig.found(offset=3, limit=5)
        assert part["notices"] == whole[3:8]
        assert part["total"] == len(whole)

    told(server, tmp_path, story)


def test_search__slow_source__counts_what_came_in_time(server: ProcurementServer, tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        server.pcp.set(mode="slow", delay=30)
        body = await rig.found("SP")
        assert body["sources"]["pcp"]["status"] == "failed"
        assert body["sources"]["pncp"]["status"] == "fresh"

    told(server, tmp_path, story, page_timeout=1)


def test_search__nothing_in_time__counts_as_failed(server: ProcurementServer, tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        server.pcp.set(mode="slow", delay=30)
        assert (await rig.found("SP"))["sources"]["pcp"]["status"] == "failed"

    told(server, tmp_path, story, timeout=0.5)


def test_search__source_paused__is_skipped_and_named(server: ProcurementServer, tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        await rig.parts.upstreams["pcp"].limiter.pause(600)
        body = await rig.found("SP")
        assert body["sources"]["pcp"] == {"status": "skipped", "why": "it has no room for more calls"}
        assert server.pcp.accepted == 0

    told(server, tmp_path, story, max_wait=0.1)


def test_search__more_questions_than_are_kept_made__answers_all_the_same(
    server: ProcurementServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "KEPT_MAX", 2)

    async def story(rig: Rig) -> None:
        for limit in (1, 2, 3, 1):
            assert len((await rig.found("SP", limit=limit))["notices"]) == limit
        search = rig.parts.search
        assert len(search._made) == 2
        assert search._made_bytes == sum(len(made.body) for made in search._made.values())

    told(server, tmp_path, story)


def test_search__kept_made__does_not_keep_the_notices_in_memory(
    server: ProcurementServer, tmp_path: Path
) -> None:
    """A small page of a large answer: what it was cut from is bounded elsewhere."""

    async def story(rig: Rig) -> None:
        ufs = set(NINE.split(","))
        for uf in ufs:
            assert len((await rig.found(uf, limit=1))["notices"]) == 1
        search = rig.parts.search
        assert len(search._made) == 9
        search._cache.forget_memory()
        gc.collect()
        answers = [one.value for one in gc.get_objects() if type(one) is Cached]
        assert (
            len([value for value in answers if ufs & set(value)]) <= 4
        )  # of the last ones, by who made them
        assert (await rig.search("SP", limit=1)).status_code == 200

    told(server, tmp_path, story)


def test_keep_fresh__database_out_of_reach__says_so_and_goes_on(
    server: ProcurementServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(rig: Rig) -> None:
        tries = 0

        async def unreachable(_: object) -> int:
            nonlocal tries
            tries += 1
            raise DatabaseUnavailableError("gone")

        monkeypatch.setattr(rig.parts.search._cache, "refresh_due", unreachable)
        keeping = asyncio.create_task(rig.parts.search.keep_fresh(every=0.01))

        async def tried() -> bool:
            return tries > 1

        await rig.until(tried)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        assert events.latest_events()[-1].kind == "search_not_refreshed"

    told(server, tmp_path, story)
