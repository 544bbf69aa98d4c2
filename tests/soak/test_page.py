"""A dashboard page that stays open under load leaks memory neither in the browser nor in the service.

``COMPORTA_SOAK_SECONDS`` shortens the test. Memory is measured after a forced garbage collection.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

from playwright.sync_api import Browser, CDPSession
from tests.browser.rig import Fleet
from tests.browser.watched_page import WatchedPage

SECONDS = float(os.environ.get("COMPORTA_SOAK_SECONDS", "600"))
SAMPLES = 8
QUERIES = 200
"""Few enough that the service soon caches all of them: the size of its cache is not tested here."""

WARM_UP_SAMPLES = 2
"""The first samples are left out: caches fill, and code is compiled."""

HEAP_MARGIN_MB = 3.0
NODES_MARGIN = 400
LISTENERS_MARGIN = 50
SERVER_MARGIN_MB = 30.0
"""How much later samples may exceed earlier ones: events and keys come and go."""


class MemorySample(NamedTuple):
    """The memory in use at one moment."""

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


def test_page__open_under_load__does_not_leak_memory(browser: Browser, fleet: Fleet) -> None:
    with WatchedPage.on(browser, fleet.address) as watched:
        page = watched.open()
        cdp = page.context.new_cdp_session(page)
        cdp.send("Performance.enable")
        began = time.monotonic()
        samples = []
        with fleet.searching(QUERIES):
            for number in range(1, SAMPLES + 1):
                mode = "Kill" if number % 2 else "Repair"
                watched.press_demo_button("pncp", mode)  # so that cards, clocks and events change as well
                page.wait_for_timeout(max(0.0, began + SECONDS * number / SAMPLES - time.monotonic()) * 1000)
                samples.append(_sample(cdp, fleet, time.monotonic() - began))
                print(samples[-1])  # noqa: T201
        watched.wait_live()
    _check(samples[WARM_UP_SAMPLES:])


def _sample(cdp: CDPSession, fleet: Fleet, seconds: float) -> MemorySample:
    for _ in range(3):
        cdp.send("HeapProfiler.collectGarbage")
    metrics = {one["name"]: one["value"] for one in cdp.send("Performance.getMetrics")["metrics"]}
    heap_mb = metrics["JSHeapUsedSize"] / 1e6
    nodes, listeners = int(metrics["Nodes"]), int(metrics["JSEventListeners"])
    return MemorySample(seconds, heap_mb, nodes, listeners, _resident_mb(fleet.workers[0].pid))


def _resident_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:"))


def _check(samples: list[MemorySample]) -> None:
    """Compare the minimum of the later half with that of the earlier, to ignore noise."""
    half = len(samples) // 2
    earlier, later = samples[:half], samples[half:]
    margins = {
        "heap_mb": HEAP_MARGIN_MB,
        "nodes": NODES_MARGIN,
        "listeners": LISTENERS_MARGIN,
        "server_mb": SERVER_MARGIN_MB,
    }
    for name, margin in margins.items():
        grown = min(getattr(one, name) for one in later) - min(getattr(one, name) for one in earlier)
        assert grown <= margin, f"{name} grew by {grown:.1f}: {[str(one) for one in samples]}"
