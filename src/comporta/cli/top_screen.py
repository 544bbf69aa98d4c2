"""The live screen of ``comporta top``: takes over the terminal, and restores it at the end.

A background thread polls the state, because a server that hangs may take seconds to time out. The main thread
draws and reads keys, so that ``q`` and Ctrl-C work at once. Only the last snapshot is kept.
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

from comporta.cli.console import clock_time, rough_duration
from comporta.cli.top_render import render
from comporta.cli.top_source import FleetSource
from comporta.cli.top_upstreams import BARS, BARS_ASCII, Canvas, TopSnapshot
from comporta.threads import BackgroundThread

FRAME_SECONDS = 0.2
"""The longest delay until a key, a new terminal size or a new snapshot takes effect."""

RETRY_SECONDS_MAX = 5.0
"""The longest delay between two polls of an unreachable state."""

_STOP_SECONDS = 0.5
_SIGNAL_EXIT_BASE = 128
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_NO_KEY = b"\0"  # disables a special character of the terminal
_QUIT_KEYS = (b"q", b"Q", b"\x04")
_HELP_KEY = b"?"
HELP = """\
Keys

  q, Ctrl-C, Ctrl-D   Quit.
  ?                   Show or hide this page.

Columns

  state               The circuit (closed, open or half-open), or a pause.
  limit               Calls per second, and without degradation if it differs.
  tokens              Calls that may start at once, of the burst.
  in flight           Calls in progress, of the most allowed.
  calls/min           Calls that the fleet sent in the last minute, of which:
  ok, failed          calls that succeeded, and those that failed,
  refused             calls that the upstream refused (429).
  held back           Calls not sent: circuit open, or no token in time.
  would refuse        Calls that a policy in shadow mode would refuse.
  retries             Repeated attempts.
  latency p95         95 % of the attempts took at most this long.
  wait p50, wait p95  Half and 95 % of the calls waited at most this long.
"""


class TopPoller:
    """Polls in a background thread; ``snapshot`` is the last one, ``error`` why there is no newer one."""

    def __init__(self, source: FleetSource, interval: float) -> None:
        self._source = source
        self._interval = interval
        self._thread = BackgroundThread()
        self.snapshot: TopSnapshot | None = None
        self.error = ""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start(self._poll_loop, name="comporta-top")

    def close(self) -> None:
        """Stop the thread; do not wait long for a poll in progress."""
        self._thread.stop(_STOP_SECONDS)

    def poll(self) -> bool:
        """Poll once; return whether there is a new snapshot."""
        try:
            self.snapshot = self._source.read()
        except click.ClickException as error:
            self.error = error.message
        except Exception as error:  # in a thread, where it would be lost
            self.error = f"{type(error).__name__}: {error}"
        else:
            self.error = ""
            return True
        return False

    def delay_after(self, failures: int) -> float:
        """Return the delay after this many failed polls in a row: it doubles, up to a maximum."""
        return max(self._interval, min(self._interval * 2.0 ** min(failures, 16), RETRY_SECONDS_MAX))

    def _poll_loop(self) -> None:
        failures = 0
        while not self._thread.stop_requested:
            failures = 0 if self.poll() else failures + 1
            self._thread.wake.wait(self.delay_after(failures) if failures else self._interval)
        self._source.close()


class SignalFlag:
    """A signal handler that only records the signal, so that it cannot interrupt terminal changes."""

    number = 0

    def __call__(self, number: int, _: FrameType | None) -> None:
        self.number = number


def run_live(source: FleetSource, interval: float, where: str) -> None:
    """Draw until the user quits. An error in the first poll is raised before the screen is taken over."""
    poller = TopPoller(source, interval)
    if not source.missing_reason():
        poller.snapshot = source.read()
    console, flag = Console(), SignalFlag()
    try:
        with _full_screen(console, flag) as screen:
            poller.start()
            _draw_loop(screen, console, poller, where, flag)
    except (OSError, termios.error):
        flag.number = flag.number or signal.SIGHUP  # the terminal is gone
    finally:
        poller.close()
    if flag.number not in (0, signal.SIGINT):
        sys.exit(_SIGNAL_EXIT_BASE + flag.number)


def _draw_loop(screen: Live, console: Console, poller: TopPoller, where: str, flag: SignalFlag) -> None:
    last: object = None
    shows_help = False
    while not flag.number:
        size = os.get_terminal_size(console.file.fileno())
        state = (poller.snapshot, poller.error, size, int(time.time()) if poller.error else 0, shows_help)
        if state != last:
            console.size = ConsoleDimensions(*size)
            content = Text(HELP) if shows_help else render_screen(poller, console, where)
            screen.update(content, refresh=True)
            last = state
        key = _read_key(FRAME_SECONDS)
        if key in _QUIT_KEYS:
            return
        shows_help = shows_help != (key == _HELP_KEY)


def render_screen(poller: TopPoller, console: Console, where: str) -> RenderableType:
    """Return the current content of the screen."""
    snapshot, error = poller.snapshot, poller.error
    if snapshot is None:
        return Text(f"{error}.\nRetrying; q quits." if error else f"Reading {where} ...")
    if error:
        at = snapshot.document["at"]
        age = rough_duration(time.time() - at)
        error = f"{error}. Showing the snapshot of {clock_time(at)}, {age} ago; retrying."
    return render(snapshot, canvas_for(console, console.height), where, error)


def canvas_for(console: Console, height: int | None = None) -> Canvas:
    """Return the size and the bar characters of a console."""
    return Canvas(console.width, height, BARS if console.encoding.startswith("utf") else BARS_ASCII)


def _read_key(seconds: float) -> bytes:
    """Wait for a key and return it, or nothing after ``seconds``. A closed terminal returns Ctrl-D."""
    if not select.select([sys.stdin], [], [], seconds)[0]:
        return b""
    return os.read(sys.stdin.fileno(), 1) or b"\x04"


@contextmanager
def _full_screen(console: Console, flag: SignalFlag) -> Iterator[Live]:
    """Switch to the alternate screen and to unbuffered keys without echo; restore both at the end."""
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    handlers = {number: signal.signal(number, flag) for number in _SIGNALS}
    try:
        tty.setcbreak(fd)
        _disable_suspend(fd)
        with Live(console=console, screen=True, auto_refresh=False) as screen:
            yield screen
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _disable_suspend(fd: int) -> None:
    """Disable Ctrl-Z, which would return to the shell without restoring the screen."""
    attributes = termios.tcgetattr(fd)
    attributes[6][termios.VSUSP] = _NO_KEY
    termios.tcsetattr(fd, termios.TCSADRAIN, attributes)
