"""Where the story is told: on the terminal, in sentences, and on the page, through the shared state.

Whether anybody listens changes nothing: a state that is out of reach is told later.
"""

from __future__ import annotations

import json
import textwrap
import time
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

_WIDTH = 100
_MARGIN = " " * 8


class Terminal:
    """Says things in lines, each with the minutes and seconds since the beginning."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def headline(self, address: str, token: str, workers: int) -> None:
        """Say where to look, first of all."""
        click.echo()
        click.secho(f"  Dashboard: {address}/", bold=True, fg="green")
        click.echo()
        self.line(
            f"{workers} workers of one service, the portals PNCP and PCP, and a crowd of users: everything runs "
            "on this machine, and only portals and users are simulated. Ctrl-C ends it."
        )
        self.line(f"For actions on the page, the admin token is {token}")
        click.echo()

    def step(self, number: int, story: Story, step: Step) -> None:
        """Say what happens now, and where to look."""
        click.echo()
        title = f"{story.name}, {number} of {len(story.steps)}: {step.title}"
        click.echo(f"{self._clock()}  {click.style(title, bold=True)}")
        self.line(step.text)
        self.line(f"Look at: {step.look}", fg="cyan")

    def outcome(self, text: str, *, happened: bool) -> None:
        """Say what came of it."""
        mark = "->" if happened else "!!"
        self.line(f"{mark} {text}", fg="green" if happened else "red")

    def figures(self, text: str) -> None:
        """Say how things stand."""
        self.line(f".  {text}", dim=True, first=f"{self._clock()}  ")

    def line(self, text: str, first: str = _MARGIN, **style: Any) -> None:
        """Say something, in lines that fit."""
        for number, part in enumerate(textwrap.wrap(text, _WIDTH, subsequent_indent="" if first else "  ")):
            click.echo((first if number == 0 else _MARGIN) + click.style(part, **style))

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
