"""The cache users call: awaiting, and blocking as ``cache.sync``.

``fetch`` is the verb for people; ``save_to_cache``, ``get_from_cache``, ``record_cache_fetch_failure`` and
``is_cache_key_degraded`` are for those who fetch by themselves. An answer that is in memory and still good is
given at once, and so is one that a file tells at a glance; everything else is a flow, in ``asking.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from comporta.cache.answers import Loader, Merge
from comporta.cache.asking import Asking
from comporta.cache.books import LATER
from comporta.cache.cached import Cached
from comporta.cache.config import BY_PARAMS, CacheConfig
from comporta.cache.coverage import Coverage
from comporta.cache.flights import Landing, in_thread
from comporta.cache.params import check_hash, hashed
from comporta.clock import MONOTONIC, Clock
from comporta.flow import run, run_async
from comporta.stores.base import Store

if TYPE_CHECKING:
    from comporta.cache.rows import Health
    from comporta.database.base import Database

CLOSE_SECONDS = 5.0
"""How long the end of a cache may take."""

_HOUR = 3600.0


class HealthCache:
    """A cache that knows of every key how it fares.

    ``database`` is a URL or a database; left out it is ``DATABASE_URL``, else a file of this user's. An
    answer is ``fresh`` for so many seconds, then stale until it is ``stale`` seconds old: it is served at
    once while one worker of the fleet fetches it anew. When that fails the key is left alone for 1, 5, 15,
    then 30 minutes, by all workers. Who fetches and who waits goes by the parameters, whoever asks; with
    ``scope="user"`` each user is apart. Caches of another ``name`` have answers of their own.

    ``lease_seconds``: after so long another worker takes over from one that was killed. ``soft_timeout``:
    wait so long for a fresh answer before a stale one is served. A fetch may take ``refresh_timeout``; at
    most ``refreshes_max`` run in the background, each key once in ``refresh_every`` (or in ``fresh``, if that
    is less), none while ``breaker_open()`` is true. A user keeps ``entries_per_user`` answers. This process
    keeps ``level_entries`` of them in memory (``level_bytes`` at the most), each for ``level_seconds``, or
    until another worker says through ``state`` that it has changed. ``migrate``: bring the tables up to date
    first; left out that is done to a file, and not to a server.
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
        level_entries: int = 10_000,
        level_bytes: int = 64 * 1024 * 1024,
        level_seconds: float = 60.0,
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
            level_entries=level_entries,
            level_bytes=level_bytes,
            level_seconds=level_seconds,
        )
        self.name = name
        self._asking = Asking(
            self.config,
            name,
            database=database,
            state=state,
            clock=clock or MONOTONIC,
            breaker_open=breaker_open,
            migrate=migrate,
        )
        self._by_params = scope == BY_PARAMS
        self._hit = self._asking.level.hit
        self._users = self._asking.users
        self._prefix = self._asking.prefix
        self.sync = SyncHealthCache(self._asking)

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
        """Return the answer to ``params``, from memory, the table, or ``loader``.

        ``loader`` takes no arguments, or ``missing``: the parts that a partial answer lacks. It returns the
        value, or a ``Loaded`` with its coverage; plain functions run in a thread. ``force``: fetch it anew,
        or wait for whoever does. ``merge(old, new)`` joins what was missing to what there was; lists and
        mappings need none. Nothing to serve and the source left alone: ``CacheUnavailableError``.
        """
        params_hash, text = hashed(params, self._prefix)
        hit = None
        if not force and type(user_id) is str and user_id in self._users:
            hit = self._hit(params_hash if self._by_params else f"{user_id}:{params_hash}")
        if hit is None:
            job = self._asking.wanted(
                user_id, params_hash, text, loader, force=force, soft_timeout=soft_timeout, merge=merge
            )
            hit = self._asking.at_once(job)
            if hit is None:
                hit = await run_async(self._asking.fetching(job))
        if saved is not None:
            self._asking.note_saved(user_id, hit, saved=saved)
        return hit

    async def get_from_cache(self, user_id: str, params: Mapping[str, Any] | str) -> Cached | None:
        """Return what is kept for ``params`` (or their hash), however old; nothing is fetched."""
        params_hash = check_hash(params) if isinstance(params, str) else hashed(params, self._prefix)[0]
        if type(user_id) is str and user_id in self._users:
            hit = self._hit(params_hash if self._by_params else f"{user_id}:{params_hash}")
            if hit is not None:
                return hit
        found = self._asking.got_at_once(user_id, params_hash)
        return await run_async(self._asking.getting(user_id, params_hash)) if found is LATER else found

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
        """Keep an answer that was fetched elsewhere; false if the database could not."""
        return await run_async(
            self._asking.saving(
                user_id,
                params,
                results,
                sources=sources,
                coverage=coverage,
                fetch_duration_ms=fetch_duration_ms,
                total_results=total_results,
            )
        )

    async def record_cache_fetch_failure(self, user_id: str, params: Mapping[str, Any] | str) -> Health:
        """Note that fetching ``params`` (or their hash) failed; returns how the key fares."""
        return await run_async(self._asking.recording(user_id, params))

    async def is_cache_key_degraded(self, user_id: str, params: Mapping[str, Any] | str) -> bool:
        """Whether ``params`` (or their hash) failed too recently to be fetched again."""
        return await run_async(self._asking.degraded(user_id, params))

    async def refresh_due(self, loader: Callable[..., Any], limit: int = 100) -> int:
        """Refresh, with ``loader(params)``, what an operator asked for and hot keys that are soon stale.

        A loader that takes ``user_id`` is told whose it is; with ``scope="user"`` it must. For a service to
        call every minute or so, on each worker; returns how many were begun.
        """
        return await run_async(self._asking.refreshing_due(loader, limit))

    async def figures(self) -> dict[str, Any]:
        """Return how the keys fare, and how all workers answered in the last 24 hours."""
        return await run_async(self._asking.figuring())

    def forget_memory(self) -> None:
        """Forget what this process keeps in front of the table."""
        self._asking.level.clear()

    async def aclose(self) -> None:
        """End what runs in the background, within five seconds, and write down what was counted."""
        await self._asking.loads.flights.aclose(CLOSE_SECONDS)
        await Landing(in_thread(partial(self._asking.close, CLOSE_SECONDS))).wait()

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
    """The verbs of a cache, blocking: ``cache.sync``; loaders are plain functions."""

    __slots__ = ("_asking", "_by_params", "_hit", "_prefix", "_users")

    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self._by_params = asking.config.scope == BY_PARAMS
        self._hit = asking.level.hit
        self._users = asking.users
        self._prefix = asking.prefix

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
        """Return the answer to ``params``; see :meth:`HealthCache.fetch`."""
        params_hash, text = hashed(params, self._prefix)
        hit = None
        if not force and type(user_id) is str and user_id in self._users:
            hit = self._hit(params_hash if self._by_params else f"{user_id}:{params_hash}")
        if hit is None:
            job = self._asking.wanted(
                user_id, params_hash, text, loader, force=force, soft_timeout=soft_timeout, merge=merge
            )
            hit = self._asking.at_once(job)
            if hit is None:
                hit = run(self._asking.fetching(job))
        if saved is not None:
            self._asking.note_saved(user_id, hit, saved=saved)
        return hit

    def get_from_cache(self, user_id: str, params: Mapping[str, Any] | str) -> Cached | None:
        """Return what is kept, however old; nothing is fetched."""
        params_hash = check_hash(params) if isinstance(params, str) else hashed(params, self._prefix)[0]
        if type(user_id) is str and user_id in self._users:
            hit = self._hit(params_hash if self._by_params else f"{user_id}:{params_hash}")
            if hit is not None:
                return hit
        found = self._asking.got_at_once(user_id, params_hash)
        return run(self._asking.getting(user_id, params_hash)) if found is LATER else found

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
        """Keep an answer that was fetched elsewhere; false if the database could not."""
        return run(
            self._asking.saving(
                user_id,
                params,
                results,
                sources=sources,
                coverage=coverage,
                fetch_duration_ms=fetch_duration_ms,
                total_results=total_results,
            )
        )

    def record_cache_fetch_failure(self, user_id: str, params: Mapping[str, Any] | str) -> Health:
        """Note that fetching failed; returns how the key fares."""
        return run(self._asking.recording(user_id, params))

    def is_cache_key_degraded(self, user_id: str, params: Mapping[str, Any] | str) -> bool:
        """Whether it failed too recently to be fetched."""
        return run(self._asking.degraded(user_id, params))

    def refresh_due(self, loader: Callable[..., Any], limit: int = 100) -> int:
        """Refresh what is due; see :meth:`HealthCache.refresh_due`."""
        return run(self._asking.refreshing_due(loader, limit))

    def figures(self) -> dict[str, Any]:
        """Return how the keys fare, and how all workers answered in the last 24 hours."""
        return run(self._asking.figuring())

    def close(self) -> None:
        """End what runs in the background, within five seconds, and write down what was counted."""
        self._asking.loads.flights.close(CLOSE_SECONDS)
        self._asking.close(CLOSE_SECONDS)
