"""A limit and a breaker in shadow mode refuse nothing; the page shows what they would have refused."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Browser, expect
from tests.browser.watched_page import WatchedPage
from tests.service.harness import CLIENT, serve_on_thread, service_config

from comporta.service.app import create_app
from comporta.testing import ProcurementServer

SETTINGS = """
[service]
allow_private_addresses = true
client_limit = false

[service.addresses]
pncp = "{portals.pncp.url}"
pcp = "{portals.pcp.url}"

[upstreams.pncp.limit]
limit = "1/hour"
shadow = true

[upstreams.pcp]
retry = false

[upstreams.pcp.breaker]
threshold = 1
cooldown_seconds = 3600
shadow = true
"""
ABOVE_ZERO = re.compile("[1-9]")


def test_card__limit_and_breaker_in_shadow_mode__shows_what_they_would_have_refused(
    browser: Browser, tmp_path: Path
) -> None:
    with ProcurementServer(seed=7) as portals:
        portals.pcp.set(mode="dead")
        file = tmp_path / "comporta.toml"
        file.write_text(SETTINGS.format(portals=portals))
        app = create_app(service_config(tmp_path, COMPORTA_CONFIG=str(file)))
        with serve_on_thread(app) as (address, _), WatchedPage.on(browser, address) as watched:
            watched.open()
            for day in ("2026-01-05", "2026-01-06", "2026-01-07"):
                query = {"date_from": day, "date_to": day, "ufs": "SP"}
                assert CLIENT.get(f"{address}/v1/search", params=query).status_code == 200

            limit, breaker = watched.card("pncp"), watched.card("pcp")
            expect(limit.locator("[data-f=shadow]")).to_have_text("Shadow mode: limit")
            expect(limit).to_have_attribute("data-phase", "closed")
            expect(limit.locator("dt", has_text="Would refuse").locator("+ dd")).to_have_text(ABOVE_ZERO)
            expect(breaker.locator("[data-f=shadow]")).to_have_text("Shadow mode: breaker")
            watched.wait_phase("pcp", "open")
            expect(breaker.locator("[data-f=meaning]")).to_have_text(
                "Calls pass all the same: the breaker is in shadow mode."
            )
            expect(breaker.locator("[data-f=left]")).to_be_hidden()  # calls wait for no next attempt
            expect(watched.page.locator("#status-words")).to_have_text(
                "pcp is open in shadow mode: calls pass"
            )
            expect(breaker.locator("dt", has_text="Would refuse").locator("+ dd")).to_have_text(ABOVE_ZERO)
