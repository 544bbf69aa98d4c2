"""What open pages are told, in which order, and what becomes of those who are slow or many."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.dashboard.rig import running, streaming
from tests.service.running import CLIENT, awaited, config, on_a_thread, wait_for

from comporta import events
from comporta.errors import StateUnavailableError
from comporta.service.app import create_app
from comporta.service.dashboard import live as lives
from comporta.service.dashboard.live import NO_HISTORY, RETRY, Live, Shared, event

PATIENCE_SECONDS = 30.0


class Maker:
    """Makes documents that tell which one they are; each waits for a word if it must."""

    def __init__(self) -> None:
        self.made = 0
        self.error: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self) -> bytes:
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.made += 1
        return b"%d" % self.made


def rigged(monkeypatch: pytest.MonkeyPatch) -> tuple[Live, Maker, Maker, asyncio.Event]:
    monkeypatch.setattr(lives, "EVERY_SECONDS", 0.01)
    document, history, leaving = Maker(), Maker(), asyncio.Event()
    return Live(Shared(document, 0), Shared(history, 0), leaving), document, history, leaving


async def until(live: Live, number: int) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while live._number < number:  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.005)


async def taken(told: AsyncIterator[bytes], count: int) -> list[bytes]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        return [await anext(told) for _ in range(count)]


@awaited
async def test_stream__page_opens__has_the_history_then_documents_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    live, document, _, leaving = rigged(monkeypatch)
    with live.watched():
        told = live.told()
        first, *rest = await taken(told, 4)
        assert first == RETRY + event("history", b"1")
        numbers = [int(one.removeprefix(b"event: document\ndata: ")) for one in rest]
        assert numbers == sorted(set(numbers))
        leaving.set()
        async with asyncio.timeout(PATIENCE_SECONDS):
            last = [one async for one in told]
    assert last[-1] == event("end", b"{}")
    made = document.made
    await asyncio.sleep(0.1)
    assert document.made == made  # nobody is there to be told


@pytest.mark.parametrize("seconds", [0.0, 0.01], ids=["before it waits", "while it waits"])
@awaited
async def test_stream__worker_leaves_while_a_document_hangs__ends_at_once(
    monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    live, document, _, leaving = rigged(monkeypatch)
    document.gate.clear()
    with live.watched():
        told = live.told()
        await taken(told, 1)
        waiting = asyncio.create_task(taken(told, 1))
        if seconds:
            await asyncio.sleep(seconds)
        leaving.set()
        assert await waiting == [event("end", b"{}")]
    await live._document.aclose()


@awaited
async def test_streams__many_pages__are_told_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    live, document, history, _ = rigged(monkeypatch)
    document.gate.clear()
    with live.watched(), live.watched():
        pages = [live.told() for _ in range(20)]
        await asyncio.gather(*(taken(page, 1) for page in pages))
        waiting = [asyncio.create_task(taken(page, 1)) for page in pages]
        await asyncio.sleep(0)
        document.gate.set()
        found = [one for [one] in await asyncio.gather(*waiting)]
    assert len({id(one) for one in found}) == 1
    assert history.made >= 1


@awaited
async def test_stream__slow_reader__is_told_the_newest_only(monkeypatch: pytest.MonkeyPatch) -> None:
    live, _, _, _ = rigged(monkeypatch)
    with live.watched():
        told = live.told()
        await taken(told, 2)
        await until(live, 20)
        [newest] = await taken(told, 1)
        assert newest is live._latest
        assert int(newest.removeprefix(b"event: document\ndata: ")) >= 20


@awaited
async def test_pages__none_is_open__nothing_is_made_and_nothing_old_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    live, document, _, _ = rigged(monkeypatch)
    assert document.made == 0
    with live.watched():
        await until(live, 3)
    assert (live.pages, live._tasks, live._number) == (0, [], 0)
    before = document.made
    with live.watched():
        _, then = await taken(live.told(), 2)
    assert int(then.removeprefix(b"event: document\ndata: ")) > before


@awaited
async def test_stream__no_document_to_be_had__goes_on_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    live, document, history, _ = rigged(monkeypatch)
    document.error, history.error = RuntimeError("broken"), StateUnavailableError("gone")
    with live.watched():
        told = live.told()
        first, nothing = await taken(told, 2)
        assert first == RETRY + event("history", NO_HISTORY)
        assert nothing == b": nothing new\n\n"
        await until(live, 5)
        document.error = None
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (await anext(told)).startswith(b"event: document"):
                pass
    assert [one.kind for one in events.latest_events()].count("dashboard_failed") == 1


@awaited
async def test_stream__history_that_cannot_be_made__is_said_once_and_documents_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    live, _, history, _ = rigged(monkeypatch)
    history.error = RuntimeError("broken")
    before = [one.kind for one in events.latest_events()].count("dashboard_failed")
    with live.watched():
        for _ in range(2):
            first, then = await taken(live.told(), 2)
            assert first == RETRY + event("history", NO_HISTORY)
            assert then.startswith(b"event: document")
    assert [one.kind for one in events.latest_events()].count("dashboard_failed") == before + 1


@awaited
async def test_stream__document_ended_by_somebody_else__is_followed_by_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    live, document, _, _ = rigged(monkeypatch)
    document.gate.clear()
    with live.watched():
        told = live.told()
        await taken(told, 1)
        await asyncio.sleep(0.05)
        await live._document.aclose()
        document.gate.set()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (await anext(told)).startswith(b"event: document"):
                pass


@awaited
async def test_shared__many_ask_and_the_first_gives_up__is_made_once() -> None:
    maker = Maker()
    maker.gate.clear()
    shared = Shared(maker, 60)
    asking = [asyncio.create_task(shared.get()) for _ in range(10)]
    await asyncio.sleep(0)
    asking[0].cancel()
    maker.gate.set()
    found = await asyncio.gather(*asking, return_exceptions=True)
    assert isinstance(found[0], asyncio.CancelledError)
    assert found[1:] == [b"1"] * 9
    assert await shared.get() == b"1"
    await shared.aclose()


@awaited
async def test_shared__closed_while_it_is_made__is_not_made() -> None:
    maker = Maker()
    maker.gate.clear()
    shared = Shared(maker, 0)
    asking = asyncio.create_task(shared.get())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await shared.aclose()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert maker.made == 0


@awaited
async def test_stream__as_many_pages_as_may_be__another_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lives, "PAGES_MAX", 1)
    async with running(tmp_path) as asked:
        with asked.parts.dashboard.live.watched():
            full = await asked.client.get("/v1/dashboard/stream")
    assert (full.status_code, full.headers["retry-after"]) == (503, "5")
    assert full.headers["content-type"] == "application/problem+json"


def test_stream__over_a_connection__reconnects_and_ends_when_the_service_does(tmp_path: Path) -> None:
    app = create_app(config(tmp_path, calls_max="1"))
    with on_a_thread(app) as (address, server):
        with streaming(address) as events_of_page:
            kinds = [next(events_of_page) for _ in range(3)]
            assert [kind for kind, _ in kinds] == ["history", "document", "document"]
            assert kinds[1][1]["at"] < kinds[2][1]["at"]
            assert CLIENT.get(f"{address}/v1/health/cache").status_code == 200  # a page is no call under way
        live = app.state.parts.dashboard.live
        wait_for(lambda: live.pages == 0)
        assert live._tasks == []
        with streaming(address) as again, streaming(address) as another:
            assert [next(again)[0], next(another)[0]] == ["history", "history"]
            assert live.pages == 2
            server.should_exit = True
            assert [list(page)[-1] for page in (again, another)] == [("end", {})] * 2


def test_stream__nobody_reads__piles_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lives, "EVERY_SECONDS", 0.001)
    app = create_app(config(tmp_path))
    with on_a_thread(app) as (address, server):
        dashboard = app.state.parts.dashboard

        async def large() -> bytes:
            return json.dumps("x" * 1_000_000).encode()

        dashboard.document._make, dashboard.document._seconds_ns = large, 0
        with CLIENT.stream("GET", f"{address}/v1/dashboard/stream") as reply:
            assert reply.status_code == 200
            wait_for(lambda: dashboard.live._number > 100)
            connections: list[Any] = list(server.server_state.connections)
            waiting = sum(one.transport.get_write_buffer_size() for one in connections)
            assert waiting < 10_000_000  # of a hundred million
            assert CLIENT.get(f"{address}/livez").status_code == 200


def test_stream__nobody_reads_for_long__is_ended_and_its_place_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lives, "EVERY_SECONDS", 0.001)
    app = create_app(config(tmp_path, request_seconds="0.5"))
    with on_a_thread(app) as (address, _):
        dashboard = app.state.parts.dashboard

        async def large() -> bytes:
            return json.dumps("x" * 1_000_000).encode()

        dashboard.document._make, dashboard.document._seconds_ns = large, 0
        host, _, port = address.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port))) as page:
            page.sendall(b"GET /v1/dashboard/stream HTTP/1.1\r\nhost: service\r\n\r\n")
            wait_for(lambda: dashboard.live.pages == 1)
            wait_for(lambda: dashboard.live.pages == 0)


@awaited
async def test_pages__of_a_worker_that_takes_few_calls__leave_connections_for_others(tmp_path: Path) -> None:
    async with running(tmp_path, calls_max="1") as asked:
        live = asked.parts.dashboard.live
        full = [live.full]
        with live.watched():
            full.append(live.full)
            with live.watched():
                full.append(live.full)
    assert full == [False, False, True]
    assert asked.parts.config.connections_max == 4
