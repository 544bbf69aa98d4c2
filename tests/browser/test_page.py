"""The page, as people see it in a browser: during an outage, afterwards, by keyboard, on a phone."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from uuid import uuid4

import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from tests.browser.rig import Fleet
from tests.browser.watched import PHONE, Watched
from tests.service.running import TOKEN

ROOT = Path(__file__).resolve().parents[2]
TABS_MAX = 80
ANYTHING = re.compile("M.+")
LOST = (r"ERR_CONNECTION_REFUSED", r"ERR_INCOMPLETE_CHUNKED", r"ERR_CONNECTION_RESET", r"ERR_EMPTY_RESPONSE")


def test_card__portal_dies_and_comes_back__goes_closed_open_half_open_closed(
    watched: Watched, fleet: Fleet, browser: Browser
) -> None:
    page = watched.open()
    watched.phase("pncp", "closed")
    with fleet.searched():
        expect(watched.card("pncp").locator("path.part.ok")).to_have_attribute("d", ANYTHING)
        watched.break_or_mend("pncp", "Kill")
        watched.phase("pncp", "open")
    expect(watched.card("pncp").locator("[data-f=why]")).to_contain_text("failures in a row")
    expect(page.locator("#status-words")).to_contain_text("pncp")
    expect(page.locator("#events")).to_contain_text("open for")
    watched.phase("pncp", "half-open")  # nobody calls: it waits for the next who does
    assert page.evaluate(_script("contrast.js")) == []
    watched.break_or_mend("pncp", "Mend")
    with fleet.searched():
        watched.phase("pncp", "closed")
    watched.phase("pcp", "closed")

    page.reload()  # what was before is there at once, and any worker's page shows it
    watched.live()
    expect(watched.card("pncp").locator("path.part.failed")).to_have_attribute("d", ANYTHING)
    expect(watched.card("pncp").locator("path.part.away")).to_have_attribute("d", ANYTHING)
    with Watched.on(browser, fleet.workers[1].address) as other:
        other.open()
        expect(other.card("pncp").locator("path.part.failed")).to_have_attribute("d", ANYTHING)
        expect(other.page.locator("#events")).to_contain_text("open for")
        expect(other.page.locator("#workers tr")).to_have_count(2)


def test_breaker__reset_as_admin__is_closed_again_for_the_whole_fleet(watched: Watched, fleet: Fleet) -> None:
    page = watched.open()
    watched.operate(TOKEN)
    card = watched.card("pcp")
    card.get_by_role("button", name="Hold open").click()
    expect(page.get_by_role("dialog")).to_contain_text("No worker of the fleet calls pcp")
    page.get_by_label("Why").fill("we are testing")
    page.get_by_role("button", name="Hold it open").click()
    watched.phase("pcp", "open")
    expect(card.locator("[data-f=meaning]")).to_contain_text("Held open by hand")
    expect(card.locator("[data-f=why]")).to_have_text("We are testing.")

    card.get_by_role("button", name="Reset the breaker").click()
    page.get_by_role("button", name="Reset it").click()
    watched.phase("pcp", "closed")
    expect(page.locator("#toast")).to_have_text("The breaker of pcp begins anew.")
    page.get_by_role("button", name="Stop operating").click()
    expect(card.get_by_role("button", name="Reset the breaker")).to_be_hidden()


def test_limit__changed_to_nonsense__says_what_is_allowed_and_changes_nothing(watched: Watched) -> None:
    watched.expected.append("422")
    page = watched.open()
    watched.operate(TOKEN)
    watched.card("pcp").get_by_role("button", name="Change the limit").click()
    page.get_by_label("Limit", exact=True).fill("many")
    page.get_by_role("button", name="Change it").click()
    expect(page.get_by_role("alert")).to_contain_text("many")
    page.keyboard.press("Escape")
    expect(watched.card("pcp").locator("[data-f=limit]")).to_have_text("5/s")


def test_pause__asked_for_as_admin__is_counted_down_and_ended(watched: Watched) -> None:
    page = watched.open()
    watched.operate(TOKEN)
    card = watched.card("pcp")
    card.get_by_role("button", name="Pause").click()
    page.get_by_label("Seconds").fill("600")
    page.get_by_role("button", name="Pause it").click()
    expect(card.locator(".clock")).to_contain_text("of pause")
    card.get_by_role("button", name="Resume").click()
    page.get_by_role("button", name="Resume it").click()
    expect(card.locator(".clock")).to_be_hidden()


def test_key__in_trouble__is_fetched_when_asked_for_once(watched: Watched, fleet: Fleet) -> None:
    fleet.failing()
    page = watched.open()
    row = page.locator("#degraded li").filter(has_text="pcp failed once")
    expect(row).to_have_count(1)
    fetch, dialog = row.get_by_role("button", name="Fetch it now"), page.get_by_role("dialog")
    expect(fetch).to_be_hidden()
    watched.operate(TOKEN)
    before = fleet.done("refresh key")
    fetch.click()
    expect(dialog).to_contain_text("asks the source again at once")
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_be_hidden()
    assert fleet.done("refresh key") == before
    fetch.click()
    dialog.get_by_role("button", name="Fetch it").click()
    expect(page.locator("#toast")).to_contain_text("is being fetched")
    expect(row).to_have_count(0)
    assert fleet.done("refresh key") == before + 1


def test_backfill__failed__goes_on_when_asked_for_once(watched: Watched, fleet: Fleet) -> None:
    job_id = uuid4().hex
    blocking = fleet.unfilled(job_id, 5)
    page = watched.open()
    row = page.locator("#jobs li").filter(has_text=job_id[:8])
    expect(row).to_contain_text("Backfill of its sheet: failed")
    retry, dialog = row.get_by_role("button", name="Retry the backfill"), page.get_by_role("dialog")
    expect(retry).to_be_hidden()
    watched.operate(TOKEN)
    before = fleet.done("retry backfill")
    blocking.rmdir()
    retry.click()
    expect(dialog).to_contain_text("not written twice")
    dialog.get_by_role("button", name="Retry it").click()
    expect(page.locator("#toast")).to_contain_text(f"The backfill of {job_id[:8]} goes on.")
    expect(row).to_contain_text("Backfill of its sheet: completed, 5 rows written")
    expect(retry).to_be_hidden()
    expect(dialog).to_be_hidden()
    assert fleet.done("retry backfill") == before + 1
    assert job_id not in page.content()


def test_operating__wrong_token__is_refused_and_shows_no_buttons(watched: Watched) -> None:
    watched.expected.append("401")
    page = watched.open()
    watched.operate("a-token-that-is-not-the-one")
    expect(page.get_by_role("alert")).to_have_text("That is not the admin token of this service.")
    page.get_by_role("button", name="Cancel").click()
    expect(watched.card("pncp").get_by_role("button", name="Reset the breaker")).to_be_hidden()
    assert page.locator("#ask-input").input_value() == ""


def test_keyboard__alone__breaks_mends_switches_colours_and_operates(watched: Watched, fleet: Fleet) -> None:
    page = watched.open()
    kill = page.get_by_role("group", name="What pcp does").get_by_role("button", name="Kill")
    _tab_to(page, page.locator("#theme"))
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.keyboard.press("Enter")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    _tab_to(page, kill)
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Space")
    expect(kill).to_have_attribute("aria-pressed", "true")
    assert fleet.portals.pcp.mode == "dead"
    _tab_to(page, page.get_by_role("group", name="What pcp does").get_by_role("button", name="Mend"))
    page.keyboard.press("Enter")
    expect(kill).to_have_attribute("aria-pressed", "false")
    assert fleet.portals.pcp.mode == "ok"
    _tab_to(page, page.get_by_role("radio", name="5 min", exact=True))
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("radio", name="15 min")).to_be_checked()
    _tab_to(page, watched.card("pncp").locator("svg.calls"))
    page.keyboard.press("ArrowLeft")
    expect(watched.card("pncp").locator(".tip").first).to_be_visible()
    _tab_to(page, page.get_by_role("button", name="Operate"))
    page.keyboard.press("Enter")
    page.keyboard.type(TOKEN)
    page.keyboard.press("Enter")
    expect(watched.card("pncp").get_by_role("button", name="Reset the breaker")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_phone__everything_shown__needs_no_scrolling_sideways_and_can_be_read(
    browser: Browser, fleet: Fleet, scheme: str
) -> None:
    fleet.heal()
    with Watched.on(browser, fleet.address, viewport=PHONE, color_scheme=scheme) as watched:
        page = watched.open()
        watched.operate(TOKEN)
        expect(watched.card("pncp").get_by_role("button", name="Reset the breaker")).to_be_visible()
        watched.card("pcp").get_by_role("button", name="Hold open").click()
        page.get_by_role("button", name="Hold it open").click()
        watched.phase("pcp", "open")
        assert watched.overflow() <= 0
        assert page.evaluate(_script("contrast.js")) == []
        assert page.evaluate(_script("names.js")) == []


def test_worker__killed_and_started_again__page_says_so_and_is_live_again(
    watched: Watched, fleet: Fleet
) -> None:
    watched.expected += LOST
    page = watched.open()
    fleet.workers[0].end(signal.SIGKILL)
    expect(page.locator("#live-words")).to_contain_text("Reconnecting… last seen")
    expect(page.locator("body")).to_have_class("behind")
    fleet.workers[0].start()
    fleet.workers[0].ready()
    watched.live()
    expect(page.locator("body")).not_to_have_class("behind")
    watched.phase("pncp", "closed")


def _tab_to(page: Page, wanted: Locator) -> None:
    """Press Tab until something has the focus."""
    for _ in range(TABS_MAX):
        if wanted.evaluate("node => node === document.activeElement"):
            return
        page.keyboard.press("Tab")
    pytest.fail(f"{wanted} cannot be reached by Tab")


def _script(name: str) -> str:
    return (Path(__file__).parent / name).read_text()
