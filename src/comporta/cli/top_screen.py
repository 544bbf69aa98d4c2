"""The live picture of ``comporta top``: a terminal taken over, and given back as it was.

A thread looks, because a look at a server that hangs takes its time; this one draws and listens to keys, so
that ``q`` and Ctrl-C are obeyed at once. Nothing is kept but the last picture.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click
from rich.console import Console, ConsoleDimensions, RenderableType
from rich.live import Live
from rich.text import Text

from comporta.cli.output import rough
from comporta.cli.top_drawing import BARS, BARS_ASCII, Paper, Picture, clock, drawn
from comporta.cli.top_looking import Looking
from comporta.threads import Run

FRAME_SECONDS = 0.2
"""How long a key, a new size or a new picture may go unnoticed."""

LOST_SECONDS_MAX = 5.0
"""How long is waited, at the most, before a state that cannot be seen is looked at again."""

_ENDING_SECONDS = 0.5
_SIGNALLED = 128
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_NO_KEY = b"\0"  # how a terminal is told that a sign means nothing
_QUITS = (b"q", b"Q", b"\x04")


class Watching:
    """Looks every so often; ``seen`` is the last picture, ``lost`` why there is no newer one."""

    def __init__(self, looking: Looking, every: float) -> None:
        self._looking = looking
        self._every = every
        self._run = Run()
        self.seen: Picture | None = None
        self.lost = ""

    def start(self) -> None:
        """Begin to look."""
        self._run.start(self._look_on, name="comporta-top")

    def close(self) -> None:
        """Stop; a look under way is left to itself."""
        self._run.end(_ENDING_SECONDS)

    def looked(self) -> bool:
        """Look once; whether there is a new picture."""
        try:
            self.seen = self._looking.look()
        except click.ClickException as error:
            self.lost = error.message
        except Exception as error:  # on a thread of its own: nobody else would say it
            self.lost = f"{type(error).__name__}: {error}"
        else:
            self.lost = ""
            return True
        return False

    def wait_after(self, misses: int) -> float:
        """Return how long to wait after so many looks in vain: longer each time, up to a bound."""
        return max(self._every, min(self._every * 2.0 ** min(misses, 16), LOST_SECONDS_MAX))

    def _look_on(self) -> None:
        misses = 0
        while not self._run.over:
            misses = 0 if self.looked() else misses + 1
            self._run.wake.wait(self.wait_after(misses) if misses else self._every)
        self._looking.close()


class Ending:
    """Notes that the program is to end: an interrupt could fall between taking and giving back a screen."""

    number = 0

    def __call__(self, number: int, _: FrameType | None) -> None:
        self.number = number


def live(looking: Looking, every: float, where: str) -> None:
    """Draw until somebody has seen enough. What is wrong from the start is said without a screen."""
    watching = Watching(looking, every)
    if not looking.nobody():
        watching.seen = looking.look()
    console, ending = Console(), Ending()
    try:
        with _taken_over(console, ending) as screen:
            watching.start()
            _draw_on(screen, console, watching, where, ending)
    except (OSError, termios.error):
        ending.number = ending.number or signal.SIGHUP  # the terminal is gone, and nobody can be told
    finally:
        watching.close()
    if ending.number not in (0, signal.SIGINT):
        sys.exit(_SIGNALLED + ending.number)


def _draw_on(screen: Live, console: Console, watching: Watching, where: str, ending: Ending) -> None:
    last: object = None
    while not ending.number:
        size = os.get_terminal_size(console.file.fileno())
        state = (watching.seen, watching.lost, size, int(time.time()) if watching.lost else 0)
        if state != last:
            console.size = ConsoleDimensions(*size)
            screen.update(shown(watching, console, where), refresh=True)
            last = state
        if _pressed(FRAME_SECONDS) in _QUITS:
            return


def shown(watching: Watching, console: Console, where: str) -> RenderableType:
    """Return what is on the screen now."""
    seen, lost = watching.seen, watching.lost
    if seen is None:
        return Text(f"{lost}.\nLooking again; q ends." if lost else f"Looking at {where} ...")
    if lost:
        at = seen.document["at"]
        lost = f"{lost}. Seen last at {clock(at)}, {rough(time.time() - at)} ago; looking again."
    return drawn(seen, paper_of(console, console.height), where, lost)


def paper_of(console: Console, height: int | None = None) -> Paper:
    """Return what a console can show."""
    return Paper(console.width, height, BARS if console.encoding.startswith("utf") else BARS_ASCII)


def _pressed(seconds: float) -> bytes:
    """Wait for a key; nothing if none is pressed. A terminal that is gone counts as Ctrl-D."""
    if not select.select([sys.stdin], [], [], seconds)[0]:
        return b""
    return os.read(sys.stdin.fileno(), 1) or b"\x04"


@contextmanager
def _taken_over(console: Console, ending: Ending) -> Iterator[Live]:
    """Have keys at once and unseen, and a screen of our own; both are given back however it ends."""
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    handlers = {number: signal.signal(number, ending) for number in _SIGNALS}
    try:
        tty.setcbreak(fd)
        _forget_suspending(fd)
        with Live(console=console, screen=True, auto_refresh=False) as screen:
            yield screen
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _forget_suspending(fd: int) -> None:
    """Have Ctrl-Z do nothing: it would leave the screen to the shell as it is."""
    found = termios.tcgetattr(fd)
    found[6][termios.VSUSP] = _NO_KEY
    termios.tcsetattr(fd, termios.TCSADRAIN, found)
