"""Renders the response of a search: the notices, and in body and headers how fresh and complete they are.

Only the age changes by itself; it is a header, so an unchanged body is rendered once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, Self
from weakref import ref

import msgspec

from comporta.cache.coverage import Coverage
from comporta.cache.entry import Cached
from comporta.cache.health import FRESH, STALE
from comporta.service.search.coverage import coverage_json, uf_coverage
from comporta.service.search.merge import filter_notices, merge_notices
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
class SourceResult:
    """What one source contributes to a search: a cached answer, or the reason why there is none.

    ``status`` is ``fresh``, ``stale``, ``skipped`` (it was not called) or ``failed``.
    """

    source: str
    cached: Cached | None
    status: str
    reason: str = ""
    retry_after: float | None = None

    def fingerprint(self) -> SourceFingerprint:
        """Return what is needed to recognize this result."""
        return SourceFingerprint(None if self.cached is None else ref(self.cached), self.status, self.reason)


class SourceFingerprint(NamedTuple):
    """Identifies a source result without keeping its notices in memory."""

    cached: ref[Cached] | None
    status: str
    reason: str

    def matches(self, result: SourceResult) -> bool:
        """Whether a body rendered from ``result`` would be the same."""
        cached = None if self.cached is None else self.cached()
        return cached is result.cached and self.status == result.status and self.reason == result.reason


class RenderedResponse(NamedTuple):
    """A body and its headers, and the results they were rendered from."""

    results: tuple[SourceResult, ...]
    body: bytes
    headers: dict[str, str]


class CachedResponse(NamedTuple):
    """A rendered response that can be served again."""

    fingerprints: tuple[SourceFingerprint, ...]
    body: bytes
    headers: dict[str, str]

    @classmethod
    def from_rendered(cls, rendered: RenderedResponse) -> Self:
        """Store a response without its notices."""
        fingerprints = tuple(result.fingerprint() for result in rendered.results)
        return cls(fingerprints, rendered.body, rendered.headers)

    def rendered_for(self, results: Sequence[SourceResult]) -> RenderedResponse | None:
        """Return the response if these results would render the same, else ``None``."""
        if all(map(SourceFingerprint.matches, self.fingerprints, results)):
            return RenderedResponse(tuple(results), self.body, self.headers)
        return None


def render_response(query: SearchQuery, results: Sequence[SourceResult]) -> RenderedResponse:
    """Render the response from the results of all sources, at least one of which has an answer."""
    notices = filter_notices(merge_notices(map(_source_notices, results)), query.terms)
    coverage = _combined_coverage(query, results)
    missing = [result.source for result in results if result.cached is None]
    complete = coverage.is_complete and not missing
    freshness = STALE if any(result.status == STALE for result in results) else FRESH
    body = {
        "freshness": freshness,
        "complete": complete,
        "coverage": {**coverage_json(coverage), "text": f"{coverage} UFs"},
        "missing_sources": missing,
        "sources": {result.source: _source_json(result) for result in results},
        "warnings": _warnings(results, coverage),
        "total": len(notices),
        "offset": query.offset,
        "limit": query.limit,
        "notices": notices[query.offset : query.offset + query.limit],
    }
    headers = {FRESHNESS: freshness, COVERAGE: f"{coverage} UFs", "cache-control": "no-cache"}
    headers[CACHE_STATUS] = _cache_status(results, freshness)
    if missing:
        headers[MISSING] = ", ".join(missing)
    return RenderedResponse(tuple(results), _ENCODER.encode(body), headers)


def oldest_age(results: Sequence[SourceResult]) -> int:
    """Return the age of the oldest answer in seconds."""
    return int(max((result.cached.age for result in results if result.cached is not None), default=0.0))


def _source_notices(result: SourceResult) -> list[Notice]:
    if result.cached is None:
        return []
    return [notice for uf in result.cached.value.values() for notice in uf["notices"]]


def _combined_coverage(query: SearchQuery, results: Sequence[SourceResult]) -> Coverage:
    """Return the coverage: a UF succeeded if every source that has an answer has it for this UF."""
    failed = {uf for result in results if result.cached is not None for uf in _failed_ufs(result.cached)}
    ufs = query.scope.ufs
    return uf_coverage([uf for uf in ufs if uf not in failed], [uf for uf in ufs if uf in failed])


def _failed_ufs(cached: Cached) -> tuple[str, ...]:
    return () if cached.coverage is None else cached.coverage.failed


def _source_json(result: SourceResult) -> dict[str, Any]:
    """Return the contribution of one source."""
    document: dict[str, Any] = {"status": result.status, "reason": result.reason or None}
    cached = result.cached
    if cached is not None:
        document |= {
            "coverage": None if cached.coverage is None else coverage_json(cached.coverage),
            "truncated_ufs": [uf for uf, answer in cached.value.items() if answer["truncated"]],
            "from": cached.source,
            "fetched_at": _iso_timestamp(cached.fetched_at),
            "next_retry_at": _iso_timestamp(cached.degraded_until),
        }
    return document


def _warnings(results: Sequence[SourceResult], coverage: Coverage) -> list[str]:
    left_out = [result for result in results if result.cached is None]
    warnings = [f"{result.source} was left out: {result.reason}" for result in left_out]
    for result in results:
        if result.cached is not None and result.status == STALE:
            fetched_at = _iso_timestamp(result.cached.fetched_at)
            warnings.append(f"{result.source}: stale results of {fetched_at}, because {result.reason}")
    if not coverage.is_complete:
        warnings.append(f"results of {coverage} UFs, without {', '.join(coverage.failed)}")
    return warnings


def _cache_status(results: Sequence[SourceResult], freshness: str) -> str:
    """Return the ``Cache-Status`` header (RFC 9211): served from the cache, or fetched from a source."""
    origins = {result.cached.source for result in results if result.cached is not None}
    how = "fwd=miss; stored" if "origin" in origins else "hit"
    return f"comporta; {how}; detail={freshness}"


def _iso_timestamp(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
