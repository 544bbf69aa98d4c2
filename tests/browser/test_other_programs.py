"""The page shows and operates upstreams that other programs publish to the store of the service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from tests.browser.rig import Fleet, start_fleet
from tests.browser.watched_page import WatchedPage
from tests.service.harness import TOKEN

from comporta.errors import CircuitOpenError
from comporta.fleet import FleetCounters, FleetPublisher
from comporta.stores.registry import close_stores
from comporta.upstream.upstream import Upstream


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with start_fleet(1, Path(tmp_path_factory.mktemp("fleet"))) as started:
        yield started


@pytest.fixture
def billing(fleet: Fleet) -> Iterator[Upstream]:
    """Return an upstream of this process, which is another program than the service."""
    upstream = Upstream("billing", "5/s burst 3", state=f"{fleet.state}?lock_timeout=10", retry=False)
    publisher = FleetPublisher(upstream.store, {"billing": upstream}, FleetCounters())
    publisher.start()
    yield upstream
    publisher.close()
    close_stores()


def test_actions__upstream_of_another_program__bind_that_program(
    browser: Browser, fleet: Fleet, billing: Upstream
) -> None:
    with WatchedPage.on(browser, fleet.address) as watched:
        page = watched.open()
        watched.operate(TOKEN)
        toast = page.locator("#toast")
        expect(toast).to_have_text("You are operating now: every upstream has buttons.")
        card = watched.card("billing")
        card.get_by_role("button", name="Hold open").click()
        page.get_by_label("Reason").fill("an invoice run")
        page.get_by_role("button", name="Hold it open").click()
        expect(toast).to_have_text("The breaker of billing is held open for the whole fleet.")
        watched.wait_phase("billing", "open", "Held open")
        with pytest.raises(CircuitOpenError):
            billing.sync.call(lambda: None)
        expect(card.locator("[data-f=reason]")).to_have_text("An invoice run.")
        expect(page.locator("#status-words")).to_have_text("billing is held open by an operator")

        card.get_by_role("button", name="Reset breaker").click()
        page.keyboard.press("Enter")
        watched.wait_phase("billing", "closed")
        billing.sync.call(lambda: None)

        card.get_by_role("button", name="Change limit").click()
        page.get_by_label("Limit", exact=True).fill("8/s")
        page.keyboard.press("Enter")
        expect(toast).to_have_text("The limit of billing: 5/s burst 3 → 8/s burst 3.")
        assert billing.sync.get_state().limit_text == "8/s burst 3"
        card.get_by_role("button", name="Revoke limit").click()
        page.keyboard.press("Enter")
        expect(toast).to_have_text("The limit of billing: 8/s burst 3 → 5/s burst 3, as configured.")
        assert fleet.count_actions("revoke limit") == 1
