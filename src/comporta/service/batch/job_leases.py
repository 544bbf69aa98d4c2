"""Finds work that no worker has leased, new or left by a dead process, and keeps the leases of this worker.

A worker leases chunks of accounts and sheets, renews the leases while it works, and releases them when it
shuts down. A lease that is not renewed expires, and another worker claims the work. Each worker has a bounded
number of places; the remaining work waits in the database. ``job_turns`` decides which job gets a place.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

from comporta import events
from comporta.clock import MONOTONIC
from comporta.database.base import Database
from comporta.database.command import Command, execute_async
from comporta.errors import DatabaseError
from comporta.jitter import uniform
from comporta.service.batch.chunk_commands import (
    fail_exhausted,
    read_pending_work,
    renew_leases,
    split_dead,
)
from comporta.service.batch.commands import SHEET_FLUSH_US, claim_sheet, delete_oldest, fail_hopeless
from comporta.service.batch.metrics import count_backfill, count_failed_accounts, count_job
from comporta.service.batch.models import COMPLETED, FAILED, ChunkLease, PendingWork, SheetLease

LeaseT = TypeVar("LeaseT", bound=ChunkLease | SheetLease)
T = TypeVar("T")

CLEANUP_SECONDS: Final = 60.0
DELETED_MAX: Final = 20
"""How many expired jobs one cleanup deletes."""

WAKE_SECONDS_MIN: Final = 0.02
"""The shortest time until a scheduled poll, so that frequent stores do not cause frequent polls."""

_BACKOFF_SECONDS_MAX = 10.0


class LeasedTasks(Generic[LeaseT]):
    """The tasks of one type of work on this worker, and the leases that they hold."""

    def __init__(self, name: str, places: int) -> None:
        self.name = name
        self.places = places
        self.tasks: set[asyncio.Task[Any]] = set()
        self.held: dict[LeaseT, asyncio.Task[Any] | None] = {}
        """The leases to renew, each with the task that is cancelled when another worker takes it over."""

    @property
    def has_room(self) -> bool:
        """Whether this worker may start another task."""
        return len(self.tasks) < self.places

    def start(
        self, work: Callable[[], Awaitable[None]], on_end: Callable[[], None], lease: LeaseT | None = None
    ) -> None:
        """Run work under a lease that it holds or will acquire; an error ends only this task."""
        task = asyncio.create_task(self._guard(work, "batch" if lease is None else lease.job_id))
        self.tasks.add(task)
        if lease is not None:
            self.held[lease] = task
        task.add_done_callback(lambda done: self._remove(done, on_end))

    def drop(self, lease: LeaseT) -> None:
        """Stop renewing a lease."""
        self.held.pop(lease, None)

    async def _guard(self, work: Callable[[], Awaitable[None]], source: str) -> None:
        try:
            await work()
        except Exception as error:  # a lease that is not released expires, and a worker tries again
            text = f"a {self.name} was interrupted: {type(error).__name__}: {error}"
            events.publish("batch_interrupted", source, text, "error", label="batch")

    def _remove(self, task: asyncio.Task[Any], on_end: Callable[[], None]) -> None:
        self.tasks.discard(task)
        for lease in [lease for lease, holder in self.held.items() if holder is task]:
            del self.held[lease]
        on_end()

    def cancel_taken_over(self, leases: Iterable[LeaseT], renewed: set[tuple[str, int]]) -> None:
        """Cancel the tasks of leases that expired here and that other workers have claimed."""
        for lease in leases:
            task = self.held.get(lease)
            if (lease.job_id, lease.token) not in renewed and task is not None:
                text = f"another worker took over the {self.name}"
                events.publish("batch_lease_lost", lease.job_id, text, label="batch")
                task.cancel()


class Turns(Protocol):
    """The jobs that a worker runs; see ``job_turns.JobTurns``."""

    @property
    def chunks(self) -> tuple[LeasedTasks[ChunkLease], ...]:
        """The tasks that process accounts, and their leases."""

    def job_ids(self) -> list[str]:
        """Return the jobs that have a place here."""

    async def claim(self, work: PendingWork) -> None:
        """Start as much work as there is room for."""


class LeaseManager:
    """Polls for work and keeps the leases of one worker.

    ``run_sheet`` fills a sheet. ``on_change`` receives the id of a job that changed although no turn of it
    runs on this worker.
    """

    def __init__(
        self,
        database: Database,
        owner: str,
        turns: Turns,
        sheets: LeasedTasks[SheetLease],
        *,
        run_sheet: Callable[[SheetLease], Awaitable[None]],
        on_change: Callable[[str], None],
        lease_seconds: float,
        poll_seconds: float,
        retention_seconds: float,
    ) -> None:
        self._database = database
        self._owner = owner
        self._turns = turns
        self._chunks = turns.chunks
        self._sheets = sheets
        self._run_sheet = run_sheet
        self._on_change = on_change
        self._lease_seconds = lease_seconds
        self._poll_seconds = poll_seconds
        self._retention_us = round(retention_seconds * 1e6)
        self._wake_event = asyncio.Event()
        self._wake_timer: asyncio.TimerHandle | None = None
        self._loops: list[asyncio.Task[None]] = []
        self._cleanup_at = 0.0
        self.stopping = False

    @property
    def lease_us(self) -> int:
        """The duration of a lease in microseconds."""
        return round(self._lease_seconds * 1e6)

    def start(self) -> None:
        """Start polling and renewing."""
        self._loops = [asyncio.create_task(each) for each in (self._poll_loop(), self._renew_loop())]

    def wake(self) -> None:
        """Poll now: there may be new work."""
        self._wake_event.set()

    def wake_for_sheet(self, job_id: str, due_us: int | None) -> None:
        """Poll when a sheet is due, unless it is being filled here."""
        if due_us is None or any(lease.job_id == job_id for lease in list(self._sheets.held)):
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + max(due_us / 1e6, WAKE_SECONDS_MIN)
        if self._wake_timer is None or at < self._wake_timer.when() or self._wake_timer.when() < loop.time():
            self._cancel_timer()
            self._wake_timer = loop.call_at(at, self.wake)

    async def stop(self, seconds: float) -> None:
        """Wait up to ``seconds`` for work in progress to stop, and flush sheets; then cancel the rest."""
        self.stopping = True
        self.wake()
        deadline = time.monotonic() + seconds
        await _wait_until(self._loops[:1], deadline)  # a claim whose reply is lost would have to expire
        await _wait_until([task for each in self._chunks for task in each.tasks], deadline)
        if seconds > 0 and self._loops:
            with suppress(DatabaseError):
                await self._claim_sheets(SHEET_FLUSH_US)
        await _wait_until(self._sheets.tasks, deadline)
        self._cancel_timer()
        await _cancel_all(self._loops)  # first: a claim that ends now would start another task
        await _cancel_all([*(task for each in self._chunks for task in each.tasks), *self._sheets.tasks])

    def _cancel_timer(self) -> None:
        if self._wake_timer is not None:
            self._wake_timer.cancel()

    # -- polling

    async def _poll_loop(self) -> None:
        failures = 0
        while not self.stopping:
            self._wake_event.clear()
            try:
                await self._poll()
                failures = 0
            except DatabaseError as error:
                failures += 1
                if failures == 1:
                    events.publish("batch_database", "batch", f"cannot look for work: {error}", "error")
            pause = self._poll_seconds * uniform(0.7, 1.3) * min(2**failures, 64)
            longest = max(self._poll_seconds, _BACKOFF_SECONDS_MAX)
            await MONOTONIC.wait_async(self._wake_event, min(pause, longest))

    async def _poll(self) -> None:
        work = await self._execute(read_pending_work(self.lease_us, self._turns.job_ids()))
        if work.dead_chunk_job is not None:
            await self._execute(split_dead(work.dead_chunk_job, self.lease_us))
            self.wake()  # there may be more of them
        if work.exhausted_job is not None:
            await self._fail_exhausted(work.exhausted_job)
        if not self.stopping:
            await self._turns.claim(work)
        if work.sheets and not self.stopping:
            await self._claim_sheets()
        if time.monotonic() > self._cleanup_at:
            self._cleanup_at = time.monotonic() + CLEANUP_SECONDS * uniform(0.7, 1.3)
            await self._clean_up()

    async def _claim_sheets(self, ahead_us: int = 0) -> None:
        while self._sheets.has_room:
            lease = await self._execute(claim_sheet(self._owner, self.lease_us, ahead_us))
            if lease is None:
                return
            self._sheets.start(partial(self._run_sheet, lease), self.wake, lease)

    async def _fail_exhausted(self, job_id: str) -> None:
        accounts, is_finished = await self._execute(fail_exhausted(job_id, self.lease_us))
        count_failed_accounts(accounts)
        if accounts:
            text = f"{accounts} accounts failed: their workers died each time"
            events.publish("batch_account_exhausted", job_id, text, "error", label="batch")
        if is_finished:
            count_job(COMPLETED)
        self._on_change(job_id)
        self.wake()

    async def _execute(self, command: Command[T]) -> T:
        return await execute_async(self._database, command)

    # -- renewing

    async def _renew_loop(self) -> None:
        while True:
            await asyncio.sleep(self._lease_seconds / 3)
            with suppress(DatabaseError):  # an unrenewed lease expires and is claimed again
                await self._renew()

    async def _renew(self) -> None:
        chunks = [(each, list(each.held)) for each in self._chunks]
        sheets = list(self._sheets.held)
        all_chunks = [lease for _, leases in chunks for lease in leases]
        if not (all_chunks or sheets):
            return
        renewed_chunks, renewed_sheets = await self._execute(
            renew_leases(self._owner, self.lease_us, all_chunks, sheets)
        )
        for work, leases in chunks:
            work.cancel_taken_over(leases, renewed_chunks)
        self._sheets.cancel_taken_over(sheets, renewed_sheets)

    # -- cleaning up

    async def _clean_up(self) -> None:
        sheets, finished = await self._execute(fail_hopeless(self.lease_us))
        for job_id in sheets:
            count_backfill(FAILED)
            text = "the sheet was claimed too often"
            events.publish("batch_stuck", job_id, text, "error", label="batch")
        for job_id in finished:
            count_job(COMPLETED)
            self._on_change(job_id)
        for _ in range(DELETED_MAX):
            if not await self._execute(delete_oldest(self._retention_us)):
                return


async def _wait_until(tasks: Iterable[asyncio.Task[Any]], deadline: float) -> None:
    """Wait for tasks to end, until a deadline of the monotonic clock."""
    running = list(tasks)
    if running:
        await asyncio.wait(running, timeout=max(deadline - time.monotonic(), 0))


async def _cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait for them to end."""
    running = list(tasks)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
