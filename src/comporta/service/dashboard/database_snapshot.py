"""What the dashboard shows from the database: degraded keys, partial answers, and jobs.

Pages get a document every second, and the database may be slow or unreachable. It is therefore queried in the
background: a document uses the latest snapshot and waits only if that is too old to show. Indexed queries run
every second, expensive ones every 5 s.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from comporta import events
from comporta.cache.coverage import Coverage
from comporta.cache.queries import DegradedKey, KeyCoverage
from comporta.cache.tables import CacheTables
from comporta.clock import MONOTONIC
from comporta.errors import DatabaseError
from comporta.service.batch.models import JobOverview

if TYPE_CHECKING:
    from comporta.service.container import Container

T = TypeVar("T")

KEYS_MAX: Final = 20
JOBS_MAX: Final = 20
ROWS_READ: Final = 50
"""How many rows are read to find ``KEYS_MAX`` keys: several users may have the same key."""

FAST_INTERVAL_SECONDS: Final = 1.0
SLOW_INTERVAL_SECONDS: Final = 5.0
MAX_AGE_SECONDS: Final = 15.0
"""An older snapshot is not shown; the document waits for a new one, at most ``QUERY_TIMEOUT_SECONDS``."""

QUERY_TIMEOUT_SECONDS: Final = 2.0
KEY_CHARS: Final = 6
JOB_CHARS: Final = 8
"""Prefixes long enough to tell keys and jobs apart, and too short to request a job's results with."""


class Snapshot(NamedTuple, Generic[T]):
    """The result of a query, or the name of the error."""

    value: T | None
    error: str | None = None


class BackgroundSnapshot(Generic[T]):
    """A query that runs in the background, at most once every ``seconds``."""

    def __init__(self, query: Callable[[], Awaitable[T]], seconds: float) -> None:
        self._query = query
        self._seconds = seconds
        self._latest: Snapshot[T] = Snapshot(None)
        self._at = -MAX_AGE_SECONDS
        self._task: asyncio.Task[Snapshot[T]] | None = None
        self._reported = False

    async def get(self) -> Snapshot[T]:
        """Return the latest result; wait only if it is too old."""
        age = MONOTONIC.now_ns() / 1e9 - self._at
        if age >= self._seconds and self._task is None:
            self._task = asyncio.create_task(self._refresh())
        if age < MAX_AGE_SECONDS or self._task is None:
            return self._latest
        return await asyncio.shield(self._task)

    async def aclose(self) -> None:
        """Cancel a running query."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _refresh(self) -> Snapshot[T]:
        try:
            async with asyncio.timeout(QUERY_TIMEOUT_SECONDS):
                self._latest = Snapshot(await self._query())
        except Exception as error:  # outdated data would be worse than none
            self._latest = Snapshot(None, type(error).__name__)
            self._report(error)
        finally:
            self._at = MONOTONIC.now_ns() / 1e9
            self._task = None
        return self._latest

    def _report(self, error: Exception) -> None:
        """Report, once, an error other than an outage of the database: it will not go away by itself."""
        if not self._reported and not isinstance(error, DatabaseError | TimeoutError):
            self._reported = True
            text = f"the dashboard is incomplete: {error!r:.200}"
            events.publish("dashboard_failed", "dashboard", text, "error")


class FastSnapshot(NamedTuple):
    """What changes every second: jobs, the workers that run them, and degraded keys."""

    jobs: list[dict[str, Any]]
    jobs_per_worker: dict[str, int]
    degraded: list[dict[str, Any]]


class SlowSnapshot(NamedTuple):
    """What changes slowly or is expensive to query."""

    stats: dict[str, Any]
    coverage: list[dict[str, Any]]
    fetches: dict[str, int]


class DatabaseSnapshot:
    """The background queries of one worker."""

    def __init__(self, container: Container) -> None:
        self._container = container
        self._table = CacheTables(container.database)
        self.fast = BackgroundSnapshot(self._read_fast, FAST_INTERVAL_SECONDS)
        self.slow = BackgroundSnapshot(self._read_slow, SLOW_INTERVAL_SECONDS)

    async def aclose(self) -> None:
        """Cancel running queries."""
        await self.fast.aclose()
        await self.slow.aclose()

    async def _read_fast(self) -> FastSnapshot:
        batches = self._container.batches
        jobs = [public_job(job) for job in await batches.list_jobs(JOBS_MAX)]
        degraded = await self._table.list_degraded_async(ROWS_READ)
        return FastSnapshot(
            jobs,
            await batches.jobs_per_worker(),
            _degraded_keys(degraded, self._container.sources, time.time()),
        )

    async def _read_slow(self) -> SlowSnapshot:
        stats = await self._table.read_summary_async()
        coverage = await self._table.list_recent_coverage_async(ROWS_READ)
        return SlowSnapshot(
            stats, _partial_answers(coverage), await self._table.count_fetches_by_worker_async()
        )


def public_job(job: JobOverview) -> dict[str, Any]:
    """Return a job with a shortened id: a client with the whole id may read its results."""
    return {**job.as_dict(), "id": job.job_id[:JOB_CHARS]}


def _degraded_keys(rows: list[DegradedKey], sources: Any, now: float) -> list[dict[str, Any]]:
    """Return each degraded key once; the key that is retried first comes first."""
    keys: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row.params_hash not in keys and len(keys) < KEYS_MAX:
            coverage = _parse_coverage(row.coverage)
            keys[row.params_hash] = {
                "key": row.params_hash[:KEY_CHARS],
                "failures": row.fail_streak,
                "next_retry": now + row.retry_in,
                "reason": _degraded_reason(row, sources),
                "coverage": None if coverage is None or coverage.is_complete else str(coverage),
            }
    return list(keys.values())


def _degraded_reason(row: DegradedKey, sources: Any) -> str:
    """Return why a key is in backoff and what is served meanwhile; it names only the source."""
    source = _source_name(row.search_params, sources)
    times = "once" if row.fail_streak == 1 else f"{row.fail_streak} times in a row"
    served = "the cached answer is served" if row.has_value else "no answer is cached"
    return f"{source} failed {times}; {served}"


def _source_name(params: bytes, sources: Any) -> str:
    """Return the source of a search if it is a known one."""
    try:
        document = json.loads(params)
    except ValueError:
        document = None
    source = document.get("search") if isinstance(document, dict) else None
    return source if isinstance(source, str) and source in sources else "its source"


def _partial_answers(rows: list[KeyCoverage]) -> list[dict[str, Any]]:
    """Return each key with a partial answer once."""
    answers: dict[str, dict[str, Any]] = {}
    for row in rows:
        coverage = _parse_coverage(row.coverage)
        if coverage is not None and not coverage.is_complete and len(answers) < KEYS_MAX:
            missing = list(coverage.failed)
            answer = {"key": row.params_hash[:KEY_CHARS], "of": str(coverage), "missing": missing}
            answers.setdefault(row.params_hash, answer)
    return list(answers.values())


def _parse_coverage(text: bytes | None) -> Coverage | None:
    """Parse the coverage of a row; ``None`` if it is malformed."""
    try:
        return None if text is None else Coverage.parse(json.loads(text))
    except (TypeError, ValueError):
        return None
