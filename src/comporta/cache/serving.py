"""From a row of the table to what a caller gets, and for how long it may be given from memory."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from comporta.cache.answers import Answer
from comporta.cache.body import decoded, decoder
from comporta.cache.cached import Cached
from comporta.cache.changes import Changes
from comporta.cache.config import CacheConfig
from comporta.cache.coverage import Coverage
from comporta.cache.health import EXPIRED, FRESH, HOT, freshness
from comporta.cache.level import Level
from comporta.clock import MONOTONIC, Clock

if TYPE_CHECKING:
    from comporta.cache.rows import Entry

ORIGIN, DATABASE = "origin", "database"

AHEAD_SHARE = 0.1
"""In the last tenth of its fresh time a hot key is refreshed."""

ASK_AGAIN_SECONDS = 1.0
"""How soon a key that should be refreshed is looked at again, when it cannot be at the moment."""

_ASK_AGAIN_NS = round(ASK_AGAIN_SECONDS * 1e9)


class Serving:
    """Makes answers, and keeps them in the level."""

    def __init__(self, config: CacheConfig, level: Level, changes: Changes, clock: Clock) -> None:
        self.config = config
        self.level = level
        self._changes = changes
        self._clock = clock
        self._decoded = decoder()
        self.ahead_age = config.fresh * (1 - AHEAD_SHARE)
        self._ahead_ns = round(self.ahead_age * 1e9)
        self._fresh_ns = round(config.fresh * 1e9)
        self._stale_ns = round(config.stale * 1e9)
        self._pause_ns = round(config.refresh_pause * 1e9)
        self._level_ns = round(config.level_seconds * 1e9)

    def wall(self) -> float:
        """Return Unix seconds, as well as this machine knows them; a clock moved by hand is one, too."""
        return time.time() if self._clock is MONOTONIC else self._clock.now_ns() / 1e9

    def of_row(self, entry: Entry) -> Cached:
        """Return the answer in a row."""
        now_ns, now, until, coverage = self._clock.now_ns(), entry.now, entry.degraded_until, entry.coverage
        age_ns = max(0, int((now - entry.fetched_at) * 1e9))
        return Cached(
            self._decoded(entry.results),
            FRESH if age_ns < self._fresh_ns else freshness(age_ns, self._fresh_ns, self._stale_ns),
            None if coverage is None else _coverage(coverage),
            DATABASE,
            entry,
            self._clock,
            now_ns - age_ns,
            None if until is None or until <= now else now_ns + int((until - now) * 1e9),
        )

    def of_load(self, answer: Answer, row: Entry, age: float) -> Cached:
        """Return the answer that a loader just gave, and that was or was not written as this row."""
        return Cached(
            answer.value,
            FRESH,
            answer.coverage,
            ORIGIN,
            row,
            self._clock,
            self._clock.now_ns() - round(age * 1e9),
        )

    def as_of_now(self, cached: Cached) -> Cached:
        """Return an answer that was kept for a while, as it is by now."""
        now_is = freshness(cached.age, self.config.fresh, self.config.stale)
        return cached if now_is == cached.freshness else cached.but(freshness=now_is)

    def after_failure(self, cached: Cached, streak: int, seconds: float) -> Cached:
        """Return an answer whose refresh has just failed."""
        retry_ns = self._clock.now_ns() + round(seconds * 1e9)
        until = self.wall() + seconds
        return self.as_of_now(cached).after_failure(streak, until, retry_ns)

    def undisturbed_until_ns(self, cached: Cached) -> int:
        """Return until when an answer may be given from memory as it is; 0 if it should be fetched anew.

        It should when it is stale, or hot and soon stale. One that lacks something is due sooner, a pause
        after the key last succeeded; parts of a joined answer may be older than that.
        """
        if cached.freshness != FRESH:
            return 0
        lasts_ns = self._ahead_ns if cached.priority == HOT else self._fresh_ns
        if cached.coverage is not None and not cached.coverage.complete:
            joined = max(0.0, (cached.last_success_at or 0.0) - cached.fetched_at)
            lasts_ns = min(round(joined * 1e9) + self._pause_ns, self._fresh_ns)
        due_ns, now_ns = cached.born_ns + lasts_ns, self._clock.now_ns()
        return 0 if due_ns <= now_ns else min(due_ns, now_ns + self._level_ns)

    def shelve(self, key: str, cached: Cached, size: int, stamp: int, seconds: float | None = None) -> None:
        """Keep an answer in memory for so long, or until it is due, or for a moment if it is that already."""
        if cached.freshness == EXPIRED:
            return
        now_ns = self._clock.now_ns()
        if seconds is None:
            until_ns = self.undisturbed_until_ns(cached) or now_ns + _ASK_AGAIN_NS
        else:
            until_ns = now_ns + round(seconds * 1e9)
        end_ns = cached.born_ns + (self._fresh_ns if cached.freshness == FRESH else self._stale_ns)
        until_ns = min(until_ns, end_ns, now_ns + self._level_ns)
        self.level.put(key, cached, until_ns, size + cached.params_bytes, stamp)
        self._changes.listen()


def _coverage(text: bytes) -> Coverage | None:
    """Read a column; what somebody else may have written there is no coverage."""
    try:
        return Coverage.of(decoded(text))
    except (TypeError, ValueError):
        return None
