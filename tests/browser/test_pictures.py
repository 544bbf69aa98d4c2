"""The pictures in the docs, taken from the demo during its outage.

``COMPORTA_PICTURES=1`` takes new ones. That needs more than 5 minutes, because the charts must fill first.
"""

from __future__ import annotations

import os
import pty
import re
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect
from tests.browser.watched_page import WatchedPage
from tests.service.harness import OUR_VARIABLES, ROOT, wait_until

PICTURES = ROOT / "docs" / "pictures"
BYTES_MAX = 300_000
CHARTS_SECONDS = 285
STORY_MS = 900_000
END_SECONDS = 30
ADDRESS = re.compile(rb"(http://127[\d.:]+)/")
SECONDS_LEFT = re.compile(r"^[4-7]$")
SCROLL_TO_CARD = """() => {
  const card = document.querySelector('[data-upstream=pncp]');
  window.scrollTo(0, card.getBoundingClientRect().top + window.scrollY - 12);
}"""
KINDS: dict[str, dict[str, Any]] = {
    "dashboard-light": {"color_scheme": "light", "viewport": {"width": 1280, "height": 1180}},
    "dashboard-dark": {"color_scheme": "dark", "viewport": {"width": 1280, "height": 1180}},
    "dashboard-phone": {"color_scheme": "light", "viewport": {"width": 390, "height": 1400}},
}


@pytest.mark.parametrize("name", KINDS)
def test_picture__in_the_docs__has_the_window_width_and_is_small(name: str) -> None:
    picture = (PICTURES / f"{name}.png").read_bytes()
    assert len(picture) < BYTES_MAX
    assert struct.unpack(">I", picture[16:20])[0] == KINDS[name]["viewport"]["width"]


@pytest.mark.timeout(2 * STORY_MS / 1000)
@pytest.mark.skipif(
    not os.environ.get("COMPORTA_PICTURES"), reason="set COMPORTA_PICTURES=1 to take new pictures"
)
def test_demo__during_its_outage__produces_the_pictures(browser: Browser) -> None:
    with _demo() as address, ExitStack() as stack:
        pages = {
            name: stack.enter_context(WatchedPage.on(browser, address, **kind))
            for name, kind in KINDS.items()
        }
        for watched in pages.values():
            watched.expected.append("ERR_")  # the demo kills a worker
            watched.open()
        watched = pages["dashboard-light"]
        watched.page.wait_for_timeout(CHARTS_SECONDS * 1000)
        watched.card("pncp").locator("[data-f=reason]").wait_for()
        expect(watched.page.locator("#story-scenario")).to_have_text("outage", timeout=STORY_MS)
        expect(watched.card("pncp")).to_have_attribute("data-phase", "open", timeout=STORY_MS)
        left = watched.card("pncp").locator("[data-f=left]")
        expect(left).to_have_text(SECONDS_LEFT, timeout=STORY_MS)
        pages["dashboard-phone"].page.evaluate(SCROLL_TO_CARD)
        for name, shown in pages.items():
            shown.page.screenshot(path=PICTURES / f"{name}.png")


@contextmanager
def _demo() -> Iterator[str]:
    """Run the demo as at a terminal, where it pauses between steps; yield the address of its page."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(OUR_VARIABLES)}
    parent, child = pty.openpty()
    command = [sys.executable, "-m", "comporta.cli", "demo", "--port", "0"]
    process = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=child, stderr=child)
    os.close(child)
    output = bytearray()
    reader = threading.Thread(target=_read, args=(parent, output), daemon=True)
    reader.start()
    try:
        wait_until(lambda: ADDRESS.search(output) is not None)
        match = ADDRESS.search(output)
        assert match is not None
        yield match[1].decode()
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(END_SECONDS)
        reader.join(END_SECONDS)
        os.close(parent)


def _read(descriptor: int, output: bytearray) -> None:
    with suppress(OSError):  # the other end is closed
        while read := os.read(descriptor, 4096):
            output += read


def test_pictures__directory__contains_no_others() -> None:
    assert {path.name for path in Path(PICTURES).glob("dashboard-*.png")} == {f"{name}.png" for name in KINDS}
