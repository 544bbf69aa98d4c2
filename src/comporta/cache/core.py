"""What each method of a cache does, once, as a flow for the async and the blocking cache.

``job_runner`` runs the jobs of ``fetch``. As there, a method that starts with ``try_`` serves what needs no
wait and therefore no flow.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from comporta.cache.backoff_memory import Refusals
from comporta.cache.config import BY_PARAMS, SECONDS_MAX, CacheConfig
from comporta.cache.coverage import Coverage
from comporta.cache.entry import Cached, Loaded
from comporta.cache.expiry import ExpiryPolicy
from comporta.cache.fetch import CacheFetcher, worker_name
from comporta.cache.invalidation import Invalidations
from comporta.cache.job import FetchJob
from comporta.cache.job_runner import JobRunner
from comporta.cache.loader_result import Loader, Merge, has_parameter, validate_result
from comporta.cache.local import LocalCache, key_digest
from comporta.cache.maintenance import CacheMaintenance
from comporta.cache.params import SHARED_USER, check_hash, check_user, decode_params, hash_params
from comporta.cache.removal import CacheRemoval
from comporta.cache.repository import MUST_WAIT, UNAVAILABLE, CacheRepository, MustWait, Unavailable
from comporta.cache.result_writer import ResultWriter
from comporta.cache.single_flight import SharedFuture, WaitForFuture
from comporta.cache.stats import AnswerCounter
from comporta.cache.tags import MANY_MAX, stored_tags
from comporta.clock import MONOTONIC, Clock
from comporta.errors import CacheUnavailableError
from comporta.flow import Flow
from comporta.stores.base import Store
from comporta.stores.registry import default_url, resolve_store
from comporta.validators import require_integer, require_number

if TYPE_CHECKING:
    from comporta.cache.rows import DueRow, KeyHealth, ResultRow
    from comporta.database.base import Database

DEFAULT_NAME = "cache"
"""The name of a cache without a given name; only its keys are the plain hashes of the parameters."""

VALID_USERS_MAX = 100_000
"""How many validated user ids a process remembers; beyond that it validates them again."""

DURATION_MS_MAX = 2**31 - 1
DUE_MAX = 1000
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
        self._refusals = Refusals(self.local)
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
        self._expiry = ExpiryPolicy(
            config, self.local, self._invalidations, clock, self._repository.publish_unreadable_row
        )
        self._maintenance = CacheMaintenance(
            self._repository,
            self.local,
            config.lease_seconds,
            self._expiry.wall_time,
            self.answer_counter,
            refusals=self._refusals,
            stale=config.stale,
        )
        self._name = name
        self._clock = clock
        self._breaker_open = breaker_open
        self._writer = ResultWriter(
            name, config, self._repository, refusals=self._refusals, invalidations=self._invalidations
        )
        self.fetcher = self._new_fetcher()
        self.jobs = self._new_job_runner()
        self.removal = CacheRemoval(
            name, self._repository, self.local, self._invalidations, shared=self._by_params
        )

    def _new_fetcher(self) -> CacheFetcher:
        return CacheFetcher(
            self._name,
            self._repository,
            self._expiry,
            refusals=self._refusals,
            writer=self._writer,
            maintenance=self._maintenance,
            clock=self._clock,
        )

    def _new_job_runner(self) -> JobRunner:
        return JobRunner(
            self.fetcher,
            self._repository,
            self._expiry,
            refusals=self._refusals,
            invalidations=self._invalidations,
            maintenance=self._maintenance,
            answer_counter=self.answer_counter,
            breaker_open=self._breaker_open,
        )

    def with_times(self, fresh: float | None, stale: float | None) -> CacheCore:
        """Return this cache with other times, for a decorated function; both share everything else."""
        core = copy(self)
        fresh = self.config.fresh if fresh is None else fresh
        core.config = replace(self.config, fresh=fresh, stale=self.config.stale if stale is None else stale)
        core._expiry = ExpiryPolicy(
            core.config, self.local, self._invalidations, self._clock, self._repository.publish_unreadable_row
        )
        core.fetcher = core._new_fetcher()
        core.fetcher.single_flight = self.fetcher.single_flight
        core.jobs = core._new_job_runner()
        return core

    def prepare_job(
        self,
        user_id: str,
        params_hash: str,
        params_json: bytes,
        loader: Loader,
        *,
        force: bool,
        timeout: float | None,
        soft_timeout: float | None,
        merge: Merge | None,
        refresh_loader: Loader | None = None,
        key: str | None = None,
        tags: Sequence[str] = (),
    ) -> FetchJob:
        """Validate the arguments of ``fetch``, and return them as a job."""
        if not callable(loader):
            raise TypeError(f"loader must be a function, got {loader!r:.50}")
        if timeout is not None:
            require_number("timeout", timeout, 0, SECONDS_MAX, unit="seconds")
        if soft_timeout is not None:
            require_number("soft_timeout", soft_timeout, 0, SECONDS_MAX, unit="seconds")
        if merge is not None and not callable(merge):
            raise TypeError(f"merge must be a function, got {merge!r:.50}")
        if refresh_loader is not None and not callable(refresh_loader):
            raise TypeError(f"refresh_loader must be a function, got {refresh_loader!r:.50}")
        job = self._new_job(user_id, params_hash, params_json, loader)
        job.forced, job.merge, job.refresh_loader = force, merge, refresh_loader
        job.tags = stored_tags(self._name, key, tags) if tags or key is not None else ()
        job.timeout = timeout
        job.soft_timeout = self.config.soft_timeout if soft_timeout is None else soft_timeout
        return job

    def resolve_user(self, user_id: str | None) -> str:
        """Return the user of a row; a caller without one shares its rows, unless users are separate."""
        if user_id is not None:
            return user_id
        if not self._by_params:
            raise ValueError("user_id is required if scope is 'user', got None")
        return SHARED_USER

    def raise_if_refused(self, key: str) -> None:
        """Raise if this process knows that a key is in backoff and has nothing to serve."""
        refusal = self._refusals.get(key)
        if refusal is not None:
            seconds = max(0, refusal.retry_ns - self.local.now_ns()) / 1e9
            raise CacheUnavailableError(refusal.text, self._name, seconds) from refusal.cause

    def mark_saved(self, user_id: str, cached: Cached, *, saved: bool) -> None:
        """Record whether a search is saved; any user may save it, but only its owner may undo that."""
        if not isinstance(saved, bool):
            raise TypeError(f"saved must be true, false or None, got {saved!r:.50}")
        if saved or user_id == cached.user_id:
            self._maintenance.record_saved(cached.user_id, cached.params_hash, saved=saved)

    def try_get(self, key: str, user_id: str, params_hash: str) -> Cached | MustWait | None:
        """Return the cached result, however old; ``MUST_WAIT`` if the caller must use ``get_flow``."""
        version = self.local.version
        row = self._repository.try_read(None if self._by_params else user_id, params_hash)
        return MUST_WAIT if row is MUST_WAIT else self._cached_from(key, row, version)

    def get_flow(self, key: str, user_id: str, params_hash: str) -> Flow[Cached | None]:
        """Return the cached result after a read that has to wait."""
        version = self.local.version
        row = yield from self._repository.read_waiting_flow(None if self._by_params else user_id, params_hash)
        return self._cached_from(key, row, version)

    def _cached_from(self, key: str, row: ResultRow | Unavailable | None, version: int) -> Cached | None:
        if row is UNAVAILABLE:
            local = self.local.peek(key)
            return None if local is None else self._expiry.with_current_freshness(local[0])
        if row is None or not row.has_value:
            return None
        cached, size = self._expiry.from_row(row), len(row.results)
        if cached is not None and not self.jobs.serve_if_fresh(key, cached, size, version):
            self._maintenance.record_access(cached.user_id, cached.params_hash)
        return cached

    def delete_flow(self, user_id: str | None, params: Mapping[str, Any] | str) -> Flow[bool]:
        """Remove the result of a key and its failures, in all workers."""
        user_id = self.resolve_user(user_id)
        return self.removal.delete_flow(self.fetch_key(user_id, self._hash_and_json(params)[0]))

    def get_many_flow(
        self, user_id: str | None, many: Sequence[Mapping[str, Any] | str]
    ) -> Flow[list[Cached | None]]:
        """Return the cached results of several keys, with at most one read of the database."""
        user_id = self.resolve_user(user_id)
        if len(many) > MANY_MAX:
            raise ValueError(f"many must be at most {MANY_MAX} parameters, got {len(many)}")
        hashes = [self._hash_and_json(params)[0] for params in many]
        keys = [self.fetch_key(user_id, each) for each in hashes]
        local = {key: self.local.get(key) for key in keys}
        missing = {each: key for each, key in zip(hashes, keys, strict=True) if local[key] is None}
        if missing:
            version = self.local.version
            owner = None if self._by_params else user_id
            rows = yield from self._repository.read_many_flow(owner, list(missing))
            for params_hash, key in missing.items():
                row = UNAVAILABLE if rows is None else rows.get(params_hash)
                local[key] = self._cached_from(key, row, version)
        return [local[key] for key in keys]

    def save_flow(
        self,
        user_id: str | None,
        params: Mapping[str, Any],
        results: Any,
        *,
        sources: Sequence[str],
        coverage: Coverage | Mapping[str, Any] | None,
        fetch_duration_ms: int | None,
        total_results: int | None,
    ) -> Flow[bool]:
        """Store a result unconditionally, even if it covers less than the cached one."""
        user_id = self.resolve_user(user_id)
        params_hash, params_json = hash_params(params, self.hash_prefix)
        job = self._new_job(user_id, params_hash, params_json, validate_result)
        if fetch_duration_ms is not None:
            require_integer("fetch_duration_ms", fetch_duration_ms, 0, DURATION_MS_MAX)
        result = validate_result(Loaded(results, coverage, sources, total_results))
        stored = yield from self._writer.store_flow(job, None, result, fetch_duration_ms)
        self.local.invalidate(key_digest(job.key))
        return bool(stored)

    def record_failure_flow(self, user_id: str | None, params: Mapping[str, Any] | str) -> Flow[KeyHealth]:
        """Count a failure of a caller that fetched without ``fetch``."""
        user_id = self.resolve_user(user_id)
        params_hash, params_json = self._hash_and_json(params)
        job = self._new_job(user_id, params_hash, params_json or b"", validate_result)
        health = yield from self._repository.record_failure_flow(
            job.key, None, user_id, params_hash, params_json, now=self._expiry.wall_time()
        )
        self.local.invalidate(key_digest(job.key))
        yield from self._invalidations.publish_flow(key_digest(job.key))
        return health

    def is_degraded_flow(self, user_id: str | None, params: Mapping[str, Any] | str) -> Flow[bool]:
        """Whether a key is in backoff."""
        user_id = self.resolve_user(user_id)
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
            job = self._due_job(row, loader, takes_user=takes_user)
            if job is None:
                continue
            if not self.jobs.try_read(job):
                yield from self.jobs.read_flow(job)
            future = yield from self.jobs.start_refresh_flow(job)
            if future is None and started:
                yield WaitForFuture(started[-1])
                future = yield from self.jobs.start_refresh_flow(job)
            if future is not None:
                started.append(future)
        for future in started:
            yield WaitForFuture(future)
        return len(started)

    def _due_job(self, row: DueRow, loader: Loader, *, takes_user: bool) -> FetchJob | None:
        """Return the refresh of a row; ``None`` if its parameters cannot be decoded."""
        try:
            user = {"user_id": row.user_id} if takes_user else {}
            load = partial(loader, decode_params(row.search_params), **user)
            job = self._new_job(row.user_id, row.params_hash, row.search_params, load)
        except Exception as error:
            self._repository.publish_unreadable_row(row.params_hash, error)
            return None
        job.forced = row.requested
        return job

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
        key = self.fetch_key(user_id, params_hash)
        return FetchJob(key, user_id, params_hash, params_json, loader, self._clock.now_ns())

    def _hash_and_json(self, params: Mapping[str, Any] | str) -> tuple[str, bytes | None]:
        if isinstance(params, str):
            return check_hash(params), None
        return hash_params(params, self.hash_prefix)

    def fetch_key(self, user_id: str, params_hash: str) -> str:
        """Validate the user id, and return the key that names what one fetch covers."""
        if type(user_id) is not str or user_id not in self.valid_users:
            check_user(user_id)
            if len(self.valid_users) >= VALID_USERS_MAX:
                self.valid_users.clear()
            self.valid_users.add(user_id)
        return params_hash if self._by_params else f"{user_id}:{params_hash}"
