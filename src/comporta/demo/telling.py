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
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import click

from comporta.demo.stories import Step, Story
from comporta.errors import StateError
from comporta.stores.base import Store
from comporta.stores.failover import FailoverStore
from comporta.stores.records import Write
from comporta.stores.urls import open_store

SPACE: Final = "comporta_story"
KEY: Final = "now"
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
        """Say where to look, first of all."""
        self.gap()
        self._say(click.style(f"  Dashboard: {address}/", bold=True, fg="green"))
        self.gap()
        self.line(
            f"{workers} workers of one service, the portals PNCP and PCP, and a crowd of users are starting. "
            "Everything is on this machine; only portals and users are simulated. Ctrl-C ends it."
        )
        self.line(f"For the actions on the page the admin token is {token}")

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
        """Say something, in lines that fit."""
        width = min(_WIDTH_MAX, shutil.get_terminal_size().columns - len(_MARGIN) - 1)
        for number, part in enumerate(textwrap.wrap(text, max(20, width))):
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


class Page:
    """What the page is told: the step that is being played, as a record of the shared state."""

    def __init__(self, state: str) -> None:
        store = open_store(state)
        self._store: Store = store.primary if isinstance(store, FailoverStore) else store
        self._record = b""

    async def step(self, number: int, story: Story, step: Step) -> None:
        """Put a step on the page."""
        await self._put(
            {
                "scenario": story.name,
                "step": number,
                "of": len(story.steps),
                "title": step.title,
                "text": step.text,
                "look": step.look,
            }
        )

    async def again(self) -> None:
        """Write it once more: a server may have forgotten it."""
        if self._record:
            with suppress(StateError):
                await self._store.apply_async(Write(SPACE, KEY, self._record, TTL_SECONDS))

    async def _put(self, what: dict[str, Any]) -> None:
        self._record = json.dumps(what).encode()
        await self.again()
