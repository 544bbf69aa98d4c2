"""A page left open under load: neither the browser nor the service grows.

``COMPORTA_SOAK_SECONDS`` shortens it. What is measured is what is left after a forced collection.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

from playwright.sync_api import Browser, CDPSession
from tests.browser.rig import Fleet
from tests.browser.watched import Watched

SECONDS = float(os.environ.get("COMPORTA_SOAK_SECONDS", "600"))
LOOKS = 8
QUESTIONS = 200
"""So few that the service soon has kept them all: how much it keeps is not what is looked at here."""

SETTLED = 2
"""So many looks belong to the beginning: caches fill, and code is compiled."""

HEAP_MARGIN_MB = 3.0
NODES_MARGIN = 400
LISTENERS_MARGIN = 50
SERVER_MARGIN_MB = 30.0
"""How much more the last looks may show than the first settled ones: events and keys come and go."""


class Look(NamedTuple):
    """What is in use at a moment."""

    seconds: float
    heap_mb: float
    nodes: int
    listeners: int
    server_mb: float

    def __str__(self) -> str:
        return (
            f"{self.seconds:5.0f} s: {self.heap_mb:5.2f} MB of JavaScript, {self.nodes} nodes, "
            f"{self.listeners} listeners, {self.server_mb:.1f} MB the worker"
        )


def test_page__open_under_load__does_not_grow(browser: Browser, fleet: Fleet) -> None:
    with Watched.on(browser, fleet.address) as watched:
        page = watched.open()
        cdp = page.context.new_cdp_session(page)
        cdp.send("Performance.enable")
        began = time.monotonic()
        looks = []
        with fleet.searched(QUESTIONS):
            for number in range(1, LOOKS + 1):
                mode = "Kill" if number % 2 else "Mend"
                watched.break_or_mend("pncp", mode)  # cards, clocks and events move as well
                page.wait_for_timeout(max(0.0, began + SECONDS * number / LOOKS - time.monotonic()) * 1000)
                looks.append(_look(cdp, fleet, time.monotonic() - began))
                print(looks[-1])  # noqa: T201
        watched.live()
    _check(looks[SETTLED:])


def _look(cdp: CDPSession, fleet: Fleet, seconds: float) -> Look:
    for _ in range(3):
        cdp.send("HeapProfiler.collectGarbage")
    found = {one["name"]: one["value"] for one in cdp.send("Performance.getMetrics")["metrics"]}
    heap_mb = found["JSHeapUsedSize"] / 1e6
    nodes, listeners = int(found["Nodes"]), int(found["JSEventListeners"])
    return Look(seconds, heap_mb, nodes, listeners, _resident_mb(fleet.workers[0].pid))


def _resident_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:"))


def _check(looks: list[Look]) -> None:
    """Compare the best of the later half with the best of the earlier: noise is not growth."""
    half = len(looks) // 2
    earlier, later = looks[:half], looks[half:]
    margins = {
        "heap_mb": HEAP_MARGIN_MB,
        "nodes": NODES_MARGIN,
        "listeners": LISTENERS_MARGIN,
        "server_mb": SERVER_MARGIN_MB,
    }
    for name, margin in margins.items():
        grown = min(getattr(one, name) for one in later) - min(getattr(one, name) for one in earlier)
        assert grown <= margin, f"{name} grew by {grown:.1f}: {[str(one) for one in looks]}"
