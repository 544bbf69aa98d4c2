"""When the machine stood still: told by a process that does nothing but sleep.

A test in which deadlines are in force fails where its server, its workers or itself are not run for as long.
What went wrong while this process was kept waiting, too, is tried anew (``conftest.py``).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

_SLEEP_SECONDS = 0.005
_NOTED_SECONDS = 0.02


class Stalls:
    """Watches the machine until it is closed."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "stalls"
        self._file.touch()
        command = [sys.executable, "-S", "-E", __file__, str(self._file), str(os.getpid())]
        self._process = subprocess.Popen(command)

    def longest_since(self, moment_ns: int) -> float:
        """Return for how many seconds the machine has stood still, at the most, since some moment."""
        notes = (line.split() for line in self._file.read_text().splitlines())
        return max((float(seconds) for ended_ns, seconds in notes if int(ended_ns) > moment_ns), default=0.0)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def _watch(path: str, parent: int) -> None:
    """Note when it was woken late, for as long as somebody wants to know."""
    with Path(path).open("a", buffering=1) as notes:
        last = time.monotonic_ns()
        while os.getppid() == parent:
            time.sleep(_SLEEP_SECONDS)
            now = time.monotonic_ns()
            stalled = (now - last) / 1e9 - _SLEEP_SECONDS
            if stalled > _NOTED_SECONDS:
                notes.write(f"{now} {stalled:.3f}\n")
            last = now


if __name__ == "__main__":
    _watch(sys.argv[1], int(sys.argv[2]))
