"""Answers a search: fetches each source through the cache and merges them into one response.

Each source has its own cache entries, so a failing source is served stale while the others stay fresh. The
cache key has no user and no terms, so searches that differ only in these share one fetch. A fetch for a user
has the class ``interactive`` and takes turns with those of other users; scheduled refreshes come after it.

A search waits for its sources until shortly before its deadline. A fetch that has not ended by then
continues, and the response contains what it has read so far, and says what is pending and when that is
expected. Such a response is not cached.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from comporta import events
from comporta.cache.cache import HealthCache
from comporta.cache.entry import Cached, Loaded
from comporta.cache.health import FRESH, STALE, calculate_backoff_minutes
from comporta.errors import (
    CachePendingError,
    CacheUnavailableError,
    CircuitOpenError,
    DatabaseError,
    LimitReachedError,
    RefusedError,
)
from comporta.limits.priority import Caller, priority, priority_rank
from comporta.service.search.fetcher import SourceFetcher, listing_concurrency
from comporta.service.search.listing_reader import ListingReader, listing_of
from comporta.service.search.pending_answers import RunningFetches
from comporta.service.search.progress import ProgressBroadcaster
from comporta.service.search.query import ANONYMOUS, SearchQuery, SearchScope
from comporta.service.search.read_class import as_caller
from comporta.service.search.response import (
    FAILED,
    PENDING,
    SKIPPED,
    CachedResponse,
    RenderedResponse,
    SourceResult,
    render_response,
)
from comporta.service.search.waiting_users import JoinTimer, WaitingUsers
from comporta.service.sources.base import NoticeSource, PortalError

if TYPE_CHECKING:
    from comporta.settings import SearchSettings

RESPONSES_MAX: Final = 500
RESPONSE_BYTES_MAX: Final = 32 * 1024 * 1024
"""How many rendered responses are cached, and their total size."""

REFRESH_SECONDS: Final = 60.0
"""How often the refresh loop looks for hot keys that are about to become stale."""

ANSWER_SECONDS_MAX: Final = 4.0
ANSWER_SHARE: Final = 0.1
"""A search stops waiting this long before its deadline, or this share of its time-out if that is less.

In that time the response is built from what was read so far. If a worker ends fifty searches at once on a
busy machine, that takes up to 3 s.
"""

REFRESH_OWNER: Final = "scheduled refresh"

FETCHES_MAX: Final = 300
"""How many fetches of one worker run at once; the next ones wait until one has ended."""

_THREADS = 2


class SearchUnavailableError(RefusedError):
    """No source has anything to serve; ``results`` holds the reasons."""

    def __init__(self, results: list[SourceResult]) -> None:
        waits = [result.retry_after for result in results if result.retry_after is not None]
        reasons = "; ".join(f"{result.source}: {result.reason}" for result in results)
        retry_after = min(waits, default=REFRESH_SECONDS)
        super().__init__(f"no source has anything to serve ({reasons})", "search", retry_after)
        self.forced = not waits
        self.results = results


class Search:
    """Answers searches for one worker."""

    def __init__(
        self,
        sources: Mapping[str, NoticeSource],
        cache: HealthCache,
        listings: HealthCache,
        settings: SearchSettings,
    ) -> None:
        self.progress = ProgressBroadcaster()
        self._sources = sources
        self._cache = cache
        self._waiting_users = WaitingUsers()
        self._reader = ListingReader(listings, self._waiting_users)
        self._running = RunningFetches(self._reader)
        self._fetch_slots = asyncio.Semaphore(FETCHES_MAX)
        self._timeout = settings.timeout
        self._answer_seconds = min(ANSWER_SECONDS_MAX, ANSWER_SHARE * settings.timeout)
        self._soft_timeout = settings.soft_timeout or None
        self._responses: OrderedDict[SearchQuery, CachedResponse] = OrderedDict()
        self._response_bytes = 0
        self._refresh_requested = asyncio.Event()
        self._executor = ThreadPoolExecutor(_THREADS, "comporta-merge")

    async def answer(self, query: SearchQuery) -> RenderedResponse:
        """Return the response; raise ``SearchUnavailableError`` if no source has an answer."""
        previous, deadline = self._responses.get(query), time.monotonic() + self._timeout
        if previous is None:
            results = await asyncio.gather(
                *(self._source_result(name, query, deadline) for name in self._sources)
            )
        else:  # most likely everything is in memory, so gather would only add overhead
            results = [await self._source_result(name, query, deadline) for name in self._sources]
        reused = None if previous is None else previous.rendered_for(results)
        if reused is not None:
            return reused
        if all(result.cached is None and result.pending is None for result in results):
            raise SearchUnavailableError(results)
        loop = asyncio.get_running_loop()
        response = await loop.run_in_executor(self._executor, render_response, query, results)
        if not response.is_pending:
            self._remember(query, response)
        return response

    async def has_newer_results(self, query: SearchQuery, results: tuple[SourceResult, ...]) -> bool | None:
        """Whether a source has newer results than these; ``None`` if no refresh is expected."""
        is_refreshing = False
        for result in results:
            if result.cached is not None and (result.status == STALE or _is_partial(result.cached)):
                params = query.scope.cache_params(result.source)
                now = await self._cache.get_from_cache(query.user, params)
                if now is not None and (now.last_success_at or 0) > (result.cached.last_success_at or 0):
                    return True
                is_refreshing |= now is not None and not now.next_retry and result.status == STALE
        return False if is_refreshing else None

    async def load(
        self, source: NoticeSource, scope: SearchScope, missing: list[str] | None = None
    ) -> Loaded:
        """Fetch all UFs of a scope from a source, or only the ``missing`` ones."""
        await self._refuse_if_paused(source)
        fetch = SourceFetcher(
            source,
            scope,
            self._reader,
            slots=self._fetch_slots,
            concurrency=listing_concurrency(len(self._running)),
            publish=self.progress.publish,
        )
        self._running.add(source.name, scope, fetch)
        store, params = source.upstream.store, scope.cache_params(source.name)
        try:
            with self._waiting_users.watch(store, params, fetch):
                return await fetch.load(missing or scope.ufs)
        finally:
            self._running.remove(source.name, scope, fetch)

    async def load_for_user(
        self, user: str, source: NoticeSource, scope: SearchScope, missing: list[str] | None = None
    ) -> Loaded:
        """Fetch for a user who waits: before all refreshes, taking turns with other users."""
        with as_caller(_user_caller(user, scope)):
            return await self.load(source, scope, missing)

    async def load_in_background(
        self, source: NoticeSource, scope: SearchScope, missing: list[str] | None = None
    ) -> Loaded:
        """Fetch to replace a result that users get meanwhile: after all searches, before batches."""
        with priority("normal", owner=REFRESH_OWNER):
            return await self.load(source, scope, missing)

    async def refresh(self, params: dict[str, Any], missing: list[str] | None = None) -> Loaded:
        """Fetch the answer or the listing of a cache key again, given its parameters."""
        kind = "listing" if "listing" in params else "search"
        source = self._sources.get(str(params.get(kind)))
        if source is None:
            raise PortalError(f"{kind} must be one of {', '.join(self._sources)}, got {params!r:.100}")
        if kind == "listing":
            with priority("normal", owner=REFRESH_OWNER):
                return Loaded((await self._reader.read_for_all(source, listing_of(params)))._asdict())
        return await self.load_in_background(source, SearchScope.from_cache_params(params), missing)

    async def run_refresh_loop(self, interval_seconds: float = REFRESH_SECONDS) -> None:
        """Refresh keys that are due, at every interval and on request, until cancelled."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._refresh_requested.wait(), interval_seconds)
            self._refresh_requested.clear()
            try:
                await self._cache.refresh_due(self.refresh)
            except DatabaseError as error:
                events.publish("search_refresh_failed", "search", f"could not read the keys due: {error}")

    def request_refresh(self) -> None:
        """Wake the refresh loop: an operator requested a refresh."""
        self._refresh_requested.set()

    def close(self) -> None:
        """End the threads."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def _refuse_if_paused(self, source: NoticeSource) -> None:
        """Raise if the source is paused for longer than a search waits."""
        paused = (await source.upstream.limiter.stats()).paused
        if paused > self._timeout:
            raise LimitReachedError(f"{source.name} is paused for {paused:.1f} s more", source.name, paused)

    async def _source_result(self, name: str, query: SearchQuery, deadline: float) -> SourceResult:
        source = self._sources[name]
        try:
            with JoinTimer(partial(self._raise_fetch, source, query)):
                cached = await self._cache.fetch(
                    query.user,
                    query.scope.cache_params(name),
                    partial(self.load_for_user, query.user, source, query.scope),
                    timeout=max(0.0, deadline - self._answer_seconds - time.monotonic()),
                    soft_timeout=self._soft_timeout,
                    refresh_loader=partial(self.load_in_background, source, query.scope),
                )
        except CircuitOpenError as error:
            if error.forced:
                return SourceResult(name, None, SKIPPED, "an operator holds its circuit open")
            return SourceResult(name, None, SKIPPED, "its circuit is open", error.retry_after)
        except (CachePendingError, LimitReachedError) as error:
            pending = await self._running.pending_answer(source, query.scope, error.retry_after, deadline)
            return SourceResult(name, None, PENDING, "it is still being read", pending=pending)
        except CacheUnavailableError as error:
            return SourceResult(name, None, FAILED, "it failed a moment ago", error.retry_after)
        except (PortalError, TimeoutError):
            return SourceResult(name, None, FAILED, "it failed", 60.0 * calculate_backoff_minutes(1))
        if cached.freshness == FRESH:
            return SourceResult(name, cached, FRESH)
        return SourceResult(name, cached, STALE, await self._stale_reason(source, cached))

    def _raise_fetch(self, source: NoticeSource, query: SearchQuery) -> None:
        """Raise the fetch of a search, in whichever worker it runs, to the class of its user."""
        caller = _user_caller(query.user, query.scope)
        if (source.name, query.scope) in self._running:
            self._running.raise_to(source.name, query.scope, caller)
        else:
            params = query.scope.cache_params(source.name)
            self._waiting_users.announce(source.upstream.store, params, caller)

    async def _stale_reason(self, source: NoticeSource, cached: Cached) -> str:
        breaker = source.upstream.breaker
        if breaker is not None and await breaker.is_degraded_async():
            return "its circuit is open"
        return "it failed a moment ago" if cached.next_retry else "newer results are being fetched"

    def _remember(self, query: SearchQuery, response: RenderedResponse) -> None:
        previous = self._responses.pop(query, None)
        self._response_bytes += len(response.body) - (0 if previous is None else len(previous.body))
        self._responses[query] = CachedResponse.from_rendered(response)
        while len(self._responses) > RESPONSES_MAX or self._response_bytes > RESPONSE_BYTES_MAX:
            _, evicted = self._responses.popitem(last=False)
            self._response_bytes -= len(evicted.body)


def _user_caller(user: str, scope: SearchScope) -> Caller:
    """Return the class and the owner of a user who waits.

    Anonymous searches have no user in common, so each of them takes turns with the others.
    """
    owner = user if user != ANONYMOUS else f"{ANONYMOUS} {hash(scope):x}"
    return Caller(priority_rank("interactive"), owner)


def _is_partial(cached: Cached) -> bool:
    return cached.coverage is not None and not cached.coverage.is_complete
