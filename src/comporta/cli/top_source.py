"""Reads what ``comporta top`` shows: the state, and the database if there is one.

It never becomes a worker of that state. After an error it opens everything again, because by then the primary
may be another server, or the directory may have been replaced.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack

import click

from comporta import __version__
from comporta.cli.state_option import doctor_command, inspect_store, shared_url
from comporta.cli.top_database import TopDatabase
from comporta.cli.top_upstreams import Document, TopSnapshot
from comporta.errors import ComportaError, StateUnavailableError
from comporta.fleet.reader import UNREACHABLE, fleet_history_flow, fleet_status_flow
from comporta.fleet.summary import fleet_reasons
from comporta.flow import run
from comporta.stores.base import Store
from comporta.stores.failover.worker_registry import ListWorkers

HISTORY_SECONDS = 5.0
"""How long a history is reused: its slots are 10 s long."""


class FleetUnavailableError(click.ClickException):
    """The state cannot be read at the moment."""

    def __init__(self, message: str, url: str = "STATE") -> None:
        super().__init__(message)
        self._url = url

    def format_message(self) -> str:
        """Return the message with a hint, for output that is not refreshed."""
        return f"{self.message}. To diagnose it, run `{doctor_command(self._url)}`."


class FleetNotFoundError(FleetUnavailableError):
    """The state does not exist yet."""


class FleetSource:
    """Reads snapshots of one state, and of a database if there is one."""

    def __init__(self, url: str, database: str | None) -> None:
        self._url = url
        self._shared = shared_url(url)
        self._database = TopDatabase(database)
        self._exit_stack = ExitStack()
        self._store: Store | None = None
        self._directory_inode: int | None = None
        self._history: Document = {}
        self._history_until = 0.0

    def read(self) -> TopSnapshot:
        """Return a snapshot; raise ``FleetUnavailableError`` with the reason in one sentence."""
        try:
            return self._read_snapshot(self._ensure_store())
        except (FleetNotFoundError, click.UsageError):
            raise
        except (ComportaError, click.ClickException) as error:
            self._release()
            raise FleetUnavailableError(str(error).rstrip("."), self._url) from None

    def close(self) -> None:
        """Close the state and the database."""
        self._release()
        self._database.close()

    def missing_reason(self) -> str:
        """Return why the state does not exist, or an empty string. Opening it would create it."""
        if self._shared is None or os.path.lexists(self._shared.path):
            return ""
        return f"No process on this machine uses shared://{self._shared.name}"

    def _release(self) -> None:
        self._store, self._history_until = None, 0.0
        self._exit_stack.close()

    def _ensure_store(self) -> Store:
        if self.missing_reason():
            self._release()
            raise FleetNotFoundError(self.missing_reason(), self._url)
        inode = None if self._shared is None else os.lstat(self._shared.path).st_ino
        if self._store is None or inode != self._directory_inode:  # a removed one is still readable
            self._release()
            self._directory_inode = inode
            self._store = self._exit_stack.enter_context(inspect_store(self._url)).store
        return self._store

    def _read_snapshot(self, store: Store) -> TopSnapshot:
        store.apply(ListWorkers())  # raises an error with the reason, which the flows below do not
        if time.monotonic() >= self._history_until:
            self._history = _require_complete(run(fleet_history_flow(store)))
            self._history_until = time.monotonic() + HISTORY_SECONDS
        sections = self._database.add_to(_require_complete(run(fleet_status_flow(store))))
        return TopSnapshot(build_document(sections, self._url.partition("://")[0]), self._history)


def _require_complete(sections: Document) -> Document:
    """Return the sections if the state was reachable the whole time, else raise an error."""
    if UNREACHABLE in sections["reasons"]:
        raise StateUnavailableError(UNREACHABLE)
    return sections


def build_document(sections: Document, engine: str) -> Document:
    """Return the document of the dashboard, without the fields that only a worker knows."""
    reasons = [*_warning_reasons(sections), *sections["reasons"]]
    return {
        "at": time.time(),
        "version": __version__,
        "status": "warn" if reasons else "ok",
        "state": {"engine": engine, "fallback": None},
        **sections,
        "reasons": reasons,
    }


def empty_document(reason: str, engine: str) -> Document:
    """Return the document of a state that does not exist."""
    parts: Document = {"upstreams": [], "workers": [], "events": [], "story": None, "recent": {}}
    return build_document(
        {**parts, "database": None, "cache": None, "jobs": None, "reasons": [reason]}, engine
    )


def _warning_reasons(sections: Document) -> list[str]:
    cards = sections["upstreams"]
    database = sections["database"] or {"status": "ok"}
    return [
        *fleet_reasons(cards),
        *(["the database cannot be read"] if database["status"] != "ok" else []),
    ]
