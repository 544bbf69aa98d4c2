"""A page whose stream the test writes: documents of any fleet, whenever the test sends them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, Page
from tests.browser.watched_page import WatchedPage

FAKE_STREAM = """
window.EventSource = class extends EventTarget {
  static CLOSED = 2;
  constructor() {
    super();
    window.emit = (kind, data) => this.dispatchEvent(new MessageEvent(kind, { data }));
  }
  close() {}
};
"""
EMIT = """async ([kind, data]) => {
  emit(kind, data);
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
}"""


class LivePage:
    """A page without a service behind its stream."""

    def __init__(self, watched: WatchedPage) -> None:
        self.watched = watched
        self.page: Page = watched.page

    @classmethod
    @contextmanager
    def on(cls, browser: Browser, address: str, path: str = "", **context: Any) -> Iterator[LivePage]:
        """Open the page; it shows nothing until :meth:`send`."""
        with WatchedPage.on(browser, address, **context) as watched:
            watched.page.add_init_script(FAKE_STREAM)
            watched.page.goto(f"{address}/{path}")
            yield cls(watched)

    def send(self, kind: str, data: Any) -> None:
        """Send an event and wait until it is drawn."""
        self.page.wait_for_function("window.emit")
        self.page.evaluate(EMIT, [kind, json.dumps(data)])

    def announced(self) -> str:
        """Return what was last announced to screen readers."""
        return self.page.locator("#announcer").text_content() or ""
