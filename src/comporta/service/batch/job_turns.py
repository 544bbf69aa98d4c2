"""Decides which jobs get a place on this worker, and which of them end their turn to make room.

A worker runs up to ``jobs_max`` jobs at a time, and one more that has never had a turn, so that a small job
need not wait for the large ones. All workers work on the same jobs. While there is a job that no worker works
on, the turns that have lasted longest end.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final, ParamSpec

from comporta.service.batch.account_gate import AccountGate
from comporta.service.batch.job_leases import LeasedTasks
from comporta.service.batch.models import ChunkLease, ClaimedChunk, PendingWork
from comporta.service.batch.processor import AccountProcessor
from comporta.service.batch.runner import ChunkStore, JobRun, LostLeaseError, SuspectRun

P = ParamSpec("P")

TURN_SECONDS: Final = 1.0
"""How long a turn lasts at least."""

SUSPECTS_MAX: Final = 4
"""How many accounts whose worker died are processed at a time, alongside the others."""


class JobTurns:
    """The jobs that one worker runs. Without a processor it runs none. ``on_end`` is called after a turn."""

    def __init__(
        self,
        store: ChunkStore,
        processor: AccountProcessor | None,
        *,
        jobs_max: int,
        concurrency: int,
        on_end: Callable[[], None],
    ) -> None:
        self.jobs: LeasedTasks[ChunkLease] = LeasedTasks("job", jobs_max + 1)
        self.suspects: LeasedTasks[ChunkLease] = LeasedTasks("job", SUSPECTS_MAX)
        self.last_attempts: LeasedTasks[ChunkLease] = LeasedTasks("job", 1)
        self.runs: dict[ChunkLease, JobRun] = {}
        """The turns in progress by the chunk that began them, the oldest first."""
        self._store = store
        self._processor = processor
        self._jobs_max = jobs_max
        self._concurrency = concurrency
        self._on_end = on_end
        self._gate = AccountGate()
        self._is_stopping = False

    @property
    def chunks(self) -> tuple[LeasedTasks[ChunkLease], ...]:
        """The tasks that process accounts, and their leases."""
        return self.jobs, self.suspects, self.last_attempts

    def job_ids(self) -> list[str]:
        """Return the jobs that have a place here."""
        return [run.job_id for run in self.runs.values()]

    def stop(self) -> None:
        """Start no further account."""
        self._is_stopping = True
        for run in self.runs.values():
            run.stop()

    async def claim(self, work: PendingWork) -> None:
        """Start as much work as there is room for, and end turns if jobs wait for a place."""
        if self._processor is None:
            return
        claimed = await self._claim_jobs(self._processor) if work.jobs else 0
        self._end_turns(max(work.waiting - claimed, 0))
        if work.suspects:
            await self._claim_suspects(self._processor)
        if work.last_attempts and self.last_attempts.has_room and not self._is_stopping:
            run = SuspectRun(self._store, self._processor, self._gate, self.last_attempts.held)
            self.last_attempts.start(partial(_until_lost, run.run_alone), self._on_end)

    async def _claim_jobs(self, processor: AccountProcessor) -> int:
        """Start turns; return how many."""
        started = 0
        while self.jobs.has_room and not self._is_stopping:
            chunk = await self._next_chunk()
            if chunk is None:
                break
            self._start_run(chunk, processor)
            started += 1
        return started

    async def _next_chunk(self) -> ClaimedChunk | None:
        """Claim the first chunk of the job whose turn it is; ``None`` too if others just claimed its rest."""
        is_new = len(self.jobs.tasks) >= self._jobs_max  # the additional place
        job_id = await self._store.find_job(self.job_ids(), is_new=is_new)
        return None if job_id is None else await self._store.claim(job_id, self._concurrency)

    def _start_run(self, chunk: ClaimedChunk, processor: AccountProcessor) -> None:
        run = JobRun(chunk, self._store, processor, self._gate, self.jobs.held, concurrency=self._concurrency)
        if self._is_stopping:
            run.stop()
        self.runs[chunk.lease] = run
        self.jobs.start(partial(_until_lost, run.run), lambda: self._end_run(chunk.lease), chunk.lease)

    def _end_run(self, first: ChunkLease) -> None:
        del self.runs[first]
        self._on_end()

    def _end_turns(self, waiting: int) -> None:
        if len(self.runs) < self._jobs_max:
            return
        now = time.monotonic()
        ending = sum(run.is_ending for run in self.runs.values())
        wanted = max(len(self.runs) - self._jobs_max, 0) + waiting - ending
        over = [run for run in self.runs.values() if not run.is_ending and now - run.began >= TURN_SECONDS]
        for run in over[: max(wanted, 0)]:
            run.end_turn()

    async def _claim_suspects(self, processor: AccountProcessor) -> None:
        run = SuspectRun(self._store, processor, self._gate, self.suspects.held)
        while self.suspects.has_room and not self._is_stopping:
            chunk = await self._store.claim_suspect()
            if chunk is None:
                return
            self.suspects.start(partial(_until_lost, run.run, chunk), self._on_end, chunk.lease)


async def _until_lost(work: Callable[P, Awaitable[None]], *args: P.args, **kwargs: P.kwargs) -> None:
    """Run work until another worker holds its lease; then this worker has nothing left to do."""
    with suppress(LostLeaseError):
        await work(*args, **kwargs)
