"""The page, told what no service of ours says: names like its own, markup, moments that no calendar knows."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Route, expect
from tests.browser.watched import PATIENCE_MS, Watched
from tests.service.running import config, on_a_thread

from comporta.service.app import create_app

MARKUP = "<img src=x onerror=\"document.title='gone'\"><script>document.title='gone'</script>"
NOW = 1_800_000_000.0
RETRY_MS = 3_600_000  # a browser would come again by itself, and not be told what a test is about
SILENCE_SECONDS = 15.0
"""After so long the page gives up a line on which nothing comes."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with on_a_thread(create_app(config(tmp_path_factory.mktemp("service")))) as (found, _):
        yield found


def card(name: str, **others: Any) -> dict[str, Any]:
    figures = dict.fromkeys(("failures", "tokens", "capacity", "limit", "original", "paused", "in_flight"), 1)
    return {"name": name, "phase": "closed", "why": "", "share": 1.0, "minute": {}, **figures, **others}


def document(at: float = NOW, **others: Any) -> dict[str, Any]:
    return {"at": at, "version": "0", "status": "warn", "reasons": [MARKUP], "upstreams": [], **others}


def slots(start: float) -> dict[str, Any]:
    return {"starts": [start], "calls": [5], "ok": [5], "limit": [1], "phase": [0]}


def until(watched: Watched, condition: Callable[[], bool]) -> None:
    """Wait as long as the page goes on."""
    ends = time.monotonic() + PATIENCE_MS / 1000
    while not condition():
        assert time.monotonic() < ends, "it never came"
        watched.page.wait_for_timeout(20)


def telling(watched: Watched, *streams: list[tuple[str, Any]]) -> list[float]:
    """Have the page told these streams, one at each time it connects, and the last again and again."""
    opened: list[float] = []

    def tell(route: Route) -> None:
        told = streams[min(len(opened), len(streams) - 1)]
        opened.append(time.monotonic())
        lines = "".join(f"event: {kind}\ndata: {json.dumps(data)}\n\n" for kind, data in told)
        route.fulfill(status=200, content_type="text/event-stream", body=f"retry: {RETRY_MS}\n\n{lines}")

    watched.page.route("**/v1/dashboard/stream", tell)
    return opened


def test_cards__called_like_parts_of_the_page__are_all_shown(browser: Browser, address: str) -> None:
    names = ["template", "s-title", "zeta"]
    with Watched.on(browser, address) as watched:
        telling(watched, [("document", document(upstreams=[card(name) for name in names]))])
        page = watched.open()
        expect(page.locator("[data-upstream] h3")).to_have_text(names)
        expect(page.get_by_role("article", name="template")).to_be_visible()


def test_page__markup_in_everything__shows_it_as_text(browser: Browser, address: str) -> None:
    happened = dict.fromkeys(("kind", "source", "text", "severity", "worker"), MARKUP)
    worker = {"name": MARKUP, "heard": 0.1, "probes": [MARKUP], "permits": {MARKUP: 2}, "leases": {MARKUP: 3}}
    told = document(
        upstreams=[card(MARKUP, phase="open", why=MARKUP, until=NOW + 9, probes=[MARKUP])],
        workers=[worker],
        events=[{"at": NOW, **happened}],
        story={"scenario": MARKUP, "step": 1, "of": 10**9, "title": MARKUP, "text": MARKUP, "look": MARKUP},
    )
    with Watched.on(browser, address) as watched:
        telling(watched, [("document", told)])
        page = watched.open()
        for where in ("#events", "#workers", "#story", "#upstreams", "#status-words"):
            expect(page.locator(where)).to_contain_text(MARKUP)
        assert page.locator("img[src=x]").count() == 0
        assert "gone" not in page.title().partition("<")[0]


def test_page__part_that_cannot_be_drawn__shows_the_others(browser: Browser, address: str) -> None:
    happened = dict.fromkeys(("kind", "source", "text", "severity", "worker"), "x")
    told = document(
        upstreams=[None], events=[{"at": NOW, **happened}], workers=[{"name": "h:1", "heard": 0.1}], jobs=[]
    )
    with Watched.on(browser, address) as watched:
        watched.expected.append("TypeError")
        telling(watched, [("document", told)])
        page = watched.open()
        expect(page.locator("#workers")).to_contain_text("h:1")
        expect(page.locator("#events")).to_contain_text("x")
        assert watched.said


def test_charts__service_sets_its_clock_back__are_told_anew(browser: Browser, address: str) -> None:
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
    with Watched.on(browser, address) as watched:
        opened = telling(watched, before, after)
        watched.open()
        chart = watched.card("pncp").locator("figure[data-f=calls] svg")
        expect(chart).to_have_attribute("aria-label", re.compile(r": 5 succeeded, 0 failed"))
        until(watched, lambda: len(opened) > 1)
        assert opened[1] - opened[0] < SILENCE_SECONDS
        expect(chart).to_have_attribute("aria-label", re.compile(r": 5 succeeded, 0 failed"))
        assert len(opened) == 2


def test_page__comes_to_a_worker_with_another_clock__stays_there(browser: Browser, address: str) -> None:
    other = NOW + 100
    streams = [
        [("history", {"at": at, "series": {}}), ("document", document(at, upstreams=[card("pncp")]))]
        for at in (NOW, other)
    ]
    with Watched.on(browser, address) as watched:
        streams[0].append(("end", {}))
        opened = telling(watched, *streams)
        watched.open()
        until(watched, lambda: len(opened) > 1)
        watched.page.wait_for_timeout(1500)
        assert len(opened) == 2


def test_band__slot_that_saw_several_states__shows_all_of_them(browser: Browser, address: str) -> None:
    series = {**slots(NOW - 20), "phase": [2], "phases": [[2, 1, 0]]}
    told = document(upstreams=[card("pncp")], recent={"pncp": series})
    with Watched.on(browser, address) as watched:
        telling(watched, [("document", told)])
        chart = watched.open().locator("[data-upstream=pncp] svg.calls")
        for phase in ("open", "half-open", "closed"):
            expect(chart.locator(f"path.band.{phase}")).to_have_attribute("d", re.compile("^M"))
        said = re.compile("Breaker open in 1 and half-open in 1 of 1 times 10 s")
        expect(chart).to_have_attribute("aria-label", said)
