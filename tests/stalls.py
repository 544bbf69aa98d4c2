"""Detect stalls of the machine with a process that only sleeps and measures how late it wakes up.

A test with a deadline fails if the machine does not run its server, its workers or the test itself for that
long. ``conftest.py`` runs a test that missed a deadline again if this process was delayed as well.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

_SLEEP_SECONDS = 0.005
_RECORDED_SECONDS = 0.02


class StallMonitor:
    """Watches the machine until closed."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "stalls"
        self._file.touch()
        command = [sys.executable, "-S", "-E", __file__, str(self._file), str(os.getpid())]
        self._process = subprocess.Popen(command)

    def longest_stall_since(self, moment_ns: int) -> float:
        """Return the length of the longest stall since a moment, in seconds."""
        records = (line.split() for line in self._file.read_text().splitlines())
        lengths = (float(seconds) for ended_ns, seconds in records if int(ended_ns) > moment_ns)
        return max(lengths, default=0.0)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def _watch(path: str, parent: int) -> None:
    """Record each late wake-up, as long as the parent process lives."""
    with Path(path).open("a", buffering=1) as records:
        last = time.monotonic_ns()
        while os.getppid() == parent:
            time.sleep(_SLEEP_SECONDS)
            now = time.monotonic_ns()
            stalled = (now - last) / 1e9 - _SLEEP_SECONDS
            if stalled > _RECORDED_SECONDS:
                records.write(f"{now} {stalled:.3f}\n")
            last = now


if __name__ == "__main__":
    _watch(sys.argv[1], int(sys.argv[2]))
