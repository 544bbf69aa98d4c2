"""What the dashboard shows of the database: keys in trouble, answers that are not whole, jobs.

Pages are told once a second, and a database may be slow or gone: so it is looked at beside the documents and
not for each of them. A document has what was found last, and waits only if that is too old to be shown. What
an index finds is looked for every second, what takes more every five.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from comporta import events
from comporta.cache.coverage import Coverage
from comporta.cache.looks import Covered, Unwell
from comporta.cache.table import CacheTable
from comporta.clock import MONOTONIC
from comporta.errors import DatabaseError
from comporta.service.batch.values import ShownJob

if TYPE_CHECKING:
    from comporta.service.parts import Parts

T = TypeVar("T")

KEYS_MAX: Final = 20
JOBS_MAX: Final = 20
ROWS_READ: Final = 50
"""How many rows are read for so many keys: several users may have the same one."""

QUICK_SECONDS: Final = 1.0
SLOW_SECONDS: Final = 5.0
SHOWN_SECONDS: Final = 15.0
"""What is older is not shown: somebody waits for news, as long as a database may take."""

WAIT_SECONDS: Final = 2.0
KEY_CHARS: Final = 6
JOB_CHARS: Final = 8
"""So much of a key tells it from others; so much of a job, too, and nobody can ask for a job by that."""


class Look(NamedTuple, Generic[T]):
    """What was found, or why nothing was."""

    found: T | None
    why: str | None = None


class Lately(Generic[T]):
    """Something that is looked at beside those who want to see it, once in so many seconds at the most."""

    def __init__(self, look: Callable[[], Awaitable[T]], seconds: float) -> None:
        self._look = look
        self._seconds = seconds
        self._latest: Look[T] = Look(None)
        self._at = -SHOWN_SECONDS
        self._looking: asyncio.Task[Look[T]] | None = None
        self._said = False

    async def get(self) -> Look[T]:
        """Return what was seen last; wait only if that was long ago."""
        age = MONOTONIC.now_ns() / 1e9 - self._at
        if age >= self._seconds and self._looking is None:
            self._looking = asyncio.create_task(self._again())
        if age < SHOWN_SECONDS or self._looking is None:
            return self._latest
        return await asyncio.shield(self._looking)

    async def aclose(self) -> None:
        """Look no more."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def _again(self) -> Look[T]:
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                self._latest = Look(await self._look())
        except Exception as error:  # what is shown for ever is worse than nothing
            self._latest = Look(None, type(error).__name__)
            self._say(error)
        finally:
            self._at = MONOTONIC.now_ns() / 1e9
            self._looking = None
        return self._latest

    def _say(self, error: Exception) -> None:
        """Say, once, what is no trouble of the database: it will not go away by itself."""
        if not self._said and not isinstance(error, DatabaseError | TimeoutError):
            self._said = True
            events.publish("dashboard_failed", "dashboard", f"not all is shown: {error!r:.200}", "error")


class Moving(NamedTuple):
    """What changes from second to second: jobs, who is at them, and keys that are left alone."""

    jobs: list[dict[str, Any]]
    at_jobs: dict[str, int]
    degraded: list[dict[str, Any]]


class Standing(NamedTuple):
    """What changes slowly, or takes long to find out."""

    figures: dict[str, Any]
    coverage: list[dict[str, Any]]
    fetches: dict[str, int]


class Kept:
    """What this worker knows of the database, for documents."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._table = CacheTable(parts.database)
        self.moving = Lately(self._moving, QUICK_SECONDS)
        self.standing = Lately(self._standing, SLOW_SECONDS)

    async def aclose(self) -> None:
        """Look no more."""
        await self.moving.aclose()
        await self.standing.aclose()

    async def _moving(self) -> Moving:
        batches = self._parts.batches
        jobs = [job_of(each) for each in await batches.shown(JOBS_MAX)]
        unwell = await self._table.unwell_async(ROWS_READ)
        return Moving(jobs, await batches.holders(), _degraded(unwell, self._parts.sources, time.time()))

    async def _standing(self) -> Standing:
        figures = await self._table.brief_async()
        covered = await self._table.partial_async(ROWS_READ)
        return Standing(figures, _partial(covered), await self._table.fetchers_async())


def job_of(job: ShownJob) -> dict[str, Any]:
    """Return a job as everybody may see it: whoever has the whole of its name may read its results."""
    return {**job.told(), "id": job.job_id[:JOB_CHARS]}


def _degraded(rows: list[Unwell], sources: Any, now: float) -> list[dict[str, Any]]:
    """Return each key once, and the first that is tried again first."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row.params_hash not in found and len(found) < KEYS_MAX:
            coverage = _coverage(row.coverage)
            found[row.params_hash] = {
                "key": row.params_hash[:KEY_CHARS],
                "failures": row.fail_streak,
                "next_retry": now + row.retry_in,
                "why": _why(row, sources),
                "coverage": None if coverage is None or coverage.complete else str(coverage),
            }
    return list(found.values())


def _why(row: Unwell, sources: Any) -> str:
    """Say why a key is left alone, and what is served meanwhile; of the search only whom it was asked of."""
    whom = _asked(row.search_params, sources)
    times = "once" if row.fail_streak == 1 else f"{row.fail_streak} times in a row"
    served = "what is kept is served" if row.has_value else "nothing is kept"
    return f"{whom} failed {times}; {served}"


def _asked(params: bytes, sources: Any) -> str:
    """Return of whom a search was asked, as far as we know them."""
    try:
        found = json.loads(params)
    except ValueError:
        found = None
    asked = found.get("search") if isinstance(found, dict) else None
    return asked if isinstance(asked, str) and asked in sources else "its source"


def _partial(rows: list[Covered]) -> list[dict[str, Any]]:
    """Return each key once whose answer is not whole."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        coverage = _coverage(row.coverage)
        if coverage is not None and not coverage.complete and len(found) < KEYS_MAX:
            missing = list(coverage.failed_ufs)
            told = {"key": row.params_hash[:KEY_CHARS], "of": str(coverage), "missing": missing}
            found.setdefault(row.params_hash, told)
    return list(found.values())


def _coverage(text: bytes | None) -> Coverage | None:
    """Read what a row says; what somebody else wrote there is nothing to show."""
    try:
        return None if text is None else Coverage.of(json.loads(text))
    except (TypeError, ValueError):
        return None
