"""Narrates a scenario: in sentences on the terminal, and on the dashboard through the shared state.

A narrator never affects the scenario. While the state is unreachable, the dashboard narrator keeps its
messages and publishes them later.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import click

from comporta.demo.scenarios import Scenario, ScenarioStep
from comporta.errors import StateError
from comporta.events import Event
from comporta.fleet.event_journal import JOURNAL, encode_event
from comporta.fleet.reader import STORY, STORY_NOW
from comporta.stores.base import Store
from comporta.stores.journal import APPEND_MAX, AppendToJournal
from comporta.stores.records import WriteRecord
from comporta.stores.registry import open_store

TTL_SECONDS: Final = 600.0

_WIDTH_MAX = 100
_MARGIN = " " * 8


class TerminalNarrator:
    """Prints lines to standard output, some with the minutes and seconds since the start.

    ``on_closed`` is called once when standard output has no reader any more.
    """

    def __init__(self, on_closed: Callable[[], None]) -> None:
        self.closed = False
        self._on_closed = on_closed
        self._started = time.monotonic()

    def print_headline(self, address: str, token: str, workers: int) -> None:
        """Print the address of the dashboard, what is starting, and the operator token."""
        self.print_blank_line()
        self._print(click.style(f"  Dashboard: {address}/", bold=True, fg="green"))
        self.print_blank_line()
        self.print_line(
            f"Starting {workers} workers of one service, the portals PNCP and PCP, and a crowd of users. "
            "Everything runs on this machine; only the portals and the users are simulated. Press Ctrl-C to "
            "end the demo."
        )
        self.print_line(f"To operate the fleet, click Operate at the top of the page and enter: {token}")

    def print_top_command(self, state: str, database: str) -> None:
        """Print the command that shows the same fleet in another terminal, on one line to copy."""
        self.print_line("To watch the fleet in another terminal, run:")
        self._print(f"{_MARGIN}  {_cli_command()} top {state} --database {database}")

    def print_step(self, number: int, scenario: Scenario, step: ScenarioStep) -> None:
        """Print what a step does and where to look."""
        self.print_blank_line()
        title = f"{scenario.name}, {number} of {len(scenario.steps)}: {step.title}"
        self._print(f"{self._elapsed_time()}  {click.style(title, bold=True)}")
        self.print_line(step.text)
        self.print_line(f"Where to look: {step.look_at}", fg="cyan")

    def print_result(self, text: str, *, succeeded: bool) -> None:
        """Print the result of a step."""
        mark = "->" if succeeded else "!!"
        self.print_line(f"{mark} {text}", fg="green" if succeeded else "red")

    def print_status(self, text: str) -> None:
        """Print a status line with the time since the start."""
        self.print_line(text, first=f"{self._elapsed_time()}  ", dim=True)

    def print_line(self, text: str, first: str = _MARGIN, **style: Any) -> None:
        """Print text wrapped to the terminal. It never breaks a word, so that a token can be copied."""
        width = max(20, min(_WIDTH_MAX, shutil.get_terminal_size().columns - len(_MARGIN) - 1))
        lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
        for number, part in enumerate(lines):
            self._print((_MARGIN if number else first) + (click.style(part, **style) if style else part))

    def print_blank_line(self) -> None:
        """Print an empty line."""
        self._print("")

    def _print(self, text: str) -> None:
        if self.closed:
            return
        try:
            click.echo(text)
        except OSError:  # the pipe has no reader, or the terminal was closed
            self.closed = True
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, sys.stdout.fileno())  # the interpreter flushes its buffer at exit
            self._on_closed()

    def _elapsed_time(self) -> str:
        minutes, seconds = divmod(int(time.monotonic() - self._started), 60)
        return f" {minutes:02}:{seconds:02}"


def _cli_command() -> str:
    """Return the command that runs the command line from the current directory."""
    if shutil.which("comporta"):
        return "comporta"
    beside = os.path.relpath(Path(sys.executable).with_name("comporta"))
    return beside if Path(beside).exists() else f"{sys.executable} -m comporta.cli"


class DashboardNarrator:
    """Publishes the current step and events for the dashboard through the shared state.

    What it cannot publish during an outage it publishes after the recovery.
    """

    def __init__(self, state: str) -> None:
        self._opened = store = open_store(state)
        self._store: Store = store.primary
        self._current_step = b""
        self._pending_events: deque[bytes] = deque(maxlen=APPEND_MAX)

    async def aclose(self) -> None:
        """Close the connections, on the event loop that opened them."""
        await self._opened.aclose()

    async def show_step(self, scenario: Scenario, number: int, title: str, text: str, look: str) -> None:
        """Show a step on the dashboard instead of the previous one."""
        step = {"scenario": scenario.name, "step": number, "of": len(scenario.steps), "title": title}
        self._current_step = json.dumps({**step, "text": text, "look": look}).encode()
        await self.publish()

    async def add_event(self, text: str, severity: str = "info") -> None:
        """Add an event to the dashboard's list."""
        self._pending_events.append(encode_event(Event(time.time(), "story", "demo", text, severity)))
        await self.publish()

    async def publish(self) -> None:
        """Publish the current step, which a restarted server has lost, and all pending events."""
        with suppress(StateError):
            if self._current_step:
                await self._store.apply_async(WriteRecord(STORY, STORY_NOW, self._current_step, TTL_SECONDS))
            if self._pending_events:
                entries = tuple(self._pending_events)
                await self._store.apply_async(AppendToJournal(JOURNAL, *entries))
                self._pending_events.clear()
