"""From a row of the table to what a caller gets, and for how long it may be given from memory."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from comporta.cache.answers import Answer
from comporta.cache.body import decoded
from comporta.cache.cached import Cached
from comporta.cache.changes import Changes
from comporta.cache.config import CacheConfig
from comporta.cache.coverage import Coverage
from comporta.cache.health import EXPIRED, FRESH, HOT, STALE, freshness
from comporta.cache.level import Level, Slot
from comporta.clock import MONOTONIC, Clock

if TYPE_CHECKING:
    from comporta.cache.rows import Entry

ORIGIN, DATABASE = "origin", "database"

AHEAD_SHARE = 0.1
"""In the last tenth of its fresh time a hot key is refreshed."""

ASK_AGAIN_SECONDS = 1.0
"""How soon a key that should be refreshed is looked at again, when it cannot be at the moment."""


class Serving:
    """Makes answers, and keeps them in the level."""

    def __init__(self, config: CacheConfig, level: Level, changes: Changes, clock: Clock) -> None:
        self.config = config
        self.level = level
        self._changes = changes
        self._clock = clock

    @property
    def ahead_age(self) -> float:
        """How old a hot answer is when it is refreshed."""
        return self.config.fresh * (1 - AHEAD_SHARE)

    def wall(self) -> float:
        """Return Unix seconds, as well as this machine knows them; a clock moved by hand is one, too."""
        return time.time() if self._clock is MONOTONIC else self._clock.now_ns() / 1e9

    def of_row(self, entry: Entry) -> Cached:
        """Return the answer in a row."""
        age = max(0.0, entry.now - entry.fetched_at)
        now_ns = self._clock.now_ns()
        left = 0.0 if entry.degraded_until is None else entry.degraded_until - entry.now
        return Cached(
            decoded(entry.results),
            freshness(age, self.config.fresh, self.config.stale),
            _coverage(entry.coverage),
            DATABASE,
            row=entry._replace(results=b""),  # which would be kept in memory as well
            clock=self._clock,
            born_ns=now_ns - round(age * 1e9),
            retry_ns=now_ns + round(left * 1e9) if left > 0 else None,
        )

    def of_load(self, answer: Answer, row: Entry, age: float) -> Cached:
        """Return the answer that a loader just gave, and that was or was not written as this row."""
        return Cached(
            answer.value,
            FRESH,
            answer.coverage,
            ORIGIN,
            row=row,
            clock=self._clock,
            born_ns=self._clock.now_ns() - round(age * 1e9),
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

    def wants_refresh(self, cached: Cached) -> bool:
        """Whether it should be fetched anew: stale, or lacking something, or hot and soon stale."""
        config, age = self.config, cached.age
        if cached.freshness != FRESH:
            return True
        if cached.coverage is not None and not cached.coverage.complete:
            return _since_success(cached) >= config.refresh_pause
        return cached.priority == HOT and age >= self.ahead_age

    def shelve(
        self, key: str, cached: Cached, size: int, stamp: int, *, seconds: float | None = None
    ) -> Slot | None:
        """Keep an answer in memory for as long as it may be given without asking, or ``seconds`` if less."""
        if cached.freshness == EXPIRED:
            return None
        kept = min(self._undisturbed(cached), self.config.level_seconds)
        if seconds is not None:
            kept = min(seconds, kept)
        until_ns = self._clock.now_ns() + round(kept * 1e9)
        self._changes.listen()
        return self.level.put(key, cached, until_ns, size + cached.params_bytes, stamp)

    def _undisturbed(self, cached: Cached) -> float:
        """Return for how many seconds nothing about an answer changes by itself."""
        config, age = self.config, cached.age
        if cached.freshness == STALE:
            return config.stale - age
        pause = config.refresh_pause - _since_success(cached)
        if cached.coverage is not None and not cached.coverage.complete and pause > 0:
            return min(pause, config.fresh - age)
        hot = cached.priority == HOT and age < self.ahead_age
        return (self.ahead_age if hot else config.fresh) - age


def _since_success(cached: Cached) -> float:
    """Return how many seconds ago a key succeeded; parts of a joined answer may be older than that."""
    return cached.age - max(0.0, (cached.last_success_at or 0.0) - cached.fetched_at)


def _coverage(text: bytes | None) -> Coverage | None:
    """Read a column; what somebody else may have written there is no coverage."""
    if text is None:
        return None
    try:
        return Coverage.of(decoded(text))
    except (TypeError, ValueError):
        return None
