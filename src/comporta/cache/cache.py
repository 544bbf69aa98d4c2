"""The cache that users call: ``HealthCache``; ``cache.sync`` is in ``sync_cache.py``.

``fetch`` is the main method. ``save_to_cache``, ``get_from_cache``, ``record_cache_fetch_failure`` and
``is_cache_key_degraded`` are for callers that fetch themselves. A result in the local cache is returned
directly, and so is one that a SQLite file returns without blocking. Everything else is a flow in ``core.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from copy import copy
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, Unpack, overload

from comporta.cache.config import BY_PARAMS, CacheConfig
from comporta.cache.core import CacheCore
from comporta.cache.coverage import Coverage
from comporta.cache.decorator import CachedFunction, CallKeys, with_methods
from comporta.cache.entry import Cached, Loaded
from comporta.cache.loader_result import FetchOptions, Loader, Merge
from comporta.cache.params import check_hash, hash_params
from comporta.cache.repository import MUST_WAIT
from comporta.cache.single_flight import WaitForFuture, run_in_thread
from comporta.cache.sync_cache import CLOSE_SECONDS, SyncHealthCache
from comporta.clock import MONOTONIC, Clock
from comporta.flow import run_async
from comporta.stores.base import Store

if TYPE_CHECKING:
    from comporta.cache.rows import KeyHealth
    from comporta.database.base import Database

P = ParamSpec("P")
T = TypeVar("T")

_HOUR = 3600.0


class HealthCache:
    """A cache in a SQL database that shares the health of every key between all workers.

    ``database`` is a URL or a database; the default is ``DATABASE_URL``, or else a SQLite file in the user's
    data folder. A result is fresh for ``fresh`` seconds and usable for ``stale`` seconds. A stale result is
    served immediately while one worker of the fleet refreshes it. After a failure all workers leave the key
    alone for 1, 5, 15, then 30 minutes. Single flight and backoff depend on the parameters only, whichever
    user calls; with ``scope="user"`` users have separate results. Caches with different names have separate
    results.

    ``lease_seconds``: after this time another worker takes over from a fetcher that was killed.
    ``soft_timeout``: wait up to this long for a fresh result before serving a stale one.
    ``refresh_timeout``: how long a load may take.
    ``refreshes_max``: how many background refreshes run at once in this process.
    ``refresh_every``: seconds between two refreshes of a key (or ``fresh``, if that is less).
    ``table_entries``, ``table_bytes``: bounds of the table; the least recently used rows are evicted.
    ``entries_per_user``: how many rows a user keeps; ``None`` for no bound per user.
    ``local_entries``, ``local_bytes``, ``local_ttl``: bounds of the in-process cache. Entries also end when
    another worker publishes a change through the store ``state``.
    ``breaker_open``: a function; no background refresh starts while it returns true.
    ``migrate``: whether to create or update the tables first; by default only for SQLite files.

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
        entries_per_user: int | None = None,
        table_entries: int = 100_000,
        table_bytes: int = 1024 * 1024 * 1024,
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
            table_entries=table_entries,
            table_bytes=table_bytes,
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

    @overload
    async def fetch(
        self,
        user_id: str | None,
        params: Mapping[str, Any],
        loader: Callable[..., Awaitable[Loaded[T]]],
        **options: Unpack[FetchOptions],
    ) -> Cached[T]: ...

    @overload
    async def fetch(
        self,
        user_id: str | None,
        params: Mapping[str, Any],
        loader: Callable[..., Awaitable[T]],
        **options: Unpack[FetchOptions],
    ) -> Cached[T]: ...

    @overload
    async def fetch(
        self,
        user_id: str | None,
        params: Mapping[str, Any],
        loader: Callable[..., Loaded[T]],
        **options: Unpack[FetchOptions],
    ) -> Cached[T]: ...

    @overload
    async def fetch(
        self,
        user_id: str | None,
        params: Mapping[str, Any],
        loader: Callable[..., T],
        **options: Unpack[FetchOptions],
    ) -> Cached[T]: ...

    async def fetch(
        self,
        user_id: str | None,
        params: Mapping[str, Any],
        loader: Loader,
        *,
        force: bool = False,
        timeout: float | None = None,
        soft_timeout: float | None = None,
        saved: bool | None = None,
        merge: Merge | None = None,
        refresh_loader: Loader | None = None,
        key: str | None = None,
        tags: Sequence[str] = (),
    ) -> Cached[Any]:
        """Return the result for ``params`` from memory, from the database, or from ``loader``.

        ``loader`` takes no arguments, or ``missing``: the units that a partial result lacks. It returns the
        value, or a ``Loaded`` with its coverage; a plain function runs in a thread. ``force``: load now, or
        wait for the load that is running. ``saved``: whether the user keeps this search. ``merge(old, new)``
        combines a partial result with its missing units; lists and mappings need no ``merge``.
        ``refresh_loader``: what to call instead of ``loader`` while the caller gets a cached result, such as
        a loader of a lower priority. Raises ``CacheUnavailableError`` if nothing is cached and the key is in
        backoff. ``timeout``: wait for the load for up to this many seconds, then raise ``CachePendingError``;
        the load continues. ``user_id`` may be ``None`` unless ``scope`` is ``"user"``. ``key`` and ``tags``
        name the result for ``invalidate``.
        """
        if user_id is None:
            user_id = self._core.resolve_user(None)
        params_hash, params_json = hash_params(params, self._hash_prefix)
        cached = None
        if not force and type(user_id) is str and user_id in self._valid_users:
            fetch_key = params_hash if self._by_params else f"{user_id}:{params_hash}"
            cached = self._local_get(fetch_key)
            if cached is None:
                self._core.raise_if_refused(fetch_key)
        if cached is None:
            job = self._core.prepare_job(
                user_id,
                params_hash,
                params_json,
                loader,
                force=force,
                timeout=timeout,
                soft_timeout=soft_timeout,
                merge=merge,
                refresh_loader=refresh_loader,
                key=key,
                tags=tags,
            )
            cached = self._core.jobs.try_fetch(job)
            if cached is None:
                cached = await run_async(self._core.jobs.fetch_flow(job))
        if saved is not None:
            self._core.mark_saved(user_id, cached, saved=saved)
        return cached

    async def get_from_cache(self, user_id: str | None, params: Mapping[str, Any] | str) -> Cached | None:
        """Return the cached result for ``params`` (or their hash), however old it is; load nothing."""
        if user_id is None:
            user_id = self._core.resolve_user(None)
        params_hash = (
            check_hash(params) if isinstance(params, str) else hash_params(params, self._hash_prefix)[0]
        )
        if type(user_id) is str and user_id in self._valid_users:
            key = params_hash if self._by_params else f"{user_id}:{params_hash}"
            local = self._local_get(key)
            if local is not None:
                return local
        else:
            key = self._core.fetch_key(user_id, params_hash)
        cached = self._core.try_get(key, user_id, params_hash)
        return (
            await run_async(self._core.get_flow(key, user_id, params_hash)) if cached is MUST_WAIT else cached
        )

    async def get_many(
        self, user_id: str | None, many: Sequence[Mapping[str, Any] | str]
    ) -> list[Cached | None]:
        """Return the cached results of up to 1000 parameters (or hashes), in their order; load nothing."""
        return await run_async(self._core.get_many_flow(user_id, many))

    async def delete(self, user_id: str | None, params: Mapping[str, Any] | str) -> bool:
        """Remove a result and the failures of its key, in all workers; return whether it existed.

        Raises ``DatabaseError`` if the database is unavailable.
        """
        return await run_async(self._core.delete_flow(user_id, params))

    async def invalidate(
        self, *, key: str | None = None, tag: str | None = None, prefix: str | None = None
    ) -> int:
        """Remove all results with a ``key``, with a ``tag``, or with a key that starts with ``prefix``.

        Returns how many rows it removed. Raises ``DatabaseError`` if the database is unavailable.
        """
        return await run_async(self._core.removal.invalidate_flow(key, tag, prefix))

    def cached(
        self,
        *,
        fresh: float | None = None,
        stale: float | None = None,
        key: str | None = None,
        tags: Sequence[str] = (),
    ) -> Callable[[Callable[P, Awaitable[T]]], CachedFunction[P, T]]:
        """Return a decorator that caches the results of a coroutine function by its arguments.

        The arguments must be JSON serializable, and so must the result: callers get it as decoded from JSON.
        ``fresh`` and ``stale`` default to the values of the cache. ``key`` and ``tags`` are templates in
        which ``{name}`` stands for an argument, such as ``key="search:{q}"``; ``invalidate`` removes by them.
        The decorated function also has ``fetch``, ``get`` and ``delete``, which take its arguments: ``fetch``
        returns a ``Cached``, ``get`` does the same without calling the function, and ``delete`` removes the
        result.
        """
        cache = copy(self)
        cache._core = self._core.with_times(fresh, stale)

        def decorate(function: Callable[P, Awaitable[T]]) -> CachedFunction[P, T]:
            keys = CallKeys(function, key, tags)

            def fetch(*args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Cached[T]]:
                named = keys.for_call(args, kwargs)
                load = partial(function, *args, **kwargs)
                return cache.fetch(None, named.params, load, key=named.key, tags=named.tags)

            async def call(*args: P.args, **kwargs: P.kwargs) -> T:
                return (await fetch(*args, **kwargs)).value

            def get(*args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Cached[T] | None]:
                return cache.get_from_cache(None, keys.for_call(args, kwargs).params)

            def delete(*args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, bool]:
                return cache.delete(None, keys.for_call(args, kwargs).params)

            complete: CachedFunction[P, T] = with_methods(call, function, fetch=fetch, get=get, delete=delete)
            return complete

        return decorate

    async def save_to_cache(
        self,
        user_id: str | None,
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

    async def record_cache_fetch_failure(
        self, user_id: str | None, params: Mapping[str, Any] | str
    ) -> KeyHealth:
        """Count a failure to fetch ``params`` (or their hash); return the health of the key."""
        return await run_async(self._core.record_failure_flow(user_id, params))

    async def is_cache_key_degraded(self, user_id: str | None, params: Mapping[str, Any] | str) -> bool:
        """Whether ``params`` (or their hash) failed too recently to be fetched again."""
        return await run_async(self._core.is_degraded_flow(user_id, params))

    async def refresh_due(self, loader: Callable[..., Any], limit: int = 100) -> int:
        """Refresh keys that an operator marked and hot keys that are soon stale, with ``loader(params)``.

        A loader with a parameter ``user_id`` gets the user, too; with ``scope="user"`` it must have that
        parameter. Call this every minute or so in each worker. Returns the number of refreshes that it
        started.
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
