"""Batches as routes see them: jobs are added and followed, sheets configured.

The work itself is found in the database, by whoever has room for it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import uuid
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple, ParamSpec, TypeVar
from weakref import WeakValueDictionary

from comporta import events
from comporta.clock import MONOTONIC
from comporta.errors import ComportaError
from comporta.service.batch import requests
from comporta.service.batch.backfill import Backfill
from comporta.service.batch.counting import count_job
from comporta.service.batch.filling import Filling
from comporta.service.batch.processing import BlockingProcessor, Processing, Processor
from comporta.service.batch.requests import ask_async
from comporta.service.batch.roles import Role
from comporta.service.batch.running import LostLeaseError, Run
from comporta.service.batch.taking import Kind, Taking
from comporta.service.batch.values import (
    PENDING,
    RUNNING,
    START,
    HeldBackfill,
    HeldJob,
    Job,
    Place,
    Result,
    SheetConfig,
    ShownJob,
    worker_of,
)
from comporta.service.batch.whitelist import Whitelist

if TYPE_CHECKING:
    from comporta.database.base import Database
    from comporta.pipeline.sinks.spreadsheets import Spreadsheet
    from comporta.service.batch.sheets import Sheets
    from comporta.settings import BatchSettings

P = ParamSpec("P")
T = TypeVar("T")

FOLLOWED_PAGE: Final = 200
PAGE_CHARS_MAX: Final = 1_000_000
"""How long the messages of a page are in all; the next page has the rest."""

FOLLOW_SECONDS: Final = 0.5
"""How often a job is looked at that another worker runs."""

FOLLOWERS_MAX: Final = 1000
LOOK_SECONDS: Final = 3.0
"""How long a client waits while it is found out whether the sheet it has is still there."""

WHITELIST_THREADS: Final = 8
SHEETS_THREADS: Final = 8
INTAKE_THREADS: Final = 2


class Configured(NamedTuple):
    """The sheet of a job; ``backfill_status`` is there if a backfill was scheduled just now."""

    config: SheetConfig
    backfill_status: str | None


class Batches:
    """Of one worker. ``is_digital`` is the whitelist's, unless told otherwise; it may block."""

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
        self._roles = {
            "whitelist": Role("whitelist", WHITELIST_THREADS),
            "sheets": Role("sheets", SHEETS_THREADS),
            "intake": Role("intake", INTAKE_THREADS),
            "backfill": Role("backfill", settings.backfills_max),
            "processor": Role("processor", settings.concurrency * settings.jobs_max, 10_000),
        }
        self._processing = None if processor is None else Processing(processor, self._roles["processor"])
        self._runs: dict[HeldJob, Run] = {}
        self._changes: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()  # of who follows
        self._followers = 0
        self._opening: asyncio.Task[None] | None = None
        self._taking = self._made_taking()

    def _made_taking(self) -> Taking:
        jobs_max = 0 if self._processing is None else self.settings.jobs_max
        job, backfill = requests.claim_job, requests.claim_backfill
        return Taking(
            self._database,
            f"{socket.gethostname()[:50]}-{os.getpid()}-{uuid.uuid4().hex[:8]}",
            Kind("job", jobs_max, job, requests.give_back_job, self._job),
            Kind(
                "backfill", self.settings.backfills_max, backfill, requests.give_back_backfill, self._backfill
            ),
            lease_seconds=self.settings.lease_seconds,
            poll_seconds=self.settings.poll_seconds,
            keep_seconds=self.settings.keep_days * 86_400,
        )

    # -- the beginning and the end

    def start(self) -> None:
        """Look for work from now on."""
        self._taking.start()
        self._opening = asyncio.create_task(self._open_sheets())

    async def _open_sheets(self) -> None:
        try:
            await self._roles["sheets"].run(self._sheets.open)
        except Exception as error:  # whoever wants a sheet is told; everything else goes on
            text = f"sheets are not available: {type(error).__name__}: {error}"
            events.publish("batch_sheets_unavailable", "batch", text, "error")

    async def stop(self, seconds: float) -> None:
        """Begin nothing more; what is under way comes to a halt, is flushed, and is given back."""
        self._taking.stopping = True
        for run in self._runs.values():
            run.stop()
        await self._taking.stop(seconds)

    async def aclose(self, seconds: float) -> None:
        """End."""
        await self.stop(seconds)
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        for role in self._roles.values():
            role.close()
        self._sheets.close()
        if self._processing is not None:
            await self._processing.aclose()

    # -- jobs

    @property
    def can_process(self) -> bool:
        """Whether anybody said what is to be done for an account."""
        return self._processing is not None

    async def add(self, user_id: str, accounts: Sequence[str], job_id: str | None = None) -> Job | None:
        """Add a job, each account once; returns the one of this id, ``None`` if too many are under way.

        A job of this id that is about other accounts has another ``digest``.
        """
        number = job_id or uuid.uuid4().hex
        most = self.settings.running_max
        asked = await self._roles["intake"].run(_intake, number, user_id, accounts, most)
        job = await ask_async(self._database, asked)
        count_job("refused" if job is None else "asked")
        self._taking.ring()
        return job

    async def aside(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do something that takes a while for what comes in, on the threads for that."""
        return await self._roles["intake"].run(work, *args, **kwargs)

    async def digest(self, accounts: Sequence[str]) -> str:
        """Return what tells accounts from others."""
        return await self._roles["intake"].run(_digest, accounts)

    async def job(self, job_id: str) -> Job | None:
        """Return how a job stands."""
        return await ask_async(self._database, requests.read_job(job_id))

    async def results(self, job_id: str, after: Place, count: int) -> list[Result]:
        """Return results in the order in which they came; fewer than ``count`` where messages are long."""
        return _fitting(await ask_async(self._database, requests.results(job_id, after, count)))

    async def shown(self, count: int) -> list[ShownJob]:
        """Return jobs to look at, the latest first."""
        return await ask_async(self._database, requests.shown(count))

    async def holders(self) -> dict[str, int]:
        """Return how many jobs each worker is at, by the name that workers have."""
        found = await ask_async(self._database, requests.holders())
        return {worker_of(owner) or owner: count for owner, count in found.items()}

    @property
    def can_be_followed(self) -> bool:
        """Whether there is room for another who follows."""
        return self._followers < FOLLOWERS_MAX

    async def follow(self, job_id: str, leaving: asyncio.Event) -> AsyncGenerator[list[Result] | Job, None]:
        """Give results as they come, and the job when it is over; ends sooner if this worker does."""
        after = START
        self._followers += 1
        try:
            while not leaving.is_set():
                change = self._changes.setdefault(job_id, asyncio.Event())
                job = await self.job(job_id)  # before its results: one that is over has all of them
                page = await self.results(job_id, after, FOLLOWED_PAGE)
                if page:
                    yield page
                    after = page[-1].place
                elif job is None:
                    return
                elif job.status != RUNNING:
                    yield job
                    return
                else:
                    await MONOTONIC.wait_async(change, FOLLOW_SECONDS)
        finally:
            self._followers -= 1

    # -- sheets

    async def may_have_sheets(self, user_id: str) -> bool:
        """Ask the whitelist, on a thread of its own unless it is known."""
        if self._is_digital is not None:
            return await self._roles["whitelist"].run(self._is_digital, user_id)
        known = self.whitelist.known(user_id)
        if known is not None:
            return known
        return await self._roles["whitelist"].run(self.whitelist.is_digital, user_id)

    async def configure(self, job_id: str, user_id: str, name: str | None) -> Configured | None:
        """Give a job a sheet, or have a failed one filled again; ``None``: there is no such job."""
        if await self.sheet(job_id) is not None:
            again = await self.retry_backfill(job_id)
            existing = await self.sheet(job_id)
            return None if existing is None else Configured(existing, PENDING if again else None)
        if await self.job(job_id) is None:
            return None
        made = await self._made_sheet(job_id, name or f"Ultra batch {job_id}")
        new, config = await ask_async(self._database, requests.configure(job_id, user_id, *made))
        self._taking.ring()
        return None if config is None else Configured(config, PENDING if new else None)

    async def sheet(self, job_id: str) -> SheetConfig | None:
        """Return the sheet of a job."""
        return await ask_async(self._database, requests.read_sheet(job_id))

    async def retry_backfill(self, job_id: str) -> bool:
        """Have a failed backfill done again, in a new sheet if theirs is gone; false if there is no need."""
        config = await self.sheet(job_id)
        if config is not None and await self._is_gone(config):
            made = await self._made_sheet(job_id, config.spreadsheet_name)
            again = await ask_async(self._database, requests.replace_sheet(config, *made))
        else:
            again = await ask_async(self._database, requests.reschedule(job_id))
        if again:
            self._taking.ring()
        return again

    async def _made_sheet(self, job_id: str, name: str) -> Spreadsheet:
        return await self._roles["sheets"].run(self._sheets.create, name, f"batch-{job_id}")

    async def _is_gone(self, config: SheetConfig) -> bool:
        """Whether somebody removed the sheet; where nobody can tell, it counts as there."""
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                return not await self._roles["sheets"].run(self._sheets.has, config.spreadsheet_id)
        except (ComportaError, OSError):  # TimeoutError is one
            return False

    # -- work

    async def _job(self, held: HeldJob) -> bool:
        assert self._processing is not None  # noqa: S101 - otherwise none is taken
        if held.token > 1:
            await ask_async(self._database, requests.move_boundary(held))
        filling = Filling(held, self._sheets, self._roles["sheets"], self._database)
        run = Run(
            held,
            self._database,
            self._processing,
            filling,
            concurrency=self.settings.concurrency,
            changed=self._changed,
        )
        self._runs[held] = run
        if self._taking.stopping:
            run.stop()
        try:
            return await run.run()
        except LostLeaseError:
            return True  # for this worker it is over
        finally:
            del self._runs[held]

    async def _backfill(self, held: HeldBackfill) -> bool:
        lost = False

        def over() -> bool:
            return lost or self._taking.stopping

        work = Backfill(held, self._database, self._sheets, self._taking.lease_us, over)
        try:
            return await self._roles["backfill"].run(work.run)
        except asyncio.CancelledError:
            lost = True
            raise

    def _changed(self, job_id: str) -> None:
        event = self._changes.pop(job_id, None)
        if event is not None:
            event.set()


def _fitting(results: list[Result]) -> list[Result]:
    """Return as many as may be told in one step, one at the least: a page of long ones stops the loop."""
    chars = list(accumulate(len(each.message) for each in results))
    return results[: max(bisect_right(chars, PAGE_CHARS_MAX), 1)]


def _digest(accounts: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(dict.fromkeys(accounts)).encode("utf-8", "replace")).hexdigest()


def _intake(job_id: str, user_id: str, accounts: Sequence[str], most: int) -> requests.Asked[Job | None]:
    return requests.add_job(job_id, user_id, _digest(accounts), list(dict.fromkeys(accounts)), most)
