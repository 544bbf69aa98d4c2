"""The events of open pages: their order, slow clients, and many pages."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.dashboard.rig import open_stream, run_service
from tests.service.harness import CLIENT, async_test, serve_on_thread, service_config, wait_until

from comporta import events
from comporta.errors import StateUnavailableError
from comporta.service.app import create_app
from comporta.service.dashboard import live as lives
from comporta.service.dashboard.live import EMPTY_HISTORY, RETRY_FIELD, CachedBytes, LiveUpdates
from comporta.service.server_sent_events import encode_event

PATIENCE_SECONDS = 30.0


class DocumentBuilder:
    """Builds numbered documents; ``gate`` holds a build."""

    def __init__(self) -> None:
        self.calls = 0
        self.made = 0
        self.error: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self) -> bytes:
        self.calls += 1
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.made += 1
        return b"%d" % self.made


def live_updates(
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[LiveUpdates, DocumentBuilder, DocumentBuilder, asyncio.Event]:
    monkeypatch.setattr(lives, "DOCUMENT_INTERVAL_SECONDS", 0.01)
    document, history, shutting_down = DocumentBuilder(), DocumentBuilder(), asyncio.Event()
    return (
        LiveUpdates(CachedBytes(document, 0), CachedBytes(history, 0), shutting_down),
        document,
        history,
        shutting_down,
    )


async def wait_for_version(live: LiveUpdates, number: int) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while live._version < number:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.005)


async def wait_for_build(builder: DocumentBuilder) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not builder.calls:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.001)


async def take_events(page_events: AsyncIterator[bytes], count: int) -> list[bytes]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        return [await anext(page_events) for _ in range(count)]


@async_test
async def test_page_events__page_opens__sends_history_then_documents_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    live, document, _, shutting_down = live_updates(monkeypatch)
    with live.open_page():
        page_events = live.page_events()
        first, *rest = await take_events(page_events, 4)
        assert first == RETRY_FIELD + encode_event("history", b"1")
        numbers = [int(one.removeprefix(b"event: document\ndata: ")) for one in rest]
        assert numbers == sorted(set(numbers))
        shutting_down.set()
        async with asyncio.timeout(PATIENCE_SECONDS):
            last = [one async for one in page_events]
        tasks = list(live._tasks)
    assert last[-1] == encode_event("end", b"{}")
    made = document.made
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.gather(*tasks, return_exceptions=True)
    assert (len(tasks), live._tasks, document.made) == (2, [], made)  # no page is left


@pytest.mark.parametrize("builds", [False, True], ids=["before the build", "during the build"])
@async_test
async def test_page_events__shutdown_while_a_document_hangs__end_immediately(
    monkeypatch: pytest.MonkeyPatch, builds: bool
) -> None:
    live, document, _, shutting_down = live_updates(monkeypatch)
    document.gate.clear()
    with live.open_page():
        page_events = live.page_events()
        await take_events(page_events, 1)
        waiting = asyncio.create_task(take_events(page_events, 1))
        if builds:
            await wait_for_build(document)
        shutting_down.set()
        assert await waiting == [encode_event("end", b"{}")]
    await live._document.aclose()


@async_test
async def test_page_events__many_pages__get_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    live, document, history, _ = live_updates(monkeypatch)
    document.gate.clear()
    with live.open_page(), live.open_page():
        pages = [live.page_events() for _ in range(20)]
        await asyncio.gather(*(take_events(page, 1) for page in pages))
        waiting = [asyncio.create_task(take_events(page, 1)) for page in pages]
        await asyncio.sleep(0)
        document.gate.set()
        received = [one for [one] in await asyncio.gather(*waiting)]
    assert len({id(one) for one in received}) == 1
    assert history.made >= 1


@async_test
async def test_page_events__slow_reader__gets_only_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    live, _, _, _ = live_updates(monkeypatch)
    with live.open_page():
        page_events = live.page_events()
        await take_events(page_events, 2)
        await wait_for_version(live, 20)
        [newest] = await take_events(page_events, 1)
        assert newest is live._latest.data
        assert int(newest.removeprefix(b"event: document\ndata: ")) >= 20


@async_test
async def test_live_updates__no_page_open__builds_nothing_and_sends_nothing_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    live, document, _, _ = live_updates(monkeypatch)
    assert document.made == 0
    with live.open_page():
        await wait_for_version(live, 3)
    assert (live.page_count, live._tasks, live._version) == (0, [], 0)
    before = document.made
    with live.open_page():
        _, then = await take_events(live.page_events(), 2)
    assert int(then.removeprefix(b"event: document\ndata: ")) > before


@async_test
async def test_page_events__document_fails__continue_and_report_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    live, document, history, _ = live_updates(monkeypatch)
    document.error, history.error = RuntimeError("broken"), StateUnavailableError("gone")
    with live.open_page():
        page_events = live.page_events()
        first, nothing = await take_events(page_events, 2)
        assert first == RETRY_FIELD + encode_event("history", EMPTY_HISTORY)
        assert nothing == b": keep-alive\n\n"
        await wait_for_version(live, 5)
        document.error = None
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (await anext(page_events)).startswith(b"event: document"):
                pass
    assert [one.kind for one in events.latest_events()].count("dashboard_failed") == 1


@async_test
async def test_page_events__history_fails__report_once_and_send_documents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    live, _, history, _ = live_updates(monkeypatch)
    history.error = RuntimeError("broken")
    before = [one.kind for one in events.latest_events()].count("dashboard_failed")
    with live.open_page():
        for _ in range(2):
            first, then = await take_events(live.page_events(), 2)
            assert first == RETRY_FIELD + encode_event("history", EMPTY_HISTORY)
            assert then.startswith(b"event: document")
    assert [one.kind for one in events.latest_events()].count("dashboard_failed") == before + 1


@async_test
async def test_page_events__document_cancelled_elsewhere__continue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    live, document, _, _ = live_updates(monkeypatch)
    document.gate.clear()
    with live.open_page():
        page_events = live.page_events()
        await take_events(page_events, 1)
        await wait_for_build(document)
        await live._document.aclose()
        document.gate.set()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (await anext(page_events)).startswith(b"event: document"):
                pass


@async_test
async def test_cached_bytes__many_callers_and_the_first_cancels__build_once() -> None:
    builder = DocumentBuilder()
    builder.gate.clear()
    shared = CachedBytes(builder, 60)
    asking = [asyncio.create_task(shared.get()) for _ in range(10)]
    await asyncio.sleep(0)
    asking[0].cancel()
    builder.gate.set()
    results = await asyncio.gather(*asking, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert results[1:] == [b"1"] * 9
    assert await shared.get() == b"1"
    await shared.aclose()


@async_test
async def test_cached_bytes__closed_while_building__cancels_the_build() -> None:
    builder = DocumentBuilder()
    builder.gate.clear()
    shared = CachedBytes(builder, 0)
    asking = asyncio.create_task(shared.get())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await shared.aclose()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert builder.made == 0


@async_test
async def test_stream__maximum_of_pages_open__next_gets_503(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lives, "PAGES_MAX", 1)
    async with run_service(tmp_path) as service:
        with service.container.dashboard.live.open_page():
            full = await service.client.get("/v1/dashboard/stream")
    assert (full.status_code, full.headers["retry-after"]) == (503, "5")
    assert full.headers["content-type"] == "application/problem+json"


def test_stream__over_a_connection__reconnects_and_ends_with_the_service(tmp_path: Path) -> None:
    app = create_app(service_config(tmp_path, calls_max="1"))
    with serve_on_thread(app) as (address, server):
        with open_stream(address) as events_of_page:
            kinds = [next(events_of_page) for _ in range(3)]
            assert [kind for kind, _ in kinds] == ["history", "document", "changes"]
            assert kinds[1][1]["at"] < kinds[2][1]["parts"]["at"]
            assert CLIENT.get(f"{address}/v1/health/cache").status_code == 200  # a page is not a call
        live = app.state.container.dashboard.live
        wait_until(lambda: live.page_count == 0)
        assert live._tasks == []
        with open_stream(address) as again, open_stream(address) as another:
            assert [next(again)[0], next(another)[0]] == ["history", "history"]
            assert live.page_count == 2
            server.should_exit = True
            assert [list(page)[-1] for page in (again, another)] == [("end", {})] * 2


def test_stream__client_does_not_read__buffers_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lives, "DOCUMENT_INTERVAL_SECONDS", 0.001)
    app = create_app(service_config(tmp_path))
    with serve_on_thread(app) as (address, server):
        dashboard = app.state.container.dashboard

        async def large() -> bytes:
            return json.dumps("x" * 1_000_000).encode()

        dashboard.document._build, dashboard.document._seconds_ns = large, 0
        with CLIENT.stream("GET", f"{address}/v1/dashboard/stream") as reply:
            assert reply.status_code == 200
            wait_until(lambda: dashboard.live._version > 100)
            connections: list[Any] = list(server.server_state.connections)
            waiting = sum(one.transport.get_write_buffer_size() for one in connections)
            assert waiting < 10_000_000  # of 100 MB
            assert CLIENT.get(f"{address}/livez").status_code == 200


def test_stream__client_stops_reading_for_long__is_closed_and_frees_its_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lives, "DOCUMENT_INTERVAL_SECONDS", 0.001)
    app = create_app(service_config(tmp_path, request_seconds="0.5"))
    with serve_on_thread(app) as (address, _):
        dashboard = app.state.container.dashboard

        async def large() -> bytes:
            return json.dumps("x" * 1_000_000).encode()

        dashboard.document._build, dashboard.document._seconds_ns = large, 0
        host, _, port = address.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port))) as page:
            page.sendall(b"GET /v1/dashboard/stream HTTP/1.1\r\nhost: service\r\n\r\n")
            wait_until(lambda: dashboard.live.page_count == 1)
            wait_until(lambda: dashboard.live.page_count == 0)


@async_test
async def test_pages__worker_with_few_connections__leave_some_for_others(tmp_path: Path) -> None:
    async with run_service(tmp_path, calls_max="1") as service:
        live = service.container.dashboard.live
        full = [live.is_full]
        with live.open_page():
            full.append(live.is_full)
            with live.open_page():
                full.append(live.is_full)
    assert full == [False, False, True]
    assert service.container.config.connections_max == 4
