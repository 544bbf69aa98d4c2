"""A user who waits for a listing that a refresh reads raises it to the class of users."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.processes.fleet import new_state_name, remove_shared_state, shared_url
from tests.search.rig import PATIENCE_SECONDS, PATIENT, SearchRig, open_rig

from comporta.errors import CircuitOpenError, StateUnavailableError
from comporta.limits.priority import Caller, priority, resolve_caller
from comporta.limits.wait_queue import WaitQueue
from comporta.service.search import waiting_users
from comporta.service.search.fetcher import SourceFetcher
from comporta.service.search.query import parse_query
from comporta.service.search.read_class import ReadClass, ReadClasses
from comporta.service.search.waiting_users import JoinTimer, WaitingUsers
from comporta.service.sources.base import Listing, NoticePage
from comporta.service.sources.portal import PortalSource
from comporta.stores.base import Operation
from comporta.stores.memory import MemoryStore
from comporta.stores.records import ReadRecord, WriteRecord
from comporta.testing import ProcurementServer

USER, REFRESH = Caller(0, "ana"), Caller(1, "scheduled refresh")
UFS = ("AC", "BA", "CE", "MA", "MG")


def run_scenario(folder: Path, scenario: Callable[[SearchRig], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        with ProcurementServer(seed=5, pncp_rate=None, pcp_rate=None) as server:
            async with open_rig(folder, server, **PATIENT) as rig:
                await scenario(rig)

    asyncio.run(run())


def waiting_callers(rig: SearchRig) -> list[Caller]:
    """Return who waits for capacity of PNCP, in the order in which they are served."""
    queue: WaitQueue = rig.container.upstreams["pncp"].limiter._flows.wait_queue
    [order] = queue.waiters_by_key.values() or [None]
    ranks = {} if order is None else order._by_rank
    return [Caller(waiter.rank, waiter.owner) for rank in sorted(ranks) for waiter in ranks[rank].arrivals]


@pytest.fixture
def sent_pages(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str | None, Caller]]:
    """Return the pages of PNCP in the order in which they are requested: their UF, and for whom."""
    pages: list[tuple[str | None, Caller]] = []
    fetch_page = PortalSource.fetch_page

    async def record(
        source: PortalSource, listing: Listing, number: int, on_sent: Callable[[], None] | None = None
    ) -> NoticePage:
        caller = resolve_caller(None, None)

        def record_sent() -> None:
            if source.name == "pncp":
                pages.append((listing.uf, caller))
            if on_sent is not None:
                on_sent()

        return await fetch_page(source, listing, number, record_sent)

    monkeypatch.setattr(PortalSource, "fetch_page", record)
    return pages


def scope_params(ufs: str) -> dict[str, Any]:
    return parse_query(f"date_from=2026-01-01&date_to=2026-01-10&ufs={ufs}".encode(), 366).scope.cache_params(
        "pncp"
    )


def run_scenario_with_two_workers(
    folder: Path, scenario: Callable[[SearchRig, SearchRig], Coroutine[Any, Any, None]]
) -> None:
    """Run a scenario with two workers that share the portals, the database and the state."""
    name = new_state_name()

    async def run() -> None:
        options = {**PATIENT, "state": shared_url(name), "database": f"sqlite:///{folder}/search.db"}
        with ProcurementServer(seed=5, pncp_rate=None, pcp_rate=None) as server:
            async with (
                open_rig(folder, server, is_real_time=True, **options) as one,
                open_rig(folder, server, is_real_time=True, **options) as two,
            ):
                await scenario(one, two)

    try:
        asyncio.run(run())
    finally:
        remove_shared_state(name)


async def while_paused(
    rig: SearchRig, refresh: Coroutine[Any, Any, Any], join: Callable[[], Coroutine[Any, Any, Any]]
) -> None:
    """Let a refresh wait for a paused portal, then a user join it; resume when the user has raised it."""
    limiter = rig.container.upstreams["pncp"].limiter
    await limiter.pause(50)

    async def refresh_waits() -> bool:
        return len(waiting_callers(rig)) == len(UFS)

    async def user_is_first() -> bool:
        return waiting_callers(rig)[:1] == [USER]

    async with asyncio.TaskGroup() as group:
        group.create_task(refresh)
        await rig.wait_until(refresh_waits)
        assert set(waiting_callers(rig)) == {REFRESH}
        group.create_task(join())
        await rig.wait_until(user_is_first)
        await limiter.resume()


def test_listing__read_by_a_refresh__is_raised_by_a_search_that_needs_it(
    tmp_path: Path, sent_pages: list[tuple[str | None, Caller]]
) -> None:
    async def scenario(rig: SearchRig) -> None:
        search = rig.container.search
        refresh = search.refresh(scope_params(",".join(UFS)))
        await while_paused(rig, refresh, lambda: rig.body("MG", user="ana"))
        assert sent_pages[0] == ("MG", USER)
        assert sorted(sent_pages[1:]) == [(uf, REFRESH) for uf in UFS if uf != "MG"]  # each once

    run_scenario(tmp_path, scenario)


def test_fetch__in_the_background__is_raised_by_a_user_who_waits_for_the_same_search(
    tmp_path: Path, sent_pages: list[tuple[str | None, Caller]]
) -> None:
    async def scenario(rig: SearchRig) -> None:
        ufs = ",".join(UFS)
        refresh = rig.container.search._cache.fetch(
            "bob", scope_params(ufs), lambda: rig.container.search.refresh(scope_params(ufs))
        )
        await while_paused(rig, refresh, lambda: rig.body(ufs, user="ana"))
        assert sorted(sent_pages) == [(uf, USER) for uf in UFS]

    run_scenario(tmp_path, scenario)


def test_listing__read_by_a_refresh_of_another_worker__is_raised_by_a_search_that_needs_it(
    tmp_path: Path, sent_pages: list[tuple[str | None, Caller]]
) -> None:
    async def scenario(one: SearchRig, two: SearchRig) -> None:
        refresh = one.container.search.refresh(scope_params(",".join(UFS)))
        await while_paused(one, refresh, lambda: two.body("MG", user="ana"))
        assert sent_pages[0] == ("MG", USER)
        assert sorted(sent_pages[1:]) == [(uf, REFRESH) for uf in UFS if uf != "MG"]  # each once

    run_scenario_with_two_workers(tmp_path, scenario)


def test_fetch__in_the_background_of_another_worker__is_raised_by_a_user_who_waits_for_it(
    tmp_path: Path, sent_pages: list[tuple[str | None, Caller]]
) -> None:
    async def scenario(one: SearchRig, two: SearchRig) -> None:
        ufs = ",".join(UFS)
        refresh = one.container.search._cache.fetch(
            "bob", scope_params(ufs), lambda: one.container.search.refresh(scope_params(ufs))
        )
        await while_paused(one, refresh, lambda: two.body(ufs, user="ana"))
        assert sorted(sent_pages) == [(uf, USER) for uf in UFS]

    run_scenario_with_two_workers(tmp_path, scenario)


def test_listing__that_two_refreshes_need__is_raised_through_the_one_that_waits_for_it(
    tmp_path: Path, sent_pages: list[tuple[str | None, Caller]]
) -> None:
    """The user waits for a refresh of worker two, and that one for a listing that worker one reads."""

    async def scenario(one: SearchRig, two: SearchRig) -> None:
        async def fetch_and_join() -> None:
            refreshing = asyncio.create_task(
                two.container.search._cache.fetch(
                    "bob", scope_params("MG"), lambda: two.container.search.refresh(scope_params("MG"))
                )
            )

            async def is_running() -> bool:
                return len(two.container.search._running) > 0

            await two.wait_until(is_running)
            await asyncio.gather(refreshing, two.body("MG", user="ana"))

        refresh = one.container.search.refresh(scope_params(",".join(UFS)))
        await while_paused(one, refresh, fetch_and_join)
        assert sent_pages[0] == ("MG", USER)

    run_scenario_with_two_workers(tmp_path, scenario)


def test_announcement__older_than_the_read__raises_nothing_until_the_user_announces_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting_users, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(waiting_users, "ANNOUNCE_SECONDS", 0.05)
    store, params, users = CountingStore(), {"listing": "pncp"}, WaitingUsers()

    async def scenario() -> None:
        users.announce(store, params, REFRESH)  # waits in no higher class than a refresh reads
        users.announce(store, params, USER)
        await wait_for(lambda: store.writes == 1)
        read = ReadClass(REFRESH)
        with users.watch(store, params, read):
            reads = store.reads
            await wait_for(lambda: store.reads >= reads + 3)
            assert read.caller == REFRESH
            with JoinTimer(lambda: users.announce(store, params, USER)):
                await wait_for(lambda: read.caller == USER and store.writes >= 3)

    asyncio.run(scenario())


def test_announcement__store_unreachable__leaves_the_class_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_users, "POLL_SECONDS", 0.01)
    store, params, users = CountingStore(), {"listing": "pncp"}, WaitingUsers()
    store.is_reachable = False

    async def scenario() -> None:
        read = ReadClass(REFRESH)
        with users.watch(store, params, read):
            users.announce(store, params, USER)
            await wait_for(lambda: store.writes == 1 and store.reads >= 3)
            assert read.caller == REFRESH
            store.is_reachable = True
            users.announce(store, params, USER)
            await wait_for(lambda: read.caller == USER)

    asyncio.run(scenario())


class CountingStore(MemoryStore):
    """A store in memory that counts reads and writes of records, and can be unreachable."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = self.writes = 0
        self.is_reachable = True

    async def apply_async(self, operation: Operation[Any]) -> Any:
        self.reads += isinstance(operation, ReadRecord)
        self.writes += isinstance(operation, WriteRecord)
        if not self.is_reachable:
            raise StateUnavailableError("the store is unreachable")
        return await super().apply_async(operation)


async def wait_for(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)


def test_read__raised_after_its_request_was_sent__sends_no_second_one() -> None:
    async def scenario() -> list[Caller]:
        calls: asyncio.Queue[Caller] = asyncio.Queue()
        read = ReadClass(Caller(2, "job"))
        proceed = asyncio.Event()

        async def fetch(on_sent: Callable[[], None]) -> str:
            on_sent()
            calls.put_nowait(resolve_caller(None, None))
            await proceed.wait()
            return "page"

        fetching = asyncio.create_task(read.fetch(fetch))
        first = await calls.get()
        read.raise_to(USER)
        read.raise_to(Caller(1, "bob"))  # a lower class than ana's
        proceed.set()
        assert (await fetching, await read.fetch(fetch)) == ("page", "page")
        return [first, calls.get_nowait()]

    assert asyncio.run(scenario()) == [Caller(2, "job"), USER]


def test_read__page_arrives_while_its_wait_is_cancelled__is_returned() -> None:
    async def scenario() -> str:
        waits = asyncio.Event()
        read = ReadClass(Caller(2, "job"))

        async def fetch(_: Callable[[], None]) -> str:
            waits.set()
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return "page"

        fetching = asyncio.create_task(read.fetch(fetch))
        await waits.wait()
        read.raise_to(USER)
        return await fetching

    assert asyncio.run(scenario()) == "page"


def test_read__raised_class_by_class__starts_again_once_for_each_class() -> None:
    async def scenario() -> list[Caller]:
        calls: asyncio.Queue[Caller] = asyncio.Queue()
        read = ReadClass(Caller(2, "job"))

        async def wait(_: Callable[[], None]) -> None:
            calls.put_nowait(resolve_caller(None, None))
            await asyncio.Event().wait()

        fetching = asyncio.create_task(read.fetch(wait))
        started = [await calls.get()]
        for caller in (Caller(1, "bob"), USER):
            read.raise_to(caller)
            started.append(await calls.get())
        read.raise_to(Caller(0, "eve"))  # no higher class than ana's
        fetching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetching
        assert calls.empty()
        return started

    assert asyncio.run(scenario()) == [Caller(2, "job"), Caller(1, "bob"), USER]


def test_raise_to__listing_that_is_not_read__changes_nothing() -> None:
    classes = ReadClasses()
    classes.raise_to("listing", USER)
    with priority("normal", owner="refresh"), classes.join("listing") as joined:
        assert joined._caller.rank == REFRESH.rank
        classes.raise_to("another listing", USER)
        assert joined._caller.rank == REFRESH.rank
        classes.raise_to("listing", USER)
        assert joined._caller == USER


def test_page__arrives_after_another_listing_found_the_circuit_open__stops_the_listing() -> None:
    source: Any = SimpleNamespace(name="pncp")
    unused: Any = None
    pages: list[int] = []
    fetcher = SourceFetcher(
        source,
        unused,
        unused,
        slots=unused,
        concurrency=1,
        publish=lambda _, progress: pages.append(progress.pages),
    )
    error = fetcher._circuit_error = CircuitOpenError("pncp", "HTTP 503", None, 30.0)
    with pytest.raises(CircuitOpenError) as raised:
        fetcher._count_page()
    assert (raised.value, pages) == (error, [1])
