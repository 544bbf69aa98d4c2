"""Installs a Debian package that the tests need, where the run is allowed to."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

INSTALL_SECONDS_MAX = 600


def install_package(name: str) -> bool:
    """Install a Debian package; false where that is not possible: another system, or no permission."""
    if os.geteuid() != 0 or not Path("/etc/debian_version").exists() or not shutil.which("apt-get"):
        return False
    with Path(tempfile.gettempdir(), "comporta-tests-apt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test processes may need the package
        if run_installer("apt-get", "install", "-y", name):
            return True
        run_installer("apt-get", "update")
        return run_installer("apt-get", "install", "-y", name)


def run_installer(*command: str) -> bool:
    """Run an installer; false if it fails or takes too long."""
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        ended = subprocess.run(
            command, env=environ, capture_output=True, check=False, timeout=INSTALL_SECONDS_MAX
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return ended.returncode == 0
