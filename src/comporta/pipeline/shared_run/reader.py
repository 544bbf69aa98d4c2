"""Claims lines of a shared run as the pipeline has room for them, until every line of the run is done.

A worker that finds no free line waits: the lines that others hold become free if those workers die.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from comporta.clock import MONOTONIC
from comporta.database.command import Command
from comporta.errors import PipelineError
from comporta.pipeline.run.reader import CHUNK_ENTRIES_MAX, EntryReader
from comporta.pipeline.run.sources import SourceEntry
from comporta.pipeline.shared_run.commands import claim_lines, finish_run
from comporta.pipeline.shared_run.models import ClaimedLine, RunSession
from comporta.pipeline.shared_run.outage import OUTAGE_ERRORS, OutageBackoff
from comporta.pipeline.shared_run.run_identity import decode_entry
from comporta.pipeline.shared_run.source import TableSource
from comporta.runtime import RUNTIME

Execute = Callable[[Command[Any]], Awaitable[Any]]
"""Runs a command in the database of the run."""

ATTEMPTS_MAX: Final = 20
"""A line that was claimed more often than this, because its workers died each time, becomes a dead letter."""


class TableReader(EntryReader):
    """The lines that this worker claims, at most ``ahead`` at a time; it adds their positions to ``held``."""

    def __init__(
        self, execute: Execute, session: RunSession, source: TableSource, ahead: int, held: set[int]
    ) -> None:
        super().__init__(None, rereadable=True)
        self._held = held
        self._execute = execute
        self._session = session
        self._source = source
        self._count = min(ahead, CHUNK_ENTRIES_MAX)
        self._stopped = asyncio.Event()
        self._reclaim_seconds = session.lease_us / 1e6 / 4
        self._reclaim_at = 0.0

    async def __anext__(self) -> list[SourceEntry]:
        """Claim lines, and wait while there are none or the database cannot be reached."""
        backoff = OutageBackoff()
        while not self._stopped.is_set():
            try:
                if claimed := await self._claim():
                    return [self._entry(line) for line in claimed]
                if await self._is_finished():
                    break
                pause = backoff.next_pause()
            except OUTAGE_ERRORS as error:
                pause = backoff.next_pause(error)
            await MONOTONIC.wait_async(self._stopped, pause)
        raise StopAsyncIteration

    def stop(self) -> None:
        """Claim no more lines."""
        self._stopped.set()

    async def _claim(self) -> list[ClaimedLine]:
        """Claim lines. After a failure, lines may be claimed without this worker knowing: reclaim those."""
        now, due_at = RUNTIME.monotonic(), self._reclaim_at
        reclaims = now >= due_at
        self._reclaim_at = 0.0
        claimed: list[ClaimedLine] = await self._execute(
            claim_lines(self._session, self._count, self._held if reclaims else None)
        )
        self._reclaim_at = now + self._reclaim_seconds if reclaims else due_at
        self._held.update(line.position for line in claimed)
        return claimed

    async def _is_finished(self) -> bool:
        is_finished: bool | None = await self._execute(finish_run(self._session.run_id))
        if is_finished is None:
            raise PipelineError(f"{self._source.name}: run {self._session.run_id} was removed")
        return is_finished

    def _entry(self, line: ClaimedLine) -> SourceEntry:
        entry = decode_entry(line.position, line.entry)
        item = self._source.item_of(self._session.run_id, line.position, entry.number, entry.item)
        error = entry.error
        if line.attempts > ATTEMPTS_MAX:
            error = f"line {entry.number} was claimed {ATTEMPTS_MAX} times by workers that died"
        return entry._replace(item=item, error=error)
