"""An operator changes one of several limits of an upstream on the page, and revokes that."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Browser, expect
from tests.browser.watched_page import WatchedPage
from tests.service.harness import TOKEN, serve_on_thread, service_config

from comporta.service.app import create_app

LIMITS = {"COMPORTA_UPSTREAM_PCP_LIMIT": "5/s; 1000/minute"}


def test_limit__one_of_several__is_chosen_changed_and_revoked(browser: Browser, tmp_path: Path) -> None:
    app = create_app(service_config(tmp_path, admin_token=TOKEN, **LIMITS))
    with serve_on_thread(app) as (address, _), WatchedPage.on(browser, address) as watched:
        page, card = watched.open(), watched.card("pcp")
        watched.operate(TOKEN)
        card.get_by_role("button", name="Change limit").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("The limits are pcp 5/s; pcp.2 1000/minute.")
        expect(page.get_by_label("Limit", exact=True)).to_be_focused()
        page.get_by_label("Which limit").select_option("pcp.2")
        expect(page.get_by_label("Limit", exact=True)).to_have_value("1000/minute")
        page.get_by_label("Limit", exact=True).fill("700/minute")
        page.get_by_label("Which limit").press("Enter")
        expect(page.locator("#toast")).to_have_text("The limit of pcp: 1000/minute → 700/minute.")
        expect(card).to_have_attribute("data-tone", "warn")
        reason = "an operator changed the limit pcp.2 of pcp to 700/minute"
        expect(page.locator("#status-words")).to_have_text(reason)

        card.get_by_role("button", name="Revoke limit").click()
        expect(dialog).to_contain_text("applies again to the whole fleet: pcp.2 700/minute → 1000/minute.")
        expect(page.locator("#ask-select option")).to_have_count(1)
        page.keyboard.press("Enter")
        expect(page.locator("#toast")).to_have_text(
            "The limit of pcp: 700/minute → 1000/minute, as configured."
        )
        expect(card).to_have_attribute("data-tone", "calm")
        event = page.locator("#events li").filter(has_text="change limit pcp.2 700/minute (by admin_token)")
        expect(event).to_have_count(1)
