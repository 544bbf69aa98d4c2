"""Runs a job from its first unfinished account to its last, or until it is stopped.

It processes a bounded number of accounts concurrently, stores finished results together, and notifies
followers only after that. Only work in progress is in memory; everything else is in the database.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Final, TypeVar

from comporta.database.base import Database
from comporta.database.command import Command, execute_async
from comporta.errors import DatabaseError
from comporta.limits.priority import priority
from comporta.service.batch.commands import finish_job, read_unfinished, store_results
from comporta.service.batch.metrics import count_job, count_results
from comporta.service.batch.models import (
    COMPLETED,
    AccountResult,
    JobLease,
    PendingAccount,
    StoredResult,
    StoreReceipt,
)
from comporta.service.batch.processor import AccountProcessor
from comporta.service.batch.sheet_writer import SheetWriter

T = TypeVar("T")

PAGE_ACCOUNTS: Final = 500
STORE_BATCH_MAX: Final = 500
"""How many results one transaction stores, and how many may wait for it."""

_RETRY_DELAYS = (0.1, 0.3, 1.0, 2.0, 4.0)
"""Seconds to wait before each retry of a database command."""


class LostLeaseError(Exception):
    """Another worker holds the lease of this job."""


class JobRun:
    """The run of one job that this worker has leased."""

    def __init__(
        self,
        lease: JobLease,
        database: Database,
        processor: AccountProcessor,
        sheet_writer: SheetWriter,
        *,
        concurrency: int,
        on_change: Callable[[str], None],
    ) -> None:
        self.lease = lease
        self._database = database
        self._processor = processor
        self._sheet_writer = sheet_writer
        self._concurrency = concurrency
        self._on_change = on_change
        self._stopping = False
        self._next_lock = asyncio.Lock()
        self._accounts = self._unfinished_accounts()
        self._results: asyncio.Queue[AccountResult | None] = asyncio.Queue(STORE_BATCH_MAX)
        self._active_tasks = concurrency

    def stop(self) -> None:
        """Start no further account."""
        self._stopping = True

    async def run(self) -> bool:
        """Run the job; return whether it is finished. Raises ``LostLeaseError`` if the lease was lost."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._store_loop())
                for _ in range(self._concurrency):
                    group.create_task(self._process_loop())
        except BaseException as error:
            await self._sheet_writer.abandon()  # its rows are in the database; the next run writes them
            if isinstance(error, BaseExceptionGroup):
                raise error.exceptions[0] from None
            raise
        finally:
            await self._accounts.aclose()
        await self._sheet_writer.close()
        if self._stopping:
            return False
        is_finished = await self._execute(finish_job(self.lease, COMPLETED))
        if is_finished:
            count_job(COMPLETED)
        self._on_change(self.lease.job_id)
        return is_finished

    async def _process_loop(self) -> None:
        with priority("batch", owner=f"job {self.lease.job_id}"):
            while (account := await self._next_account()) is not None:
                await self._results.put(await self._processor.process(account))
        self._active_tasks -= 1
        if not self._active_tasks:
            await self._results.put(None)

    async def _next_account(self) -> PendingAccount | None:
        async with self._next_lock:
            return None if self._stopping else await anext(self._accounts, None)

    async def _unfinished_accounts(self) -> AsyncGenerator[PendingAccount, None]:
        after = 0
        while page := await self._execute(read_unfinished(self.lease.job_id, after, PAGE_ACCOUNTS)):
            for account in page:
                yield account
            after = page[-1].position

    async def _store_loop(self) -> None:
        while (results := await self._next_results()) is not None:
            receipt = await self._execute(store_results(self.lease, results))
            if receipt is None:
                raise LostLeaseError(self.lease.job_id)
            count_results(results)
            self._on_change(self.lease.job_id)
            await self._write_to_sheet(receipt, results)

    async def _next_results(self) -> list[AccountResult] | None:
        """Wait for results and return all available ones, ``None`` after the last."""
        items = [await self._results.get()]
        while not self._results.empty() and len(items) < STORE_BATCH_MAX:
            items.append(self._results.get_nowait())
        results = sorted(item for item in items if item is not None)
        if None in items and results:
            self._results.put_nowait(None)
        return results or None

    async def _write_to_sheet(self, receipt: StoreReceipt, results: list[AccountResult]) -> None:
        if receipt.target is not None:
            stored = [StoredResult(*result, receipt.at_us) for result in results]
            await self._sheet_writer.write(receipt.target, stored)

    async def _execute(self, command: Command[T]) -> T:
        """Run a command, again if the database is unreachable; every command here is safe to repeat."""
        for seconds in _RETRY_DELAYS:
            try:
                return await execute_async(self._database, command)
            except DatabaseError:
                await asyncio.sleep(seconds)
        return await execute_async(self._database, command)
