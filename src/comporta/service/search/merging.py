"""Notices of several sources as one list: each once, the latest first, only those that were asked for. Pure.

What comes in is shared with others and is not changed.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

from comporta.service.sources.base import Notice


def merged(lists: Iterable[Iterable[Notice]]) -> list[Notice]:
    """Return every notice once, the latest first.

    The first list that has one is believed; later ones are named as sources, and fill in what it left open.
    """
    found: dict[str, Notice] = {}
    for notices in lists:
        for notice in notices:
            known = found.get(notice["id"])
            found[notice["id"]] = notice if known is None else _joined(known, notice)
    by_name = sorted(found.values(), key=_name)
    return sorted(by_name, key=_published, reverse=True)


def matching(notices: Iterable[Notice], terms: Sequence[str]) -> list[Notice]:
    """Return the notices whose object holds one of the terms, whatever its accents and capitals."""
    if not terms:
        return list(notices)
    wanted = [folded(term) for term in terms]
    return [notice for notice in notices if _holds(folded(notice["object"]), wanted)]


def folded(text: str) -> str:
    """Return a text without accents and capitals: what people type is not what agencies write."""
    spread = unicodedata.normalize("NFKD", text)
    return "".join(letter for letter in spread if not unicodedata.combining(letter)).casefold()


def _holds(text: str, terms: Iterable[str]) -> bool:
    return any(term in text for term in terms)


def _joined(known: Notice, more: Notice) -> Notice:
    filled = {name: value for name, value in more.items() if known.get(name) is None}
    sources = list(dict.fromkeys((*known["sources"], *more["sources"])))
    return {**known, **filled, "sources": sources}  # type: ignore[typeddict-item]  # fields of both are those of one


def _name(notice: Notice) -> str:
    return notice["id"]


def _published(notice: Notice) -> str:
    return notice["published_at"] or ""
