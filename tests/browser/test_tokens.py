"""The dashboard with a configured token: without it nothing is shown."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect
from tests.browser.rig import DASHBOARD_TOKEN, Fleet, start_fleet
from tests.browser.watched_page import WatchedPage
from tests.service.harness import CLIENT

DATA = ("/v1/dashboard", "/v1/dashboard/history", "/v1/dashboard/stream", "/dashboard/app.js")


@pytest.fixture(scope="module")
def locked_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    token = {"COMPORTA_SERVICE_DASHBOARD_TOKEN": DASHBOARD_TOKEN}
    with start_fleet(1, tmp_path_factory.mktemp("locked"), **token) as started:
        yield started


def test_data__without_the_token__is_refused(locked_fleet: Fleet) -> None:
    for path in DATA:
        assert CLIENT.get(f"{locked_fleet.address}{path}").status_code == 401
        wrong = {"authorization": "Bearer not-the-token-at-all"}
        assert CLIENT.get(f"{locked_fleet.address}{path}", headers=wrong).status_code == 401


def test_page__without_the_token__asks_for_it_and_shows_nothing(
    browser: Browser, locked_fleet: Fleet
) -> None:
    with WatchedPage.on(browser, locked_fleet.address) as watched:
        watched.expected.append("401")
        page = watched.page
        page.goto(locked_fleet.address)
        expect(page.get_by_label("Dashboard token")).to_be_focused()
        expect(page.locator("#upstreams")).to_have_count(0)

        page.get_by_label("Dashboard token").fill("not-the-token-at-all")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_have_text("Wrong token. Try again.")
        assert watched.sideways_overflow() <= 0

        page.get_by_label("Dashboard token").fill(DASHBOARD_TOKEN)
        page.get_by_role("button", name="Sign in").click()
        watched.wait_live()
        watched.wait_phase("pncp", "closed")
        assert DASHBOARD_TOKEN not in page.evaluate("document.cookie + JSON.stringify({...localStorage})")

        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_label("Dashboard token")).to_be_visible()


def test_page__session_no_longer_valid__redirects_to_sign_in(browser: Browser, locked_fleet: Fleet) -> None:
    with WatchedPage.on(browser, locked_fleet.address) as watched:
        watched.expected += ["401", "ERR_"]
        page = watched.page
        page.goto(locked_fleet.address)
        page.get_by_label("Dashboard token").fill(DASHBOARD_TOKEN)
        page.keyboard.press("Enter")
        watched.wait_live()
        page.context.clear_cookies()
        locked_fleet.workers[0].end()
        locked_fleet.workers[0].start()
        locked_fleet.workers[0].wait_ready()
        expect(page.get_by_label("Dashboard token")).to_be_visible()
