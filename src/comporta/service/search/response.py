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
from comporta.service.search.pending_answers import PendingAnswer
from comporta.service.search.query import SearchQuery
from comporta.service.sources.base import Notice

SKIPPED: Final = "skipped"
FAILED: Final = "failed"
PENDING: Final = "pending"

CACHE_STATUS: Final = "cache-status"
FRESHNESS: Final = "comporta-freshness"
COVERAGE: Final = "comporta-coverage"
MISSING: Final = "comporta-missing-sources"
PENDING_SOURCES: Final = "comporta-pending-sources"

_ENCODER = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class SourceResult:
    """What one source contributes to a search: a cached answer, or the reason why there is none.

    ``status`` is ``fresh``, ``stale``, ``pending`` (it is still being read; the field ``pending`` has what
    was read so far), ``skipped`` (it was not called) or ``failed``.
    """

    source: str
    cached: Cached | None
    status: str
    reason: str = ""
    retry_after: float | None = None
    pending: PendingAnswer | None = None

    @property
    def value(self) -> dict[str, Any]:
        """The notices by UF that the source contributes."""
        if self.pending is not None:
            return self.pending.value
        return {} if self.cached is None else self.cached.value

    @property
    def coverage(self) -> Coverage | None:
        """The UFs that the contribution covers, if that is known."""
        if self.pending is not None:
            return self.pending.coverage
        return None if self.cached is None else self.cached.coverage

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

    @property
    def is_pending(self) -> bool:
        """Whether a source is still being read."""
        return any(result.pending is not None for result in self.results)


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
    missing = [result.source for result in results if result.cached is None and result.pending is None]
    pending = {result.source: result.pending for result in results if result.pending is not None}
    has_all = coverage.is_complete and not any(map(_is_truncated, results))
    ready_at = max((each.ready_at for each in pending.values()), default=None)
    freshness = STALE if any(result.status == STALE for result in results) else FRESH
    body = {
        "freshness": freshness,
        "complete": has_all and not missing and not pending,
        "coverage": {**coverage_json(coverage), "text": f"{coverage} UFs"},
        "missing_sources": missing,
        "pending": {source: _pending_json(answer) for source, answer in pending.items()},
        "estimated_ready_at": _iso_timestamp(ready_at),
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
    if pending:
        headers[PENDING_SOURCES] = ", ".join(pending)
    return RenderedResponse(tuple(results), _ENCODER.encode(body), headers)


def oldest_age(results: Sequence[SourceResult]) -> int:
    """Return the age of the oldest answer in seconds."""
    return int(max((result.cached.age for result in results if result.cached is not None), default=0.0))


def _source_notices(result: SourceResult) -> list[Notice]:
    return [notice for uf in result.value.values() for notice in uf["notices"]]


def _combined_coverage(query: SearchQuery, results: Sequence[SourceResult]) -> Coverage:
    """Return the coverage: a UF succeeded if every source that has an answer has it for this UF.

    A UF that is still being read has neither succeeded nor failed.
    """
    failed = {uf for result in results if result.coverage is not None for uf in result.coverage.failed}
    pending = {uf for result in results if result.pending is not None for uf in result.pending.ufs}
    ufs = query.scope.ufs
    succeeded = [uf for uf in ufs if uf not in failed and uf not in pending]
    return uf_coverage(succeeded, [uf for uf in ufs if uf in failed], len(ufs))


def _is_truncated(result: SourceResult) -> bool:
    return any(answer["truncated"] for answer in result.value.values())


def _days(result: SourceResult, field: str) -> list[str]:
    """Return the days that an answer lacks, or of which it lacks pages."""
    return sorted({day for answer in result.value.values() for day in answer.get(field, ())})


def _pending_json(answer: PendingAnswer) -> dict[str, Any]:
    return {"ufs": answer.ufs, "days": answer.days, "estimated_ready_at": _iso_timestamp(answer.ready_at)}


def _source_json(result: SourceResult) -> dict[str, Any]:
    """Return the contribution of one source."""
    document: dict[str, Any] = {"status": result.status, "reason": result.reason or None}
    cached, coverage = result.cached, result.coverage
    if cached is not None or result.pending is not None:
        document |= {
            "coverage": None if coverage is None else coverage_json(coverage),
            "truncated_ufs": [uf for uf, answer in result.value.items() if uf and answer["truncated"]],
            "truncated_days": _days(result, "truncated_days"),
            "missing_days": _days(result, "missing_days"),
        }
    if cached is not None:
        document |= {
            "from": cached.source,
            "fetched_at": _iso_timestamp(cached.fetched_at),
            "next_retry_at": _iso_timestamp(cached.degraded_until),
        }
    return document


def _warnings(results: Sequence[SourceResult], coverage: Coverage) -> list[str]:
    left_out = [result for result in results if result.cached is None and result.pending is None]
    warnings = [f"{result.source} was left out: {result.reason}" for result in left_out]
    for result in results:
        if result.cached is not None and result.status == STALE:
            fetched_at = _iso_timestamp(result.cached.fetched_at)
            warnings.append(f"{result.source}: stale results of {fetched_at}, because {result.reason}")
        warnings += _gap_warnings(result)
    if coverage.failed:
        warnings.append(f"results of {coverage} UFs, without {', '.join(coverage.failed)}")
    return warnings


def _gap_warnings(result: SourceResult) -> list[str]:
    source, missing, truncated = result.source, _days(result, "missing_days"), _days(result, "truncated_days")
    warnings = [f"{source}: without all notices of {', '.join(missing)}"] if missing else []
    if truncated:
        warnings.append(f"{source}: only the first pages of {', '.join(truncated)}")
    if result.pending is not None:
        to_come = result.pending.days or result.pending.ufs
        warnings.append(f"{source} is still being read: without all notices of {', '.join(to_come)}")
    return warnings


def _cache_status(results: Sequence[SourceResult], freshness: str) -> str:
    """Return the ``Cache-Status`` header (RFC 9211): served from the cache, or fetched from a source."""
    if any(result.pending is not None for result in results):
        return "comporta; fwd=miss; detail=pending"
    origins = {result.cached.source for result in results if result.cached is not None}
    how = "fwd=miss; stored" if "origin" in origins else "hit"
    return f"comporta; {how}; detail={freshness}"


def _iso_timestamp(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
