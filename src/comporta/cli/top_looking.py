"""What ``comporta top`` looks at: the state, and the tables where there are some.

It never becomes a worker of what it looks at. After an error everything is opened anew: the primary may be
another server by then, or the folder another folder.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from typing import Any

import click

from comporta import __version__
from comporta.cli.states import opened, shared_url
from comporta.cli.top_drawing import Document, Picture
from comporta.errors import ComportaError
from comporta.flow import run
from comporta.stores.base import Store

HISTORY_SECONDS = 5.0
"""How long a history is good for: its slots are of ten seconds."""

NOTHING_YET: Document = {"slot_seconds": 10, "at": 0.0, "series": {}}


class UnseenError(click.ClickException):
    """It cannot be looked at now; it may be possible later."""

    def format_message(self) -> str:
        """Say what can be done, where it is said once."""
        return f"{self.message}. `comporta doctor` tells what to mend."


class NobodyError(UnseenError):
    """There is nothing to look at yet."""


class Looking:
    """Looks at one state, as often as it is asked to."""

    def __init__(self, url: str, database: str | None) -> None:
        self._url = url
        self._shared = shared_url(url)
        self._database = database
        self._opened = ExitStack()
        self._store: Store | None = None
        self._history: Document = NOTHING_YET
        self._history_until = 0.0

    def look(self) -> Picture:
        """Return what is there now; raises ``UnseenError`` with the reason, in one sentence."""
        try:
            return self._looked(self._at_hand())
        except (NobodyError, click.UsageError):
            raise
        except (ComportaError, click.ClickException) as error:
            self.close()
            raise UnseenError(str(error).rstrip(".")) from None

    def close(self) -> None:
        """Let go of everything; looking again opens it anew."""
        self._store, self._history_until = None, 0.0
        self._opened.close()

    def nobody(self) -> str:
        """Return why there is nothing to look at, if there is not; to open it would make it."""
        if self._shared is None or os.path.lexists(self._shared.path):
            return ""
        return f"Nobody on this machine uses shared://{self._shared.name}"

    def _at_hand(self) -> Store:
        if self._store is None:
            if self.nobody():
                raise NobodyError(self.nobody())
            self._store = self._opened.enter_context(opened(self._url)).store
        return self._store

    def _looked(self, store: Store) -> Picture:
        from comporta.watching.fleet import looking, recalling  # noqa: PLC0415 - only who looks needs it

        if time.monotonic() >= self._history_until:
            self._history = run(recalling(store))
            self._history_until = time.monotonic() + HISTORY_SECONDS
        return Picture(document_of(run(looking(store, None)), self._engine()), self._history)

    def _engine(self) -> str:
        return self._url.partition("://")[0]


def document_of(found: Document, engine: str) -> Document:
    """Return the document of the dashboard, as far as the state alone tells it."""
    reasons = list(_reasons(found["upstreams"]))
    return {
        "at": time.time(),
        "version": __version__,
        "status": "warn" if reasons else "ok",
        "reasons": reasons,
        "state": {"engine": engine, "fallback": None},
        "database": None,
        "cache": None,
        "jobs": None,
        **found,
    }


def empty(reason: str, engine: str) -> Document:
    """Return the document of a state that nobody uses."""
    nothing: dict[str, Any] = {"upstreams": [], "workers": [], "events": [], "recent": {}, "story": None}
    return document_of(nothing, engine) | {"reasons": [reason]}


def _reasons(cards: list[Document]) -> list[str]:
    unwell = [card for card in cards if card.get("phase") not in (None, "closed")]
    said = [f"{card['name']} is {card['phase']}" for card in unwell]
    return said + [f"{card['name']} is paused" for card in cards if card.get("paused")]
