"""Searches that answer before their sources have been read: what is pending, and how it is completed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.search.rig import REFRESH_EVERY, Gate, SearchRig, open_rig

from comporta import HealthCache
from comporta.errors import LimitReachedError
from comporta.limits.priority import Caller, resolve_caller
from comporta.service.search import fetcher, listing_reader
from comporta.service.search.fetcher import SourceFetcher
from comporta.service.search.listing_reader import ListingReader, read_pages
from comporta.service.search.pending_answers import RunningFetches
from comporta.service.search.query import UFS, parse_query
from comporta.service.search.waiting_users import WaitingUsers
from comporta.service.sources.base import Listing, NoticePage
from comporta.service.sources.portal import PortalSource
from comporta.testing import ProcurementServer

ALL = ",".join(UFS)
DAY = {"date_to": "2026-01-01"}
TWO_DAYS = {"date_to": "2026-01-02"}
PCP_DAY = Listing(date(2026, 1, 1), date(2026, 1, 1))
Body = dict[str, Any]


@pytest.fixture
def server() -> Iterator[ProcurementServer]:
    with ProcurementServer(seed=5, pncp_rate=None, pcp_rate=None) as started:
        yield started


def run_scenario(
    server: ProcurementServer,
    folder: Path,
    scenario: Callable[[SearchRig], Coroutine[Any, Any, None]],
    **config: Any,
) -> None:
    async def run() -> None:
        async with open_rig(folder, server, **{"page_timeout": 60, "timeout": 0.2, **config}) as rig:
            await scenario(rig)

    asyncio.run(run())


async def body_when(rig: SearchRig, condition: Callable[[Body], bool], ufs: str, **more: Any) -> Body:
    """Ask again and again until the response is as expected: a busy machine may miss the short deadline."""
    body: Body = {}

    async def is_met() -> bool:
        nonlocal body
        body = await rig.body(ufs, **more)
        return condition(body)

    await rig.wait_until(is_met)
    return body


def is_pending_only(*sources: str) -> Callable[[Body], bool]:
    return lambda body: sorted(body["pending"]) == sorted(sources)


def is_complete(body: Body) -> bool:
    return bool(body["complete"])


def test_search__source_not_read_in_time__is_pending_and_continues_in_the_background(
    server: ProcurementServer, tmp_path: Path
) -> None:
    async def scenario(rig: SearchRig) -> None:
        gate = Gate(server.pncp)
        before = datetime.now(UTC).isoformat(timespec="seconds")
        body = await body_when(rig, is_pending_only("pncp"), "RJ,SP", **DAY)
        assert (body["complete"], body["missing_sources"], body["freshness"]) == (False, [], "fresh")
        pending = body["pending"]["pncp"]
        assert (pending["ufs"], pending["days"]) == (["RJ", "SP"], [])
        assert body["estimated_ready_at"] == pending["estimated_ready_at"] > before
        assert body["coverage"] == {
            "succeeded_ufs": [],
            "failed_ufs": [],
            "total_requested": 2,
            "text": "0 of 2 UFs",
        }
        assert body["warnings"] == ["pncp is still being read: without all notices of RJ, SP"]
        assert body["sources"]["pncp"]["status"] == "pending"
        assert {source for one in body["notices"] for source in one["sources"]} == {"pcp"}
        headers = (await rig.search("RJ,SP", **DAY)).headers
        assert headers["comporta-pending-sources"] == "pncp"
        assert headers["cache-status"] == "comporta; fwd=miss; detail=pending"
        gate.open = True
        whole = await body_when(rig, is_complete, "RJ,SP", **DAY)
        assert (whole["pending"], whole["estimated_ready_at"]) == ({}, None)
        assert server.pncp.requests_by_uf == {"RJ": 1, "SP": 1}

    run_scenario(server, tmp_path, scenario)


def test_search__nothing_read_of_any_source__is_pending_and_not_503(
    server: ProcurementServer, tmp_path: Path
) -> None:
    async def scenario(rig: SearchRig) -> None:
        gates = [Gate(portal) for portal in server.portals.values()]
        body = await rig.body("SP", **TWO_DAYS)
        assert (sorted(body["pending"]), body["total"]) == (["pcp", "pncp"], 0)
        assert body["pending"]["pcp"]["days"] == ["2026-01-01", "2026-01-02"]
        for gate in gates:
            gate.open = True
        await body_when(rig, is_complete, "SP", **TWO_DAYS)

    run_scenario(server, tmp_path, scenario)


def test_search__day_unfinished__has_its_first_pages_and_reads_each_page_once(
    server: ProcurementServer, tmp_path: Path
) -> None:
    def from_pcp(body: Body) -> int:
        return sum("pcp" in one["sources"] for one in body["notices"])

    async def scenario(rig: SearchRig) -> None:
        gate = Gate(server.pcp, passes=2)
        part = await body_when(rig, lambda body: gate.came == 3 and from_pcp(body) > 0, ALL, **DAY)
        assert part["pending"]["pcp"]["days"] == ["2026-01-01"]
        assert 0 < from_pcp(part) <= 20
        gate.open = True
        whole = await body_when(rig, is_complete, ALL, **DAY)
        assert from_pcp(whole) > from_pcp(part)
        assert server.pcp.accepted == (from_pcp(whole) + 9) // 10

    run_scenario(server, tmp_path, scenario)


def test_search__portal_paused_longer_than_the_timeout__is_pending_until_then(
    server: ProcurementServer, tmp_path: Path
) -> None:
    async def scenario(rig: SearchRig) -> None:
        await rig.container.upstreams["pcp"].limiter.pause(300)
        after = (datetime.now(UTC) + timedelta(seconds=250)).isoformat(timespec="seconds")
        body = await body_when(rig, is_pending_only("pcp"), "SP", **DAY)
        assert body["estimated_ready_at"] > after
        assert server.pcp.accepted == 0
        await rig.container.upstreams["pcp"].limiter.resume()
        await body_when(rig, is_complete, "SP", **DAY)

    run_scenario(server, tmp_path, scenario, timeout=20)


def test_search__page_of_a_day_fails__keeps_the_pages_before_it(
    server: ProcurementServer, tmp_path: Path
) -> None:
    page, is_broken = server._pcp_page, True
    asked: list[tuple[str, int]] = []

    def breaking(params: dict[str, str]) -> tuple[int, Any]:
        asked.append((params["dataInicial"], int(params["pagina"])))
        return (500, {}) if is_broken and params["pagina"] == "3" else page(params)

    server._pcp_page = breaking  # type: ignore[method-assign]

    async def scenario(rig: SearchRig) -> None:
        nonlocal is_broken
        body = await rig.body(ALL, **TWO_DAYS)
        assert body["sources"]["pcp"]["status"] == "failed"  # no day is finished
        is_broken = False
        rig.clock.advance(61)
        await rig.body("SP", date_from="2026-01-02", **TWO_DAYS)
        is_broken, asked[:] = True, []
        body = await rig.body(ALL, **TWO_DAYS)
        assert body["sources"]["pcp"]["missing_days"] == ["2026-01-01"]
        days = {one["published_at"][:10] for one in body["notices"] if one["sources"] == ["pcp"]}
        assert days == {"2026-01-01", "2026-01-02"}
        assert (asked, body["complete"]) == ([("2026-01-01", 3)], False)
        is_broken, asked[:] = False, []
        rig.clock.advance(REFRESH_EVERY + 1)
        await body_when(rig, is_complete, ALL, **TWO_DAYS)
        assert min(asked) == ("2026-01-01", 3)  # the first day goes on, the second had expired
        saved = await rig.container.search._reader.first_pages("pcp", [PCP_DAY])
        assert saved == {}

    run_scenario(server, tmp_path, scenario, timeout=60)


def test_fetch__longer_than_its_bound__counts_no_failure_and_is_continued_on_demand(
    server: ProcurementServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher, "FETCH_SECONDS_MAX", 0.1)

    async def scenario(rig: SearchRig) -> None:
        gate = Gate(server.pncp)
        await body_when(rig, is_pending_only("pncp"), "SP", **DAY)
        health = await rig.container.search._cache.stats()
        assert health["degraded_keys_count"] == 0
        gate.open = True
        monkeypatch.setattr(fetcher, "FETCH_SECONDS_MAX", 60)
        await body_when(rig, is_complete, "SP", **DAY)
        assert server.pncp.requests_by_uf == {"SP": 1}

    run_scenario(server, tmp_path, scenario, timeout=60)


def test_fetch__no_slot_free__is_pending_and_calls_no_portal(
    server: ProcurementServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher, "FETCH_SECONDS_MAX", 0.1)

    async def scenario(rig: SearchRig) -> None:
        slots, rig.container.search._fetch_slots = rig.container.search._fetch_slots, asyncio.Semaphore(0)
        body = await rig.body("SP", **DAY)
        assert sorted(body["pending"]) == ["pcp", "pncp"]
        assert (server.pncp.accepted, server.pcp.accepted) == (0, 0)
        rig.container.search._fetch_slots = slots
        monkeypatch.setattr(fetcher, "FETCH_SECONDS_MAX", 60)
        await body_when(rig, is_complete, "SP", **DAY)

    run_scenario(server, tmp_path, scenario, timeout=60)


def test_listing__longer_than_its_bound__goes_on_after_its_first_pages(
    server: ProcurementServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(rig: SearchRig) -> None:
        gate, pcp = Gate(server.pcp, passes=1), rig.container.sources["pcp"]
        reader = rig.container.search._reader
        monkeypatch.setattr(listing_reader, "READ_SECONDS_MAX", 1)
        with pytest.raises(LimitReachedError, match="1 pages of a listing within 1 s"):
            await reader.read(pcp, PCP_DAY)
        assert len((await reader.first_pages("pcp", [PCP_DAY]))[PCP_DAY]) == 10
        monkeypatch.setattr(listing_reader, "READ_SECONDS_MAX", 60)
        gate.open = True
        listed = await reader.read(pcp, PCP_DAY)
        assert len({one["id"] for one in listed.notices}) == len(listed.notices) > 10
        assert reader.pages_left(pcp, [PCP_DAY]) > 1  # as many as the last one had
        rig.clock.advance(listing_reader.SAVED_SECONDS_MAX)
        assert await reader.first_pages("pcp", [PCP_DAY]) == {}

    run_scenario(server, tmp_path, scenario)


def test_listing__page_times_out__raises_the_time_out(
    server: ProcurementServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def late(*_: object) -> NoticePage:
        raise TimeoutError("late")

    async def scenario(rig: SearchRig) -> None:
        monkeypatch.setattr(PortalSource, "fetch_page", late)
        with pytest.raises(TimeoutError, match="late"):
            await rig.container.search._reader.read(rig.container.sources["pcp"], PCP_DAY)

    run_scenario(server, tmp_path, scenario)


def test_pending_answer__fetch_of_another_worker__has_the_listings_of_all_workers(
    server: ProcurementServer, tmp_path: Path
) -> None:
    async def scenario(rig: SearchRig) -> None:
        await rig.body("SP", **DAY)
        cache = HealthCache(rig.container.database, name="listings", fresh=600, stale=600, clock=rig.clock)
        pncp, reader = rig.container.sources["pncp"], ListingReader(cache, WaitingUsers())
        scope = parse_query(b"date_from=2026-01-01&date_to=2026-01-01&ufs=SP,RJ", 31).scope
        answer = await RunningFetches(reader).pending_answer(pncp, scope, 0.0, time.monotonic() + 60)
        assert (answer.ufs, answer.days, answer.coverage.succeeded) == (("RJ",), (), ("SP",))
        assert len(answer.value["SP"]["notices"]) > 0
        await cache.aclose()

    run_scenario(server, tmp_path, scenario, timeout=60)


def test_running_fetches__another_fetch_of_the_same_scope__stays(
    server: ProcurementServer, tmp_path: Path
) -> None:
    async def scenario(rig: SearchRig) -> None:
        reader, pncp = rig.container.search._reader, rig.container.sources["pncp"]
        scope = parse_query(b"date_from=2026-01-01&date_to=2026-01-01&ufs=SP", 31).scope
        slots, publish = asyncio.Semaphore(), rig.container.search.progress.publish
        first, second = (
            SourceFetcher(pncp, scope, reader, slots=slots, concurrency=1, publish=publish) for _ in range(2)
        )
        running = RunningFetches(reader)
        running.add("pncp", scope, first)
        running.add("pncp", scope, second)
        running.remove("pncp", scope, first)
        assert len(running) == 1
        running.remove("pncp", scope, second)
        assert len(running) == 0
        running.raise_to("pncp", scope, Caller())  # there is none

    run_scenario(server, tmp_path, scenario)


def test_listing_concurrency__in_a_crowd__is_lower() -> None:
    assert [fetcher.listing_concurrency(count) for count in (0, fetcher.CROWD)] == [10, 2]


def test_fetch__anonymous__takes_turns_with_other_anonymous_searches(
    server: ProcurementServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    callers: set[Caller] = set()
    fetch_page = PortalSource.fetch_page

    async def record(source: PortalSource, listing: Listing, number: int, *more: Any) -> NoticePage:
        callers.add(resolve_caller(None, None))
        return await fetch_page(source, listing, number, *more)

    async def scenario(rig: SearchRig) -> None:
        monkeypatch.setattr(PortalSource, "fetch_page", record)
        await asyncio.gather(rig.body("SP,RJ", **DAY), rig.body("MG", **DAY))
        assert {caller.rank for caller in callers} == {0}
        assert len({caller.owner for caller in callers}) == 2

    run_scenario(server, tmp_path, scenario, timeout=60)


def test_stream__pending__goes_on_until_everything_is_read(server: ProcurementServer, tmp_path: Path) -> None:
    async def scenario(rig: SearchRig) -> None:
        gate = Gate(server.pncp)
        streaming = asyncio.create_task(rig.events("RJ,SP", **DAY))

        async def is_asked_again() -> bool:
            return gate.came == 2 and rig.container.search.progress._count == 1

        await rig.wait_until(is_asked_again)
        await body_when(rig, is_pending_only("pncp"), "RJ,SP", **DAY)
        gate.open = True
        events = [(kind, data) for kind, data in await streaming if kind != "progress"]
        assert [kind for kind, _ in (events[0], events[-2], events[-1])] == ["result", "revalidated", "end"]
        assert "pncp" in events[0][1]["pending"]
        assert events[-2][1]["complete"]

    run_scenario(server, tmp_path, scenario)


def test_read_pages__without_pages_so_far__reads_all(server: ProcurementServer, tmp_path: Path) -> None:
    async def scenario(rig: SearchRig) -> None:
        listed = await read_pages(rig.container.sources["pcp"], PCP_DAY, 1)
        assert (len(listed.notices), listed.truncated) == (10, True)

    run_scenario(server, tmp_path, scenario)
