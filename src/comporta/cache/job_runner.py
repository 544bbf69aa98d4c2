"""Runs fetch jobs: serves the cached result, refreshes it, or waits for a load.

A SQLite file answers a read without blocking. Such a read needs no flow, which would take longer than all
other work for the call: ``try_fetch`` serves it, and ``fetch_flow`` continues where it cannot.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from comporta.cache.backoff_memory import Refusals
from comporta.cache.config import BY_PARAMS
from comporta.cache.entry import Cached
from comporta.cache.expiry import RECHECK_SECONDS, ExpiryPolicy
from comporta.cache.fetch import CacheFetcher, FetchAbandonedError
from comporta.cache.health import EXPIRED, FRESH
from comporta.cache.invalidation import Invalidations
from comporta.cache.job import FetchJob
from comporta.cache.maintenance import CacheMaintenance
from comporta.cache.repository import MUST_WAIT, UNAVAILABLE, CacheRepository, Unavailable
from comporta.cache.single_flight import SharedFuture, StartLoad, WaitForFuture
from comporta.cache.stats import FRESH_HIT, MISS, STALE_HIT, AnswerCounter
from comporta.flow import Flow
from comporta.runtime import RUNTIME

if TYPE_CHECKING:
    from comporta.cache.rows import ResultRow

_ATTEMPTS_MAX = 10
_PENDING_RETRY_SECONDS = 1.0
_LOOP_CHECK_SECONDS = 2.0
"""How often a waiting caller checks whether the event loop of the load still exists."""


class JobRunner:
    """Runs the fetch jobs of one cache; ``breaker_open`` keeps background refreshes from starting."""

    def __init__(
        self,
        fetcher: CacheFetcher,
        repository: CacheRepository,
        expiry: ExpiryPolicy,
        *,
        refusals: Refusals,
        invalidations: Invalidations,
        maintenance: CacheMaintenance,
        answer_counter: AnswerCounter,
        breaker_open: Callable[[], bool] | None,
    ) -> None:
        self._fetcher = fetcher
        self._repository = repository
        self._expiry = expiry
        self._local = expiry.local
        self._by_params = expiry.config.scope == BY_PARAMS
        self._refreshes_max = expiry.config.refreshes_max
        self._refusals = refusals
        self._invalidations = invalidations
        self._maintenance = maintenance
        self._answer_counter = answer_counter
        self._breaker_open = breaker_open

    def try_fetch(self, job: FetchJob) -> Cached | None:
        """Return a result that is in the database and not due for a refresh; ``None`` if a flow is needed."""
        if self._was_refused(job) or not self.try_read(job) or job.cached is None or job.forced:
            return None
        return job.cached if self.serve_if_fresh(job.key, job.cached, job.size, job.version) else None

    def _was_refused(self, job: FetchJob) -> bool:
        """Whether a key had nothing to serve when it was last read.

        If so, only the fetch that all callers share reads it again. If each of many callers did, their reads
        would block the event loop.
        """
        return not job.forced and self._refusals.is_unchanged(job.key)

    def fetch_flow(self, job: FetchJob) -> Flow[Cached]:
        """Return the cached result if it is usable, and start a fetch if it is not fresh."""
        if not job.is_read and not self._was_refused(job):
            yield from self.read_flow(job)
        cached, soft_timeout = job.cached, job.soft_timeout
        if cached is None or job.forced:
            self._answer_counter.count(MISS)
            self._maintenance.start()
            return (yield from self._wait_for_fetch_flow(job, soft_timeout))
        if self.serve_if_fresh(job.key, cached, job.size, job.version):
            return cached
        if cached.freshness == FRESH:
            self._answer_counter.count(FRESH_HIT)
            soft_timeout = None
        else:
            self._answer_counter.count(STALE_HIT)
        self._maintenance.record_access(cached.user_id, cached.params_hash)
        return (yield from self._serve_stale_flow(job, cached, soft_timeout))

    def serve_if_fresh(self, key: str, cached: Cached, size: int, version: int) -> bool:
        """Count an access, and let memory serve the next ones; return false, without effect, if it is due."""
        expires_ns = self._expiry.servable_until_ns(cached)
        if not expires_ns:
            return False
        if self._local.put(key, cached, expires_ns, size, version, served=True):
            self._invalidations.ensure_listening()
            self._maintenance.start()
        else:
            self._answer_counter.count(FRESH_HIT)
            self._maintenance.record_access(cached.user_id, cached.params_hash)
        return True

    def try_read(self, job: FetchJob) -> bool:
        """Read the cached result; return false if that would block."""
        job.version = self._local.version
        row = self._repository.try_read(None if self._by_params else job.user_id, job.params_hash)
        if row is MUST_WAIT:
            return False
        self._set_cached(job, row)
        return True

    def read_flow(self, job: FetchJob) -> Flow[None]:
        """Read the cached result, and wait for the database."""
        job.version = self._local.version
        row = yield from self._repository.read_waiting_flow(
            None if self._by_params else job.user_id, job.params_hash
        )
        self._set_cached(job, row)

    def _set_cached(self, job: FetchJob, row: ResultRow | Unavailable | None) -> None:
        """Set the cached result of a job, if it is usable; without a database, use the one in memory."""
        job.is_read = True
        cached = None
        if row is UNAVAILABLE:
            local = self._local.peek(job.key)
            if local is not None:
                cached, job.size = self._expiry.with_current_freshness(local[0]), local[1]
        elif row is not None and row.has_value:
            cached, job.size = self._expiry.from_row(row), len(row.results)
        job.cached = None if cached is None or cached.freshness == EXPIRED else cached
        if job.cached is not None:
            self._refusals.forget(job.key)

    def _serve_stale_flow(self, job: FetchJob, cached: Cached, soft_timeout: float | None) -> Flow[Cached]:
        """Start a refresh and return the cached result, or the new one if it arrives in ``soft_timeout``."""
        pause = cached.next_retry
        if pause or not soft_timeout:  # otherwise the next caller should wait for a fresh result, too
            self._expiry.store_locally(job.key, cached, job.size, job.version, RECHECK_SECONDS)
        future = None if pause else (yield from self.start_refresh_flow(job))
        if future is not None and soft_timeout:
            yield WaitForFuture(future, soft_timeout)
            if future.is_done and isinstance(future.result, Cached):
                return future.result
        return job.cached or cached

    def start_refresh_flow(self, job: FetchJob) -> Flow[SharedFuture | None]:
        """Start a refresh, or join the running one; ``None`` if too many run or the breaker is open."""
        if self._breaker_open is not None and self._breaker_open():
            return None
        future, is_new = self._fetcher.single_flight.join(job.key)
        if future is None or not is_new:
            return future
        if not self._fetcher.admit_refresh(self._refreshes_max):
            self._fetcher.single_flight.remove(job.key, future)
            future.complete(error=FetchAbandonedError())
            return None
        job.background = True
        job.loader = job.refresh_loader or job.loader
        yield from self._launch_flow(job, future)
        return future

    def _launch_flow(self, job: FetchJob, future: SharedFuture) -> Flow[None]:
        future.abandon = partial(self._fetcher.abandon, job, future)
        try:
            yield StartLoad(self._fetcher.single_flight, self._fetcher.load_flow(job, future), future)
        except BaseException:  # no thread could start, so nothing else completes the future
            future.abandon()
            raise

    def _wait_for_fetch_flow(self, job: FetchJob, soft_timeout: float | None) -> Flow[Cached]:
        """Start a fetch or join the running one, and wait for it."""
        deadline = math.inf if job.timeout is None else RUNTIME.monotonic() + job.timeout
        for _ in range(_ATTEMPTS_MAX):
            future, is_new = self._fetcher.single_flight.join(job.key)
            if future is None:
                raise self._fetcher.pending_error("too many fetches are running", job.params_hash, 1.0)
            if is_new:
                job.background = False
                yield from self._launch_flow(job, future)
            is_soft = job.cached is not None and soft_timeout is not None
            wait = soft_timeout if is_soft else min(_LOOP_CHECK_SECONDS, deadline - RUNTIME.monotonic())
            is_done: bool = yield WaitForFuture(future, wait)
            while not is_done and not is_soft:
                self._fetcher.single_flight.abandon_if_lost(job.key)
                left = deadline - RUNTIME.monotonic()
                if left <= 0 and job.cached is not None:
                    return job.cached
                if left <= 0 and not future.is_done:
                    reason = f"its load did not end within {job.timeout:g} s and continues"
                    raise self._fetcher.pending_error(reason, job.params_hash, _PENDING_RETRY_SECONDS)
                is_done = yield WaitForFuture(future, min(_LOOP_CHECK_SECONDS, left))
            result: Cached | None = future.result if is_done else job.cached
            if result is not None:
                return result
            if future.error is not None and not isinstance(future.error, FetchAbandonedError):
                if job.cached is not None:
                    return job.cached
                raise future.error
        raise self._fetcher.unavailable_error("its fetches were abandoned repeatedly", job.params_hash, 1.0)
