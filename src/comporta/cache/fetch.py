"""One fetch, as a flow: acquire the fleet's lease on a key, call the loader, store the result, invalidate.

One worker of the fleet holds the lease; the others read the outcome of its fetch from the database. A lease
expires when its holder dies. It carries a token, so that a holder that returns late cannot overwrite what its
successor stored.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from comporta import events, fork_safety
from comporta.cache.backoff_memory import Refusals
from comporta.cache.config import BY_PARAMS
from comporta.cache.entry import Cached
from comporta.cache.expiry import RECHECK_SECONDS, ExpiryPolicy
from comporta.cache.health import EXPIRED, is_better
from comporta.cache.job import FetchJob
from comporta.cache.last_errors import LastErrors
from comporta.cache.loader_result import (
    LoaderResult,
    bind_missing,
    merge_result,
    missing_units,
    validate_result,
)
from comporta.cache.maintenance import CacheMaintenance
from comporta.cache.repository import UNAVAILABLE, CacheRepository, backoff_remaining
from comporta.cache.result_writer import ResultWriter, row_from
from comporta.cache.single_flight import CallLoader, SharedFuture, SingleFlight
from comporta.clock import Clock
from comporta.errors import CachePendingError, CacheUnavailableError, RefusedError
from comporta.flow import Flow
from comporta.jitter import uniform
from comporta.runtime import RUNTIME
from comporta.stores.effects import Sleep
from comporta.threads import run_cleanup

if TYPE_CHECKING:
    from comporta.cache.rows import FetchClaim

_POLL_SECONDS = (0.05, 0.15)
"""A worker that waits for another's fetch polls the database at random intervals in this range."""

_LATENCY_MARGIN_SECONDS = 0.1
_REASON_CHARS_MAX = 200


class FetchAbandonedError(Exception):
    """A load was ended from outside; one of its waiting callers has to start another."""


class FetchLease(NamedTuple):
    """The right to fetch a key.

    ``token`` is ``None`` if the database was unavailable; ``now`` is the database's time at ``granted_ns`` of
    the local clock.
    """

    token: int | None
    now: float
    granted_ns: int


class CacheFetcher:
    """Runs fetch jobs, one at a time for each key."""

    def __init__(
        self,
        name: str,
        repository: CacheRepository,
        expiry: ExpiryPolicy,
        *,
        refusals: Refusals,
        writer: ResultWriter,
        maintenance: CacheMaintenance,
        clock: Clock,
    ) -> None:
        self.single_flight = SingleFlight(expiry.config.lease_seconds)
        self._last_errors = LastErrors()
        self._refresh_count = 0
        self._lock = Lock()
        fork_safety.register(self)
        self._repository = repository
        self._expiry = expiry
        self._config = expiry.config
        self._refusals = refusals
        self._writer = writer
        self._maintenance = maintenance
        self._clock = clock
        self._name = name

    def load_flow(self, job: FetchJob, future: SharedFuture) -> Flow[None]:
        """Run a job, and complete its future with the result or the error."""
        result: Cached | None = None
        error: Exception | None = None
        try:
            result = yield from self._fetch_flow(job, future)
        except Exception as failure:
            error = failure
        except BaseException:
            error = FetchAbandonedError()
            raise
        finally:
            run_cleanup(self._finish, job, future, result, error)

    def admit_refresh(self, refreshes_max: int) -> bool:
        """Count one more background refresh; return false if ``refreshes_max`` are running."""
        with self._lock:
            if self._refresh_count >= refreshes_max:
                return False
            self._refresh_count += 1
            return True

    def abandon(self, job: FetchJob, future: SharedFuture) -> None:
        """Complete the future of a load that could not start, or will never end."""
        self._finish(job, future, None, FetchAbandonedError())

    def _finish(
        self, job: FetchJob, future: SharedFuture, result: Cached | None, error: Exception | None
    ) -> None:
        self.single_flight.remove(job.key, future)
        if future.complete(result, error) and job.background:
            with self._lock:
                self._refresh_count -= 1

    def after_fork(self) -> None:
        """Drop the parent's refreshes in a forked child."""
        fork_safety.reinit_lock(self._lock)
        self._refresh_count = 0

    def unavailable_error(self, reason: str, params_hash: str, seconds: float) -> CacheUnavailableError:
        """Return the error for a caller for whom there is no result."""
        return CacheUnavailableError(self._nothing_to_serve(reason, params_hash), self._name, seconds)

    def pending_error(self, reason: str, params_hash: str, seconds: float) -> CachePendingError:
        """Return the error for a caller whose load has not ended, or could not begin, in time."""
        return CachePendingError(self._nothing_to_serve(reason, params_hash), self._name, seconds)

    def _nothing_to_serve(self, reason: str, params_hash: str) -> str:
        return f"{self._name}: nothing to serve for {params_hash[:16]}: {reason}"

    def _fetch_flow(self, job: FetchJob, future: SharedFuture) -> Flow[Cached | None]:
        if not job.is_read:  # a key that had nothing to serve; another worker may have stored something
            stored = yield from self._reread_flow(job)
            if stored is not None:
                self._refusals.forget(job.key)
                return stored
        lease, cached = yield from self._acquire_lease_flow(job)
        if lease is None:
            return cached
        self._maintenance.hold_lease(job.key, lease.token, future.is_running)
        try:
            return (yield from self._load_and_store_flow(job, lease))
        finally:
            run_cleanup(self._maintenance.drop_lease, job.key, lease.token)

    def _acquire_lease_flow(self, job: FetchJob) -> Flow[tuple[FetchLease | None, Cached | None]]:
        """Claim the lease until it is granted, or until another worker's fetch brings a result."""
        deadline_ns = job.started_ns + round(2e9 * self._config.refresh_timeout)
        reread = waited = False
        while True:
            version = self._expiry.local.version
            claim = yield from self._claim_flow(job, forced=job.forced and not waited, reread=reread)
            if claim is None:
                self._check_local_backoff(job, version)
                return FetchLease(None, self._expiry.wall_time(), self._clock.now_ns()), None
            if claim.granted:
                return FetchLease(claim.token, claim.now, self._clock.now_ns()), None
            remaining = 0.0 if claim.lease_until is None else claim.lease_until - claim.now
            if remaining > 0:
                if job.background:
                    return None, None
                if self._clock.now_ns() >= deadline_ns:
                    reason = "another worker has been fetching it for too long"
                    raise self.pending_error(reason, job.params_hash, remaining)
                yield from self._wait_for_lease_flow(job, remaining, deadline_ns)
                waited = True  # a result that arrives during the wait satisfies force=True, too
                continue
            if claim.degraded_until is not None and claim.degraded_until > claim.now:
                seconds = claim.degraded_until - claim.now
                raise self._refuse(job, claim.fail_streak, seconds, version)
            cached = yield from self._reread_flow(job)
            if cached is not None or job.background:
                return None, cached
            reread = True

    def _wait_for_lease_flow(self, job: FetchJob, remaining: float, deadline_ns: int) -> Flow[None]:
        """Wait until the lease of another worker has ended."""
        while remaining > 0 and self._clock.now_ns() < deadline_ns:
            yield Sleep(self._clock, min(remaining + 0.001, uniform(*_POLL_SECONDS)))
            remaining = yield from self._repository.lease_remaining_flow(job.key)

    def _claim_flow(self, job: FetchJob, *, forced: bool, reread: bool) -> Flow[FetchClaim | None]:
        """Claim the lease once; a success since the caller started makes it unnecessary.

        ``reread`` is true if there was such a success, but its row could not be read. While a key that was
        refused before is in backoff, it is only read: a read takes no write transaction.
        """
        if not forced and self._refusals.is_known(job.key):
            known = yield from self._repository.read_claim_flow(job.key)
            if known is not None and backoff_remaining(known) > 0:
                return known
            self._refusals.forget(job.key)
        recent = (self._clock.now_ns() - job.started_ns) / 1e9 + _LATENCY_MARGIN_SECONDS
        if job.background:
            recent = self._config.refresh_pause
        claim = yield from self._repository.claim_flow(
            job.key,
            worker_name(),
            self._config.lease_seconds,
            forced=forced,
            not_within=0.0 if reread else recent,
        )
        return claim

    def _check_local_backoff(self, job: FetchJob, version: int) -> None:
        remaining = self._repository.local_backoff.remaining(job.key)
        if remaining > 0 and not job.forced:
            raise self._refuse(job, 0, remaining, version)

    def _refuse(self, job: FetchJob, streak: int, seconds: float, version: int) -> CacheUnavailableError:
        """Return the error for a key in backoff, and remember the backoff in this process."""
        self._mark_failed(job, streak, seconds, version)
        return self._backoff_error(job, seconds)

    def _backoff_error(self, job: FetchJob, seconds: float) -> CacheUnavailableError:
        """Return the error for a key in backoff that has nothing to serve."""
        reason = f"the source failed and is tried again in {seconds:.0f} s"
        unavailable = self.unavailable_error(reason, job.params_hash, seconds)
        unavailable.__cause__ = self._last_errors.get(job.key)
        return unavailable

    def _mark_failed(self, job: FetchJob, streak: int, seconds: float, version: int) -> None:
        """Mark the cached result, or refuse the next callers of a key that has none."""
        if job.cached is not None:
            job.cached = self._expiry.with_failure(job.cached, streak, seconds)
            seconds = min(seconds, RECHECK_SECONDS)
            self._expiry.store_locally(job.key, job.cached, job.size, self._expiry.local.version, seconds)
        elif seconds > 0:
            self._refusals.record(job.key, seconds, self._backoff_error(job, seconds), version)

    def _reread_flow(self, job: FetchJob) -> Flow[Cached | None]:
        """Return the result that another worker has stored meanwhile."""
        version = self._expiry.local.version
        shared = self._config.scope == BY_PARAMS
        row = yield from self._repository.read_flow(None if shared else job.user_id, job.params_hash)
        if row is UNAVAILABLE or row is None or not row.has_value:
            return None
        cached = self._expiry.from_row(row)
        if cached is None or cached.freshness == EXPIRED:
            return None
        self._expiry.store_locally(job.key, cached, len(row.results), version)
        return cached

    def _load_and_store_flow(self, job: FetchJob, lease: FetchLease) -> Flow[Cached | None]:
        started_ns = self._clock.now_ns()
        cached = job.cached
        missing = missing_units(cached, job.loader)
        given = yield from self._call_loader_flow(job, lease, missing)
        try:
            if missing and cached is not None:
                given = merge_result(cached, missing, given, job.merge)
            result = validate_result(given)
        except Exception as error:
            if cached is None:  # the caller gets this error, which says nothing about the source
                yield from self._repository.release_flow(job.key, lease.token)
            else:  # the caller gets the cached result; without backoff the loader would run every second
                yield from self._record_failure_flow(job, lease, error)
            raise
        usable = cached is not None and self._expiry.with_current_freshness(cached).freshness != EXPIRED
        if not is_better(result.coverage, cached.coverage if cached else None, usable=usable):
            reason = f"the new result covers only {result.coverage}, less than the cached one"
            yield from self._record_failure_flow(job, lease, reason)
            return job.cached
        age = cached.age if missing and cached is not None else 0.0  # the age of the oldest part
        duration_ms = (self._clock.now_ns() - started_ns) // 1_000_000
        return (yield from self._store_and_serve_flow(job, lease, result, duration_ms, age))

    def _call_loader_flow(self, job: FetchJob, lease: FetchLease, missing: tuple[str, ...]) -> Flow[Any]:
        """Call the loader; count a failure, or release the lease if the source is not to blame."""
        try:
            given = yield CallLoader(bind_missing(job.loader, missing), self._config.refresh_timeout)
        except GeneratorExit:
            raise
        except RefusedError:
            yield from self._repository.release_flow(job.key, lease.token)
            raise
        except Exception as error:
            yield from self._record_failure_flow(job, lease, error)
            raise
        except BaseException:
            yield from self._repository.release_flow(job.key, lease.token)
            raise
        return given

    def _record_failure_flow(self, job: FetchJob, lease: FetchLease, reason: Exception | str) -> Flow[None]:
        version = self._expiry.local.version
        health = yield from self._repository.record_failure_flow(
            job.key, lease.token, job.user_id, job.params_hash, job.params_json, now=self._expiry.wall_time()
        )
        if isinstance(reason, Exception):
            self._last_errors.record(job.key, reason)
        streak, seconds = health.fail_streak, backoff_remaining(health)
        self._mark_failed(job, streak, seconds, version)
        times = "once" if streak == 1 else f"{streak} times in a row"
        text = f"{job.params_hash[:16]} failed {times}, next retry in {seconds:.0f} s: {_printable(reason)}"
        events.publish("cache_fetch_failed", self._name, text, "warning")

    def _store_and_serve_flow(
        self, job: FetchJob, lease: FetchLease, result: LoaderResult, duration_ms: int, age: float
    ) -> Flow[Cached | None]:
        now = lease.now + (self._clock.now_ns() - lease.granted_ns) / 1e9
        cached = self._expiry.from_result(result, row_from(job, result, duration_ms, now, age), age)
        version = self._expiry.local.version  # an invalidation from now on is newer than this result
        stored = yield from self._writer.store_flow(job, lease.token, result, duration_ms, age)
        if stored is False:
            return (yield from self._reread_flow(job)) or cached
        self._expiry.store_locally(job.key, cached, len(result.body), version)
        return cached


def _printable(reason: Exception | str) -> str:
    """Return a reason in at most 200 printable characters."""
    text = reason if isinstance(reason, str) else f"{type(reason).__name__}: {reason}"
    return "".join(char if char.isprintable() else " " for char in text[:_REASON_CHARS_MAX])


def worker_name() -> str:
    """Return the ``host:pid`` of this worker, which operators see as the owner of its leases."""
    return f"{RUNTIME.host()}:{RUNTIME.pid()}"
