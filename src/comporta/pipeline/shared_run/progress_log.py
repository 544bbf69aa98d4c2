"""One worker of a shared run: it joins the run, renews its leases, and records which lines are done.

Lines with rows are settled by the sink's transaction (``item_sink.py``). Dead letters and lines without rows
are settled here, many in one transaction. Until then they belong to this worker, so nothing is lost if it
dies.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from comporta import events
from comporta.database.command import Command, execute
from comporta.database.leases import lease_owner
from comporta.database.migrations import migrate
from comporta.database.urls import open_database
from comporta.errors import DatabaseError
from comporta.pipeline.dead_letters import DeadLetter
from comporta.pipeline.run.item_log import OutcomeCounter
from comporta.pipeline.run.report import Report
from comporta.pipeline.run.sources import LINE, SourceEntry, item_name
from comporta.pipeline.shared_run.commands import (
    add_run,
    delete_lines,
    end_worker,
    register_worker,
    renew_lease,
)
from comporta.pipeline.shared_run.item_sink import SettledBatch, SharedItemSink, store_outcomes
from comporta.pipeline.shared_run.line_loader import LineLoader
from comporta.pipeline.shared_run.migrations import MIGRATIONS
from comporta.pipeline.shared_run.models import TIMEOUT_SECONDS, RunOverview, RunSession
from comporta.pipeline.shared_run.outage import OUTAGE_ERRORS, OutageBackoff
from comporta.pipeline.shared_run.reader import TableReader
from comporta.pipeline.shared_run.removal import remove_old_runs
from comporta.pipeline.shared_run.run_identity import check_found, digest_of, run_identity
from comporta.pipeline.shared_run.source import TableSource
from comporta.pipeline.sinks.base import TransactionalSink
from comporta.runtime import RUNTIME
from comporta.thread_pool import ThreadPool

if TYPE_CHECKING:
    from comporta.pipeline.run.pipeline import Pipeline

T = TypeVar("T")

RENEWALS_PER_LEASE = 6
SAVE_SECONDS = 0.05
"""The pause between two transactions for dead letters and lines without rows."""


class SharedProgressLog:
    """Records finished lines in the database of the run. Always ``close`` it."""

    dead_letters = None
    accepts_dead_letters = True

    def __init__(self, report: Report, pipeline: Pipeline, source: TableSource) -> None:
        check_pipeline(pipeline)
        self._report = report
        self._source = source
        self._key = pipeline.key
        self._database = open_database(source.database, TIMEOUT_SECONDS)
        self._session = RunSession(
            "", lease_owner(), round(source.lease_seconds * 1e6), pipeline.key is not None
        )
        self._check_sink(pipeline.sink)
        self._loader: LineLoader | None = None
        self._pool = ThreadPool("shared-run", 1)
        self._loader_pool = ThreadPool("shared-run-loader", 1)
        self._counter = OutcomeCounter(report)
        self.publish_dead_letter = self._counter.publish_dead_letter
        self._held: set[int] = set()
        self._unsaved: dict[int, DeadLetter | None] = {}
        self._changed = asyncio.Event()
        self._settled_dead: set[int] = set()
        self._settled_lost: set[int] = set()

    # -- opening

    async def open(self, identity: Mapping[str, Any]) -> None:
        """Join the run, or create it."""
        await self._on_thread(self._join)

    async def open_reader(self, source: Any, ahead: int) -> TableReader:
        """Return the reader, which claims lines."""
        return TableReader(self._execute, self._session, self._source, ahead, self._held)

    def item_sink(self, sink: Any, *, is_async: bool) -> SharedItemSink:
        """Return the sink that settles lines in its transactions."""
        return SharedItemSink(sink, self._session, self.dead_letter_of, self._on_settled)

    async def save_output_end(self, end: int | None) -> None:
        """Do nothing: the sink has no file."""

    def background_jobs(self) -> list[Coroutine[Any, Any, None]]:
        """Return the jobs that load lines, renew leases and settle lines without rows."""
        return [self._load_lines(), self._renew_continuously(), self._save_continuously()]

    # -- items

    def is_done(self, position: int) -> bool:
        """Return false: only lines that are not done are claimed."""
        return False

    async def wait_for_window(self, position: int, window: int) -> None:
        """Return immediately: a line that is far ahead costs nothing."""

    def confirm(
        self, positions: Iterable[int], *, written: int = 0, dead: int = 0, output_end: int | None = None
    ) -> None:
        """Count lines that the sink has settled, or settle lines without rows soon."""
        if not written:
            self._unsaved.update(dict.fromkeys(positions))
            self._changed.set()
            return
        settled = set(positions)
        self._held -= settled
        dead_now, lost = settled & self._settled_dead, settled & self._settled_lost
        self._settled_dead -= dead_now
        self._settled_lost -= lost
        self._counter.count(written=len(settled) - len(dead_now) - len(lost), dead=len(dead_now), nothing=0)

    def dead_letter_of(
        self, entry: SourceEntry, reason: str, attempts: int = 0, key: Hashable = None
    ) -> DeadLetter:
        """Return the dead letter of a line; its ``id`` names the run and the line."""
        item = entry.item.item if self._source.as_lines else entry.item
        return DeadLetter(
            item, reason, attempts, key, entry.number, id=f"{self._session.run_id}-{entry.position}"
        )

    async def record_dead_letter(self, entry: SourceEntry, dead_letter: DeadLetter) -> None:
        """Store a dead letter soon; the line stays leased until then."""
        self._unsaved[entry.position] = dead_letter
        self._changed.set()

    # -- closing

    async def close(self, *, complete: bool, failed: bool) -> None:
        """Settle what is left, release all lines, and report the progress of the whole run."""
        try:
            if self._loader is not None:
                self._loader.stop()
                await self._loader_pool.submit(lambda: None)  # after the loader, which has the only thread
            if self._session.run_id:
                await self._save()
                self._show(await self._execute(end_worker(self._session)))
        finally:
            self._loader_pool.close()
            self._pool.close()
            self._database.close()

    # -- inside

    def _check_sink(self, sink: object) -> None:
        if sink is None:
            return
        if not isinstance(sink, TransactionalSink):
            raise ValueError(
                "sink of a shared run must be a SqliteSink or a PostgresSink, which write to the database of "
                f"its TableSource, got {sink!r:.100}"
            )
        if sink.database_address != self._database.address:
            raise ValueError(
                "sink of a shared run must write to the database of its TableSource, "
                f"{self._database.address}, got {sink.database_address}"
            )

    def _join(self) -> None:
        migrate(self._database, MIGRATIONS)
        remove_old_runs(self._database)
        source = self._source
        options = {**source.options, "lease_seconds": source.lease_seconds, "key": self._session.by_key}
        digest = digest_of(source.source)
        wanted = run_identity(source.name, digest, source.run_identity, options)
        check_found(wanted, execute(self._database, add_run(wanted)))
        session = self._session._replace(run_id=wanted.run_id)
        execute(self._database, register_worker(session))
        self._session = session
        source.run_id = session.run_id
        self._loader = LineLoader(self._database, session, source, digest, self._key)

    async def _load_lines(self) -> None:
        assert self._loader is not None  # noqa: S101 - set by open
        await asyncio.shield(self._loader_pool.submit(self._loader.run))

    async def _renew_continuously(self) -> None:
        """Renew the lease of this worker and show the progress of the run, until cancelled."""
        history = deque([(RUNTIME.monotonic(), 0)], RENEWALS_PER_LEASE + 1)
        while True:
            history.append((RUNTIME.monotonic(), self._report.done))
            try:
                self._show(await self._execute(renew_lease(self._session, _rate(history))))
            except DatabaseError as error:  # a lease that is not renewed expires, and others claim the lines
                events.publish("shared_run_lease", self._report.name, f"cannot renew the lease: {error}")
            await asyncio.sleep(self._session.lease_us / 1e6 / RENEWALS_PER_LEASE)

    def _show(self, overview: RunOverview | None) -> None:
        """Report what all workers have done as ``skipped``, besides what this one has."""
        if overview is None:
            return
        counts = overview.counts
        self._report.total = None if overview.loaded_at is None else overview.line_count
        self._report.skipped = max(0, counts.done - self._report.done)
        self._report.dead_before = max(0, counts.dead - self._report.dead)

    async def _save_continuously(self) -> None:
        backoff = OutageBackoff()
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._save()
                backoff.reset()
            except OUTAGE_ERRORS as error:
                self._changed.set()
                await asyncio.sleep(backoff.next_pause(error))
            await asyncio.sleep(SAVE_SECONDS)

    async def _save(self) -> None:
        """Settle dead letters and lines without rows in one transaction."""
        unsaved, self._unsaved = self._unsaved, {}
        if not unsaved:
            return
        try:
            held = await self._on_thread(lambda: self._settle(unsaved))
        except BaseException:
            self._unsaved = {**unsaved, **self._unsaved}
            raise
        self._held -= unsaved.keys()
        letters = [letter for position, letter in unsaved.items() if position in held and letter is not None]
        self._counter.count(written=0, dead=len(letters), nothing=len(held) - len(letters))
        self._report_lost(len(unsaved) - len(held))
        for letter in letters[:1]:
            self.publish_dead_letter(item_name(LINE, letter.position, letter.key), letter.reason)

    def _settle(self, unsaved: Mapping[int, DeadLetter | None]) -> frozenset[int]:
        with self._database.statement_transaction(TIMEOUT_SECONDS) as run:
            held = delete_lines(run, self._session, list(unsaved))
            letters = {
                position: letter
                for position, letter in unsaved.items()
                if position in held and letter is not None
            }
            store_outcomes(run, self._session, letters, without_rows=len(held) - len(letters))
        return held

    def _on_settled(self, batch: SettledBatch) -> None:
        """Remember which lines of a batch have no rows; the thread that wrote calls it before ``confirm``."""
        self._settled_dead |= batch.dead
        self._settled_lost |= batch.lost
        self._report_lost(len(batch.lost))

    def _report_lost(self, count: int) -> None:
        if count:
            text = f"{count} lines were not settled: the lease expired and other workers claimed them"
            events.publish("shared_run_lease_lost", self._report.name, text)

    async def _execute(self, command: Command[T]) -> T:
        """Run a command, to its end even if the caller is cancelled.

        Commands run one after another: a claim or renewal after the worker has released its lines would take
        them again.
        """
        return await self._on_thread(lambda: execute(self._database, command))

    async def _on_thread(self, work: Callable[[], T]) -> T:
        """Run blocking work on the thread, to its end even if the caller is cancelled."""
        return await asyncio.shield(self._pool.submit(work))


def _rate(history: Sequence[tuple[float, int]]) -> float:
    """Return the lines per second between the first and the last of several times and counts."""
    (began, before), (now, done) = history[0], history[-1]
    return (done - before) / (now - began) if now > began else 0.0


def check_pipeline(pipeline: Pipeline) -> None:
    """Raise for options that a shared run cannot have: its lines and dead letters are in the database."""
    for option in ("checkpoint", "dead_letters"):
        given = getattr(pipeline, option)
        if given is not None:
            raise ValueError(
                f"{option} must be None with a TableSource, whose database has them, got {given!r:.100}"
            )
