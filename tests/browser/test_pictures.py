"""The pictures of the documents: made from the demo as it runs, during its outage, and small enough to keep.

``COMPORTA_PICTURES=1`` makes them anew, which takes as long as the charts go back: five minutes and more.
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
from tests.browser.watched import Watched
from tests.service.running import OURS, ROOT, wait_for

PICTURES = ROOT / "docs" / "pictures"
BYTES_MAX = 300_000
CHARTS_SECONDS = 285
STORY_MS = 900_000
END_SECONDS = 30
ADDRESS = re.compile(rb"(http://127[\d.:]+)/")
WITH_SOME_WAY_TO_GO = re.compile(r"^[4-7]$")
TO_THE_CARD = """() => {
  const card = document.querySelector('[data-upstream=pncp]');
  window.scrollTo(0, card.getBoundingClientRect().top + window.scrollY - 12);
}"""
KINDS: dict[str, dict[str, Any]] = {
    "dashboard-light": {"color_scheme": "light", "viewport": {"width": 1280, "height": 1180}},
    "dashboard-dark": {"color_scheme": "dark", "viewport": {"width": 1280, "height": 1180}},
    "dashboard-phone": {"color_scheme": "light", "viewport": {"width": 390, "height": 1400}},
}


@pytest.mark.parametrize("name", KINDS)
def test_picture__kept_in_the_documents__is_as_wide_as_its_window_and_small(name: str) -> None:
    picture = (PICTURES / f"{name}.png").read_bytes()
    assert len(picture) < BYTES_MAX
    assert struct.unpack(">I", picture[16:20])[0] == KINDS[name]["viewport"]["width"]


@pytest.mark.skipif(not os.environ.get("COMPORTA_PICTURES"), reason="made anew with COMPORTA_PICTURES=1")
def test_demo__during_its_outage__gives_the_pictures(browser: Browser) -> None:
    with _demo() as address, ExitStack() as stack:
        pages = {
            name: stack.enter_context(Watched.on(browser, address, **kind)) for name, kind in KINDS.items()
        }
        for watched in pages.values():
            watched.expected.append("ERR_")  # the demo kills a worker
            watched.open()
        watched = pages["dashboard-light"]
        watched.page.wait_for_timeout(CHARTS_SECONDS * 1000)
        watched.card("pncp").locator("[data-f=why]").wait_for()
        expect(watched.page.locator("#story-scenario")).to_have_text("outage", timeout=STORY_MS)
        expect(watched.card("pncp")).to_have_attribute("data-phase", "open", timeout=STORY_MS)
        left = watched.card("pncp").locator("[data-f=left]")
        expect(left).to_have_text(WITH_SOME_WAY_TO_GO, timeout=STORY_MS)
        pages["dashboard-phone"].page.evaluate(TO_THE_CARD)
        for name, one in pages.items():
            one.page.screenshot(path=PICTURES / f"{name}.png")


@contextmanager
def _demo() -> Iterator[str]:
    """Run the demo as at a terminal, where it takes its time; gives the address of its page."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "comporta.cli", "demo", "--port", "0"]
    process = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=theirs, stderr=theirs)
    os.close(theirs)
    said = bytearray()
    reader = threading.Thread(target=_read, args=(ours, said), daemon=True)
    reader.start()
    try:
        wait_for(lambda: ADDRESS.search(said) is not None)
        found = ADDRESS.search(said)
        assert found is not None
        yield found[1].decode()
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(END_SECONDS)
        reader.join(END_SECONDS)
        os.close(ours)


def _read(descriptor: int, said: bytearray) -> None:
    with suppress(OSError):  # the other end is closed
        while read := os.read(descriptor, 4096):
            said += read


def test_pictures__folder__holds_no_others() -> None:
    assert {path.name for path in Path(PICTURES).glob("dashboard-*.png")} == {f"{name}.png" for name in KINDS}
