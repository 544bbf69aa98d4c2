"""The page offers actions only for upstreams that this service can operate."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Browser, expect
from tests.browser import sample_documents as samples
from tests.browser.live_page import LivePage
from tests.service.harness import TOKEN, serve_on_thread, service_config

from comporta.service.app import create_app


def test_actions__upstream_of_another_program__are_replaced_by_a_note(
    browser: Browser, tmp_path: Path
) -> None:
    app = create_app(service_config(tmp_path, admin_token=TOKEN))
    upstreams = [samples.upstream("pcp"), samples.upstream("billing", operable=False)]
    with serve_on_thread(app) as (address, _), LivePage.on(browser, address) as live:
        live.send("document", samples.document(upstreams=upstreams))
        note = live.watched.card("billing").locator("[data-f=not-operable]")
        expect(note).to_be_hidden()
        live.watched.operate(TOKEN)
        expect(live.page.locator("#toast")).to_have_text(
            "You are operating now: the upstreams of this service have buttons."
        )
        live.send("document", samples.document(samples.NOW + 1, upstreams=upstreams))
        expect(live.watched.card("pcp").get_by_role("button", name="Pause")).to_be_visible()
        expect(live.watched.card("pcp").locator("[data-f=not-operable]")).to_be_hidden()
        expect(live.watched.card("billing").get_by_role("group", name="Operate billing")).to_be_hidden()
        expect(note).to_have_text(
            "Another program publishes this upstream. To operate it, use comporta upstream with --state."
        )
