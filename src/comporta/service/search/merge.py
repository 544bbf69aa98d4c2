"""Merges notices of several sources into one list without duplicates, and filters it by terms. Pure.

Input notices are shared with the cache and are never modified.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

from comporta.service.sources.base import Notice


def merge_notices(lists: Iterable[Iterable[Notice]]) -> list[Notice]:
    """Return every notice once, the latest first.

    The first list with a notice wins; later lists add themselves as sources and fill fields it left empty.
    """
    by_id: dict[str, Notice] = {}
    for notices in lists:
        for notice in notices:
            known = by_id.get(notice["id"])
            by_id[notice["id"]] = notice if known is None else _merge_pair(known, notice)
    sorted_by_id = sorted(by_id.values(), key=_notice_id)
    return sorted(sorted_by_id, key=_publication_date, reverse=True)


def filter_notices(notices: Iterable[Notice], terms: Sequence[str]) -> list[Notice]:
    """Return the notices whose object contains one of the terms, ignoring accents and case."""
    if not terms:
        return list(notices)
    folded = [fold_text(term) for term in terms]
    return [notice for notice in notices if _contains_any(fold_text(notice["object"]), folded)]


def fold_text(text: str) -> str:
    """Return ``text`` without accents and in lower case: users type terms differently from agencies."""
    decomposed = unicodedata.normalize("NFKD", text)
    return "".join(char for char in decomposed if not unicodedata.combining(char)).casefold()


def _contains_any(text: str, terms: Iterable[str]) -> bool:
    return any(term in text for term in terms)


def _merge_pair(first: Notice, second: Notice) -> Notice:
    filled = {name: value for name, value in second.items() if first.get(name) is None}
    sources = list(dict.fromkeys((*first["sources"], *second["sources"])))
    return {**first, **filled, "sources": sources}  # type: ignore[typeddict-item]  # all are fields of Notice


def _notice_id(notice: Notice) -> str:
    return notice["id"]


def _publication_date(notice: Notice) -> str:
    return notice["published_at"] or ""
