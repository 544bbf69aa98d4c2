"""The page in a browser: during and after an outage, with the keyboard, on a phone."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from uuid import uuid4

import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from tests.browser.rig import Fleet
from tests.browser.watched_page import PHONE, WatchedPage
from tests.service.harness import TOKEN

ROOT = Path(__file__).resolve().parents[2]
TABS_MAX = 80
ANYTHING = re.compile("M.+")
LOST = (r"ERR_CONNECTION_REFUSED", r"ERR_INCOMPLETE_CHUNKED", r"ERR_CONNECTION_RESET", r"ERR_EMPTY_RESPONSE")


def test_card__portal_dies_and_recovers__goes_closed_open_half_open_closed(
    watched: WatchedPage, fleet: Fleet, browser: Browser
) -> None:
    page = watched.open()
    watched.wait_phase("pncp", "closed")
    with fleet.searching():
        expect(watched.card("pncp").locator("path.part.ok")).to_have_attribute("d", ANYTHING)
        watched.press_demo_button("pncp", "Kill")
        watched.wait_phase("pncp", "open")
    expect(watched.card("pncp").locator("[data-f=reason]")).to_contain_text("failed attempts in a row")
    expect(page.locator("#status-words")).to_contain_text("pncp")
    expect(page.locator("#events")).to_contain_text("open for")
    watched.wait_phase("pncp", "half-open")  # no calls: it waits for the next one
    assert page.evaluate(_script("contrast.js")) == []
    watched.press_demo_button("pncp", "Repair")
    with fleet.searching():
        watched.wait_phase("pncp", "closed")
    watched.wait_phase("pcp", "closed")

    page.reload()  # the history is there immediately, at every worker
    watched.wait_live()
    expect(watched.card("pncp").locator("path.part.failed")).to_have_attribute("d", ANYTHING)
    expect(watched.card("pncp").locator("path.part.away")).to_have_attribute("d", ANYTHING)
    with WatchedPage.on(browser, fleet.workers[1].address) as other:
        other.open()
        expect(other.card("pncp").locator("path.part.failed")).to_have_attribute("d", ANYTHING)
        expect(other.page.locator("#events")).to_contain_text("open for")
        expect(other.page.locator("#workers tr")).to_have_count(2)


def test_breaker__reset_by_an_operator__is_closed_for_the_whole_fleet(
    watched: WatchedPage, fleet: Fleet
) -> None:
    page = watched.open()
    watched.operate(TOKEN)
    card = watched.card("pcp")
    card.get_by_role("button", name="Hold open").click()
    expect(page.get_by_role("dialog")).to_contain_text("No worker of the fleet calls pcp")
    page.get_by_label("Reason").fill("we are testing")
    page.get_by_role("button", name="Hold it open").click()
    watched.wait_phase("pcp", "open", "Held open")
    expect(card.locator("[data-f=meaning]")).to_contain_text("By an operator: no call passes")
    expect(card.locator("[data-f=reason]")).to_have_text("We are testing.")
    expect(card.get_by_role("button", name="Hold open")).to_be_hidden()

    card.get_by_role("button", name="Reset breaker").click()
    expect(page.locator("#toast")).to_have_text("")  # the notice of the action before is gone
    page.keyboard.press("Escape")
    expect(page.locator("#toast")).to_have_text("Nothing changed.")
    card.get_by_role("button", name="Reset breaker").click()
    page.keyboard.press("Enter")
    watched.wait_phase("pcp", "closed")
    expect(page.locator("#toast")).to_have_text("The breaker of pcp was reset.")
    page.get_by_role("button", name="Stop operating").click()
    expect(card.get_by_role("button", name="Reset breaker")).to_be_hidden()


def test_limit__invalid_value__says_what_is_allowed_and_changes_nothing(watched: WatchedPage) -> None:
    watched.expected.append("422")
    page = watched.open()
    watched.operate(TOKEN)
    watched.card("pcp").get_by_role("button", name="Change limit").click()
    page.get_by_label("Limit", exact=True).fill("many")
    page.get_by_role("button", name="Change it").click()
    expect(page.get_by_role("alert")).to_contain_text("many")
    page.keyboard.press("Escape")
    expect(watched.card("pcp").locator("[data-f=limit]")).to_have_text("5/s")


def test_limit__changed_and_revoked__says_before_and_after(watched: WatchedPage) -> None:
    page = watched.open()
    watched.operate(TOKEN)
    expect(page.locator("#operating")).to_have_text("Operating")
    card = watched.card("pcp")
    revoke = card.get_by_role("button", name="Revoke limit")
    expect(revoke).to_be_hidden()
    card.get_by_role("button", name="Change limit").click()
    expect(page.get_by_label("Limit", exact=True)).to_have_value("5/s")
    expect(page.get_by_role("dialog")).not_to_contain_text("burst that you leave out")  # it has none
    page.keyboard.type("6/s burst 2")  # the old limit is selected
    page.keyboard.press("Enter")
    expect(page.locator("#toast")).to_have_text("The limit of pcp: 5/s → 6/s burst 2.")
    expect(card).to_have_attribute("data-tone", "warn")
    expect(page.locator("#status-words")).to_have_text("an operator changed the limit of pcp to 6/s burst 2")
    card.get_by_role("button", name="Change limit").click()
    expect(page.get_by_role("dialog")).to_contain_text("It is 6/s burst 2 now (5/s is configured).")
    expect(page.get_by_role("dialog")).to_contain_text("A burst that you leave out stays as it is.")
    page.get_by_label("Limit", exact=True).fill("7/s")
    page.keyboard.press("Enter")
    expect(page.locator("#toast")).to_have_text("The limit of pcp: 6/s burst 2 → 7/s burst 2.")
    revoke.click()
    page.keyboard.press("Enter")
    expect(page.locator("#toast")).to_have_text("The limit of pcp: 7/s burst 2 → 5/s, as configured.")
    expect(revoke).to_be_hidden()
    expect(card).to_have_attribute("data-tone", "calm")


def test_pause__set_by_an_operator__counts_down_and_can_be_ended(watched: WatchedPage) -> None:
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


def test_degraded_key__fetch_button__fetches_it_after_one_confirmation(
    watched: WatchedPage, fleet: Fleet
) -> None:
    fleet.degrade_key()
    page = watched.open()
    row = page.locator("#degraded li").filter(has_text="pcp failed once")
    expect(row).to_have_count(1)
    fetch, dialog = row.get_by_role("button", name="Fetch now"), page.get_by_role("dialog")
    expect(fetch).to_be_hidden()
    watched.operate(TOKEN)
    before = fleet.count_actions("refresh key")
    fetch.click()
    expect(dialog).to_contain_text("calls the source immediately")
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_be_hidden()
    assert fleet.count_actions("refresh key") == before
    fetch.click()
    dialog.get_by_role("button", name="Fetch it").click()
    expect(page.locator("#toast")).to_contain_text("is being fetched")
    expect(row).to_have_count(0)
    assert fleet.count_actions("refresh key") == before + 1


def test_failed_backfill__retry_button__continues_after_one_confirmation(
    watched: WatchedPage, fleet: Fleet
) -> None:
    job_id = uuid4().hex
    blocking = fleet.add_failing_backfill(job_id, 5)
    page = watched.open()
    row = page.locator("#jobs li").filter(has_text=job_id[:8])
    expect(row).to_contain_text("Backfill of its sheet: failed")
    retry, dialog = row.get_by_role("button", name="Retry the backfill"), page.get_by_role("dialog")
    expect(retry).to_be_hidden()
    watched.operate(TOKEN)
    before = fleet.count_actions("retry backfill")
    blocking.rmdir()
    retry.click()
    expect(dialog).to_contain_text("not written twice")
    dialog.get_by_role("button", name="Retry it").click()
    expect(page.locator("#toast")).to_contain_text(f"The backfill of {job_id[:8]} continues.")
    expect(row).to_contain_text("Backfill of its sheet: completed, 5 rows written")
    expect(retry).to_be_hidden()
    expect(dialog).to_be_hidden()
    assert fleet.count_actions("retry backfill") == before + 1
    assert job_id not in page.content()


def test_operating__wrong_token__is_refused_and_shows_no_buttons(watched: WatchedPage) -> None:
    watched.expected.append("401")
    page = watched.open()
    watched.operate("a-token-that-is-not-the-one")
    expect(page.get_by_role("alert")).to_have_text("Wrong admin token.")
    page.get_by_role("button", name="Cancel").click()
    expect(watched.card("pncp").get_by_role("button", name="Reset breaker")).to_be_hidden()
    expect(page.locator("#ask-input")).to_have_value("")


def test_keyboard__only__can_use_demo_switches_theme_and_operations(
    watched: WatchedPage, fleet: Fleet
) -> None:
    page = watched.open()
    kill = page.get_by_role("group", name="Mode of pcp").get_by_role("button", name="Kill")
    _tab_to(page, page.locator("#theme"))
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.keyboard.press("Enter")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    _tab_to(page, kill)
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Space")
    expect(kill).to_have_attribute("aria-pressed", "true")
    assert fleet.portals.pcp.mode == "dead"
    _tab_to(page, page.get_by_role("group", name="Mode of pcp").get_by_role("button", name="Repair"))
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
    expect(watched.card("pncp").get_by_role("button", name="Reset breaker")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_phone__everything_shown__needs_no_sideways_scrolling_and_is_readable(
    browser: Browser, fleet: Fleet, scheme: str
) -> None:
    fleet.heal()
    with WatchedPage.on(browser, fleet.address, viewport=PHONE, color_scheme=scheme) as watched:
        page = watched.open()
        watched.operate(TOKEN)
        expect(page.locator("#toast")).to_be_visible()
        notice = page.locator("#toast").bounding_box()
        assert notice is not None
        assert notice["width"] > PHONE["width"] / 2  # it uses the width of the window before it wraps
        expect(watched.card("pncp").get_by_role("button", name="Reset breaker")).to_be_visible()
        watched.card("pcp").get_by_role("button", name="Hold open").click()
        page.get_by_role("button", name="Hold it open").click()
        watched.wait_phase("pcp", "open", "Held open")
        assert watched.sideways_overflow() <= 0
        assert page.evaluate(_script("contrast.js")) == []
        assert page.evaluate(_script("names.js")) == []


def test_worker__killed_and_restarted__page_says_so_and_is_live_again(
    watched: WatchedPage, fleet: Fleet
) -> None:
    watched.expected += LOST
    page = watched.open()
    fleet.workers[0].end(signal.SIGKILL)
    expect(page.locator("#live-words")).to_contain_text("Reconnecting… last update")
    expect(page.locator("body")).to_have_class("behind")
    fleet.workers[0].start()
    fleet.workers[0].wait_ready()
    watched.wait_live()
    expect(page.locator("body")).not_to_have_class("behind")
    watched.wait_phase("pncp", "closed")


def _tab_to(page: Page, wanted: Locator) -> None:
    """Press Tab until an element has the focus."""
    for _ in range(TABS_MAX):
        if wanted.evaluate("node => node === document.activeElement"):
            return
        page.keyboard.press("Tab")
    pytest.fail(f"{wanted} cannot be reached by Tab")


def _script(name: str) -> str:
    return (Path(__file__).parent / name).read_text()
