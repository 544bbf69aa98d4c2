"""Merges notices of several sources into one list without duplicates, and filters it by terms. Pure.

Input notices are shared with the cache and are never modified.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from comporta.service.sources.base import Notice, fold_text


def merge_notices(lists: Iterable[Iterable[Notice]]) -> list[Notice]:
    """Return every notice once, the latest first.

    The first list with a notice wins; later lists add themselves as sources and fill fields it left empty. A
    notice of another list is the same if it has the same id, or the same buyer and object as exactly one
    notice of the lists before: not every source knows the ids of the others.
    """
    by_id: dict[str, Notice] = {}
    for notices in lists:
        ids = _ids_by_content(by_id.values())
        for notice in notices:
            known_id = notice["id"] if notice["id"] in by_id else ids.get(_content(notice)) or notice["id"]
            known = by_id.get(known_id)
            by_id[known_id] = notice if known is None else _merge_pair(known, notice)
    sorted_by_id = sorted(by_id.values(), key=_notice_id)
    return sorted(sorted_by_id, key=_publication_date, reverse=True)


def filter_notices(notices: Iterable[Notice], terms: Sequence[str]) -> list[Notice]:
    """Return the notices whose object contains one of the terms, ignoring accents and case.

    A term that consists only of accents matches no object.
    """
    if not terms:
        return list(notices)
    folded = [text for text in map(fold_text, terms) if text]
    return [notice for notice in notices if _contains_any(fold_text(notice["object"]), folded)]


def _contains_any(text: str, terms: Iterable[str]) -> bool:
    return any(term in text for term in terms)


def _merge_pair(first: Notice, second: Notice) -> Notice:
    filled = {name: value for name, value in second.items() if first.get(name) is None}
    sources = list(dict.fromkeys((*first["sources"], *second["sources"])))
    return {**first, **filled, "sources": sources}  # type: ignore[typeddict-item]  # all are fields of Notice


def _ids_by_content(notices: Iterable[Notice]) -> dict[tuple[str, str] | None, str | None]:
    """Return the id of each notice by its buyer and object; ``None`` where several have the same."""
    ids: dict[tuple[str, str] | None, str | None] = {}
    for notice in notices:
        content = _content(notice)
        ids[content] = None if content in ids else notice["id"]
    ids[None] = None
    return ids


def _content(notice: Notice) -> tuple[str, str] | None:
    """Return the buyer and the object of a notice; ``None`` if one of them is unknown."""
    buyer = "".join(filter(str.isdigit, notice["cnpj"] or ""))
    return (buyer, fold_text(notice["object"])) if buyer and notice["object"] else None


def _notice_id(notice: Notice) -> str:
    return notice["id"]


def _publication_date(notice: Notice) -> str:
    return notice["published_at"] or ""
