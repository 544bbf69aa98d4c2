"""Where the story is told: on the terminal, in sentences, and on the page, through the shared state.

Whether anybody listens changes nothing: a state that is out of reach is told later.
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

from comporta.demo.stories import Step, Story
from comporta.errors import StateError
from comporta.events import Event
from comporta.stores.base import Store
from comporta.stores.failover import FailoverStore
from comporta.stores.journal import NOTED_AT_ONCE, Note
from comporta.stores.records import Write
from comporta.stores.urls import open_store
from comporta.watching.fleet import JOURNAL, STORY, STORY_NOW
from comporta.watching.teller import entry_of

TTL_SECONDS: Final = 600.0

_WIDTH_MAX = 100
_MARGIN = " " * 8


class Terminal:
    """Says things in lines, some with the minutes and seconds since the beginning.

    ``unheard`` is called when nobody reads them any more.
    """

    def __init__(self, unheard: Callable[[], None]) -> None:
        self.deaf = False
        self._unheard = unheard
        self._began = time.monotonic()

    def headline(self, address: str, token: str, workers: int) -> None:
        """Say where to look, first of all, and how to take part."""
        self.gap()
        self._say(click.style(f"  Dashboard: {address}/", bold=True, fg="green"))
        self.gap()
        self.line(
            f"{workers} workers of one service, the portals PNCP and PCP, and a crowd of users are starting. "
            "Everything is on this machine; only portals and users are simulated. Ctrl-C ends it."
        )
        self.line(f"The button Operate, at the top of the page, asks for a token: {token}")

    def elsewhere(self, state: str, database: str) -> None:
        """Say how to watch the same in another terminal, in a line to be copied as a whole."""
        self.line("In another terminal the same at a glance:")
        self._say(f"{_MARGIN}  {_command()} top {state} --database {database}")

    def step(self, number: int, story: Story, step: Step) -> None:
        """Say what happens now, and where to look."""
        self.gap()
        title = f"{story.name}, {number} of {len(story.steps)}: {step.title}"
        self._say(f"{self._clock()}  {click.style(title, bold=True)}")
        self.line(step.text)
        self.line(f"Look here: {step.look}", fg="cyan")

    def outcome(self, text: str, *, happened: bool) -> None:
        """Say what came of it."""
        mark = "->" if happened else "!!"
        self.line(f"{mark} {text}", fg="green" if happened else "red")

    def figures(self, text: str) -> None:
        """Say how things stand."""
        self.line(text, first=f"{self._clock()}  ", dim=True)

    def line(self, text: str, first: str = _MARGIN, **style: Any) -> None:
        """Say something, in lines that fit; no word is broken, so that a token can be copied."""
        width = max(20, min(_WIDTH_MAX, shutil.get_terminal_size().columns - len(_MARGIN) - 1))
        lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
        for number, part in enumerate(lines):
            self._say((_MARGIN if number else first) + (click.style(part, **style) if style else part))

    def gap(self) -> None:
        """Leave a line free."""
        self._say("")

    def _say(self, text: str) -> None:
        if self.deaf:
            return
        try:
            click.echo(text)
        except OSError:  # a pipe without a reader, a terminal that was closed
            self.deaf = True
            os.dup2(
                os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
            )  # what is left is written at the end
            self._unheard()

    def _clock(self) -> str:
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        return f" {minutes:02}:{seconds:02}"


def _command() -> str:
    """Return by what words the command line can be called from here."""
    if shutil.which("comporta"):
        return "comporta"
    beside = os.path.relpath(Path(sys.executable).with_name("comporta"))
    return beside if Path(beside).exists() else f"{sys.executable} -m comporta.cli"


class Page:
    """What the page is told through the shared state: the step that is being played, and events for its list.

    What a state that is out of reach could not be told is told when it is back.
    """

    def __init__(self, state: str) -> None:
        self._opened = store = open_store(state)
        self._store: Store = store.primary if isinstance(store, FailoverStore) else store
        self._record = b""
        self._untold: deque[bytes] = deque(maxlen=NOTED_AT_ONCE)

    async def aclose(self) -> None:
        """Give connections back, on the loop they were made on."""
        if isinstance(self._opened, FailoverStore):
            await self._opened.aclose()

    async def put(self, story: Story, number: int, title: str, text: str, look: str) -> None:
        """Put a step on the page, in the place of the one before."""
        step = {"scenario": story.name, "step": number, "of": len(story.steps), "title": title}
        self._record = json.dumps({**step, "text": text, "look": look}).encode()
        await self.tell()

    async def note(self, text: str, severity: str = "info") -> None:
        """Add to the list of what happened."""
        self._untold.append(entry_of(Event(time.time(), "story", "demo", text, severity)))
        await self.tell()

    async def tell(self) -> None:
        """Tell what is to be told; the step once more, for a server that came back has forgotten it."""
        with suppress(StateError):
            if self._record:
                await self._store.apply_async(Write(STORY, STORY_NOW, self._record, TTL_SECONDS))
            if self._untold:
                entries = tuple(self._untold)
                await self._store.apply_async(Note(JOURNAL, *entries))
                self._untold.clear()
