"""A command on a terminal of its own: what it draws, what is typed, and how the terminal is left."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from typing import Self

PATIENCE_SECONDS = 60.0
"""How long something may take on a machine that does much else."""

_OWNS = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)
"""Makes the terminal the one whose Ctrl-C is a signal, and becomes the command."""


class Terminal:
    """A command in a process, on a terminal of so many columns and lines."""

    def __init__(self, *arguments: str, columns: int = 100, lines: int = 30) -> None:
        self._ours, self._theirs = pty.openpty()
        self.resize(columns, lines)
        self._before = termios.tcgetattr(self._theirs)
        self._drawn = b""
        environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _OWNS, sys.executable, "-W", "error", "-m", "comporta.cli", *arguments],
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            env={**environ, "TERM": "xterm-256color"},
            start_new_session=True,
        )

    def resize(self, columns: int, lines: int) -> None:
        """Make the window another size."""
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self._ours, keys)

    def kill(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def wait_for(self, text: str) -> str:
        """Read until something is drawn; returns all that was drawn since the last time."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while text.encode() not in self._drawn:
            assert time.monotonic() < deadline, self._drawn[-2000:]
            assert self._process.poll() is None or self._read(), self._drawn[-2000:]
            self._read()
        found, self._drawn = self._drawn.decode("utf-8", "replace"), b""
        return found

    def ended(self) -> tuple[int, str]:
        """Wait for the end; returns the exit code, and what was drawn at last."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._process.poll() is None:
            assert time.monotonic() < deadline
            self._read()
        while self._read():
            pass
        return self._process.returncode, self._drawn.decode("utf-8", "replace")

    def is_as_before(self) -> bool:
        """Whether the terminal behaves as it did before the command came."""
        return termios.tcgetattr(self._theirs) == self._before

    def _read(self) -> bool:
        if not select.select([self._ours], [], [], 0.1)[0]:
            return False
        self._drawn += os.read(self._ours, 65536)
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ended: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        os.close(self._ours)
        os.close(self._theirs)
