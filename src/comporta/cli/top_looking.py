"""What ``comporta top`` looks at: the state, and the tables where there are some.

It never becomes a worker of what it looks at. After an error everything is opened anew: the primary may be
another server by then, or the folder another folder.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack

import click

from comporta import __version__
from comporta.cli.states import doctor, opened, shared_url
from comporta.cli.top_drawing import Document, Picture
from comporta.cli.top_tables import Tables
from comporta.errors import ComportaError, StateUnavailableError
from comporta.flow import run
from comporta.stores.base import Store
from comporta.stores.workers import Roll
from comporta.watching.fleet import OUT_OF_REACH, looking, recalling

HISTORY_SECONDS = 5.0
"""How long a history is good for: its slots are of ten seconds."""


class UnseenError(click.ClickException):
    """It cannot be looked at now; it may be possible later."""

    def __init__(self, message: str, url: str = "STATE") -> None:
        super().__init__(message)
        self._url = url

    def format_message(self) -> str:
        """Say what can be done, where it is said once."""
        return f"{self.message}. `{doctor(self._url)}` tells what to mend."


class NobodyError(UnseenError):
    """There is nothing to look at yet."""


class Looking:
    """Looks at one state, and at a database if there is one, as often as it is asked to."""

    def __init__(self, url: str, database: str | None) -> None:
        self._url = url
        self._shared = shared_url(url)
        self._tables = Tables(database)
        self._opened = ExitStack()
        self._store: Store | None = None
        self._folder: int | None = None
        self._history: Document = {}
        self._history_until = 0.0

    def look(self) -> Picture:
        """Return what is there now; raises ``UnseenError`` with the reason, in one sentence."""
        try:
            return self._looked(self._at_hand())
        except (NobodyError, click.UsageError):
            raise
        except (ComportaError, click.ClickException) as error:
            self._let_go()
            raise UnseenError(str(error).rstrip("."), self._url) from None

    def close(self) -> None:
        """Let go of everything."""
        self._let_go()
        self._tables.close()

    def nobody(self) -> str:
        """Return why there is nothing to look at, if there is not; to open it would make it."""
        if self._shared is None or os.path.lexists(self._shared.path):
            return ""
        return f"Nobody on this machine uses shared://{self._shared.name}"

    def _let_go(self) -> None:
        self._store, self._history_until = None, 0.0
        self._opened.close()

    def _at_hand(self) -> Store:
        if self.nobody():
            self._let_go()
            raise NobodyError(self.nobody(), self._url)
        folder = None if self._shared is None else os.lstat(self._shared.path).st_ino
        if self._store is None or folder != self._folder:  # one that was removed can still be looked at
            self._let_go()
            self._folder = folder
            self._store = self._opened.enter_context(opened(self._url)).store
        return self._store

    def _looked(self, store: Store) -> Picture:
        store.apply(Roll())  # it says why, if it cannot be asked; what follows would only say that
        if time.monotonic() >= self._history_until:
            self._history = _whole(run(recalling(store)))
            self._history_until = time.monotonic() + HISTORY_SECONDS
        found = self._tables.add_to(_whole(run(looking(store))))
        return Picture(document_of(found, self._url.partition("://")[0]), self._history)


def _whole(found: Document) -> Document:
    """Return what was found, if the state was there all the while."""
    if OUT_OF_REACH in found["reasons"]:
        raise StateUnavailableError(OUT_OF_REACH)
    return found


def document_of(found: Document, engine: str) -> Document:
    """Return the document of the dashboard, as far as somebody can tell it who is no worker."""
    reasons = [*_reasons(found), *found["reasons"]]
    return {
        "at": time.time(),
        "version": __version__,
        "status": "warn" if reasons else "ok",
        "state": {"engine": engine, "fallback": None},
        **found,
        "reasons": reasons,
    }


def empty(reason: str, engine: str) -> Document:
    """Return the document of a state that nobody uses."""
    parts: Document = {"upstreams": [], "workers": [], "events": [], "story": None, "recent": {}}
    return document_of({**parts, "database": None, "cache": None, "jobs": None, "reasons": [reason]}, engine)


def _reasons(found: Document) -> list[str]:
    cards = found["upstreams"]
    database = found["database"] or {"status": "ok"}
    return [
        *(f"{card['name']} is {card['phase']}" for card in cards if card["phase"] in ("open", "half-open")),
        *(f"{card['name']} is paused" for card in cards if card["paused"]),
        *(f"{card['name']} is slowed down" for card in cards if card["limit"] < card["original"]),
        *(["the database cannot be read"] if database["status"] != "ok" else []),
    ]
