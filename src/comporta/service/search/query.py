"""Parses the query string of a search: validates it and gives equivalent queries one form. Pure.

The service parses it itself instead of FastAPI, because the same text arrives again and again and the parsed
query can be cached.
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

UFS: Final = (
    *("AC", "AL", "AM", "AP", "BA", "CE", "DF", "ES", "GO", "MA", "MG", "MS", "MT", "PA"),
    *("PB", "PE", "PI", "PR", "RJ", "RN", "RO", "RR", "RS", "SC", "SE", "SP", "TO"),
)
MODALITY_RANGE: Final = (1, 15)
DEFAULT_MODALITY: Final = 6
"""Electronic auction, by far the most frequent modality."""

QUERY_BYTES_MAX: Final = 8192
TERMS_MAX: Final = 20
TERM_CHARS_MAX: Final = 100
NO_CONTROL_CHARS: Final = r"^[^\x00-\x1f\x7f]*$"
"""PostgreSQL accepts no NUL in text, and no user name or term has other control characters."""

PRINTABLE: Final = r"^[\p{L}\p{M}\p{N}\p{P}\p{S} ]*$"
"""What ``str.isprintable`` means, as a pattern of JSON Schema, which Python's ``re`` does not understand."""

LIMIT_RANGE: Final = (1, 5000)
DEFAULT_LIMIT: Final = 500
OFFSET_RANGE: Final = (0, 100_000)
ANONYMOUS: Final = "anonymous"
FIELDS: Final = ("date_from", "date_to", "modality", "ufs", "terms", "user", "limit", "offset")

_LISTS = ("ufs", "terms")
_PLAIN_TEXT = re.compile(NO_CONTROL_CHARS)
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_NUMBER = re.compile(r"[0-9]{1,9}")
_CACHE_SIZE = 1024
_VALUE_CHARS_MAX = 60


class QueryError(ValueError):
    """The query is invalid; ``field`` names the field, the message the allowed and the received value."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(f"{field} {text}")
        self.field = field


class SearchScope(NamedTuple):
    """What is fetched from every source and cached; terms, limit and offset select from it."""

    first_day: date
    last_day: date
    modality: int
    ufs: tuple[str, ...]

    def cache_params(self, source: str) -> dict[str, Any]:
        """Return the cache parameters of a source's answer; do not modify the result."""
        return _cache_params(self, source)

    @classmethod
    def from_cache_params(cls, params: Mapping[str, Any]) -> Self:
        """Return the scope with these cache parameters."""
        days = date.fromisoformat(params["from"]), date.fromisoformat(params["to"])
        return cls(*days, int(params["modality"]), tuple(params["ufs"]))


@lru_cache(maxsize=_CACHE_SIZE)
def _cache_params(scope: SearchScope, source: str) -> dict[str, Any]:
    return {
        "search": source,
        "from": scope.first_day.isoformat(),
        "to": scope.last_day.isoformat(),
        "modality": scope.modality,
        "ufs": list(scope.ufs),
    }


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """A validated search: the scope to fetch, who searches, and which part of the results to return."""

    scope: SearchScope
    terms: tuple[str, ...] = ()
    user: str = ANONYMOUS
    limit: int = DEFAULT_LIMIT
    offset: int = 0


@lru_cache(maxsize=_CACHE_SIZE)
def parse_query(raw: bytes, days_max: int) -> SearchQuery:
    """Parse the query string of a URL; it may cover at most ``days_max`` days."""
    if len(raw) > QUERY_BYTES_MAX:
        raise QueryError("query", f"must be at most {QUERY_BYTES_MAX} bytes, got {len(raw)}")
    fields = _parse_fields(raw)
    first, last = _parse_date(fields, "date_from"), _parse_date(fields, "date_to")
    days = (last - first).days + 1
    if not 1 <= days <= days_max:
        _fail("date_to", f"must be 0 to {days_max - 1} days after date_from, {first}", last.isoformat())
    modality = _parse_int(fields, "modality", MODALITY_RANGE, DEFAULT_MODALITY)
    return SearchQuery(
        SearchScope(first, last, modality, _parse_ufs(fields)),
        _parse_terms(fields),
        _parse_user(fields),
        _parse_int(fields, "limit", LIMIT_RANGE, DEFAULT_LIMIT),
        _parse_int(fields, "offset", OFFSET_RANGE, 0),
    )


def _parse_fields(raw: bytes) -> dict[str, list[str]]:
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=200)
    except ValueError:
        raise QueryError("query", "must be at most 200 fields in UTF-8, each %-encoded") from None
    fields: dict[str, list[str]] = {}
    for name, value in pairs:
        if name not in FIELDS:
            _fail("query", f"must have no fields except {', '.join(FIELDS)}", name)
        fields.setdefault(name, []).append(value)
    for name, values in fields.items():
        if len(values) > 1 and name not in _LISTS:
            _fail(name, "must be given once", values[1])
    return fields


def _parse_date(fields: Mapping[str, list[str]], field: str) -> date:
    text = fields.get(field, [""])[0]
    if not text:
        raise QueryError(field, "must be given, as YYYY-MM-DD, got nothing")
    try:
        if _DAY.fullmatch(text):
            return date.fromisoformat(text)
    except ValueError:
        pass
    return _fail(field, "must be an existing date in the form YYYY-MM-DD", text)


def _parse_int(fields: Mapping[str, list[str]], field: str, allowed: tuple[int, int], default: int) -> int:
    if field not in fields:
        return default
    text = fields[field][0]
    if not _NUMBER.fullmatch(text) or not allowed[0] <= int(text) <= allowed[1]:
        _fail(field, f"must be {allowed[0]} to {allowed[1]}", text)
    return int(text)


def _parse_ufs(fields: Mapping[str, list[str]]) -> tuple[str, ...]:
    """Return the UFs in order, each once; all of them if the field is missing."""
    if "ufs" not in fields:
        return UFS
    ufs = _split_list(fields["ufs"])
    for uf in ufs:
        if uf.upper() not in UFS:
            _fail("ufs", f"must be among {' '.join(UFS)}", uf)
    if not ufs:
        _fail("ufs", f"must be among {' '.join(UFS)}", "")
    return tuple(sorted({uf.upper() for uf in ufs}))


def _parse_terms(fields: Mapping[str, list[str]]) -> tuple[str, ...]:
    terms = tuple(dict.fromkeys(_split_list(fields.get("terms", []))))
    if len(terms) > TERMS_MAX:
        raise QueryError("terms", f"must be at most {TERMS_MAX}, got {len(terms)}")
    for term in terms:
        if len(term) > TERM_CHARS_MAX or not _PLAIN_TEXT.fullmatch(term):
            _fail("terms", f"must be 1 to {TERM_CHARS_MAX} characters each, none a control character", term)
    return terms


def _parse_user(fields: Mapping[str, list[str]]) -> str:
    user = fields.get("user", [ANONYMOUS])[0]
    if not 1 <= len(user) <= USER_CHARS_MAX or not user.isprintable():
        _fail("user", f"must be 1 to {USER_CHARS_MAX} printable characters", user)
    return user


def _split_list(values: list[str]) -> list[str]:
    """Return values that are separated by commas or given several times."""
    return [part.strip() for value in values for part in value.split(",") if part.strip()]


def _fail(field: str, text: str, value: str) -> NoReturn:
    raise QueryError(field, f"{text}, got {value!r:.{_VALUE_CHARS_MAX}}")
