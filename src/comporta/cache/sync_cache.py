"""The methods of a cache for blocking code: ``cache.sync``.

They do the same as the methods in ``cache.py``, on the calling thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, overload

from comporta.cache.config import BY_PARAMS
from comporta.cache.core import CacheCore
from comporta.cache.coverage import Coverage
from comporta.cache.decorator import CallKeys, SyncCachedFunction, with_methods
from comporta.cache.entry import Cached, Loaded
from comporta.cache.loader_result import FetchOptions, Loader, Merge
from comporta.cache.params import check_hash, hash_params
from comporta.cache.repository import MUST_WAIT
from comporta.flow import run

if TYPE_CHECKING:
    from comporta.cache.rows import KeyHealth

P = ParamSpec("P")
T = TypeVar("T")

CLOSE_SECONDS = 5.0
"""How long closing a cache may take."""


class SyncHealthCache:
    """The methods of a cache for blocking code (``cache.sync``); loaders are plain functions."""

    __slots__ = ("_by_params", "_core", "_hash_prefix", "_local_get", "_valid_users")

    def __init__(self, core: CacheCore) -> None:
        self._core = core
        self._by_params = core.config.scope == BY_PARAMS
        self._local_get = core.local.get
        self._valid_users = core.valid_users
        self._hash_prefix = core.hash_prefix

    @overload
    def fetch(
        self,
        user_id: str | None,
        params: Mapping[str, Any],
        loader: Callable[..., Loaded[T]],
        **options: Unpack[FetchOptions],
    ) -> Cached[T]: ...

    @overload
    def fetch(
        self,
        user_id: str | None,
        params: Mapping[str, Any],
        loader: Callable[..., T],
        **options: Unpack[FetchOptions],
    ) -> Cached[T]: ...

    def fetch(
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
        """Return the result for ``params``; see :meth:`HealthCache.fetch`."""
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
                cached = run(self._core.jobs.fetch_flow(job))
        if saved is not None:
            self._core.mark_saved(user_id, cached, saved=saved)
        return cached

    def get_from_cache(self, user_id: str | None, params: Mapping[str, Any] | str) -> Cached | None:
        """Return the cached result, however old it is; load nothing."""
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
        if cached is MUST_WAIT:
            cached = run(self._core.get_flow(key, user_id, params_hash))
        return cached

    def get_many(self, user_id: str | None, many: Sequence[Mapping[str, Any] | str]) -> list[Cached | None]:
        """Return the cached results of up to 1000 parameters (or hashes), in their order; load nothing."""
        return run(self._core.get_many_flow(user_id, many))

    def delete(self, user_id: str | None, params: Mapping[str, Any] | str) -> bool:
        """Remove a result and the failures of its key, in all workers; return whether it existed.

        Raises ``DatabaseError`` if the database is unavailable.
        """
        return run(self._core.delete_flow(user_id, params))

    def invalidate(self, *, key: str | None = None, tag: str | None = None, prefix: str | None = None) -> int:
        """Remove all results with a ``key``, with a ``tag``, or with a key that starts with ``prefix``.

        Returns how many rows it removed. Raises ``DatabaseError`` if the database is unavailable.
        """
        return run(self._core.removal.invalidate_flow(key, tag, prefix))

    def cached(
        self,
        *,
        fresh: float | None = None,
        stale: float | None = None,
        key: str | None = None,
        tags: Sequence[str] = (),
    ) -> Callable[[Callable[P, T]], SyncCachedFunction[P, T]]:
        """Return a decorator that caches the results of a plain function; see :meth:`HealthCache.cached`."""
        cache = SyncHealthCache(self._core.with_times(fresh, stale))

        def decorate(function: Callable[P, T]) -> SyncCachedFunction[P, T]:
            keys = CallKeys(function, key, tags)

            def fetch(*args: P.args, **kwargs: P.kwargs) -> Cached[T]:
                named = keys.for_call(args, kwargs)
                load = partial(function, *args, **kwargs)
                return cache.fetch(None, named.params, load, key=named.key, tags=named.tags)

            def call(*args: P.args, **kwargs: P.kwargs) -> T:
                return fetch(*args, **kwargs).value

            def get(*args: P.args, **kwargs: P.kwargs) -> Cached[T] | None:
                return cache.get_from_cache(None, keys.for_call(args, kwargs).params)

            def delete(*args: P.args, **kwargs: P.kwargs) -> bool:
                return cache.delete(None, keys.for_call(args, kwargs).params)

            complete: SyncCachedFunction[P, T] = with_methods(
                call, function, fetch=fetch, get=get, delete=delete
            )
            return complete

        return decorate

    def save_to_cache(
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

    def record_cache_fetch_failure(self, user_id: str | None, params: Mapping[str, Any] | str) -> KeyHealth:
        """Count a failure to fetch; return the health of the key."""
        return run(self._core.record_failure_flow(user_id, params))

    def is_cache_key_degraded(self, user_id: str | None, params: Mapping[str, Any] | str) -> bool:
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
