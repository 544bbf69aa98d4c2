"""Finds a Chromium for the tests, or fails with one sentence that says what to do.

It takes the one that ``COMPORTA_CHROMIUM`` names, the system's, Debian's package (installed if possible), or
the one that Playwright downloads.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Playwright
from tests.debian import install_package, run_installer

VARIABLE = "COMPORTA_CHROMIUM"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
LAUNCH_MS = 60_000
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-precise-memory-info",
)
NONE = (
    f"no Chromium: set {VARIABLE} to one, install the package chromium, "
    "or run `python -m playwright install chromium` where there is a network"
)


def launch(playwright: Playwright) -> Browser:
    """Launch a browser; a missing one fails the tests and never skips them."""
    path = find_executable(playwright)
    if path is None:
        pytest.fail(NONE)
    return playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS), timeout=LAUNCH_MS)


def find_executable(playwright: Playwright) -> str | None:
    """Return the path of a Chromium, installing one if necessary."""
    return _from_environment() or _on_path() or _from_debian() or _playwright_path(playwright)


def _from_environment() -> str | None:
    path = os.environ.get(VARIABLE)
    if path and not Path(path).is_file():
        pytest.fail(f"{VARIABLE} must be the path of a Chromium, got {path!r}")
    return path


def _on_path() -> str | None:
    return next((path for path in map(shutil.which, NAMES) if path), None)


def _from_debian() -> str | None:
    return _on_path() if install_package("chromium") else None


def _playwright_path(playwright: Playwright) -> str | None:
    path = Path(playwright.chromium.executable_path)
    if not path.exists():
        run_installer(sys.executable, "-m", "playwright", "install", "chromium")
    return str(path) if path.exists() else None
