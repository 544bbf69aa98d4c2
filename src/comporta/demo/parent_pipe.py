"""How a child process of the demo talks to its parent: messages out, commands in, and the end of both.

The operating system closes the pipes when the parent dies, so no process survives a killed demo.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

from comporta.threads import BackgroundThread

EXIT_SECONDS: Final = 0.45
"""How long a process may take to exit by itself once its standard input is closed."""


def send_message(**message: Any) -> None:
    """Send one message to the parent, as a line of JSON."""
    with suppress(BrokenPipeError):  # the parent is gone
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def commands() -> Iterator[str]:
    """Yield the commands of the parent, one per line, until it closes the pipe."""
    for line in sys.stdin:
        yield line.strip()


def exit_with_parent(end: Callable[[], None]) -> None:
    """Call ``end`` when the parent closes the pipe; exit at once if that takes longer than the bound."""

    def wait() -> None:
        for _ in commands():
            pass
        end()
        time.sleep(EXIT_SECONDS)
        os._exit(1)

    BackgroundThread().start(wait, name="parent-watch")


def terminate_self() -> None:
    """Send SIGTERM to this process."""
    os.kill(os.getpid(), signal.SIGTERM)
