"""When the machine stood still: told by a process that does nothing but sleep.

A test that is held to deadlines of milliseconds fails where its server, its workers or itself are not run for
as long. What went wrong while this process was kept waiting, too, is tried anew (``conftest.py``).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

STALL_SECONDS = 0.025
"""Half of what callers are promised an answer within."""

_SLEEP_SECONDS = 0.005


class Stalls:
    """Watches the machine until it is closed."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "stalls"
        self._file.touch()
        command = [sys.executable, "-S", "-E", __file__, str(self._file), str(os.getpid())]
        self._process = subprocess.Popen(command)

    def since(self, moment_ns: int) -> bool:
        """Whether the machine has stood still since some moment of the monotonic clock."""
        return any(int(line) > moment_ns for line in self._file.read_text().splitlines())

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def _watch(path: str, parent: int) -> None:
    """Note when it was woken late, for as long as somebody wants to know."""
    with Path(path).open("a", buffering=1) as notes:
        last = time.monotonic()
        while os.getppid() == parent:
            time.sleep(_SLEEP_SECONDS)
            now = time.monotonic()
            if now - last > _SLEEP_SECONDS + STALL_SECONDS:
                notes.write(f"{time.monotonic_ns()}\n")
            last = now


if __name__ == "__main__":
    _watch(sys.argv[1], int(sys.argv[2]))
