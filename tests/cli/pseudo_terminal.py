"""Runs a command on a pseudo-terminal: reads what it draws, types keys, and compares terminal settings."""

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
from collections.abc import Sequence
from typing import Self

TIMEOUT_SECONDS = 60.0
"""How long a test waits for output, also on a busy machine."""

_TAKE_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)
"""Makes the terminal the controlling one, so that Ctrl-C sends a signal, and executes the command."""


COMPORTA = (sys.executable, "-W", "error", "-m", "comporta.cli")


class PseudoTerminal:
    """A command in a separate process, on a terminal with this many columns and lines.

    ``program`` is the path of a program and its first arguments; by default it is ``comporta``.
    """

    def __init__(
        self,
        *arguments: str,
        columns: int = 100,
        lines: int = 30,
        program: Sequence[str] = COMPORTA,
        **variables: str,
    ) -> None:
        self._master, self._slave = pty.openpty()
        self.resize(columns, lines)
        self._before = termios.tcgetattr(self._slave)
        self._drawn = b""
        environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _TAKE_TERMINAL, *program, *arguments],
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            env={**environ, "TERM": "xterm-256color", **variables},
            start_new_session=True,
        )

    def resize(self, columns: int, lines: int) -> None:
        """Resize the terminal."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self._master, keys)

    def kill(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def wait_for(self, text: str) -> str:
        """Read until ``text`` is drawn; return everything drawn since the last call."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while text.encode() not in self._drawn:
            assert time.monotonic() < deadline, self._drawn[-2000:]
            assert self._process.poll() is None or self._read(), self._drawn[-2000:]
            self._read()
        drawn, self._drawn = self._drawn.decode("utf-8", "replace"), b""
        return drawn

    def wait(self) -> tuple[int, str]:
        """Wait for the end; return the exit code and the rest of the output."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while self._process.poll() is None:
            assert time.monotonic() < deadline
            self._read()
        while self._read():
            pass
        return self._process.returncode, self._drawn.decode("utf-8", "replace")

    def is_restored(self) -> bool:
        """Whether the terminal has the settings it had before the command started."""
        return termios.tcgetattr(self._slave) == self._before

    def _read(self) -> bool:
        if not select.select([self._master], [], [], 0.1)[0]:
            return False
        self._drawn += os.read(self._master, 65536)
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ended: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        os.close(self._master)
        os.close(self._slave)
