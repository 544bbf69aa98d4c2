"""Copies the lines of a source into the table of a run, under a lease: one worker at a time, each line once.

A chunk of lines is added in one transaction that also checks and renews the lease. If the loading worker
dies, another one continues after the last chunk. Meanwhile workers process the lines that are loaded already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Event
from typing import Any, Final

from comporta.database.base import Database
from comporta.database.command import execute
from comporta.errors import SourceError
from comporta.pipeline.run.sources import SourceEntry
from comporta.pipeline.shared_run.commands import (
    add_lines,
    claim_loading,
    finish_loading,
    is_loaded,
    release_loading,
)
from comporta.pipeline.shared_run.models import TIMEOUT_SECONDS, LoadLease, RunSession
from comporta.pipeline.shared_run.outage import OUTAGE_ERRORS, OutageBackoff
from comporta.pipeline.shared_run.run_identity import LineDigest, encode_entry, key_digest, limited_entries
from comporta.pipeline.shared_run.source import TableSource

CHUNK_LINES_MAX: Final = 1000
CHUNK_CHARS_MAX: Final = 1_000_000
"""A chunk ends with the line that reaches this."""

WAIT_SECONDS: Final = 0.5
"""How often a worker checks whether the worker that loads the lines has died."""

_KeyedEntry = tuple[str, str]


class LineLoader:
    """Loads the lines of a run, or waits until another worker has loaded them. It blocks."""

    def __init__(
        self,
        database: Database,
        session: RunSession,
        source: TableSource,
        digest: str,
        key: Callable[[Any], Any] | None,
    ) -> None:
        self._database = database
        self._session = session
        self._source = source
        self._digest = digest
        self._key = key
        self._stopped = Event()

    def stop(self) -> None:
        """End after the current chunk."""
        self._stopped.set()

    def run(self) -> None:
        """Return when all lines are loaded, or after ``stop``; wait while the database cannot be reached."""
        backoff = OutageBackoff()
        while not self._stopped.is_set():
            try:
                if self._load_or_check():
                    return
                backoff.reset()
                pause = WAIT_SECONDS
            except OUTAGE_ERRORS as error:
                pause = backoff.next_pause(error)
            self._stopped.wait(pause)

    def _load_or_check(self) -> bool:
        """Load lines if no other worker does, and return whether all are loaded, or the run was removed."""
        lease = execute(self._database, claim_loading(self._session))
        if lease is not None:
            self._load(lease)
        return execute(self._database, is_loaded(self._session.run_id)) is not False

    def _load(self, lease: LoadLease) -> None:
        """Load the remaining lines; end early if the lease is lost, because another worker then has it."""
        digest = LineDigest()
        try:
            for chunk in self._chunks(digest, lease.line_count):
                if self._stopped.is_set() or not self._add(lease, chunk):
                    return
                lease = lease._replace(line_count=lease.line_count + len(chunk))
            if digest.text != self._digest:
                raise SourceError(
                    f"{self._source.name} changed while it was loaded; run `comporta runs remove "
                    f"{self._session.run_id}` and start again"
                )
            execute(self._database, finish_loading(self._session, lease))
        finally:
            execute(self._database, release_loading(self._session, lease))

    def _add(self, lease: LoadLease, chunk: list[_KeyedEntry]) -> bool:
        with self._database.statement_transaction(TIMEOUT_SECONDS) as run:
            return add_lines(run, self._session, lease, chunk)

    def _chunks(self, digest: LineDigest, loaded: int) -> Iterator[list[_KeyedEntry]]:
        chunk: list[_KeyedEntry] = []
        chars = 0
        for entry in limited_entries(self._source.source):
            text = encode_entry(entry)
            digest.update(text)
            if entry.position < loaded:
                continue
            chunk.append((self._key_of(entry), text))
            chars += len(text)
            if len(chunk) >= CHUNK_LINES_MAX or chars >= CHUNK_CHARS_MAX:
                yield chunk
                chunk, chars = [], 0
        if chunk:
            yield chunk

    def _key_of(self, entry: SourceEntry) -> str:
        """Return the digest of the key of a line; without a key it becomes a dead letter later."""
        if self._key is None or entry.error:
            return ""
        item = self._source.item_of(self._session.run_id, entry.position, entry.number, entry.item)
        try:
            return key_digest(self._key(item))
        except Exception:
            return ""
