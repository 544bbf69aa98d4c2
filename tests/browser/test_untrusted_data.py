"""The page with data that the service never sends: names of its own elements, markup, a jumping clock."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Route, expect
from tests.browser.watched_page import PATIENCE_MS, WatchedPage
from tests.service.harness import serve_on_thread, service_config

from comporta.service.app import create_app

MARKUP = "<img src=x onerror=\"document.title='gone'\"><script>document.title='gone'</script>"
NOW = 1_800_000_000.0
RETRY_MS = 3_600_000  # so that the browser does not reconnect during a test
SILENCE_SECONDS = 15.0
"""After this long without data the page replaces its connection."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve_on_thread(create_app(service_config(tmp_path_factory.mktemp("service")))) as (url, _):
        yield url


def card(name: str, **others: Any) -> dict[str, Any]:
    numbers = dict.fromkeys(("failures", "tokens", "capacity", "limit", "original", "paused", "in_flight"), 1)
    return {"name": name, "phase": "closed", "reason": "", "share": 1.0, "minute": {}, **numbers, **others}


def document(at: float = NOW, **others: Any) -> dict[str, Any]:
    return {"at": at, "version": "0", "status": "warn", "reasons": [MARKUP], "upstreams": [], **others}


def slots(start: float) -> dict[str, Any]:
    return {"starts": [start], "calls": [5], "ok": [5], "limit": [1], "phase": [0]}


def wait_until(watched: WatchedPage, condition: Callable[[], bool]) -> None:
    """Wait until a condition holds, while the page runs."""
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while not condition():
        assert time.monotonic() < deadline, "the condition did not hold in time"
        watched.page.wait_for_timeout(20)


def serve_events(watched: WatchedPage, *streams: list[tuple[str, Any]]) -> list[float]:
    """Serve these streams to the page, one for each connection; the last one is repeated."""
    opened: list[float] = []

    def respond(route: Route) -> None:
        events = streams[min(len(opened), len(streams) - 1)]
        opened.append(time.monotonic())
        lines = "".join(f"event: {kind}\ndata: {json.dumps(data)}\n\n" for kind, data in events)
        route.fulfill(status=200, content_type="text/event-stream", body=f"retry: {RETRY_MS}\n\n{lines}")

    watched.page.route("**/v1/dashboard/stream", respond)
    return opened


def test_cards__named_like_elements_of_the_page__are_all_shown(browser: Browser, address: str) -> None:
    names = ["template", "s-title", "zeta"]
    with WatchedPage.on(browser, address) as watched:
        serve_events(watched, [("document", document(upstreams=[card(name) for name in names]))])
        page = watched.open()
        expect(page.locator("[data-upstream] h3")).to_have_text(names)
        expect(page.get_by_role("article", name="template")).to_be_visible()


def test_page__markup_in_every_field__is_shown_as_text(browser: Browser, address: str) -> None:
    event = dict.fromkeys(("kind", "source", "text", "severity", "worker"), MARKUP)
    worker = {
        "name": MARKUP,
        "last_heartbeat": 0.1,
        "probes": [MARKUP],
        "permits": {MARKUP: 2},
        "leases": {MARKUP: 3},
    }
    data = document(
        upstreams=[card(MARKUP, phase="open", reason=MARKUP, until=NOW + 9, probes=[MARKUP])],
        workers=[worker],
        events=[{"at": NOW, **event}],
        story={"scenario": MARKUP, "step": 1, "of": 10**9, "title": MARKUP, "text": MARKUP, "look": MARKUP},
    )
    with WatchedPage.on(browser, address) as watched:
        serve_events(watched, [("document", data)])
        page = watched.open()
        for where in ("#events", "#workers", "#story", "#upstreams", "#status-words"):
            expect(page.locator(where)).to_contain_text(MARKUP)
        assert page.locator("img[src=x]").count() == 0
        assert "gone" not in page.title().partition("<")[0]


def test_page__one_section_fails_to_render__shows_the_others(browser: Browser, address: str) -> None:
    event = dict.fromkeys(("kind", "source", "text", "severity", "worker"), "x")
    data = document(
        upstreams=[None],
        events=[{"at": NOW, **event}],
        workers=[{"name": "h:1", "last_heartbeat": 0.1}],
        jobs=[],
    )
    with WatchedPage.on(browser, address) as watched:
        watched.expected.append("TypeError")
        serve_events(watched, [("document", data)])
        page = watched.open()
        expect(page.locator("#workers")).to_contain_text("h:1")
        expect(page.locator("#events")).to_contain_text("x")
        assert watched.messages


def test_charts__service_clock_set_back__are_reloaded(browser: Browser, address: str) -> None:
    back = NOW - 3700
    before = [
        ("history", {"at": NOW, "slot_seconds": 10, "series": {"pncp": slots(NOW - 10)}}),
        ("document", document(upstreams=[card("pncp")], recent={"pncp": slots(NOW - 10)})),
        ("document", document(back, upstreams=[card("pncp")], recent={"pncp": slots(back - 10)})),
    ]
    after = [
        ("history", {"at": back + 1, "slot_seconds": 10, "series": {"pncp": slots(back - 10)}}),
        ("document", document(back + 1, upstreams=[card("pncp")], recent={"pncp": slots(back - 10)})),
    ]
    with WatchedPage.on(browser, address) as watched:
        opened = serve_events(watched, before, after)
        watched.open()
        chart = watched.card("pncp").locator("figure[data-f=calls] svg")
        expect(chart).to_have_attribute("aria-label", re.compile(r": 5 succeeded, 0 failed"))
        wait_until(watched, lambda: len(opened) > 1)
        assert opened[1] - opened[0] < SILENCE_SECONDS
        expect(chart).to_have_attribute("aria-label", re.compile(r": 5 succeeded, 0 failed"))
        assert len(opened) == 2


def test_page__reconnects_to_a_worker_with_another_clock__stays_connected(
    browser: Browser, address: str
) -> None:
    other = NOW + 100
    streams = [
        [("history", {"at": at, "series": {}}), ("document", document(at, upstreams=[card("pncp")]))]
        for at in (NOW, other)
    ]
    with WatchedPage.on(browser, address) as watched:
        streams[0].append(("end", {}))
        opened = serve_events(watched, *streams)
        watched.open()
        wait_until(watched, lambda: len(opened) > 1)
        watched.page.wait_for_timeout(1500)
        assert len(opened) == 2


def test_band__slot_with_several_states__shows_all_of_them(browser: Browser, address: str) -> None:
    series = {**slots(NOW - 20), "phase": [2], "phases": [[2, 1, 0]]}
    data = document(upstreams=[card("pncp")], recent={"pncp": series})
    with WatchedPage.on(browser, address) as watched:
        serve_events(watched, [("document", data)])
        chart = watched.open().locator("[data-upstream=pncp] svg.calls")
        for phase in ("open", "half-open", "closed"):
            expect(chart.locator(f"path.band.{phase}")).to_have_attribute("d", re.compile("^M"))
        summary = re.compile("Breaker open in 1 and half-open in 1 of 1 slots of 10 s")
        expect(chart).to_have_attribute("aria-label", summary)
