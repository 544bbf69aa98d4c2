"""``comporta top`` on a terminal: live, resized, ended by keys and signals; servers that come and go."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from rich.console import Console
from tests.cli.fleets import document, fleet, history
from tests.cli.terminals import Terminal

from comporta.cli.top_drawing import Picture
from comporta.cli.top_looking import Looking, UnseenError
from comporta.cli.top_screen import Watching, shown
from comporta.stores.folder import path_of
from comporta.stores.shared import SharedStore
from comporta.testing import Server

TAKEN, GIVEN_BACK = "\x1b[?1049h", "\x1b[?1049l"
CURSOR_SHOWN = "\x1b[?25h"
CTRL_C, CTRL_Z = b"\x03", b"\x1a"


def test_top__on_a_terminal__is_live_follows_its_size_and_ends_on_q(shared_name: str) -> None:
    state = f"shared://{shared_name}"
    with fleet(state), Terminal("top", state, "--every", "0.2", columns=70) as terminal:
        first = terminal.wait_for("Latest events")
        assert TAKEN in first
        assert "wait p50" not in first
        terminal.resize(150, 40)
        assert "dead" in terminal.wait_for("wait p50")
        terminal.type(CTRL_Z)
        terminal.resize(30, 6)
        terminal.wait_for("upstream")
        terminal.type(b"x")
        terminal.type(b"q")
        code, last = terminal.ended()
        assert code == 0
        assert GIVEN_BACK in last
        assert CURSOR_SHOWN in last
        assert terminal.is_as_before()


def test_top__server_killed_and_back__says_so_keeps_the_picture_and_goes_on(own_server: Server) -> None:
    state = f"{own_server.url}?timeout=5"
    with fleet(state), Terminal("top", state, "--every", "0.2") as terminal:
        terminal.wait_for("Latest events")
        own_server.kill()
        terminal.wait_for("Seen last at ")
        assert "dead" in terminal.wait_for("Latest events")
        own_server.start()
        terminal.wait_for("back to the shared state")
        terminal.type(CTRL_C)
        code, last = terminal.ended()
        assert code == 0
        assert GIVEN_BACK in last
        assert "Traceback" not in last
        assert terminal.is_as_before()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_top__told_to_end__gives_the_terminal_back(shared_name: str, number: signal.Signals) -> None:
    with Terminal("top", f"shared://{shared_name}", "--every", "0.2") as terminal:
        terminal.wait_for("Nobody on this machine uses")
        assert not Path(path_of(shared_name)).exists()
        SharedStore(shared_name, keys=1024).close()
        terminal.wait_for("Workers: none at the moment")
        terminal.kill(number)
        code, last = terminal.ended()
        assert code == 128 + number
        assert GIVEN_BACK in last
        assert terminal.is_as_before()


def test_top__server_not_there_from_the_start__is_one_sentence() -> None:
    with Terminal("top", "redis://127.0.0.1:1/0") as terminal:
        code, said = terminal.ended()
    assert code == 1
    assert said.startswith("Error: redis://127.0.0.1:1/0 ")
    assert TAKEN not in said


def test_top__once_on_a_terminal__prints_one_picture(shared_name: str) -> None:
    SharedStore(shared_name, keys=1024).close()
    with Terminal("top", f"shared://{shared_name}", "--once") as terminal:
        code, said = terminal.ended()
    assert code == 0
    assert "Workers: none at the moment" in said
    assert TAKEN not in said


def test_doctor__on_a_terminal__shows_that_it_is_busy(shared_name: str) -> None:
    with Terminal("doctor", f"shared://{shared_name}") as terminal:
        assert "Checking ..." in terminal.wait_for("All well.")
        assert terminal.ended()[0] == 0


class Turns(Looking):
    """Looks at nothing: each look ends as it was told to, and the last of them from then on."""

    def __init__(self, *ends: Picture | Exception) -> None:
        super().__init__("shared://nobody", None)
        self.ends = list(ends)
        self.looks = 0

    def look(self) -> Picture:
        self.looks += 1
        end = self.ends.pop(0) if len(self.ends) > 1 else self.ends[0]
        if isinstance(end, Exception):
            raise end
        return end


def test_watching__look_that_fails__keeps_the_last_picture_and_says_why() -> None:
    seen = Picture(document(), history())
    turns = Turns(UnseenError("it is gone"), seen, KeyError("odd"), seen)
    watching = Watching(turns, every=0.01)
    assert _told(watching, Console(width=80)) == "Looking at x ..."
    assert not watching.looked()
    assert _told(watching, Console(width=80)) == "it is gone.\nLooking again; q ends."
    assert watching.looked()
    assert (watching.seen, watching.lost) == (seen, "")
    assert not watching.looked()
    assert (watching.seen, watching.lost) == (seen, "KeyError: 'odd'")
    assert watching.looked()


def test_watching__started__looks_until_it_is_closed() -> None:
    turns = Turns(UnseenError("it is gone"), Picture(document(), history()))
    watching = Watching(turns, every=0.01)
    watching.start()
    deadline = time.monotonic() + 30
    while turns.looks < 5:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    watching.close()
    assert watching.seen is not None


@pytest.mark.parametrize(
    ("misses", "seconds"), [(0, 0.5), (1, 1.0), (2, 2.0), (3, 4.0), (4, 5.0), (1000, 5.0)]
)
def test_watching__in_vain__looks_less_often_within_bounds(misses: int, seconds: float) -> None:
    assert Watching(Turns(UnseenError("")), 0.5).wait_after(misses) == seconds
    assert Watching(Turns(UnseenError("")), 60.0).wait_after(misses) == 60.0


def _told(watching: Watching, console: Console) -> str:
    return str(shown(watching, console, "x"))
