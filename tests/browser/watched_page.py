"""A page in a browser whose requests and console messages are recorded.

At the end of the block the page must have called no other host and must have logged no errors or policy
violations, except those that the test lists in ``expected``.
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


class WatchedPage:
    """One page of the dashboard."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.address = address
        self.expected: list[str] = []
        self.hosts: set[str] = set()
        self.messages: list[str] = []
        page.set_default_timeout(PATIENCE_MS)
        page.set_default_navigation_timeout(PATIENCE_MS)
        page.on("request", self._request)
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.messages.append(str(error)))

    @classmethod
    @contextmanager
    def on(cls, browser: Browser, address: str, **context: Any) -> Iterator[WatchedPage]:
        """Open a page in a new browser profile."""
        expect.set_options(timeout=PATIENCE_MS)
        profile = browser.new_context(**{"viewport": DESKTOP, "reduced_motion": "reduce", **context})
        watched = cls(profile.new_page(), address)
        try:
            yield watched
            watched.check()
        finally:
            profile.close()

    def open(self) -> Page:
        """Load the page and wait until it shows data."""
        self.page.goto(self.address)
        self.wait_live()
        return self.page

    def wait_live(self) -> None:
        """Wait until it is connected."""
        expect(self.page.locator("#live")).to_have_attribute("data-live", "live")

    def wait_phase(self, upstream: str, phase: str, text: str = "") -> None:
        """Wait until a card is in a phase, by attribute and by text."""
        card = self.card(upstream)
        expect(card).to_have_attribute("data-phase", phase)
        expect(card.locator("[data-f=phase]")).to_have_text(text or phase.capitalize())

    def card(self, upstream: str) -> Any:
        """Return the card of an upstream."""
        return self.page.locator(f"[data-upstream={upstream}]")

    def press_demo_button(self, upstream: str, verb: str) -> None:
        """Press a demo button and wait until it takes effect."""
        button = self.page.get_by_role("group", name=f"Mode of {upstream}").get_by_role("button", name=verb)
        button.click()
        expect(button).to_have_attribute("aria-pressed", "true")

    def operate(self, token: str) -> None:
        """Enter an admin token."""
        self.page.get_by_role("button", name="Operate").click()
        self.page.get_by_label("Admin token").fill(token)
        self.page.get_by_role("dialog").get_by_role("button", name="Operate").click()

    def sideways_overflow(self) -> int:
        """Return by how many pixels the page is wider than the window."""
        pixels: int = self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        return pixels

    def check(self) -> None:
        """Check the recorded hosts and messages."""
        assert self.hosts <= {urlsplit(self.address).netloc}
        unexpected = [
            line for line in self.messages if not any(re.search(pattern, line) for pattern in self.expected)
        ]
        assert unexpected == []

    def _request(self, request: Request) -> None:
        if not request.url.startswith("data:"):
            self.hosts.add(urlsplit(request.url).netloc)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.messages.append(f"{message.text} {message.location.get('url', '')}")
