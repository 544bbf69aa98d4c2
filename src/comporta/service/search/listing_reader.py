"""Reads listings page by page: one worker of the fleet reads a listing, and all searches share it.

Searches that need the same UF of PNCP or the same day of PCP, whatever else they search for, read its pages
once. Pages that were read survive a failure of a later one: the next read continues after them. The answer of
a search is cached separately, for longer: see ``search.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import date
from functools import partial
from typing import Any, Final

from comporta.cache.cache import HealthCache
from comporta.cache.health import FRESH
from comporta.errors import DatabaseError, LimitReachedError, RefusedError
from comporta.limits.priority import Caller
from comporta.service.search.listings import ListedNotices
from comporta.service.search.read_class import ReadClass, ReadClasses
from comporta.service.search.waiting_users import JoinTimer, WaitingUsers
from comporta.service.sources.base import Listing, Notice, NoticeSource

NAME: Final = "listings"
FRESH_SECONDS_MAX: Final = 600.0
"""A listing is shared for this long, or as long as an answer is fresh if that is less.

An answer made from it may be older than its own age says by this much.
"""

READ_SECONDS_MAX: Final = 600.0
"""How long reading all pages of a listing may take, including the time that they wait for capacity."""

SAVED_SECONDS_MAX: Final = 3600.0
"""How long the first pages of a listing are used if its later ones could not be read."""

_WEIGHT = 0.2
"""How much one listing changes the number of pages that is expected of the next one."""


@dataclass(slots=True)
class ListingPages:
    """The pages of a listing that have been read; ``count`` is ``None`` before the first one."""

    notices: list[Notice] = field(default_factory=list)
    read: int = 0
    count: int | None = None


async def read_pages(
    source: NoticeSource,
    listing: Listing,
    pages_max: int,
    pages: ListingPages | None = None,
    *,
    on_page: Callable[[], None] | None = None,
    read_class: ReadClass | None = None,
) -> ListedNotices:
    """Read the pages of a listing one after the other, at most ``pages_max``, and add them to ``pages``.

    Pages wait for capacity in ``read_class``; by default in the class of the context.
    """
    pages = pages or ListingPages()
    while pages.count is None or pages.read < min(pages.count, pages_max):
        fetch = partial(source.fetch_page, listing, pages.read + 1)
        page = await (fetch() if read_class is None else read_class.fetch(fetch))
        pages.notices += page.notices
        pages.read, pages.count = pages.read + 1, page.page_count
        if on_page is not None:
            on_page()
    return ListedNotices(pages.notices, pages.read < pages.count)


class ListingReader:
    """Reads listings for all searches of a worker, and tracks the progress of each."""

    def __init__(self, cache: HealthCache, waiting_users: WaitingUsers) -> None:
        self._cache = cache
        self._reading: dict[tuple[str, Listing], ListingPages] = {}
        self._expected_pages: dict[str, float] = {}
        self._classes = ReadClasses()
        self._waiting_users = waiting_users

    async def read(
        self, source: NoticeSource, listing: Listing, on_page: Callable[[], None] | None = None
    ) -> ListedNotices:
        """Return a listing from the cache, or read it for the whole fleet.

        A read that has begun runs to its end, whether or not its caller still waits. A caller that joins it
        raises it to its own class, if that is higher. The cache does not count failures of listings: it
        counts those of the searches that need them.
        """

        async def load() -> dict[str, Any]:
            try:
                return (await self.read_for_all(source, listing, on_page))._asdict()
            except Exception as error:
                raise _UncountedError(error) from error

        try:
            with (
                self._classes.join((source.name, listing)) as read_class,
                JoinTimer(lambda: self.raise_to(source, listing, read_class.caller)),
            ):
                cached = await self._cache.fetch(None, _cache_params(source.name, listing), load)
        except _UncountedError as uncounted:
            raise uncounted.error from None
        return ListedNotices(**cached.value)

    def raise_to(self, source: NoticeSource, listing: Listing, caller: Caller) -> None:
        """Give the read of a listing, in whichever worker, the class of a caller who waits for it."""
        self._classes.raise_to((source.name, listing), caller)
        if (source.name, listing) not in self._reading:
            self._waiting_users.announce(source.upstream.store, _cache_params(source.name, listing), caller)

    async def cached(self, source: str, listings: Sequence[Listing]) -> dict[Listing, ListedNotices]:
        """Return those of the listings that any worker has read lately, without reading from the portal."""
        found = await self._cache.get_many(None, [_cache_params(source, listing) for listing in listings])
        return {
            listing: ListedNotices(**cached.value)
            for listing, cached in zip(listings, found, strict=True)
            if cached is not None and cached.freshness == FRESH
        }

    async def first_pages(self, source: str, listings: Sequence[Listing]) -> dict[Listing, list[Notice]]:
        """Return the notices of the pages read so far of unfinished listings, now or before a failure."""
        saved = await self._cache.get_many(None, [_saved_params(source, listing) for listing in listings])
        notices = {
            listing: cached.value["notices"]
            for listing, cached in zip(listings, saved, strict=True)
            if cached is not None and cached.age < SAVED_SECONDS_MAX
        }
        return notices | self.pages_so_far(source, listings)

    def pages_so_far(self, source: str, listings: Sequence[Listing]) -> dict[Listing, list[Notice]]:
        """Return the notices of the pages that this worker has read so far of listings in progress."""
        reading = {listing: self._reading.get((source, listing), _NOT_BEGUN) for listing in listings}
        return {listing: list(pages.notices) for listing, pages in reading.items() if pages.read}

    def pages_left(self, source: NoticeSource, listings: Sequence[Listing]) -> float:
        """Return how many pages of these listings are still to be read, as far as that is known."""
        expected = self._expected_pages.get(source.name, 1.0)
        left = 0.0
        for listing in listings:
            pages = self._reading.get((source.name, listing), _NOT_BEGUN)
            left += expected if pages.count is None else min(pages.count, source.pages_max) - pages.read
        return max(1.0, left)

    async def read_for_all(
        self, source: NoticeSource, listing: Listing, on_page: Callable[[], None] | None = None
    ) -> ListedNotices:
        """Read a listing from the portal, whether or not it is in the cache, and store nothing."""
        key = source.name, listing
        pages = self._reading[key] = await self._saved_pages(*key)
        saved_count = pages.read
        try:
            listed = await self._read_within_bound(source, listing, pages, on_page)
        except Exception:
            if pages.read > saved_count:
                await self._cache.save_to_cache(None, _saved_params(*key), asdict(pages))
            raise
        finally:
            del self._reading[key]
        expected = self._expected_pages.get(source.name, float(pages.read))
        self._expected_pages[source.name] = expected + _WEIGHT * (pages.read - expected)
        if saved_count:
            with suppress(DatabaseError):
                await self._cache.delete(None, _saved_params(*key))
        return listed

    async def _read_within_bound(
        self,
        source: NoticeSource,
        listing: Listing,
        pages: ListingPages,
        on_page: Callable[[], None] | None,
    ) -> ListedNotices:
        try:
            async with asyncio.timeout(READ_SECONDS_MAX) as bound:
                with (
                    self._classes.join((source.name, listing)) as read_class,
                    self._waiting_users.watch(
                        source.upstream.store, _cache_params(source.name, listing), read_class
                    ),
                ):
                    return await read_pages(
                        source, listing, source.pages_max, pages, on_page=on_page, read_class=read_class
                    )
        except TimeoutError:
            if not bound.expired():
                raise
            text = f"{source.name}: {pages.read} pages of a listing within {READ_SECONDS_MAX:g} s"
            raise LimitReachedError(text, source.name, 1.0) from None

    async def _saved_pages(self, source: str, listing: Listing) -> ListingPages:
        """Return the first pages, if an earlier read failed after them; else none."""
        cached = await self._cache.get_from_cache(None, _saved_params(source, listing))
        if cached is None or cached.age >= SAVED_SECONDS_MAX:
            return ListingPages()
        pages = ListingPages(**cached.value)
        pages.notices = list(pages.notices)  # the cache shares its lists
        return pages


_NOT_BEGUN = ListingPages()


class _UncountedError(RefusedError):
    """Wraps the error of a listing in a refusal, which the cache does not count as a failure."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error), NAME, 0.0)
        self.error = error


def _cache_params(source: str, listing: Listing, kind: str = "listing") -> dict[str, Any]:
    days = [listing.first_day.isoformat(), listing.last_day.isoformat()]
    return {kind: source, "days": days, "modality": listing.modality, "uf": listing.uf}


def _saved_params(source: str, listing: Listing) -> dict[str, Any]:
    return _cache_params(source, listing, "first_pages")


def listing_of(params: Mapping[str, Any]) -> Listing:
    """Return the listing with these cache parameters."""
    first, last = map(date.fromisoformat, params["days"])
    return Listing(first, last, params["modality"], params["uf"])
