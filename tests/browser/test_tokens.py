"""With a token configured, nobody sees anything without it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect
from tests.browser.rig import DASHBOARD_TOKEN, Fleet, fleet_of
from tests.browser.watched import Watched
from tests.service.running import CLIENT

DATA = ("/v1/dashboard", "/v1/dashboard/history", "/v1/dashboard/stream", "/dashboard/app.js")


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    token = {"COMPORTA_SERVICE_DASHBOARD_TOKEN": DASHBOARD_TOKEN}
    with fleet_of(1, tmp_path_factory.mktemp("locked"), **token) as started:
        yield started


def test_data__without_the_token__is_not_to_be_had(locked: Fleet) -> None:
    for path in DATA:
        assert CLIENT.get(f"{locked.address}{path}").status_code == 401
        wrong = {"authorization": "Bearer not-the-token-at-all"}
        assert CLIENT.get(f"{locked.address}{path}", headers=wrong).status_code == 401


def test_page__without_the_token__asks_for_it_and_shows_nothing(browser: Browser, locked: Fleet) -> None:
    with Watched.on(browser, locked.address) as watched:
        watched.expected.append("401")
        page = watched.page
        page.goto(locked.address)
        expect(page.get_by_label("Dashboard token")).to_be_focused()
        expect(page.locator("#upstreams")).to_have_count(0)

        page.get_by_label("Dashboard token").fill("not-the-token-at-all")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_have_text("That is not the token.")
        assert watched.overflow() <= 0

        page.get_by_label("Dashboard token").fill(DASHBOARD_TOKEN)
        page.get_by_role("button", name="Sign in").click()
        watched.live()
        watched.phase("pncp", "closed")
        assert DASHBOARD_TOKEN not in page.evaluate("document.cookie + JSON.stringify({...localStorage})")

        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_label("Dashboard token")).to_be_visible()


def test_page__no_longer_let_in__leads_to_the_sign_in(browser: Browser, locked: Fleet) -> None:
    with Watched.on(browser, locked.address) as watched:
        watched.expected += ["401", "ERR_"]
        page = watched.page
        page.goto(locked.address)
        page.get_by_label("Dashboard token").fill(DASHBOARD_TOKEN)
        page.keyboard.press("Enter")
        watched.live()
        page.context.clear_cookies()
        locked.workers[0].end()
        locked.workers[0].start()
        locked.workers[0].ready()
        expect(page.get_by_label("Dashboard token")).to_be_visible()
