"""What a source that is still being read has for a search, and when the rest is expected."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from comporta.cache.coverage import Coverage
from comporta.errors import DatabaseError
from comporta.limits.overrides.degradation import limiter_rates
from comporta.limits.priority import Caller
from comporta.service.search.fetcher import FETCH_SECONDS_MAX, SourceFetcher
from comporta.service.search.listing_reader import ListingReader
from comporta.service.search.listings import combine_listings, days_of, ufs_of
from comporta.service.search.query import SearchScope
from comporta.service.sources.base import Listing, Notice, NoticeSource

READ_SECONDS_MIN: Final = 0.05
"""How long the database may take to return what it has, even after the deadline of the search."""

READY_SECONDS_MIN: Final = 1.0
"""No answer is expected sooner than this."""


class PendingAnswer(NamedTuple):
    """The notices that a source has so far, by UF, and the UFs and days that are still being read.

    ``ready_at`` is when the rest is expected, in Unix seconds.
    """

    value: dict[str, Any]
    coverage: Coverage
    ufs: tuple[str, ...]
    days: tuple[str, ...]
    ready_at: float


class RunningFetches:
    """The fetches of this worker that have not ended, by source and scope."""

    def __init__(self, reader: ListingReader) -> None:
        self._reader = reader
        self._by_key: dict[tuple[str, SearchScope], SourceFetcher] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def __contains__(self, key: tuple[str, SearchScope]) -> bool:
        return key in self._by_key

    def add(self, source: str, scope: SearchScope, fetch: SourceFetcher) -> None:
        """Remember a fetch while it runs."""
        self._by_key[source, scope] = fetch

    def remove(self, source: str, scope: SearchScope, fetch: SourceFetcher) -> None:
        """Forget a fetch that has ended."""
        if self._by_key.get((source, scope)) is fetch:
            del self._by_key[source, scope]

    def raise_to(self, source: str, scope: SearchScope, caller: Caller) -> None:
        """Give a fetch, if it runs, the class of a caller who waits for it."""
        fetch = self._by_key.get((source, scope))
        if fetch is not None:
            fetch.raise_to(caller)

    async def pending_answer(
        self, source: NoticeSource, scope: SearchScope, seconds_min: float, deadline: float
    ) -> PendingAnswer:
        """Return what a search has so far, in any worker; the rest takes at least ``seconds_min``.

        What the database cannot return before ``deadline`` (of ``time.monotonic``) is left out.
        """
        fetch = self._by_key.get((source.name, scope))
        listings = source.listings(scope.first_day, scope.last_day, scope.modality, scope.ufs)
        listed = {} if fetch is None else dict(fetch.listed)
        first_pages: dict[Listing, list[Notice]] = {}
        with suppress(TimeoutError, DatabaseError):
            async with asyncio.timeout(max(READ_SECONDS_MIN, deadline - time.monotonic())):
                unknown = [listing for listing in listings if listing not in listed]
                listed |= await self._reader.cached(source.name, unknown)
                unknown = [listing for listing in listings if listing not in listed]
                first_pages = await self._reader.first_pages(source.name, unknown)
        pending = [listing for listing in listings if listing not in listed]
        value, coverage = combine_listings(
            listed,
            [],
            scope.ufs,
            lambda notice: source.has_modality(notice, scope.modality),
            pending=pending,
            first_pages=first_pages or self._reader.pages_so_far(source.name, pending),
        )
        seconds = self._reader.pages_left(source, pending) / self._pages_per_second(source, fetch)
        seconds = min(FETCH_SECONDS_MAX, max(READY_SECONDS_MIN, seconds_min, seconds))
        ufs = ufs_of(pending, scope.ufs)
        return PendingAnswer(value, coverage, tuple(ufs), tuple(days_of(pending)), time.time() + seconds)

    def _pages_per_second(self, source: NoticeSource, fetch: SourceFetcher | None) -> float:
        """Return how fast a fetch reads pages: its rate so far, or its share of the limit in this worker."""
        if fetch is not None and fetch.pages_per_second:
            return fetch.pages_per_second
        return limiter_rates(source.upstream.limiter)[0] / max(1, _count(self._by_key, source.name))


def _count(fetches: Mapping[tuple[str, SearchScope], SourceFetcher], source: str) -> int:
    return sum(name == source for name, _ in fetches)
