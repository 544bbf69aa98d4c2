"""Combines the listings of one source into its notices by UF, and says which UFs and days they cover. Pure.

A listing has the notices of one UF (PNCP) or those of one day for all UFs (PCP). A UF is covered if every
listing with notices of it was read. A day that was not read is named, and the notices of the other days are
still used, as are the first pages of a listing that was not read completely.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from comporta.cache.coverage import Coverage
from comporta.service.search.coverage import uf_coverage
from comporta.service.search.query import UFS
from comporta.service.sources.base import Listing, Notice

UNKNOWN_UF: Final = ""
"""The UF of notices for which the portal names none; a search for all UFs returns them, too."""


class ListedNotices(NamedTuple):
    """The notices of one listing; ``truncated``: the listing has more pages than were read."""

    notices: list[Notice]
    truncated: bool


def combine_listings(
    listed: Mapping[Listing, ListedNotices],
    missing: Sequence[Listing],
    ufs: Sequence[str],
    has_modality: Callable[[Notice], bool],
    *,
    pending: Sequence[Listing] = (),
    first_pages: Mapping[Listing, list[Notice]] | None = None,
) -> tuple[dict[str, Any], Coverage]:
    """Return the notices by UF, as the cache keeps them, and their coverage.

    ``missing`` listings could not be read, and ``pending`` ones are still being read; ``first_pages`` has the
    first pages of both.
    """
    wanted = [*ufs, UNKNOWN_UF] if len(ufs) == len(UFS) else ufs
    notices = {
        **{listing: found for listing, (found, _) in listed.items()},
        **(first_pages or {}),
    }
    by_uf = {uf: [listing for listing in notices if listing.uf in (None, uf)] for uf in wanted}
    truncated = [listing for listing in listed if listed[listing].truncated]
    answers = {
        uf: {
            "notices": [
                notice
                for listing in listings
                for notice in notices[listing]
                if listing.uf == uf or (notice["uf"] == uf and has_modality(notice))
            ],
            "truncated": any(listing in truncated for listing in listings),
            "truncated_days": days_of(listing for listing in listings if listing in truncated),
            "missing_days": days_of(missing),
        }
        for uf, listings in by_uf.items()
        if listings
    }
    lacking, to_come = ufs_of(missing, ufs), ufs_of(pending, ufs)
    covered = [uf for uf in ufs if uf not in lacking and uf not in to_come]
    return answers, uf_coverage(covered, lacking, len(ufs))


def ufs_of(listings: Sequence[Listing], ufs: Sequence[str]) -> list[str]:
    """Return the UFs for which the listings have notices."""
    return [uf for uf in ufs if any(listing.uf in (None, uf) for listing in listings)]


def days_of(listings: Iterable[Listing]) -> list[str]:
    """Return the days of the listings that have the notices of a day."""
    return sorted(listing.first_day.isoformat() for listing in listings if listing.uf is None)
