"""What a client asks for: read from the text of a URL, checked, in one form for all who mean the same. Pure.

It is read here and not by the framework because a search is asked for again and again: the same text is read
once, and its result kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from typing import Any, Final, NamedTuple, NoReturn, Self
from urllib.parse import parse_qsl

from comporta.cache.params import USER_CHARS_MAX
from comporta.service.search.merging import folded

UFS: Final = (
    *("AC", "AL", "AM", "AP", "BA", "CE", "DF", "ES", "GO", "MA", "MG", "MS", "MT", "PA"),
    *("PB", "PE", "PI", "PR", "RJ", "RN", "RO", "RR", "RS", "SC", "SE", "SP", "TO"),
)
MODALITIES: Final = (1, 15)
MODALITY: Final = 6
"""An electronic auction, by far the most frequent."""

QUERY_BYTES_MAX: Final = 8192
TERMS_MAX: Final = 20
TERM_CHARS: Final = (2, 100)
LIMITS: Final = (1, 5000)
LIMIT: Final = 500
OFFSETS: Final = (0, 100_000)
ANYBODY: Final = "anonymous"
FIELDS: Final = ("date_from", "date_to", "modality", "ufs", "terms", "user", "limit", "offset")

_LISTS = ("ufs", "terms")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_NUMBER = re.compile(r"[0-9]{1,9}")
_KNOWN = 1024
_SHOWN = 60


class QueryError(ValueError):
    """``field`` is wrong; the text says what is allowed and what came."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(f"{field} {text}")
        self.field = field


class Question(NamedTuple):
    """What is asked of every source, and kept: all that terms and pages are cut from."""

    first: date
    last: date
    modality: int
    ufs: tuple[str, ...]

    def params(self, source: str) -> dict[str, Any]:
        """Return the name under which a source's answer is kept; only to be read."""
        return _params(self, source)

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> Self:
        """Return the question that was kept under these parameters."""
        days = date.fromisoformat(params["from"]), date.fromisoformat(params["to"])
        return cls(*days, int(params["modality"]), tuple(params["ufs"]))


@lru_cache(maxsize=_KNOWN)
def _params(question: Question, source: str) -> dict[str, Any]:
    return {
        "search": source,
        "from": question.first.isoformat(),
        "to": question.last.isoformat(),
        "modality": question.modality,
        "ufs": list(question.ufs),
    }


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """A question, who asks it, and what part of the answer is wanted."""

    question: Question
    terms: tuple[str, ...] = ()
    user: str = ANYBODY
    limit: int = LIMIT
    offset: int = 0


@lru_cache(maxsize=_KNOWN)
def read_query(raw: bytes, days_max: int) -> SearchQuery:
    """Read the query of a URL; ``days_max`` is how many days it may be about."""
    if len(raw) > QUERY_BYTES_MAX:
        raise QueryError("query", f"must be at most {QUERY_BYTES_MAX} bytes, got {len(raw)}")
    told = _fields(raw)
    first, last = _day(told, "date_from"), _day(told, "date_to")
    days = (last - first).days + 1
    if not 1 <= days <= days_max:
        _wrong("date_to", f"must be 0 to {days_max - 1} days after date_from, {first}", last.isoformat())
    question = Question(first, last, _number(told, "modality", MODALITIES, MODALITY), _ufs(told))
    return SearchQuery(
        question,
        _terms(told),
        _user(told),
        _number(told, "limit", LIMITS, LIMIT),
        _number(told, "offset", OFFSETS, 0),
    )


def _fields(raw: bytes) -> dict[str, list[str]]:
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=200)
    except ValueError:
        raise QueryError("query", "must be fields in UTF-8, each %-encoded, 200 at the most") from None
    told: dict[str, list[str]] = {}
    for name, value in pairs:
        if name not in FIELDS:
            _wrong("query", f"must have no fields but {', '.join(FIELDS)}", name)
        told.setdefault(name, []).append(value)
    for name, values in told.items():
        if len(values) > 1 and name not in _LISTS:
            _wrong(name, "must be given once", values[1])
    return told


def _day(told: Mapping[str, list[str]], field: str) -> date:
    text = told.get(field, [""])[0]
    if not text:
        raise QueryError(field, "must be given, as YYYY-MM-DD, got nothing")
    try:
        if _DAY.fullmatch(text):
            return date.fromisoformat(text)
    except ValueError:
        pass
    return _wrong(field, "must be a day that exists, as YYYY-MM-DD", text)


def _number(told: Mapping[str, list[str]], field: str, allowed: tuple[int, int], default: int) -> int:
    if field not in told:
        return default
    text = told[field][0]
    if not _NUMBER.fullmatch(text) or not allowed[0] <= int(text) <= allowed[1]:
        _wrong(field, f"must be {allowed[0]} to {allowed[1]}", text)
    return int(text)


def _ufs(told: Mapping[str, list[str]]) -> tuple[str, ...]:
    """Return the UFs in order, each once; all of them if none is named."""
    if "ufs" not in told:
        return UFS
    found = _listed(told["ufs"])
    for uf in found:
        if uf.upper() not in UFS:
            _wrong("ufs", f"must be among {' '.join(UFS)}", uf)
    if not found:
        _wrong("ufs", f"must be among {' '.join(UFS)}", "")
    return tuple(sorted({uf.upper() for uf in found}))


def _terms(told: Mapping[str, list[str]]) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(_listed(told.get("terms", []))))
    if len(found) > TERMS_MAX:
        raise QueryError("terms", f"must be at most {TERMS_MAX}, got {len(found)}")
    for term in found:
        if not _is_term(term):
            _wrong("terms", f"must be {TERM_CHARS[0]} to {TERM_CHARS[1]} printable characters each", term)
    return found


def _is_term(term: str) -> bool:
    """Whether a term is one; accents alone would be in every text."""
    return TERM_CHARS[0] <= len(folded(term)) and len(term) <= TERM_CHARS[1] and term.isprintable()


def _user(told: Mapping[str, list[str]]) -> str:
    user = told.get("user", [ANYBODY])[0]
    if not 1 <= len(user) <= USER_CHARS_MAX or not user.isprintable():
        _wrong("user", f"must be 1 to {USER_CHARS_MAX} printable characters", user)
    return user


def _listed(values: list[str]) -> list[str]:
    """Return what is separated by commas, or given several times."""
    return [part.strip() for value in values for part in value.split(",") if part.strip()]


def _wrong(field: str, text: str, value: str) -> NoReturn:
    raise QueryError(field, f"{text}, got {value!r:.{_SHOWN}}")
