"""Stores results: writes the row, invalidates it in other workers, evicts rows beyond the table's bounds."""

from __future__ import annotations

from comporta import events
from comporta.cache.backoff_memory import Refusals
from comporta.cache.config import CacheConfig
from comporta.cache.invalidation import Invalidations
from comporta.cache.job import FetchJob
from comporta.cache.loader_result import LoaderResult
from comporta.cache.local import key_digest
from comporta.cache.repository import CacheRepository
from comporta.cache.rows import ResultRow
from comporta.cache.serialization import VALUE_BYTES_MAX, encode_json
from comporta.cache.table_limit import EVICTED_MAX, TableLimit
from comporta.flow import Flow


class ResultWriter:
    """Stores the results of one cache."""

    def __init__(
        self,
        name: str,
        config: CacheConfig,
        repository: CacheRepository,
        *,
        refusals: Refusals,
        invalidations: Invalidations,
    ) -> None:
        self._name = name
        self._entries_per_user = config.entries_per_user
        self._table_limit = TableLimit(config.table_entries, config.table_bytes)
        self._repository = repository
        self._refusals = refusals
        self._invalidations = invalidations

    def store_flow(
        self,
        job: FetchJob,
        token: int | None,
        result: LoaderResult,
        duration_ms: int | None,
        age: float = 0.0,
    ) -> Flow[bool | None]:
        """Store a result and invalidate it in other workers.

        Return false if a later lease was granted, and ``None`` if the result could not be stored.
        """
        if len(result.body) > VALUE_BYTES_MAX:
            text = (
                f"{job.params_hash[:16]} is too large to store: "
                f"{len(result.body)} bytes, at most {VALUE_BYTES_MAX} are allowed"
            )
            events.publish("cache_write_failed", self._name, text, "error")
            yield from self._repository.release_flow(job.key, token)
            return None
        coverage = None if result.coverage is None else encode_json(result.coverage.as_dict())
        stored = yield from self._repository.record_success_flow(
            job.key,
            token,
            job.user_id,
            job.params_hash,
            job.params_json,
            result.body,
            result.total_results,
            list(result.sources),
            coverage,
            duration_ms,
            age,
            job.tags,
        )
        self._refusals.forget(job.key)
        if stored:
            yield from self._invalidations.publish_flow(key_digest(job.key))
            yield from self._evict_flow(job, len(result.body) + len(job.params_json))
        return stored

    def _evict_flow(self, job: FetchJob, size: int) -> Flow[None]:
        """Evict rows of the user and of the whole table beyond their bounds, after a row was stored."""
        keep, limit = self._entries_per_user, self._table_limit
        if keep is not None and job.cached is None:
            yield from self._repository.evict_flow(job.user_id, keep, job.params_hash)
        if limit.record(size):
            count = yield from self._repository.evict_least_recently_used_flow(
                limit.entries_max, limit.bytes_max, EVICTED_MAX
            )
            limit.record_evicted(count)


def row_from(job: FetchJob, result: LoaderResult, duration_ms: int, now: float, age: float) -> ResultRow:
    """Return the row that stores a result, without the JSON, which ``Cached`` does not need."""
    return ResultRow(
        user_id=job.user_id,
        params_hash=job.params_hash,
        total_results=result.total_results,
        fetched_at=now - age,
        last_success_at=now,
        last_attempt_at=now,
        fail_streak=0,
        degraded_until=None,
        fetch_duration_ms=duration_ms,
        priority=None,
        sources=None,
        results=b"",
        coverage=None,
        has_value=True,
        now=now,
    )
