"""What callers get, and what loaders give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from comporta.cache.coverage import Coverage
from comporta.cache.rows import Entry
from comporta.clock import Clock


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a loader returns that has more to say than the value: what part it is, and where it is from.

    ``total_results`` left out is the length of the value, if it has one.
    """

    value: Any
    coverage: Coverage | Mapping[str, Any] | None = None
    sources: Sequence[str] = ()
    total_results: int | None = None


class Cached:
    """An answer and how it fares; shared by all who ask in this process, so it is only to be read.

    ``freshness`` is ``fresh``, ``stale`` or ``expired``; ``source`` says where it came from: ``origin``,
    ``database`` or ``memory``, and ``sources`` where the loader had it from. ``user_id`` is whose row it is.
    ``priority`` is ``hot``, ``warm`` or ``cold``, as of when it was last written down. Times are Unix seconds
    by the database's clock, ``None`` where nothing is known.
    """

    __slots__ = (
        "__weakref__",  # for those who want to know whether it is still the same, and not keep it
        "_clock",
        "_retry_ns",
        "born_ns",
        "coverage",
        "degraded_until",
        "fail_streak",
        "fetch_duration_ms",
        "fetched_at",
        "freshness",
        "last_attempt_at",
        "last_success_at",
        "params_bytes",
        "params_hash",
        "priority",
        "source",
        "sources",
        "total_results",
        "user_id",
        "value",
    )

    def __init__(  # noqa: PLR0917 - one for each answer from the table: names would cost more than the rest
        self,
        value: Any,
        freshness: str,
        coverage: Coverage | None,
        source: str,
        row: Entry,
        clock: Clock,
        born_ns: int,
        retry_ns: int | None = None,
    ) -> None:
        self.value = value
        self.freshness = freshness
        self.coverage = coverage
        self.source = source
        self._clock = clock
        self.born_ns = born_ns
        self._retry_ns = retry_ns
        (
            self.user_id,
            self.params_hash,
            self.total_results,
            self.fetched_at,
            self.last_success_at,
            self.last_attempt_at,
            self.fail_streak,
            self.degraded_until,
            self.fetch_duration_ms,
            self.priority,
            self.sources,
        ) = row[:11]
        self.params_bytes = len(row.search_params)

    @property
    def age(self) -> float:
        """How many seconds ago it was fetched."""
        return max(0.0, (self._clock.now_ns() - self.born_ns) / 1e9)

    @property
    def next_retry(self) -> float | None:
        """In how many seconds the source is tried again; nothing if it did not fail."""
        if self._retry_ns is None:
            return None
        return max(0.0, (self._retry_ns - self._clock.now_ns()) / 1e9)

    def but(self, **changes: Any) -> Cached:
        """Return the same with something changed."""
        twin = object.__new__(Cached)
        for name in _FIELDS:
            setattr(twin, name, getattr(self, name))
        for name, value in changes.items():
            setattr(twin, name, value)
        return twin

    def after_failure(self, fail_streak: int, until: float, retry_ns: int) -> Cached:
        """Return the same after the source failed once more."""
        return self.but(fail_streak=fail_streak, degraded_until=until, _retry_ns=retry_ns)

    def __repr__(self) -> str:
        coverage = "" if self.coverage is None else f", coverage={str(self.coverage)!r}"
        return (
            f"Cached({self.value!r:.60}, {self.freshness!r}, age={self.age:.1f}, source={self.source!r}"
            f"{coverage}, next_retry={self.next_retry})"
        )


_FIELDS = tuple(name for name in Cached.__slots__ if name != "__weakref__")
