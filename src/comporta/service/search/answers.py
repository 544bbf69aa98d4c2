"""What clients get: the notices, and how much they are to be trusted, in the body and in headers.

Everything that changes by itself (the age) is a header, so that the body of the same answers is made once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, Self
from weakref import ref

import msgspec

from comporta.cache.cached import Cached
from comporta.cache.coverage import Coverage
from comporta.cache.health import FRESH, STALE
from comporta.service.search.merging import matching, merged
from comporta.service.search.query import SearchQuery
from comporta.service.sources.base import Notice

SKIPPED: Final = "skipped"
FAILED: Final = "failed"

CACHE_STATUS: Final = "cache-status"
FRESHNESS: Final = "comporta-freshness"
COVERAGE: Final = "comporta-coverage"
MISSING: Final = "comporta-missing-sources"

_ENCODER = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class Part:
    """What one source has for a question: an answer, or why there is none.

    ``status`` is ``fresh``, ``stale``, ``skipped`` (it was not tried) or ``failed``; ``why`` is for people.
    """

    source: str
    cached: Cached | None
    status: str
    why: str = ""
    retry_after: float | None = None

    def trace(self) -> Trace:
        """Return what is enough to know it again."""
        return Trace(None if self.cached is None else ref(self.cached), self.status, self.why)


class Trace(NamedTuple):
    """What a body was made of; notices that nobody else keeps in memory are not kept for its sake."""

    cached: ref[Cached] | None
    status: str
    why: str

    def same(self, part: Part) -> bool:
        """Whether a body made of this part would be the same."""
        cached = None if self.cached is None else self.cached()
        return cached is part.cached and self.status == part.status and self.why == part.why


class Rendered(NamedTuple):
    """A body, and the headers that go with it as long as the parts are the same."""

    parts: tuple[Part, ...]
    body: bytes
    headers: dict[str, str]


class Kept(NamedTuple):
    """What was made, to be served again."""

    traces: tuple[Trace, ...]
    body: bytes
    headers: dict[str, str]

    @classmethod
    def of(cls, made: Rendered) -> Self:
        """Keep it."""
        return cls(tuple(part.trace() for part in made.parts), made.body, made.headers)

    def made_of(self, parts: Sequence[Part]) -> Rendered | None:
        """Return it, if it would be the same made of these."""
        if all(map(Trace.same, self.traces, parts)):
            return Rendered(tuple(parts), self.body, self.headers)
        return None


def rendered(query: SearchQuery, parts: Sequence[Part]) -> Rendered:
    """Make the answer of parts, of which one at the least has one."""
    notices = matching(merged(map(_notices, parts)), query.terms)
    coverage = _covered(query, parts)
    missing = [part.source for part in parts if part.cached is None]
    complete = coverage.complete and not missing
    freshness = STALE if any(part.status == STALE for part in parts) else FRESH
    body = {
        "freshness": freshness,
        "complete": complete,
        "coverage": {**coverage.as_dict(), "text": f"{coverage} UFs"},
        "missing_sources": missing,
        "sources": {part.source: _told(part) for part in parts},
        "warnings": _warnings(parts, coverage),
        "total": len(notices),
        "offset": query.offset,
        "limit": query.limit,
        "notices": notices[query.offset : query.offset + query.limit],
    }
    headers = {FRESHNESS: freshness, COVERAGE: f"{coverage} UFs", "cache-control": "no-cache"}
    headers[CACHE_STATUS] = _cache_status(parts, freshness)
    if missing:
        headers[MISSING] = ", ".join(missing)
    return Rendered(tuple(parts), _ENCODER.encode(body), headers)


def age_of(parts: Sequence[Part]) -> int:
    """Return how many seconds old the oldest answer is."""
    return int(max((part.cached.age for part in parts if part.cached is not None), default=0.0))


def _notices(part: Part) -> list[Notice]:
    if part.cached is None:
        return []
    return [notice for found in part.cached.value.values() for notice in found["notices"]]


def _covered(query: SearchQuery, parts: Sequence[Part]) -> Coverage:
    """Return the UFs for which every source that has something has them; the others are named apart."""
    failed = {uf for part in parts if part.cached is not None for uf in _failed_ufs(part.cached)}
    ufs = query.question.ufs
    return Coverage(tuple(uf for uf in ufs if uf not in failed), tuple(uf for uf in ufs if uf in failed))


def _failed_ufs(cached: Cached) -> tuple[str, ...]:
    return () if cached.coverage is None else cached.coverage.failed_ufs


def _told(part: Part) -> dict[str, Any]:
    """Return how one source contributed."""
    told: dict[str, Any] = {"status": part.status, "why": part.why or None}
    cached = part.cached
    if cached is not None:
        told |= {
            "coverage": None if cached.coverage is None else cached.coverage.as_dict(),
            "truncated_ufs": [uf for uf, found in cached.value.items() if found["truncated"]],
            "from": cached.source,
            "fetched_at": _moment(cached.fetched_at),
            "next_retry_at": _moment(cached.degraded_until),
        }
    return told


def _warnings(parts: Sequence[Part], coverage: Coverage) -> list[str]:
    said = [f"{part.source} was left out: {part.why}" for part in parts if part.cached is None]
    said += [
        f"{part.source}: stale results of {_moment(part.cached.fetched_at)}, because {part.why}"
        for part in parts
        if part.cached is not None and part.status == STALE
    ]
    if not coverage.complete:
        said.append(f"results of {coverage} UFs, without {', '.join(coverage.failed_ufs)}")
    return said


def _cache_status(parts: Sequence[Part], freshness: str) -> str:
    """Return the answer's way as RFC 9211 has it: from the cache, or through it from the sources."""
    places = {part.cached.source for part in parts if part.cached is not None}
    how = "fwd=miss; stored" if "origin" in places else "hit"
    return f"comporta; {how}; detail={freshness}"


def _moment(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
