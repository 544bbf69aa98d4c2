"""Finding work that nobody does: new, or left by a process that died.

Whoever finds it takes a lease on its row, renews it while it works, and gives it back when it is told to end;
a lease that nobody renews ends by itself. So many at a time: the rest waits in the database.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

from comporta import events
from comporta.chance import uniform
from comporta.clock import MONOTONIC
from comporta.database.base import Database
from comporta.errors import DatabaseError
from comporta.service.batch.counting import count_backfill, count_job
from comporta.service.batch.requests import Asked, ask_async, forget, hopeless, renew, waiting
from comporta.service.batch.values import FAILED, HeldBackfill, HeldJob

H = TypeVar("H", bound=HeldJob | HeldBackfill)

CHORES_SECONDS: Final = 60.0
FORGOTTEN_MAX: Final = 20
"""How many old jobs are removed in a row."""

_TROUBLE_SECONDS_MAX = 10.0


class Kind(Generic[H]):
    """One kind of work: how it is taken, done, told to stop, and given back."""

    def __init__(
        self,
        name: str,
        most: int,
        claim: Callable[[str, int], Asked[H | None]],
        give_back: Callable[[H], Asked[None]],
        do: Callable[[H], Awaitable[bool]],
    ) -> None:
        self.name = name
        self.most = most
        self.claim = claim
        self.give_back = give_back
        self.do = do
        self.tasks: dict[H, asyncio.Task[None]] = {}
        """By what is held: this worker may lose something, and have it again before it noticed."""

    @property
    def has_room(self) -> bool:
        """Whether another may be taken."""
        return len(self.tasks) < self.most

    def overtaken(self, asked: list[H], tokens: dict[str, int]) -> list[H]:
        """Return which of those that were asked about are held by others by now, and not done with."""
        return [held for held in asked if tokens.get(held.job_id) != held.token and held in self.tasks]


class Taking:
    """The work of one worker. ``jobs`` and ``backfills`` say what is done with what is found."""

    def __init__(
        self,
        database: Database,
        owner: str,
        jobs: Kind[HeldJob],
        backfills: Kind[HeldBackfill],
        *,
        lease_seconds: float,
        poll_seconds: float,
        keep_seconds: float,
    ) -> None:
        self._database = database
        self._owner = owner
        self._jobs = jobs
        self._backfills = backfills
        self._lease_seconds = lease_seconds
        self._poll_seconds = poll_seconds
        self._keep_us = round(keep_seconds * 1e6)
        self._bell = asyncio.Event()
        self._loops: list[asyncio.Task[None]] = []
        self._chores_at = 0.0
        self.stopping = False

    @property
    def lease_us(self) -> int:
        """How long a lease lasts."""
        return round(self._lease_seconds * 1e6)

    def start(self) -> None:
        """Look for work from now on."""
        self._loops = [asyncio.create_task(each) for each in (self._looking(), self._renewing())]

    def ring(self) -> None:
        """There is work: look now."""
        self._bell.set()

    async def stop(self, seconds: float) -> None:
        """Let what is under way come to a halt, for so long at the most, and give back what is left."""
        self.stopping = True
        self.ring()
        tasks = [*self._jobs.tasks.values(), *self._backfills.tasks.values()]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=seconds)
            await _ended(late)
        await _ended(self._loops)

    async def _looking(self) -> None:
        trouble = 0
        while not self.stopping:
            self._bell.clear()
            try:
                await self._look()
                trouble = 0
            except DatabaseError as error:
                trouble += 1
                if trouble == 1:
                    events.publish("batch_database", "batch", f"cannot look for work: {error}", "error")
            pause = self._poll_seconds * uniform(0.7, 1.3) * min(2**trouble, 64)
            await MONOTONIC.wait_async(self._bell, min(pause, max(self._poll_seconds, _TROUBLE_SECONDS_MAX)))

    async def _look(self) -> None:
        jobs, backfills = await ask_async(self._database, waiting(self.lease_us))
        if jobs:
            await self._take(self._jobs)
        if backfills:
            await self._take(self._backfills)
        if time.monotonic() > self._chores_at:
            self._chores_at = time.monotonic() + CHORES_SECONDS * uniform(0.7, 1.3)
            await self._tidy()

    async def _take(self, kind: Kind[H]) -> None:
        while kind.has_room and not self.stopping:
            held = await ask_async(self._database, kind.claim(self._owner, self.lease_us))
            if held is None:
                return
            kind.tasks[held] = asyncio.create_task(self._done(kind, held))

    async def _done(self, kind: Kind[H], held: H) -> None:
        try:
            over = await kind.do(held)
            if not over and self.stopping:
                await self._give_back(kind, held)
        except asyncio.CancelledError:
            if self.stopping:
                await asyncio.shield(self._give_back(kind, held))
            raise
        except Exception as error:  # its lease ends by itself: another try is made then, by whoever
            text = f"a {kind.name} was interrupted: {type(error).__name__}: {error}"
            events.publish("batch_interrupted", held.job_id, text, "error")
        finally:
            del kind.tasks[held]
            self.ring()

    async def _give_back(self, kind: Kind[H], held: H) -> None:
        with suppress(DatabaseError):
            await ask_async(self._database, kind.give_back(held))

    async def _renewing(self) -> None:
        while True:
            await asyncio.sleep(self._lease_seconds / 3)
            with suppress(DatabaseError):  # what cannot be renewed ends, and is taken up again
                await self._renew()

    async def _renew(self) -> None:
        jobs, backfills = self._jobs, self._backfills
        if not (jobs.tasks or backfills.tasks):
            return
        held = list(jobs.tasks), list(backfills.tasks)
        of_jobs, of_backfills = await ask_async(self._database, renew(self._owner, self.lease_us, *held))
        self._let_go(jobs, held[0], of_jobs)
        self._let_go(backfills, held[1], of_backfills)

    def _let_go(self, kind: Kind[H], asked: list[H], tokens: dict[str, int]) -> None:
        """Stop what somebody else does by now: this worker was taken for dead."""
        for held in kind.overtaken(asked, tokens):
            events.publish("batch_overtaken", held.job_id, f"another worker has the {kind.name} by now")
            kind.tasks[held].cancel()

    async def _tidy(self) -> None:
        jobs, backfills = await ask_async(self._database, hopeless(self.lease_us))
        for name, count, given_up in (("job", count_job, jobs), ("backfill", count_backfill, backfills)):
            for job_id in given_up:
                count(FAILED)
                events.publish("batch_hopeless", job_id, f"the {name} was taken up too often", "error")
        for _ in range(FORGOTTEN_MAX):
            if not await ask_async(self._database, forget(self._keep_us)):
                return


async def _ended(tasks: Any) -> None:
    """Cancel tasks, and see them end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
