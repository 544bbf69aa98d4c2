"""Turns rows and loader results into ``Cached`` objects, and decides how long memory may serve them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from comporta.cache.config import CacheConfig
from comporta.cache.coverage import Coverage
from comporta.cache.entry import Cached
from comporta.cache.health import EXPIRED, FRESH, HOT, freshness
from comporta.cache.invalidation import Invalidations
from comporta.cache.loader_result import LoaderResult
from comporta.cache.local import LocalCache
from comporta.cache.serialization import decode_json, decode_sources, json_decoder
from comporta.clock import MONOTONIC, Clock
from comporta.runtime import RUNTIME

if TYPE_CHECKING:
    from comporta.cache.rows import ResultRow

ORIGIN, DATABASE = "origin", "database"

REFRESH_AHEAD_SHARE = 0.1
"""Hot keys are refreshed in this last fraction of their fresh time."""

RECHECK_SECONDS = 0.9
"""How soon a key is read again if it is in backoff, or due for a refresh that cannot start now.

With the time that the read takes, an edit by hand shows within 1 s.
"""

FUTURE_SECONDS_MAX = 60.0
"""A result whose ``fetched_at`` lies further ahead is stale: the clock was set back, or a row was edited."""

_RECHECK_NS = round(RECHECK_SECONDS * 1e9)


class ExpiryPolicy:
    """Builds ``Cached`` objects, and stores them in the local cache for as long as they may be served.

    ``on_unreadable`` is called with the ``params_hash`` of a row that cannot be decoded, and the error.
    """

    def __init__(
        self,
        config: CacheConfig,
        local: LocalCache,
        invalidations: Invalidations,
        clock: Clock,
        on_unreadable: Callable[[str, Exception], object],
    ) -> None:
        self.config = config
        self.local = local
        self._invalidations = invalidations
        self._clock = clock
        self._on_unreadable = on_unreadable
        self._decode = json_decoder()
        self.refresh_ahead_age = config.fresh * (1 - REFRESH_AHEAD_SHARE)
        self._refresh_ahead_ns = round(self.refresh_ahead_age * 1e9)
        self._fresh_ns = round(config.fresh * 1e9)
        self._stale_ns = round(config.stale * 1e9)
        self._refresh_pause_ns = round(config.refresh_pause * 1e9)
        self._local_ttl_ns = round(config.local_ttl * 1e9)

    def wall_time(self) -> float:
        """Return Unix seconds by this machine's clock, which a test clock may replace."""
        return RUNTIME.unix_time() if self._clock is MONOTONIC else self._clock.now_ns() / 1e9

    def from_row(self, row: ResultRow) -> Cached | None:
        """Return the result in a row; ``None`` if it cannot be decoded, because another program wrote it."""
        now_ns, now, until, coverage = self._clock.now_ns(), row.now, row.degraded_until, row.coverage
        try:
            age_ns = int((now - row.fetched_at) * 1e9) if row.fetched_at <= now else self._age_ahead_ns(row)
            return Cached(
                self._decode(row.results),
                FRESH if age_ns < self._fresh_ns else freshness(age_ns, self._fresh_ns, self._stale_ns),
                None if coverage is None else _coverage_of(row, coverage),
                DATABASE,
                row,
                decode_sources(row.sources),
                self._clock,
                now_ns - age_ns,
                None if until is None or until <= now else now_ns + int((until - now) * 1e9),
            )
        except Exception as error:
            self._on_unreadable(row.params_hash, error)
            return None

    def _age_ahead_ns(self, row: ResultRow) -> int:
        """Return the age of a row that was fetched in the future: 0, or a stale age beyond a tolerance."""
        return 0 if row.fetched_at - row.now <= FUTURE_SECONDS_MAX else self._fresh_ns

    def from_result(self, result: LoaderResult, row: ResultRow, age: float) -> Cached:
        """Return a new result of a loader; ``row`` is how it was stored, or would have been."""
        return Cached(
            result.value,
            FRESH,
            result.coverage,
            ORIGIN,
            row,
            result.sources,
            self._clock,
            self._clock.now_ns() - round(age * 1e9),
        )

    def with_current_freshness(self, cached: Cached) -> Cached:
        """Return a result that was built some time ago with its current freshness."""
        current = freshness(cached.age, self.config.fresh, self.config.stale)
        return cached if current == cached.freshness else cached._replace(freshness=current)

    def with_failure(self, cached: Cached, streak: int, seconds: float) -> Cached:
        """Return a result whose refresh has failed; the source is tried again in ``seconds``."""
        return self.with_current_freshness(cached)._replace(
            fail_streak=streak,
            degraded_until=self.wall_time() + seconds,
            _retry_ns=self._clock.now_ns() + round(seconds * 1e9),
        )

    def servable_until_ns(self, cached: Cached) -> int:
        """Return until when memory may serve a result without a refresh; 0 if a refresh is due.

        A refresh is due if the result is stale, or hot and soon stale. A partial result is due earlier:
        ``refresh_pause`` after the last success of the key, which may be later than ``fetched_at`` if the
        result was merged from several loads.
        """
        if cached.freshness != FRESH:
            return 0
        lifetime_ns = self._refresh_ahead_ns if cached.priority == HOT else self._fresh_ns
        if cached.coverage is not None and not cached.coverage.is_complete:
            merged_after = max(0.0, (cached.last_success_at or 0.0) - cached.fetched_at)
            lifetime_ns = round(min(merged_after, self.config.fresh) * 1e9) + self._refresh_pause_ns
            lifetime_ns = min(lifetime_ns, self._fresh_ns)
        due_ns, now_ns = cached._fetched_ns + lifetime_ns, self._clock.now_ns()
        return 0 if due_ns <= now_ns else min(due_ns, now_ns + self._local_ttl_ns)

    def store_locally(
        self, key: str, cached: Cached, size: int, version: int, seconds: float | None = None
    ) -> None:
        """Store a result in memory for ``seconds``, or until it is due, or for 1 s if it is due already."""
        if cached.freshness == EXPIRED:
            return
        now_ns = self._clock.now_ns()
        if seconds is None:
            expires_ns = self.servable_until_ns(cached) or now_ns + _RECHECK_NS
        else:
            expires_ns = now_ns + round(seconds * 1e9)
        end_ns = cached._fetched_ns + (self._fresh_ns if cached.freshness == FRESH else self._stale_ns)
        expires_ns = min(expires_ns, end_ns, now_ns + self._local_ttl_ns)
        self.local.put(key, cached, expires_ns, size, version)
        self._invalidations.ensure_listening()


def _coverage_of(row: ResultRow, text: bytes | str) -> Coverage | None:
    """Return the coverage of a row; ``None`` if another program wrote something invalid into its column.

    When a partial result is due follows from its last success: raise if that is not a number.
    """
    float(row.last_success_at or 0.0)
    try:
        return Coverage.parse(decode_json(text))
    except (TypeError, ValueError):
        return None
