"""A browser and a fleet for each module, and a page whose errors fail the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright
from tests.browser.chromium import launch
from tests.browser.rig import Fleet, start_fleet
from tests.browser.watched_page import WatchedPage


# One for each module, not for the session: while Playwright runs, its event loop occupies this thread, and
# other tests could not run one.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        launched = launch(playwright)
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with start_fleet(2, Path(tmp_path_factory.mktemp("fleet"))) as started:
        yield started


@pytest.fixture
def watched(browser: Browser, fleet: Fleet) -> Iterator[WatchedPage]:
    """Return a page of the first worker of a healthy fleet."""
    fleet.heal()
    with WatchedPage.on(browser, fleet.address) as page:
        yield page
