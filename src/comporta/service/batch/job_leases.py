"""Finds work that no worker has leased, new or left by a dead process, and runs it under a lease.

A worker claims a lease on the row of a job or backfill, renews it while it works, and releases it when it
shuts down. A lease that is not renewed expires, and another worker claims the row. Each worker runs a bounded
number at a time; the rest waits in the database.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

from comporta import events
from comporta.clock import MONOTONIC
from comporta.database.base import Database
from comporta.database.command import Command, execute_async
from comporta.errors import DatabaseError
from comporta.jitter import uniform
from comporta.service.batch.commands import (
    delete_oldest,
    fail_hopeless,
    has_unleased_work,
    renew_leases,
)
from comporta.service.batch.metrics import count_backfill, count_job
from comporta.service.batch.models import FAILED, BackfillLease, JobLease

LeaseT = TypeVar("LeaseT", bound=JobLease | BackfillLease)

CLEANUP_SECONDS: Final = 60.0
DELETED_MAX: Final = 20
"""How many expired jobs one cleanup deletes."""

_BACKOFF_SECONDS_MAX = 10.0


class LeasedWork(Generic[LeaseT]):
    """One type of work: how it is claimed, run and released, and the tasks that run it."""

    def __init__(
        self,
        name: str,
        max_concurrent: int,
        claim: Callable[[str, int], Command[LeaseT | None]],
        release: Callable[[LeaseT], Command[None]],
        run: Callable[[LeaseT], Awaitable[bool]],
    ) -> None:
        self.name = name
        self.max_concurrent = max_concurrent
        self.claim = claim
        self.release = release
        self.run = run
        self.tasks: dict[LeaseT, asyncio.Task[None]] = {}
        """By lease, not by job: this worker may lose a job and claim it again before it notices."""

    @property
    def has_room(self) -> bool:
        """Whether this worker may claim another lease."""
        return len(self.tasks) < self.max_concurrent

    def taken_over(self, leases: list[LeaseT], tokens: dict[str, int]) -> list[LeaseT]:
        """Return leases that still run here but are held by others now; ``tokens`` are the valid ones."""
        return [lease for lease in leases if tokens.get(lease.job_id) != lease.token and lease in self.tasks]


class LeaseManager:
    """Polls for work and keeps the leases of one worker."""

    def __init__(
        self,
        database: Database,
        owner: str,
        jobs: LeasedWork[JobLease],
        backfills: LeasedWork[BackfillLease],
        *,
        lease_seconds: float,
        poll_seconds: float,
        retention_seconds: float,
    ) -> None:
        self._database = database
        self._owner = owner
        self._jobs = jobs
        self._backfills = backfills
        self._lease_seconds = lease_seconds
        self._poll_seconds = poll_seconds
        self._retention_us = round(retention_seconds * 1e6)
        self._wake_event = asyncio.Event()
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

    async def stop(self, seconds: float) -> None:
        """Wait up to ``seconds`` for work in progress to stop, then cancel and release the rest."""
        self.stopping = True
        self.wake()
        tasks = [*self._jobs.tasks.values(), *self._backfills.tasks.values()]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=seconds)
            await _cancel_all(late)
        await _cancel_all(self._loops)

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
        has_jobs, has_backfills = await execute_async(self._database, has_unleased_work(self.lease_us))
        if has_jobs:
            await self._claim_all(self._jobs)
        if has_backfills:
            await self._claim_all(self._backfills)
        if time.monotonic() > self._cleanup_at:
            self._cleanup_at = time.monotonic() + CLEANUP_SECONDS * uniform(0.7, 1.3)
            await self._clean_up()

    async def _claim_all(self, work: LeasedWork[LeaseT]) -> None:
        while work.has_room and not self.stopping:
            lease = await execute_async(self._database, work.claim(self._owner, self.lease_us))
            if lease is None:
                return
            work.tasks[lease] = asyncio.create_task(self._run_leased(work, lease))

    async def _run_leased(self, work: LeasedWork[LeaseT], lease: LeaseT) -> None:
        try:
            is_over = await work.run(lease)
            if not is_over and self.stopping:
                await self._release(work, lease)
        except asyncio.CancelledError:
            if self.stopping:
                await asyncio.shield(self._release(work, lease))
            raise
        except Exception as error:  # the lease expires, and some worker tries again
            text = f"a {work.name} was interrupted: {type(error).__name__}: {error}"
            events.publish("batch_interrupted", lease.job_id, text, "error")
        finally:
            del work.tasks[lease]
            self.wake()

    async def _release(self, work: LeasedWork[LeaseT], lease: LeaseT) -> None:
        with suppress(DatabaseError):
            await execute_async(self._database, work.release(lease))

    async def _renew_loop(self) -> None:
        while True:
            await asyncio.sleep(self._lease_seconds / 3)
            with suppress(DatabaseError):  # an unrenewed lease expires and is claimed again
                await self._renew()

    async def _renew(self) -> None:
        jobs, backfills = self._jobs, self._backfills
        if not (jobs.tasks or backfills.tasks):
            return
        leases = list(jobs.tasks), list(backfills.tasks)
        job_tokens, backfill_tokens = await execute_async(
            self._database, renew_leases(self._owner, self.lease_us, *leases)
        )
        self._cancel_taken_over(jobs, leases[0], job_tokens)
        self._cancel_taken_over(backfills, leases[1], backfill_tokens)

    def _cancel_taken_over(
        self, work: LeasedWork[LeaseT], leases: list[LeaseT], tokens: dict[str, int]
    ) -> None:
        """Cancel the local tasks of leases that expired here and that other workers have claimed."""
        for lease in work.taken_over(leases, tokens):
            events.publish("batch_lease_lost", lease.job_id, f"another worker took over the {work.name}")
            work.tasks[lease].cancel()

    async def _clean_up(self) -> None:
        jobs, backfills = await execute_async(self._database, fail_hopeless(self.lease_us))
        for name, count, job_ids in (("job", count_job, jobs), ("backfill", count_backfill, backfills)):
            for job_id in job_ids:
                count(FAILED)
                events.publish("batch_stuck", job_id, f"the {name} was claimed too often", "error")
        for _ in range(DELETED_MAX):
            if not await execute_async(self._database, delete_oldest(self._retention_us)):
                return


async def _cancel_all(tasks: Any) -> None:
    """Cancel tasks and wait for them to end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
