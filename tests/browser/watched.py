"""A page as people have it, and an eye on what it does behind their backs.

When the block ends it must have asked nobody but its own service, broken no policy, and said nothing in the
console, but for what a test told before (``expected``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect

PATIENCE_MS = 60_000
DESKTOP = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}


class Watched:
    """One page."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.address = address
        self.expected: list[str] = []
        self.asked: set[str] = set()
        self.said: list[str] = []
        page.set_default_timeout(PATIENCE_MS)
        page.set_default_navigation_timeout(PATIENCE_MS)
        page.on("request", self._request)
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.said.append(str(error)))

    @classmethod
    @contextmanager
    def on(cls, browser: Browser, address: str, **context: Any) -> Iterator[Watched]:
        """Open a page in a browser profile of its own."""
        expect.set_options(timeout=PATIENCE_MS)
        profile = browser.new_context(**{"viewport": DESKTOP, "reduced_motion": "reduce", **context})
        found = cls(profile.new_page(), address)
        try:
            yield found
            found.check()
        finally:
            profile.close()

    def open(self) -> Page:
        """Go there, and wait until it shows something."""
        self.page.goto(self.address)
        self.live()
        return self.page

    def live(self) -> None:
        """Wait until it is connected."""
        expect(self.page.locator("#live")).to_have_attribute("data-live", "live")

    def phase(self, upstream: str, phase: str) -> None:
        """Wait until a card is in a phase; its word says the same as its colour."""
        card = self.card(upstream)
        expect(card).to_have_attribute("data-phase", phase)
        expect(card.locator("[data-f=phase]")).to_have_text(phase.capitalize())

    def card(self, upstream: str) -> Any:
        """Return the card of an upstream."""
        return self.page.locator(f"[data-upstream={upstream}]")

    def break_or_mend(self, upstream: str, verb: str) -> None:
        """Press a button of the demonstration, and wait until it is taken."""
        button = self.page.get_by_role("group", name=f"What {upstream} does").get_by_role("button", name=verb)
        button.click()
        expect(button).to_have_attribute("aria-pressed", "true")

    def operate(self, token: str) -> None:
        """Give the page an admin token."""
        self.page.get_by_role("button", name="Operate").click()
        self.page.get_by_label("Admin token").fill(token)
        self.page.get_by_role("dialog").get_by_role("button", name="Operate").click()

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than the window."""
        found: int = self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        return found

    def check(self) -> None:
        """See that nothing happened that must not."""
        assert self.asked <= {urlsplit(self.address).netloc}
        unexpected = [line for line in self.said if not any(re.search(one, line) for one in self.expected)]
        assert unexpected == []

    def _request(self, request: Request) -> None:
        if not request.url.startswith("data:"):
            self.asked.add(urlsplit(request.url).netloc)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.said.append(f"{message.text} {message.location.get('url', '')}")
