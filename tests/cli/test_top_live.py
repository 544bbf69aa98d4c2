"""``comporta top`` on a terminal: live, resized, ended by keys and signals, and during outages."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from rich.console import Console
from tests.cli.pseudo_terminal import PseudoTerminal
from tests.cli.sample_fleet import document, fleet, history
from tests.support import wait_until

from comporta.cli.top_screen import HELP, TopPoller, render_screen
from comporta.cli.top_source import FleetSource, FleetUnavailableError
from comporta.cli.top_upstreams import TopSnapshot
from comporta.stores.shared.directory import directory_path
from comporta.stores.shared.store import SharedStore
from comporta.testing import Server

ENTER_SCREEN, LEAVE_SCREEN = "\x1b[?1049h", "\x1b[?1049l"
SHOW_CURSOR = "\x1b[?25h"
CTRL_C, CTRL_Z = b"\x03", b"\x1a"


def test_top__terminal__is_live_follows_its_size_and_quits_on_q(shared_name: str) -> None:
    state = f"shared://{shared_name}"
    with fleet(state), PseudoTerminal("top", state, "--every", "0.2", columns=70) as terminal:
        first = terminal.wait_for("Latest events")
        assert ENTER_SCREEN in first
        assert "wait p50" not in first
        terminal.type(b"?")
        assert "Ctrl-C, Ctrl-D   Quit." in terminal.wait_for("Calls in progress")
        terminal.type(b"?")
        terminal.wait_for("Latest events")
        terminal.resize(170, 40)
        assert "dead" in terminal.wait_for("wait p50")
        terminal.type(CTRL_Z)
        terminal.resize(30, 6)
        terminal.wait_for("upstream")
        terminal.type(b"x")
        terminal.type(b"q")
        code, last = terminal.wait()
        assert code == 0
        assert LEAVE_SCREEN in last
        assert SHOW_CURSOR in last
        assert terminal.is_restored()


def test_top__terminal_of_80_columns__shows_latency_and_wait_of_a_long_name(shared_name: str) -> None:
    state = f"shared://{shared_name}"
    name = "payments-gateway"
    with fleet(state, name), PseudoTerminal("top", state, "--every", "0.2", columns=80) as terminal:
        terminal.wait_for("Latest events")
        screen = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.wait_for("Latest events"))
        terminal.type(b"q")
        assert terminal.wait()[0] == 0
    lines = screen.splitlines()
    headings = next(number for number, line in enumerate(lines) if line.startswith(" upstream "))
    assert lines[headings - 1].split() == ["calls", "latency", "wait"]
    assert lines[headings].split() == ["upstream", "state", "limit", "/min", "failed", "p95", "p95"]
    [row] = [line for line in lines if line.startswith(f" {name} ")]
    assert re.fullmatch(rf" {name}  closed +100/s +5 +0 +\d+ ms +\d+ ms", row.rstrip())
    assert len(row.rstrip()) <= 80


def test_top__server_killed_and_restarted__keeps_the_snapshot_and_continues(own_server: Server) -> None:
    state = f"{own_server.url}?timeout=5"
    with fleet(state), PseudoTerminal("top", state, "--every", "0.2") as terminal:
        terminal.wait_for("Latest events")
        own_server.kill()
        terminal.wait_for("Showing the snapshot of ")
        assert "dead" in terminal.wait_for("Latest events")
        own_server.start()
        while "; retrying." in terminal.wait_for("Latest events"):
            pass
        terminal.type(CTRL_C)
        code, last = terminal.wait()
        assert code == 0
        assert LEAVE_SCREEN in last
        assert "Traceback" not in last
        assert terminal.is_restored()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_top__signal__restores_the_terminal(shared_name: str, number: signal.Signals) -> None:
    with PseudoTerminal("top", f"shared://{shared_name}", "--every", "0.2") as terminal:
        terminal.wait_for("No process on this machine uses")
        assert not Path(directory_path(shared_name)).exists()
        SharedStore(shared_name, memory=8).close()
        terminal.wait_for("Workers: none")
        terminal.kill(number)
        code, last = terminal.wait()
        assert code == 128 + number
        assert LEAVE_SCREEN in last
        assert terminal.is_restored()


def test_top__unreachable_server_at_the_start__fails_with_one_sentence() -> None:
    with PseudoTerminal("top", "redis://127.0.0.1:1/0") as terminal:
        code, output = terminal.wait()
    assert code == 1
    assert output.startswith("Error: redis://127.0.0.1:1/0 ")
    assert ENTER_SCREEN not in output


def test_top__once_on_a_terminal__prints_one_snapshot(shared_name: str) -> None:
    SharedStore(shared_name, memory=8).close()
    with PseudoTerminal("top", f"shared://{shared_name}", "--once") as terminal:
        code, output = terminal.wait()
    assert code == 0
    assert "Workers: none" in output
    assert ENTER_SCREEN not in output


def test_doctor__terminal__shows_a_spinner(shared_name: str) -> None:
    with PseudoTerminal("doctor", f"shared://{shared_name}") as terminal:
        assert "Checking ..." in terminal.wait_for("All checks passed.")
        assert terminal.wait()[0] == 0


class ScriptedSource(FleetSource):
    """Reads nothing: each read returns or raises the next result, and then always the last one."""

    def __init__(self, *results: TopSnapshot | Exception) -> None:
        super().__init__("shared://unused", None)
        self.results = list(results)
        self.reads = 0

    def read(self) -> TopSnapshot:
        self.reads += 1
        result = self.results.pop(0) if len(self.results) > 1 else self.results[0]
        if isinstance(result, Exception):
            raise result
        return result


def test_poll__failure__keeps_the_last_snapshot_and_the_error() -> None:
    snapshot = TopSnapshot(document(), history())
    source = ScriptedSource(FleetUnavailableError("it is gone"), snapshot, KeyError("odd"), snapshot)
    poller = TopPoller(source, interval=0.01)
    assert _screen_text(poller, Console(width=80)) == "Reading x ..."
    assert not poller.poll()
    assert _screen_text(poller, Console(width=80)) == "it is gone.\nRetrying; q quits."
    assert poller.poll()
    assert (poller.snapshot, poller.error) == (snapshot, "")
    assert not poller.poll()
    assert (poller.snapshot, poller.error) == (snapshot, "KeyError: 'odd'")
    assert poller.poll()


def test_start__polls_until_closed__has_a_snapshot() -> None:
    source = ScriptedSource(FleetUnavailableError("it is gone"), TopSnapshot(document(), history()))
    poller = TopPoller(source, interval=0.01)
    poller.start()
    wait_until(lambda: source.reads >= 5)
    poller.close()
    assert poller.snapshot is not None


@pytest.mark.parametrize(
    ("failures", "seconds"), [(0, 0.5), (1, 1.0), (2, 2.0), (3, 4.0), (4, 5.0), (1000, 5.0)]
)
def test_delay_after__failures_in_a_row__doubles_up_to_the_maximum(failures: int, seconds: float) -> None:
    assert TopPoller(ScriptedSource(FleetUnavailableError("")), 0.5).delay_after(failures) == seconds
    assert TopPoller(ScriptedSource(FleetUnavailableError("")), 60.0).delay_after(failures) == 60.0


def _screen_text(poller: TopPoller, console: Console) -> str:
    return str(render_screen(poller, console, "x"))


def test_help_page__terminal_of_80_columns__wraps_no_line() -> None:
    assert max(len(line) for line in HELP.splitlines()) <= 80
