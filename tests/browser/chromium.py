"""Finds a Chromium for the tests by itself, or says in one sentence what to do.

``COMPORTA_CHROMIUM`` names one; else it is the system's; else Debian's package, where it may be installed;
else the one that Playwright downloads.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Playwright

VARIABLE = "COMPORTA_CHROMIUM"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
INSTALL_SECONDS = 600
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


def launched(playwright: Playwright) -> Browser:
    """Start one; none at all is a failure, never a skip."""
    path = found(playwright)
    if path is None:
        pytest.fail(NONE)
    return playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS), timeout=LAUNCH_MS)


def found(playwright: Playwright) -> str | None:
    """Return where one is, installed now if need be."""
    return _named() or _on_path() or _of_debian() or _downloaded(playwright)


def _named() -> str | None:
    path = os.environ.get(VARIABLE)
    if path and not Path(path).is_file():
        pytest.fail(f"{VARIABLE} must be the path of a Chromium, got {path!r}")
    return path


def _on_path() -> str | None:
    return next((path for path in map(shutil.which, NAMES) if path), None)


def _of_debian() -> str | None:
    if os.geteuid() != 0 or not Path("/etc/debian_version").exists() or not shutil.which("apt-get"):
        return None
    if not _ran("apt-get", "install", "-y", "chromium"):
        _ran("apt-get", "update")
        _ran("apt-get", "install", "-y", "chromium")
    return _on_path()


def _downloaded(playwright: Playwright) -> str | None:
    path = Path(playwright.chromium.executable_path)
    if not path.exists():
        _ran(sys.executable, "-m", "playwright", "install", "chromium")
    return str(path) if path.exists() else None


def _ran(*command: str) -> bool:
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(command, env=environ, capture_output=True, check=False, timeout=INSTALL_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
