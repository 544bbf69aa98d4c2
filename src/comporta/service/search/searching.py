"""A search: each source through the cache by itself, then all of them as one answer.

Sources are kept apart in the cache, so that one that fails goes on being served as it was, while the others
stay fresh; and so that two users, or two sets of terms, that mean the same question share one fetch.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from comporta import events
from comporta.cache.cache import HealthCache
from comporta.cache.cached import Cached, Loaded
from comporta.cache.health import FRESH, STALE, calculate_backoff_minutes
from comporta.errors import CacheUnavailableError, CircuitOpenError, DatabaseError, RefusedError
from comporta.service.search.answers import FAILED, SKIPPED, Kept, Part, Rendered, rendered
from comporta.service.search.board import Board
from comporta.service.search.gathering import Bounds, Gathering
from comporta.service.search.query import Question, SearchQuery
from comporta.service.sources.base import Source, SourceError

if TYPE_CHECKING:
    from comporta.settings import SearchSettings

KEPT_MAX: Final = 500
KEPT_BYTES_MAX: Final = 32 * 1024 * 1024
"""How many bodies are kept made, and how large they are in all."""

REFRESH_SECONDS: Final = 60.0
"""How often it is looked what is hot and soon stale, or was asked for by an operator."""

_THREADS = 2


class Nothing(RefusedError):  # noqa: N818 - what there is to serve; it never leaves the service by this name
    """No source has anything for a question; ``parts`` says why."""

    def __init__(self, parts: list[Part]) -> None:
        waits = [part.retry_after for part in parts if part.retry_after is not None]
        why = "; ".join(f"{part.source}: {part.why}" for part in parts)
        super().__init__(f"there is nothing to serve ({why})", "search", min(waits, default=1.0))
        self.parts = parts


class Search:
    """What a worker needs to answer searches."""

    def __init__(self, sources: Mapping[str, Source], cache: HealthCache, settings: SearchSettings) -> None:
        self.board = Board()
        self._sources = sources
        self._cache = cache
        self._bounds = Bounds(settings.pages_max, settings.timeout)
        self._soft_timeout = settings.soft_timeout or None
        self._made: OrderedDict[SearchQuery, Kept] = OrderedDict()
        self._made_bytes = 0
        self._wanted = asyncio.Event()
        self._pool = ThreadPoolExecutor(_THREADS, "comporta-merge")

    async def answer(self, query: SearchQuery) -> Rendered:
        """Return the answer; raises ``Nothing`` if there is none."""
        kept = self._made.get(query)
        if kept is None:
            found = await asyncio.gather(*(self._part(name, query) for name in self._sources))
        else:  # most likely all of it is in memory, and waits for nobody
            found = [await self._part(name, query) for name in self._sources]
        same = None if kept is None else kept.made_of(found)
        if same is not None:
            return same
        if all(part.cached is None for part in found):
            raise Nothing(found)
        loop = asyncio.get_running_loop()
        made = await loop.run_in_executor(self._pool, rendered, query, found)
        self._keep(query, made)
        return made

    async def is_renewed(self, query: SearchQuery, parts: tuple[Part, ...]) -> bool | None:
        """Whether a source has something newer than these parts; ``None``: nothing newer is to come."""
        waiting = False
        for part in parts:
            if part.cached is not None and (part.status == STALE or _is_partial(part.cached)):
                params = query.question.params(part.source)
                now = await self._cache.get_from_cache(query.user, params)
                if now is not None and (now.last_success_at or 0) > (part.cached.last_success_at or 0):
                    return True
                waiting |= now is not None and not now.next_retry and part.status == STALE
        return False if waiting else None

    async def load(self, source: Source, question: Question, missing: list[str] | None = None) -> Loaded:
        """Ask a source for all UFs of a question, or for those that are missing."""
        gathering = Gathering(source, question, self._bounds, self.board.tell)
        return await gathering.load(missing or question.ufs)

    async def refresh(self, params: dict[str, Any], missing: list[str] | None = None) -> Loaded:
        """Fetch what is kept under some parameters anew."""
        source = self._sources.get(str(params.get("search")))
        if source is None:
            raise SourceError(f"search must be one of {', '.join(self._sources)}, got {params!r:.100}")
        return await self.load(source, Question.of(params), missing)

    async def keep_fresh(self, every: float = REFRESH_SECONDS) -> None:
        """Refresh what is due, every so many seconds and whenever somebody wants it, for ever."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), every)
            self._wanted.clear()
            try:
                await self._cache.refresh_due(self.refresh)
            except DatabaseError as error:
                events.publish("search_not_refreshed", "search", f"what is due could not be read: {error}")

    def refresh_soon(self) -> None:
        """Have what is due refreshed now: an operator waits for it."""
        self._wanted.set()

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _part(self, name: str, query: SearchQuery) -> Part:
        source = self._sources[name]
        try:
            cached = await self._cache.fetch(
                query.user,
                query.question.params(name),
                partial(self.load, source, query.question),
                soft_timeout=self._soft_timeout,
            )
        except CircuitOpenError as error:
            return Part(name, None, SKIPPED, "its circuit is open", error.retry_after)
        except CacheUnavailableError as error:
            return Part(name, None, FAILED, "it failed a moment ago", error.retry_after)
        except RefusedError as error:
            return Part(name, None, SKIPPED, "it has no room for more calls", error.retry_after)
        except (SourceError, TimeoutError):
            return Part(name, None, FAILED, "it failed", 60.0 * calculate_backoff_minutes(1))
        if cached.freshness == FRESH:
            return Part(name, cached, FRESH)
        return Part(name, cached, STALE, await self._why_stale(source, cached))

    async def _why_stale(self, source: Source, cached: Cached) -> str:
        breaker = source.upstream.breaker
        if breaker is not None and await breaker.is_degraded_async():
            return "its circuit is open"
        return "it failed a moment ago" if cached.next_retry else "newer ones are being fetched"

    def _keep(self, query: SearchQuery, made: Rendered) -> None:
        before = self._made.pop(query, None)
        self._made_bytes += len(made.body) - (0 if before is None else len(before.body))
        self._made[query] = Kept.of(made)
        while len(self._made) > KEPT_MAX or self._made_bytes > KEPT_BYTES_MAX:
            _, dropped = self._made.popitem(last=False)
            self._made_bytes -= len(dropped.body)


def _is_partial(cached: Cached) -> bool:
    return cached.coverage is not None and not cached.coverage.complete
