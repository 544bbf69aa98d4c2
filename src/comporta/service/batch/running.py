"""One run of a job: from its first unfinished account to the last, or until it is told to stop.

So many accounts are done at a time; what became of them is stored, all there is at once, and only then is
anybody told. Nothing of a job is kept here but what is under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Final, TypeVar

from comporta.database.base import Database
from comporta.errors import DatabaseError
from comporta.service.batch.counting import count_job, count_results
from comporta.service.batch.filling import Filling
from comporta.service.batch.processing import Processing
from comporta.service.batch.requests import Asked, ask_async, finish, store, unfinished
from comporta.service.batch.values import COMPLETED, Account, Done, HeldJob, Result, Stored

T = TypeVar("T")

PAGE: Final = 500
STORED_MAX: Final = 500
"""How many results are stored in one step, and how many may wait for it."""

_PATIENCE_SECONDS = (0.1, 0.3, 1.0, 2.0, 4.0)
"""How long to wait before the database is asked again that did not answer."""


class LostLeaseError(Exception):
    """Somebody else has what this worker was working on."""


class Run:
    """Of one job that this worker holds."""

    def __init__(
        self,
        held: HeldJob,
        database: Database,
        processing: Processing,
        filling: Filling,
        *,
        concurrency: int,
        changed: Callable[[str], None],
    ) -> None:
        self.held = held
        self._database = database
        self._processing = processing
        self._filling = filling
        self._concurrency = concurrency
        self._changed = changed
        self._stopping = False
        self._next = asyncio.Lock()
        self._accounts = self._unfinished()
        self._done: asyncio.Queue[Done | None] = asyncio.Queue(STORED_MAX)
        self._working = concurrency

    def stop(self) -> None:
        """Begin no other account."""
        self._stopping = True

    async def run(self) -> bool:
        """Do it; true if the job is over. Raises ``LostLeaseError`` if it is somebody else's by now."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._store_all())
                for _ in range(self._concurrency):
                    group.create_task(self._work())
        except BaseException as error:
            await self._filling.abandon()  # its rows are in the database, and the next run's
            if isinstance(error, BaseExceptionGroup):
                raise error.exceptions[0] from None
            raise
        finally:
            await self._accounts.aclose()
        await self._filling.close()
        if self._stopping:
            return False
        over = await self._asked(finish(self.held, COMPLETED))
        if over:
            count_job(COMPLETED)
        self._changed(self.held.job_id)
        return over

    async def _work(self) -> None:
        while (account := await self._account()) is not None:
            await self._done.put(await self._processing.done(account))
        self._working -= 1
        if not self._working:
            await self._done.put(None)

    async def _account(self) -> Account | None:
        async with self._next:
            return None if self._stopping else await anext(self._accounts, None)

    async def _unfinished(self) -> AsyncGenerator[Account, None]:
        after = 0
        while page := await self._asked(unfinished(self.held.job_id, after, PAGE)):
            for account in page:
                yield account
            after = page[-1].position

    async def _store_all(self) -> None:
        while (done := await self._finished()) is not None:
            stored = await self._asked(store(self.held, done))
            if stored is None:
                raise LostLeaseError(self.held.job_id)
            count_results(done)
            self._changed(self.held.job_id)
            await self._passed_on(stored, done)

    async def _finished(self) -> list[Done] | None:
        """Wait for results, and return all there are; nothing at the end."""
        found = [await self._done.get()]
        while not self._done.empty() and len(found) < STORED_MAX:
            found.append(self._done.get_nowait())
        done = sorted(each for each in found if each is not None)
        if None in found and done:
            self._done.put_nowait(None)
        return done or None

    async def _passed_on(self, stored: Stored, done: list[Done]) -> None:
        if stored.target is not None:
            await self._filling.put(stored.target, [Result(*each, stored.at_us) for each in done])

    async def _asked(self, asked: Asked[T]) -> T:
        """Ask the database, again if it is out of reach; everything asked here may be asked twice."""
        for seconds in _PATIENCE_SECONDS:
            try:
                return await ask_async(self._database, asked)
            except DatabaseError:
                await asyncio.sleep(seconds)
        return await ask_async(self._database, asked)
