"""A browser for a module of tests, and a page that is watched: what must never happen fails any of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright
from tests.browser.chromium import launched
from tests.browser.rig import Fleet, fleet_of
from tests.browser.watched import Watched


# One for each module and not for all: while Playwright runs, its event loop is this thread's, and tests of
# other folders could not have one.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        found = launched(playwright)
        yield found
        found.close()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet_of(2, Path(tmp_path_factory.mktemp("fleet"))) as started:
        yield started


@pytest.fixture
def watched(browser: Browser, fleet: Fleet) -> Iterator[Watched]:
    """Give a page of the fleet's first worker, on which all is well."""
    fleet.heal()
    with Watched.on(browser, fleet.address) as page:
        yield page
