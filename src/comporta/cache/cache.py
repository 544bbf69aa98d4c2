"""The cache that users call: ``HealthCache``, and ``cache.sync`` for blocking code.

``fetch`` is the main method. ``save_to_cache``, ``get_from_cache``, ``record_cache_fetch_failure`` and
``is_cache_key_degraded`` are for callers that fetch themselves. A result in the local cache is returned
directly, and so is one that a SQLite file returns without blocking. Everything else is a flow in ``core.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from comporta.cache.config import BY_PARAMS, CacheConfig
from comporta.cache.core import CacheCore
from comporta.cache.coverage import Coverage
from comporta.cache.entry import Cached
from comporta.cache.loader_result import Loader, Merge
from comporta.cache.params import check_hash, hash_params
from comporta.cache.repository import MUST_WAIT
from comporta.cache.single_flight import WaitForFuture, run_in_thread
from comporta.clock import MONOTONIC, Clock
from comporta.flow import run, run_async
from comporta.stores.base import Store

if TYPE_CHECKING:
    from comporta.cache.rows import KeyHealth
    from comporta.database.base import Database

CLOSE_SECONDS = 5.0
"""How long closing a cache may take."""

_HOUR = 3600.0


class HealthCache:
    """A cache in a SQL database that shares the health of every key between all workers.

    ``database`` is a URL or a database; the default is ``DATABASE_URL``, or else a SQLite file in the user's
    data folder. A result is fresh for ``fresh`` seconds and usable for ``stale`` seconds. A stale result is
    served immediately while one worker of the fleet refreshes it. After a failure all workers leave the key
    alone for 1, 5, 15, then 30 minutes. Single flight and backoff go by the parameters, whichever user asks;
    with ``scope="user"`` users have separate results. Caches with different names have separate results.

    ``lease_seconds``: after this time another worker takes over from a fetcher that was killed.
    ``soft_timeout``: wait up to this long for a fresh result before serving a stale one.
    ``refresh_timeout``: how long a load may take.
    ``refreshes_max``: how many background refreshes run at once in this process.
    ``refresh_every``: seconds between two refreshes of a key (or ``fresh``, if that is less).
    ``entries_per_user``: how many rows a user keeps.
    ``local_entries``, ``local_bytes``, ``local_ttl``: bounds of the in-process cache. Entries also end when
    another worker publishes a change through the store ``state``.
    ``breaker_open``: no background refresh starts while this function returns true.
    ``migrate``: create or update the tables first; the default does so for SQLite files only.

    ``config`` holds the validated options, ``name`` the name, and ``sync`` the methods for blocking code.
    """

    def __init__(
        self,
        database: str | Database | None = None,
        *,
        name: str = "cache",
        fresh: float = 6 * _HOUR,
        stale: float = 24 * _HOUR,
        scope: str = BY_PARAMS,
        lease_seconds: float = 10.0,
        soft_timeout: float | None = None,
        refresh_timeout: float = 180.0,
        refreshes_max: int = 3,
        refresh_every: float = 600.0,
        entries_per_user: int = 10,
        local_entries: int = 10_000,
        local_bytes: int = 64 * 1024 * 1024,
        local_ttl: float = 60.0,
        state: str | Store | None = None,
        clock: Clock | None = None,
        breaker_open: Callable[[], bool] | None = None,
        migrate: bool | None = None,
    ) -> None:
        self.config = CacheConfig(
            fresh=fresh,
            stale=stale,
            scope=scope,
            lease_seconds=lease_seconds,
            soft_timeout=soft_timeout,
            refresh_timeout=refresh_timeout,
            refreshes_max=refreshes_max,
            refresh_every=refresh_every,
            entries_per_user=entries_per_user,
            local_entries=local_entries,
            local_bytes=local_bytes,
            local_ttl=local_ttl,
        )
        self.name = name
        self._core = CacheCore(
            self.config,
            name,
            database=database,
            state=state,
            clock=clock or MONOTONIC,
            breaker_open=breaker_open,
            migrate=migrate,
        )
        self._by_params = scope == BY_PARAMS
        self._local_get = self._core.local.get
        self._valid_users = self._core.valid_users
        self._hash_prefix = self._core.hash_prefix
        self.sync = SyncHealthCache(self._core)

    async def fetch(
        self,
        user_id: str,
        params: Mapping[str, Any],
        loader: Loader,
        *,
        force: bool = False,
        soft_timeout: float | None = None,
        saved: bool | None = None,
        merge: Merge | None = None,
    ) -> Cached:
        """Return the result for ``params`` from memory, from the database, or from ``loader``.

        ``loader`` takes no arguments, or ``missing``: the units that a partial result lacks. It returns the
        value, or a ``Loaded`` with its coverage; a plain function runs in a thread. ``force``: load now, or
        wait for the load that is running. ``saved``: whether the user keeps this search. ``merge(old, new)``
        combines a partial result with its missing units; lists and mappings need none. Raises
        ``CacheUnavailableError`` if nothing is cached and the key is in backoff.
        """
        params_hash, params_json = hash_params(params, self._hash_prefix)
        cached = None
        if not force and type(user_id) is str and user_id in self._valid_users:
            cached = self._local_get(params_hash if self._by_params else f"{user_id}:{params_hash}")
        if cached is None:
            job = self._core.prepare_job(
                user_id, params_hash, params_json, loader, force=force, soft_timeout=soft_timeout, merge=merge
            )
            cached = self._core.try_fetch(job)
            if cached is None:
                cached = await run_async(self._core.fetch_flow(job))
        if saved is not None:
            self._core.mark_saved(user_id, cached, saved=saved)
        return cached

    async def get_from_cache(self, user_id: str, params: Mapping[str, Any] | str) -> Cached | None:
        """Return the cached result for ``params`` (or their hash), however old it is; load nothing."""
        params_hash = (
            check_hash(params) if isinstance(params, str) else hash_params(params, self._hash_prefix)[0]
        )
        if type(user_id) is str and user_id in self._valid_users:
            local = self._local_get(params_hash if self._by_params else f"{user_id}:{params_hash}")
            if local is not None:
                return local
        cached = self._core.try_get(user_id, params_hash)
        return await run_async(self._core.get_flow(user_id, params_hash)) if cached is MUST_WAIT else cached

    async def save_to_cache(
        self,
        user_id: str,
        params: Mapping[str, Any],
        results: Any,
        sources: Sequence[str] = (),
        *,
        coverage: Coverage | Mapping[str, Any] | None = None,
        fetch_duration_ms: int | None = None,
        total_results: int | None = None,
    ) -> bool:
        """Store a result that was fetched elsewhere; return false if the database could not store it."""
        return await run_async(
            self._core.save_flow(
                user_id,
                params,
                results,
                sources=sources,
                coverage=coverage,
                fetch_duration_ms=fetch_duration_ms,
                total_results=total_results,
            )
        )

    async def record_cache_fetch_failure(self, user_id: str, params: Mapping[str, Any] | str) -> KeyHealth:
        """Count a failure to fetch ``params`` (or their hash); return the health of the key."""
        return await run_async(self._core.record_failure_flow(user_id, params))

    async def is_cache_key_degraded(self, user_id: str, params: Mapping[str, Any] | str) -> bool:
        """Whether ``params`` (or their hash) failed too recently to be fetched again."""
        return await run_async(self._core.is_degraded_flow(user_id, params))

    async def refresh_due(self, loader: Callable[..., Any], limit: int = 100) -> int:
        """Refresh keys that an operator marked and hot keys that are soon stale, with ``loader(params)``.

        A loader with a parameter ``user_id`` gets that, too; with ``scope="user"`` it must have one. Call
        this every minute or so in each worker. Returns the number of refreshes that it started.
        """
        return await run_async(self._core.refresh_due_flow(loader, limit))

    async def stats(self) -> dict[str, Any]:
        """Return statistics of all keys, and of the answers of all workers in the last 24 hours."""
        return await run_async(self._core.stats_flow())

    def clear_local_cache(self) -> None:
        """Drop all entries of the in-process cache; the database keeps its rows."""
        self._core.local.clear()

    async def aclose(self) -> None:
        """End background work within 5 s, and write pending counts to the database."""
        await self._core.fetcher.single_flight.aclose(CLOSE_SECONDS)
        await WaitForFuture(run_in_thread(partial(self._core.close, CLOSE_SECONDS))).wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()


class SyncHealthCache:
    """The methods of a cache for blocking code (``cache.sync``); loaders are plain functions."""

    __slots__ = ("_by_params", "_core", "_hash_prefix", "_local_get", "_valid_users")

    def __init__(self, core: CacheCore) -> None:
        self._core = core
        self._by_params = core.config.scope == BY_PARAMS
        self._local_get = core.local.get
        self._valid_users = core.valid_users
        self._hash_prefix = core.hash_prefix

    def fetch(
        self,
        user_id: str,
        params: Mapping[str, Any],
        loader: Loader,
        *,
        force: bool = False,
        soft_timeout: float | None = None,
        saved: bool | None = None,
        merge: Merge | None = None,
    ) -> Cached:
        """Return the result for ``params``; see :meth:`HealthCache.fetch`."""
        params_hash, params_json = hash_params(params, self._hash_prefix)
        cached = None
        if not force and type(user_id) is str and user_id in self._valid_users:
            cached = self._local_get(params_hash if self._by_params else f"{user_id}:{params_hash}")
        if cached is None:
            job = self._core.prepare_job(
                user_id, params_hash, params_json, loader, force=force, soft_timeout=soft_timeout, merge=merge
            )
            cached = self._core.try_fetch(job)
            if cached is None:
                cached = run(self._core.fetch_flow(job))
        if saved is not None:
            self._core.mark_saved(user_id, cached, saved=saved)
        return cached

    def get_from_cache(self, user_id: str, params: Mapping[str, Any] | str) -> Cached | None:
        """Return the cached result, however old it is; load nothing."""
        params_hash = (
            check_hash(params) if isinstance(params, str) else hash_params(params, self._hash_prefix)[0]
        )
        if type(user_id) is str and user_id in self._valid_users:
            local = self._local_get(params_hash if self._by_params else f"{user_id}:{params_hash}")
            if local is not None:
                return local
        cached = self._core.try_get(user_id, params_hash)
        return run(self._core.get_flow(user_id, params_hash)) if cached is MUST_WAIT else cached

    def save_to_cache(
        self,
        user_id: str,
        params: Mapping[str, Any],
        results: Any,
        sources: Sequence[str] = (),
        *,
        coverage: Coverage | Mapping[str, Any] | None = None,
        fetch_duration_ms: int | None = None,
        total_results: int | None = None,
    ) -> bool:
        """Store a result that was fetched elsewhere; return false if the database could not store it."""
        return run(
            self._core.save_flow(
                user_id,
                params,
                results,
                sources=sources,
                coverage=coverage,
                fetch_duration_ms=fetch_duration_ms,
                total_results=total_results,
            )
        )

    def record_cache_fetch_failure(self, user_id: str, params: Mapping[str, Any] | str) -> KeyHealth:
        """Count a failure to fetch; return the health of the key."""
        return run(self._core.record_failure_flow(user_id, params))

    def is_cache_key_degraded(self, user_id: str, params: Mapping[str, Any] | str) -> bool:
        """Whether the key failed too recently to be fetched again."""
        return run(self._core.is_degraded_flow(user_id, params))

    def refresh_due(self, loader: Callable[..., Any], limit: int = 100) -> int:
        """Refresh keys that are due; see :meth:`HealthCache.refresh_due`."""
        return run(self._core.refresh_due_flow(loader, limit))

    def stats(self) -> dict[str, Any]:
        """Return statistics of all keys, and of the answers of all workers in the last 24 hours."""
        return run(self._core.stats_flow())

    def close(self) -> None:
        """End background work within 5 s, and write pending counts to the database."""
        self._core.fetcher.single_flight.close(CLOSE_SECONDS)
        self._core.close(CLOSE_SECONDS)
