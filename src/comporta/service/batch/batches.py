"""The interface of batches for routes: add and follow jobs, configure sheets.

All workers work on all jobs, in chunks, and one worker at a time fills the sheet of a job; see ``job_turns``
and ``sheet_turn``.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import uuid
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple, ParamSpec, TypeVar
from weakref import WeakValueDictionary

from comporta import events
from comporta.clock import MONOTONIC
from comporta.database.command import Command, execute_async
from comporta.errors import ComportaError, DatabaseError
from comporta.service.batch import commands
from comporta.service.batch.job_leases import LeasedTasks, LeaseManager
from comporta.service.batch.job_turns import SUSPECTS_MAX, JobTurns
from comporta.service.batch.metrics import count_job
from comporta.service.batch.models import (
    FIRST_CURSOR,
    PENDING,
    RUNNING,
    BatchJob,
    Cursor,
    JobBounds,
    JobOverview,
    SheetConfig,
    SheetLease,
    StoredResult,
    StoreReceipt,
    Unfinished,
    worker_name,
)
from comporta.service.batch.processor import AccountProcessor, BlockingProcessor, Processor
from comporta.service.batch.runner import ChunkStore
from comporta.service.batch.sheet_turn import OpenSheets, SheetTurn
from comporta.service.batch.whitelist import Whitelist
from comporta.thread_pool import ThreadPool

if TYPE_CHECKING:
    from comporta.database.base import Database
    from comporta.pipeline.sinks.spreadsheets import Spreadsheet
    from comporta.service.batch.sheets import Sheets
    from comporta.settings import BatchSettings

P = ParamSpec("P")
T = TypeVar("T")

FOLLOW_PAGE_RESULTS: Final = 200
PAGE_CHARS_MAX: Final = 1_000_000
"""The largest total length of the messages in one page; the next page has the rest."""

FOLLOW_POLL_SECONDS: Final = 0.5
"""How often this worker polls a job that other workers run."""

FOLLOWERS_MAX: Final = 1000
SHEET_CHECK_SECONDS: Final = 3.0
"""How long a client waits for the check whether its sheet still exists."""

WHITELIST_THREADS: Final = 8
SHEETS_THREADS: Final = 8
INTAKE_THREADS: Final = 2


class ConfiguredSheet(NamedTuple):
    """The sheet of a job; ``backfill_status`` is set if this call scheduled a backfill."""

    config: SheetConfig
    backfill_status: str | None


class Batches:
    """The batches of one worker. ``is_digital`` replaces the whitelist and may block."""

    def __init__(
        self,
        database: Database,
        sheets: Sheets,
        settings: BatchSettings,
        *,
        processor: Processor | BlockingProcessor | None = None,
        is_digital: Callable[[str], bool] | None = None,
    ) -> None:
        self.whitelist = Whitelist(database)
        self.settings = settings
        self._database = database
        self._sheets = sheets
        self._is_digital = is_digital
        self._pools = {
            "whitelist": ThreadPool("whitelist", WHITELIST_THREADS),
            "sheets": ThreadPool("sheets", SHEETS_THREADS),
            "intake": ThreadPool("intake", INTAKE_THREADS),
            "backfill": ThreadPool("backfill", settings.backfills_max),
            "processor": ThreadPool("processor", _processor_threads(settings), calls_max=10_000),
        }
        self._processor = None if processor is None else AccountProcessor(processor, self._pools["processor"])
        self._kept_sheets = OpenSheets(sheets)
        self._sheet_tasks: LeasedTasks[SheetLease] = LeasedTasks("sheet", settings.backfills_max)
        self._change_events: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()  # by job
        self._followers = 0
        self._opening_sheets: asyncio.Task[None] | None = None
        self._turns, self._leases = self._build_work()

    def _build_work(self) -> tuple[JobTurns, LeaseManager]:
        settings = self.settings
        owner = f"{socket.gethostname()[:50]}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        store = ChunkStore(self._database, owner, round(settings.lease_seconds * 1e6), self._on_stored)
        turns = JobTurns(
            store,
            self._processor,
            jobs_max=settings.jobs_max,
            concurrency=settings.concurrency,
            on_end=self._wake,
        )
        leases = LeaseManager(
            self._database,
            owner,
            turns,
            self._sheet_tasks,
            run_sheet=self._run_sheet,
            on_change=self._notify_followers,
            lease_seconds=settings.lease_seconds,
            poll_seconds=settings.poll_seconds,
            retention_seconds=settings.keep_days * 86_400,
        )
        return turns, leases

    # -- lifecycle

    def start(self) -> None:
        """Start polling for work."""
        self._leases.start()
        self._opening_sheets = asyncio.create_task(self._open_sheets())

    async def _open_sheets(self) -> None:
        try:
            await self._pools["sheets"].run(self._sheets.open)
        except Exception as error:  # requests for a sheet report it; everything else continues
            text = f"sheets are not available: {type(error).__name__}: {error}"
            events.publish("batch_sheets_unavailable", "batch", text, "error")

    async def stop(self, seconds: float) -> None:
        """Start nothing new; stop, flush and release the work in progress within ``seconds``."""
        self._turns.stop()
        await self._leases.stop(seconds)

    async def aclose(self, seconds: float) -> None:
        """Stop and close everything."""
        await self.stop(seconds)
        if self._opening_sheets is not None:
            self._opening_sheets.cancel()
            await asyncio.gather(self._opening_sheets, return_exceptions=True)
        for pool in self._pools.values():
            pool.close()
        self._kept_sheets.close()
        self._sheets.close()
        if self._processor is not None:
            await self._processor.aclose()

    # -- jobs

    @property
    def can_process(self) -> bool:
        """Whether a processor for accounts is configured."""
        return self._processor is not None

    async def add_job(
        self, user_id: str, accounts: Sequence[str], job_id: str | None = None, client: str = ""
    ) -> BatchJob | None:
        """Add a job, each account once. Return the job with this id, or ``None`` if too many are running.

        ``client`` is the address of the client that adds it, if the bounds for clients apply. If the id
        already belongs to a job over other accounts, the returned job has another ``digest``.
        """
        job_id = job_id or uuid.uuid4().hex
        command = await self._pools["intake"].run(
            _add_job_command, job_id, user_id, accounts, self.settings, client
        )
        job = await execute_async(self._database, command)
        count_job("refused" if job is None else "asked")
        self._leases.wake()
        return job

    async def count_unfinished(self, user_id: str, client: str) -> tuple[Unfinished, Unfinished]:
        """Return the unfinished jobs and accounts of a user, and those of a client."""
        return await execute_async(self._database, commands.count_unfinished(user_id, client))

    async def run_intake(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run slow work on request input on the intake thread pool."""
        return await self._pools["intake"].run(work, *args, **kwargs)

    async def accounts_digest(self, accounts: Sequence[str]) -> str:
        """Return a hash of the accounts, which distinguishes them from other lists."""
        return await self._pools["intake"].run(_accounts_digest, accounts)

    async def read_job(self, job_id: str) -> BatchJob | None:
        """Return a job, or ``None``."""
        return await execute_async(self._database, commands.read_job(job_id))

    async def read_results(self, job_id: str, after: Cursor, count: int) -> list[StoredResult]:
        """Return results in the order stored; fewer than ``count`` if their messages are long."""
        return _fit_page(await execute_async(self._database, commands.read_results(job_id, after, count)))

    async def list_jobs(self, count: int) -> list[JobOverview]:
        """Return overviews of jobs, the latest first."""
        return await execute_async(self._database, commands.list_jobs(count))

    async def jobs_per_worker(self) -> dict[str, int]:
        """Return how many jobs each worker works on, by worker name."""
        counts = await execute_async(self._database, commands.count_jobs_by_owner())
        return {worker_name(owner) or owner: count for owner, count in counts.items()}

    @property
    def has_follower_room(self) -> bool:
        """Whether another client may follow a job."""
        return self._followers < FOLLOWERS_MAX

    async def follow(
        self, job_id: str, shutting_down: asyncio.Event
    ) -> AsyncGenerator[list[StoredResult] | BatchJob, None]:
        """Yield results as they are stored, then the finished job; end early if this worker shuts down."""
        after = FIRST_CURSOR
        self._followers += 1
        try:
            while not shutting_down.is_set():
                change = self._change_events.setdefault(job_id, asyncio.Event())
                job = await self.read_job(job_id)  # before its results: a finished job has all of them
                page = await self.read_results(job_id, after, FOLLOW_PAGE_RESULTS)
                if page:
                    yield page
                    after = page[-1].cursor
                elif job is None:
                    return
                elif job.status != RUNNING:
                    yield job
                    return
                else:
                    await MONOTONIC.wait_async(change, FOLLOW_POLL_SECONDS)
        finally:
            self._followers -= 1

    # -- sheets

    async def may_have_sheets(self, user_id: str) -> bool:
        """Return whether a user may have sheets; a thread reads the whitelist unless the answer is cached."""
        if self._is_digital is not None:
            return await self._pools["whitelist"].run(self._is_digital, user_id)
        cached = self.whitelist.cached_answer(user_id)
        if cached is not None:
            return cached
        return await self._pools["whitelist"].run(self.whitelist.is_digital, user_id)

    async def configure_sheet(self, job_id: str, user_id: str, name: str | None) -> ConfiguredSheet | None:
        """Give a job a sheet or schedule a failed backfill again; return ``None`` for an unknown job."""
        if await self.read_sheet(job_id) is not None:
            rescheduled = await self.retry_backfill(job_id)
            existing = await self.read_sheet(job_id)
            return None if existing is None else ConfiguredSheet(existing, PENDING if rescheduled else None)
        if await self.read_job(job_id) is None:
            return None
        sheet = await self._create_sheet(job_id, name or f"Ultra batch {job_id}")
        stores_rows = self._sheets.stores_rows
        is_new, config = await execute_async(
            self._database, commands.configure_sheet(job_id, user_id, *sheet, stores_rows=stores_rows)
        )
        self._leases.wake()
        return None if config is None else ConfiguredSheet(config, PENDING if is_new else None)

    async def read_sheet(self, job_id: str) -> SheetConfig | None:
        """Return the sheet of a job, or ``None``."""
        return await execute_async(self._database, commands.read_sheet(job_id))

    async def retry_backfill(self, job_id: str) -> bool:
        """Schedule a failed backfill again, in a new sheet if the old one is gone; false if none failed."""
        config = await self.read_sheet(job_id)
        if config is not None and await self._is_sheet_gone(config):
            sheet = await self._create_sheet(job_id, config.spreadsheet_name)
            command = commands.replace_sheet(config, *sheet, stores_rows=self._sheets.stores_rows)
            rescheduled = await execute_async(self._database, command)
        else:
            rescheduled = await execute_async(self._database, commands.reschedule_backfill(job_id))
        if rescheduled:
            self._leases.wake()
        return rescheduled

    async def _create_sheet(self, job_id: str, name: str) -> Spreadsheet:
        return await self._pools["sheets"].run(self._sheets.create, name, f"batch-{job_id}")

    async def _is_sheet_gone(self, config: SheetConfig) -> bool:
        """Whether the sheet was removed; if that cannot be checked, assume that it exists."""
        try:
            async with asyncio.timeout(SHEET_CHECK_SECONDS):
                return not await self._pools["sheets"].run(self._sheets.exists, config.spreadsheet_id)
        except (ComportaError, OSError):  # TimeoutError is an OSError
            return False

    # -- work

    async def _run_sheet(self, lease: SheetLease) -> None:
        is_lost = False
        turn = SheetTurn(
            lease,
            self._database,
            self._sheets,
            self._kept_sheets,
            self._leases.lease_us,
            should_stop=lambda: is_lost or self._leases.stopping,
            before_end=lambda: self._sheet_tasks.drop(lease),
        )
        try:
            is_over = await self._pools["backfill"].run(turn.run)
        except asyncio.CancelledError:
            is_lost = True
            await asyncio.shield(self._release_sheet(lease))
            raise
        if not is_over and self._leases.stopping:
            await self._release_sheet(lease)
        if turn.is_job_finished:
            self._notify_followers(lease.job_id)
        self._leases.wake_for_sheet(lease.job_id, turn.due_us)

    async def _release_sheet(self, lease: SheetLease) -> None:
        with suppress(DatabaseError):
            await execute_async(self._database, commands.release_sheet(lease))

    def _wake(self) -> None:
        self._leases.wake()

    def _on_stored(self, job_id: str, receipt: StoreReceipt) -> None:
        self._notify_followers(job_id)
        self._leases.wake_for_sheet(job_id, receipt.sheet_due_us)

    def _notify_followers(self, job_id: str) -> None:
        event = self._change_events.pop(job_id, None)
        if event is not None:
            event.set()


def _processor_threads(settings: BatchSettings) -> int:
    """Return how many accounts this worker may process at a time; see ``JobTurns``."""
    return settings.concurrency * (settings.jobs_max + 1) + SUSPECTS_MAX + 1


def _fit_page(results: list[StoredResult]) -> list[StoredResult]:
    """Return as many results as fit into one page, at least one: encoding a huge page blocks the loop."""
    chars = list(accumulate(len(each.message) for each in results))
    return results[: max(bisect_right(chars, PAGE_CHARS_MAX), 1)]


def _accounts_digest(accounts: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(dict.fromkeys(accounts)).encode("utf-8", "replace")).hexdigest()


def _add_job_command(
    job_id: str, user_id: str, accounts: Sequence[str], settings: BatchSettings, client: str
) -> Command[BatchJob | None]:
    bounds = JobBounds(
        settings.running_max,
        settings.running_per_user_max,
        settings.accounts_per_user_max,
        settings.running_per_client_max,
        settings.accounts_per_client_max,
    )
    listed = list(dict.fromkeys(accounts))
    return commands.add_job(job_id, user_id, _accounts_digest(accounts), listed, bounds, client=client)
