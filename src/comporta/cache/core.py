"""What each method of a cache does, once, as a flow for the async and the blocking cache.

A SQLite file answers a read without blocking. Such a read needs no flow, which would take longer than all
other work for the call: ``try_fetch`` and ``try_get`` serve it, and the flows continue where those cannot.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from comporta.cache.config import BY_PARAMS, SECONDS_MAX, CacheConfig
from comporta.cache.coverage import Coverage
from comporta.cache.entry import Cached, Loaded
from comporta.cache.expiry import RECHECK_SECONDS, ExpiryPolicy
from comporta.cache.fetch import CacheFetcher, FetchAbandonedError, FetchJob, worker_name
from comporta.cache.health import EXPIRED, FRESH
from comporta.cache.invalidation import Invalidations
from comporta.cache.loader_result import Loader, Merge, has_parameter, validate_result
from comporta.cache.local import LocalCache, key_digest
from comporta.cache.maintenance import CacheMaintenance
from comporta.cache.params import check_hash, check_user, hash_params
from comporta.cache.repository import MUST_WAIT, UNAVAILABLE, CacheRepository, MustWait, Unavailable
from comporta.cache.serialization import decode_json
from comporta.cache.single_flight import SharedFuture, StartLoad, WaitForFuture
from comporta.cache.stats import FRESH_HIT, MISS, STALE_HIT, AnswerCounter
from comporta.clock import MONOTONIC, Clock
from comporta.flow import Flow
from comporta.stores.base import Store
from comporta.stores.registry import default_url, resolve_store
from comporta.validators import require_integer, require_number

if TYPE_CHECKING:
    from comporta.cache.rows import CacheRow, KeyHealth
    from comporta.database.base import Database

DEFAULT_NAME = "cache"
"""The name of a cache that was given none; only its keys are the plain hashes of the parameters."""

VALID_USERS_MAX = 100_000
"""How many validated user ids a process remembers; then it validates again."""

DURATION_MS_MAX = 2**31 - 1
DUE_MAX = 1000
_ATTEMPTS_MAX = 10
_LOOP_CHECK_SECONDS = 2.0
"""How often a waiting caller checks whether the event loop of the load still exists."""

_NAME_PATTERN = re.compile(r"[A-Za-z0-9_.-]{1,100}")


class CacheCore:
    """One cache: its parts, and its methods as flows."""

    def __init__(
        self,
        config: CacheConfig,
        name: str,
        *,
        database: str | Database | None,
        state: str | Store | None,
        clock: Clock,
        breaker_open: Callable[[], bool] | None,
        migrate: bool | None,
    ) -> None:
        if type(name) is not str or not _NAME_PATTERN.fullmatch(name):
            raise ValueError(f"name must be 1 to 100 of A-Z a-z 0-9 _ . -, got {name!r:.120}")
        if breaker_open is not None and not callable(breaker_open):
            raise TypeError(f"breaker_open must be a function, got {breaker_open!r:.50}")
        if not isinstance(database, str | None) and not hasattr(database, "dialect"):
            raise TypeError(f"database must be a URL or a database, got {database!r:.50}")
        from comporta.cache.tables import CacheTables, prepare_tables  # noqa: PLC0415 - only a cache needs them
        from comporta.database.urls import open_database  # noqa: PLC0415 - see above

        self._owns_database = database is None or isinstance(database, str)
        self.database = open_database(database) if database is None or isinstance(database, str) else database
        state = default_url(distributed=True) if state is None else state
        store = resolve_store(state)
        self.config = config
        self.hash_prefix = b"" if name == DEFAULT_NAME else name.encode() + b":"
        self._by_params = config.scope == BY_PARAMS
        self.valid_users: set[str] = set()
        self.answer_counter = AnswerCounter()
        self.local = LocalCache(config.local_entries, config.local_bytes, clock)
        self._tables = CacheTables(
            self.database, None if clock is MONOTONIC else lambda: clock.now_ns() / 1e9
        )
        try:
            prepare_tables(self._tables, name, migrate)
        except BaseException:
            self._close_database()
            raise
        self._repository = CacheRepository(self._tables, name, clock)
        self._invalidations = Invalidations(name, store, self.local)
        self._expiry = ExpiryPolicy(config, self.local, self._invalidations, clock)
        self._maintenance = CacheMaintenance(
            self._repository,
            self.local,
            config.lease_seconds,
            self._expiry.wall_time,
            self.answer_counter,
            stale=config.stale,
        )
        self.fetcher = CacheFetcher(
            name,
            self._repository,
            self._expiry,
            invalidations=self._invalidations,
            maintenance=self._maintenance,
            clock=clock,
        )
        self._clock = clock
        self._breaker_open = breaker_open

    def prepare_job(
        self,
        user_id: str,
        params_hash: str,
        params_json: bytes,
        loader: Loader,
        *,
        force: bool,
        soft_timeout: float | None,
        merge: Merge | None,
    ) -> FetchJob:
        """Validate the arguments of ``fetch``, and return them as a job."""
        if not callable(loader):
            raise TypeError(f"loader must be a function, got {loader!r:.50}")
        if soft_timeout is not None:
            require_number("soft_timeout", soft_timeout, 0, SECONDS_MAX, unit="seconds")
        if merge is not None and not callable(merge):
            raise TypeError(f"merge must be a function, got {merge!r:.50}")
        job = self._new_job(user_id, params_hash, params_json, loader)
        job.forced, job.merge = force, merge
        job.soft_timeout = self.config.soft_timeout if soft_timeout is None else soft_timeout
        return job

    def try_fetch(self, job: FetchJob) -> Cached | None:
        """Return a result that is in the database and not due for a refresh; ``None`` if it takes a flow."""
        if not self._try_read(job) or job.cached is None or job.forced:
            return None
        return job.cached if self._serve_if_fresh(job.key, job.cached, job.size, job.version) else None

    def mark_saved(self, user_id: str, cached: Cached, *, saved: bool) -> None:
        """Record whether a search is saved; any user may save it, but only its owner may undo that."""
        if not isinstance(saved, bool):
            raise TypeError(f"saved must be true, false or None, got {saved!r:.50}")
        if saved or user_id == cached.user_id:
            self._maintenance.record_saved(cached.user_id, cached.params_hash, saved=saved)

    def fetch_flow(self, job: FetchJob) -> Flow[Cached]:
        """Return the cached result if it is usable, and start a fetch if it is not fresh."""
        if not job.is_read:
            yield from self._read_flow(job)
        cached, soft_timeout = job.cached, job.soft_timeout
        if cached is None or job.forced:
            self.answer_counter.count(MISS)
            self._maintenance.start()
            return (yield from self._wait_for_fetch_flow(job, soft_timeout))
        if self._serve_if_fresh(job.key, cached, job.size, job.version):
            return cached
        if cached.freshness == FRESH:
            self.answer_counter.count(FRESH_HIT)
            soft_timeout = None
        else:
            self.answer_counter.count(STALE_HIT)
        self._maintenance.record_access(cached.user_id, cached.params_hash)
        return (yield from self._serve_stale_flow(job, cached, soft_timeout))

    def try_get(self, user_id: str, params_hash: str) -> Cached | MustWait | None:
        """Return the cached result, however old; ``MUST_WAIT`` if that takes ``get_flow``."""
        key = self._fetch_key(user_id, params_hash)
        version = self.local.version
        row = self._repository.try_read(None if self._by_params else user_id, params_hash)
        return MUST_WAIT if row is MUST_WAIT else self._cached_from(key, row, version)

    def get_flow(self, user_id: str, params_hash: str) -> Flow[Cached | None]:
        """Return the cached result after a read that has to wait."""
        key = self._fetch_key(user_id, params_hash)
        version = self.local.version
        row = yield from self._repository.read_waiting_flow(None if self._by_params else user_id, params_hash)
        return self._cached_from(key, row, version)

    def _cached_from(self, key: str, row: CacheRow | Unavailable | None, version: int) -> Cached | None:
        if row is UNAVAILABLE:
            local = self.local.peek(key)
            return None if local is None else self._expiry.with_current_freshness(local[0])
        if row is None or not row.has_value:
            return None
        cached, size = self._expiry.from_row(row), len(row.results) + len(row.search_params)
        if not self._serve_if_fresh(key, cached, size, version):
            self._maintenance.record_access(cached.user_id, cached.params_hash)
        return cached

    def save_flow(
        self,
        user_id: str,
        params: Mapping[str, Any],
        results: Any,
        *,
        sources: Sequence[str],
        coverage: Coverage | Mapping[str, Any] | None,
        fetch_duration_ms: int | None,
        total_results: int | None,
    ) -> Flow[bool]:
        """Store a result unconditionally, even if it covers less than the cached one."""
        params_hash, params_json = hash_params(params, self.hash_prefix)
        job = self._new_job(user_id, params_hash, params_json, validate_result)
        if fetch_duration_ms is not None:
            require_integer("fetch_duration_ms", fetch_duration_ms, 0, DURATION_MS_MAX)
        result = validate_result(Loaded(results, coverage, sources, total_results))
        stored = yield from self.fetcher.store_flow(job, None, result, fetch_duration_ms)
        self.local.invalidate(key_digest(job.key))
        return bool(stored)

    def record_failure_flow(self, user_id: str, params: Mapping[str, Any] | str) -> Flow[KeyHealth]:
        """Count a failure of a caller that fetched without ``fetch``."""
        params_hash, params_json = self._hash_and_json(params)
        job = self._new_job(user_id, params_hash, params_json or b"", validate_result)
        health = yield from self._repository.record_failure_flow(
            job.key, None, user_id, params_hash, params_json, now=self._expiry.wall_time()
        )
        self.local.invalidate(key_digest(job.key))
        yield from self._invalidations.publish_flow(key_digest(job.key))
        return health

    def is_degraded_flow(self, user_id: str, params: Mapping[str, Any] | str) -> Flow[bool]:
        """Whether a key is in backoff."""
        job = self._new_job(user_id, self._hash_and_json(params)[0], b"", validate_result)
        return (yield from self._repository.is_degraded_flow(job.key))

    def refresh_due_flow(self, loader: Loader, limit: int) -> Flow[int]:
        """Refresh the rows that are due, as many at once as ``refreshes_max`` allows."""
        if not callable(loader):
            raise TypeError(f"loader must be a function, got {loader!r:.50}")
        takes_user = has_parameter(loader, "user_id")
        if not self._by_params and not takes_user:  # one user's result would be stored for another
            raise TypeError(f"loader must have a parameter user_id if scope is 'user', got {loader!r:.50}")
        require_integer("limit", limit, 1, DUE_MAX)
        rows = yield from self._repository.due_flow(limit, self._expiry.refresh_ahead_age)
        started: list[SharedFuture] = []
        for row in rows:
            job = self._new_job(
                row.user_id,
                row.params_hash,
                row.search_params,
                partial(
                    loader, decode_json(row.search_params), **({"user_id": row.user_id} if takes_user else {})
                ),
            )
            job.forced = row.requested
            if not self._try_read(job):
                yield from self._read_flow(job)
            future = yield from self._start_refresh_flow(job)
            if future is None and started:
                yield WaitForFuture(started[-1])
                future = yield from self._start_refresh_flow(job)
            if future is not None:
                started.append(future)
        for future in started:
            yield WaitForFuture(future)
        return len(started)

    def stats_flow(self) -> Flow[dict[str, Any]]:
        """Return statistics of all keys and workers, and of this process's memory."""
        stats = yield from self._repository.stats_flow(self.config.fresh, self.config.stale)
        memory = {"entries": len(self.local), "loading": len(self.fetcher.single_flight)}
        return {**stats, "worker": worker_name(), "memory": memory}

    def close(self, seconds: float) -> None:
        """End the maintenance thread, and close the database if this cache opened it."""
        self._maintenance.close(seconds)
        self._close_database()

    def _close_database(self) -> None:
        if self._owns_database:
            self.database.close()

    def _new_job(self, user_id: str, params_hash: str, params_json: bytes, loader: Loader) -> FetchJob:
        key = self._fetch_key(user_id, params_hash)
        return FetchJob(key, user_id, params_hash, params_json, loader, self._clock.now_ns())

    def _hash_and_json(self, params: Mapping[str, Any] | str) -> tuple[str, bytes | None]:
        if isinstance(params, str):
            return check_hash(params), None
        return hash_params(params, self.hash_prefix)

    def _fetch_key(self, user_id: str, params_hash: str) -> str:
        """Validate the user id, and return the key that names what one fetch covers."""
        if type(user_id) is not str or user_id not in self.valid_users:
            check_user(user_id)
            if len(self.valid_users) >= VALID_USERS_MAX:
                self.valid_users.clear()
            self.valid_users.add(user_id)
        return params_hash if self._by_params else f"{user_id}:{params_hash}"

    def _serve_if_fresh(self, key: str, cached: Cached, size: int, version: int) -> bool:
        """Count an access, and let memory serve the next ones; return false, without effect, if it is due."""
        expires_ns = self._expiry.servable_until_ns(cached)
        if not expires_ns:
            return False
        if self.local.put(key, cached, expires_ns, size, version, served=True):
            self._invalidations.ensure_listening()
            self._maintenance.start()
        else:
            self.answer_counter.count(FRESH_HIT)
            self._maintenance.record_access(cached.user_id, cached.params_hash)
        return True

    def _try_read(self, job: FetchJob) -> bool:
        """Read the cached result; return false if that would block."""
        job.version = self.local.version
        row = self._repository.try_read(None if self._by_params else job.user_id, job.params_hash)
        if row is MUST_WAIT:
            return False
        self._set_cached(job, row)
        return True

    def _read_flow(self, job: FetchJob) -> Flow[None]:
        """Read the cached result, and wait for the database."""
        job.version = self.local.version
        row = yield from self._repository.read_waiting_flow(
            None if self._by_params else job.user_id, job.params_hash
        )
        self._set_cached(job, row)

    def _set_cached(self, job: FetchJob, row: CacheRow | Unavailable | None) -> None:
        """Give a job the cached result, if it is usable; without a database, the one in memory."""
        job.is_read = True
        cached = None
        if row is UNAVAILABLE:
            local = self.local.peek(job.key)
            if local is not None:
                cached, job.size = self._expiry.with_current_freshness(local[0]), local[1]
        elif row is not None and row.has_value:
            cached, job.size = self._expiry.from_row(row), len(row.results) + len(row.search_params)
        job.cached = None if cached is None or cached.freshness == EXPIRED else cached

    def _serve_stale_flow(self, job: FetchJob, cached: Cached, soft_timeout: float | None) -> Flow[Cached]:
        """Start a refresh and return the cached result, or the new one if it arrives in ``soft_timeout``."""
        pause = cached.next_retry
        if pause or not soft_timeout:  # otherwise the next caller should wait for a fresh result, too
            self._expiry.store_locally(job.key, cached, job.size, job.version, pause or RECHECK_SECONDS)
        future = None if pause else (yield from self._start_refresh_flow(job))
        if future is not None and soft_timeout:
            yield WaitForFuture(future, soft_timeout)
            if future.is_done and isinstance(future.result, Cached):
                return future.result
        return job.cached or cached

    def _start_refresh_flow(self, job: FetchJob) -> Flow[SharedFuture | None]:
        """Start a refresh, or join the running one; ``None`` if too many run or the breaker is open."""
        if self._breaker_open is not None and self._breaker_open():
            return None
        future, is_new = self.fetcher.single_flight.join(job.key)
        if future is None or not is_new:
            return future
        if not self.fetcher.admit_refresh(self.config.refreshes_max):
            self.fetcher.single_flight.remove(job.key, future)
            future.complete(error=FetchAbandonedError())
            return None
        job.background = True
        yield from self._launch_flow(job, future)
        return future

    def _launch_flow(self, job: FetchJob, future: SharedFuture) -> Flow[None]:
        future.abandon = partial(self.fetcher.abandon, job, future)
        try:
            yield StartLoad(self.fetcher.single_flight, self.fetcher.load_flow(job, future), future)
        except BaseException:  # no thread could start, so nothing else completes the future
            future.abandon()
            raise

    def _wait_for_fetch_flow(self, job: FetchJob, soft_timeout: float | None) -> Flow[Cached]:
        """Start a fetch or join the running one, and wait for it."""
        for _ in range(_ATTEMPTS_MAX):
            future, is_new = self.fetcher.single_flight.join(job.key)
            if future is None:
                raise self.fetcher.unavailable_error("too many fetches are running", job, 1.0)
            if is_new:
                job.background = False
                yield from self._launch_flow(job, future)
            timeout = soft_timeout if job.cached is not None else None
            is_done: bool = yield WaitForFuture(future, _LOOP_CHECK_SECONDS if timeout is None else timeout)
            while not is_done and timeout is None:
                self.fetcher.single_flight.abandon_if_lost(job.key)
                is_done = yield WaitForFuture(future, _LOOP_CHECK_SECONDS)
            result: Cached | None = future.result if is_done else job.cached
            if result is not None:
                return result
            if future.error is not None and not isinstance(future.error, FetchAbandonedError):
                if job.cached is not None:
                    return job.cached
                raise future.error
        raise self.fetcher.unavailable_error("its fetches were abandoned repeatedly", job, 1.0)
