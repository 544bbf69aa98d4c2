"""Runs the accounts that this worker has claimed: the turn of a job, or an account whose worker died.

A turn processes a bounded number of accounts concurrently and stores finished results together. It claims the
next chunk of its job as soon as every account of the last one has started. Only work in progress is in
memory; everything else is in the database.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, MutableMapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeVar

from comporta.database.base import Database
from comporta.database.command import Command, execute_async
from comporta.errors import DatabaseError
from comporta.limits.priority import priority
from comporta.service.batch.account_gate import AccountGate
from comporta.service.batch.chunk_commands import (
    claim_chunk,
    claim_last_attempt,
    claim_suspect,
    find_job,
    release_chunk,
    store_results,
)
from comporta.service.batch.metrics import count_job, count_results
from comporta.service.batch.models import (
    COMPLETED,
    AccountResult,
    ChunkLease,
    ClaimedChunk,
    PendingAccount,
    StoreReceipt,
)
from comporta.service.batch.processor import AccountProcessor

T = TypeVar("T")
HeldLeases = MutableMapping[ChunkLease, "asyncio.Task[Any] | None"]

CHUNK_SECONDS: Final = 0.25
"""A chunk has about as many accounts as the job processes here in this time, or one for each place."""

CHUNK_ACCOUNTS_MAX: Final = 500
STORE_BATCH_MAX: Final = 500
"""How many results one transaction stores, and how many may wait for it."""

_RETRY_DELAYS = (0.1, 0.3, 1.0, 2.0, 4.0)
"""Seconds to wait before each retry of a database command."""


class LostLeaseError(Exception):
    """Another worker holds the lease of this chunk."""


class ChunkStore:
    """Claims, stores and releases the chunks of one worker.

    ``on_stored`` receives the job and the receipt each time results are stored.
    """

    def __init__(
        self,
        database: Database,
        owner: str,
        lease_us: int,
        on_stored: Callable[[str, StoreReceipt], None],
    ) -> None:
        self.owner = owner
        self.lease_us = lease_us
        self._database = database
        self._on_stored = on_stored

    async def claim(self, job_id: str, count: int) -> ClaimedChunk | None:
        """Claim up to ``count`` accounts of a job; ``None`` if none is left."""
        return await self._execute(claim_chunk(job_id, self.owner, self.lease_us, count))

    async def claim_suspect(self) -> ClaimedChunk | None:
        """Claim an account whose worker died once; ``None`` if there is none."""
        return await execute_async(self._database, claim_suspect(self.owner, self.lease_us))

    async def claim_last_attempt(self) -> ClaimedChunk | None:
        """Claim an account whose workers died more than once; ``None`` if there is none."""
        return await execute_async(self._database, claim_last_attempt(self.owner, self.lease_us))

    async def find_job(self, held_jobs: Iterable[str], *, is_new: bool) -> str | None:
        """Find the job whose turn it is; with ``is_new``, only among jobs that have never had a turn."""
        return await execute_async(self._database, find_job(self.lease_us, held_jobs, is_new=is_new))

    async def store(self, lease: ChunkLease, results: list[AccountResult], *, is_last: bool) -> None:
        """Store results; raises ``LostLeaseError`` if the lease was lost."""
        receipt = await self._execute(store_results(lease, results, self.lease_us, is_last=is_last))
        if receipt is None:
            raise LostLeaseError(lease.job_id)
        count_results(results)
        if receipt.is_job_finished:
            count_job(COMPLETED)
        self._on_stored(lease.job_id, receipt)

    async def release(self, lease: ChunkLease) -> None:
        """Release a chunk; if that fails, its lease expires."""
        with suppress(DatabaseError):
            await execute_async(self._database, release_chunk(lease))

    async def _execute(self, command: Command[T]) -> T:
        """Run a command, with retries if the database is unreachable; all commands here may be repeated."""
        for seconds in _RETRY_DELAYS:
            try:
                return await execute_async(self._database, command)
            except DatabaseError:
                await asyncio.sleep(seconds)
        return await execute_async(self._database, command)


class JobRun:
    """The turn of one job on this worker, from the chunk that began it to its last account.

    ``held`` has the leases that the worker renews, with the task that works under each.
    """

    def __init__(
        self,
        first: ClaimedChunk,
        store: ChunkStore,
        processor: AccountProcessor,
        gate: AccountGate,
        held: HeldLeases,
        *,
        concurrency: int,
    ) -> None:
        self.job_id = first.lease.job_id
        self.began = time.monotonic()
        self.is_ending = False
        self._first = first
        self._store = store
        self._processor = processor
        self._gate = gate
        self._held = held
        self._concurrency = concurrency
        self._is_stopping = False
        self._left: dict[ChunkLease, int] = {}
        """How many accounts of each chunk have no stored result yet."""
        self._task: asyncio.Task[Any] | None = None
        self._next_lock = asyncio.Lock()
        self._accounts = self._claimed_accounts()
        self._results: asyncio.Queue[tuple[ChunkLease, AccountResult] | None] = asyncio.Queue(STORE_BATCH_MAX)
        self._active_tasks = concurrency

    def end_turn(self) -> None:
        """Claim no further chunk: other jobs wait."""
        self.is_ending = True

    def stop(self) -> None:
        """Start no further account: this worker shuts down."""
        self._is_stopping = True

    async def run(self) -> None:
        """Run the turn; raises ``LostLeaseError`` if another worker took over one of its chunks."""
        self._task = asyncio.current_task()
        try:
            self._hold(self._first)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._store_loop())
                for _ in range(self._concurrency):
                    group.create_task(self._process_loop())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            await self._accounts.aclose()
            await asyncio.shield(self._release_all())

    def _hold(self, chunk: ClaimedChunk) -> None:
        self._left[chunk.lease] = len(chunk.accounts)
        self._held[chunk.lease] = self._task

    async def _release_all(self) -> None:
        """Release what was not processed, without counting it as an attempt."""
        for lease in self._left:
            self._held.pop(lease, None)
            await self._store.release(lease)

    async def _process_loop(self) -> None:
        with priority("batch", owner=f"job {self.job_id}"):
            while (claimed := await self._next_account()) is not None:
                lease, account = claimed
                async with self._gate.together():
                    result = await self._processor.process(account)
                await self._results.put((lease, result))
        self._active_tasks -= 1
        if not self._active_tasks:
            await self._results.put(None)

    async def _next_account(self) -> tuple[ChunkLease, PendingAccount] | None:
        async with self._next_lock:
            return None if self._is_stopping else await anext(self._accounts, None)

    async def _claimed_accounts(self) -> AsyncGenerator[tuple[ChunkLease, PendingAccount], None]:
        chunk: ClaimedChunk | None = self._first
        size = self._concurrency
        while chunk is not None:
            claimed_at = time.monotonic()
            if not chunk.accounts:
                await self._store_chunk(chunk.lease, [])
            for account in chunk.accounts:
                yield chunk.lease, account
            if self.is_ending or self._is_stopping:
                return
            size = self._next_size(size, len(chunk.accounts), time.monotonic() - claimed_at)
            chunk = await self._store.claim(self.job_id, size)
            if chunk is not None:
                self._hold(chunk)

    def _next_size(self, size: int, accounts: int, seconds: float) -> int:
        """Return the size of the next chunk; it grows slowly, so that the first accounts need not wait."""
        by_pace = round(accounts * CHUNK_SECONDS / max(seconds, 0.001))
        return max(min(by_pace, 2 * size, CHUNK_ACCOUNTS_MAX), self._concurrency)

    async def _store_loop(self) -> None:
        while (items := await self._next_results()) is not None:
            by_chunk: dict[ChunkLease, list[AccountResult]] = {}
            for lease, result in items:
                by_chunk.setdefault(lease, []).append(result)
            for lease, results in by_chunk.items():
                await self._store_chunk(lease, sorted(results))

    async def _next_results(self) -> list[tuple[ChunkLease, AccountResult]] | None:
        """Wait for results and return all available ones, ``None`` after the last."""
        items = [await self._results.get()]
        while not self._results.empty() and len(items) < STORE_BATCH_MAX:
            items.append(self._results.get_nowait())
        results = [item for item in items if item is not None]
        if None in items and results:
            self._results.put_nowait(None)
        return results or None

    async def _store_chunk(self, lease: ChunkLease, results: list[AccountResult]) -> None:
        is_last = len(results) == self._left[lease]
        if is_last:
            self._held.pop(lease, None)  # storing ends the lease: a later renewal would not find it
        await self._store.store(lease, results, is_last=is_last)
        self._left[lease] -= len(results)
        if is_last:
            del self._left[lease]


class SuspectRun:
    """Processes accounts whose workers died, each by itself."""

    def __init__(
        self, store: ChunkStore, processor: AccountProcessor, gate: AccountGate, held: HeldLeases
    ) -> None:
        self._store = store
        self._processor = processor
        self._gate = gate
        self._held = held

    async def run(self, chunk: ClaimedChunk) -> None:
        """Process an account alongside others."""
        async with self._released_on_error(chunk.lease):
            async with self._gate.together():
                results = await self._process(chunk)
            await self._finish(chunk.lease, results)

    async def run_alone(self) -> None:
        """Claim an account for its last attempt and process it, with no other account in this worker.

        It is claimed only once nothing else runs, so that no other account can cost it the attempt.
        """
        async with self._gate.alone():
            chunk = await self._store.claim_last_attempt()
            if chunk is not None:
                self._held[chunk.lease] = asyncio.current_task()
                async with self._released_on_error(chunk.lease):
                    await self._finish(chunk.lease, await self._process(chunk))

    async def _process(self, chunk: ClaimedChunk) -> list[AccountResult]:
        with priority("batch", owner=f"job {chunk.lease.job_id}"):
            return [await self._processor.process(account) for account in chunk.accounts]

    async def _finish(self, lease: ChunkLease, results: list[AccountResult]) -> None:
        self._held.pop(lease, None)
        await self._store.store(lease, results, is_last=True)

    @asynccontextmanager
    async def _released_on_error(self, lease: ChunkLease) -> AsyncIterator[None]:
        """Release the account if it cannot be processed here, without counting it as an attempt."""
        try:
            yield
        except BaseException:
            await asyncio.shield(self._store.release(lease))  # does nothing if the lease was lost
            raise
