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
    ``database`` or ``memory``. Times are Unix seconds by the database's clock, ``None`` where nothing is
    known.
    """

    __slots__ = ("_born_ns", "_clock", "_retry_ns", "_row", "coverage", "freshness", "source", "value")

    def __init__(
        self,
        value: Any,
        freshness: str,
        coverage: Coverage | None,
        source: str,
        *,
        row: Entry,
        clock: Clock,
        born_ns: int,
        retry_ns: int | None = None,
    ) -> None:
        self.value = value
        self.freshness = freshness
        self.coverage = coverage
        self.source = source
        self._row = row
        self._clock = clock
        self._born_ns = born_ns
        self._retry_ns = retry_ns

    @property
    def age(self) -> float:
        """How many seconds ago it was fetched."""
        return max(0.0, (self._clock.now_ns() - self._born_ns) / 1e9)

    @property
    def next_retry(self) -> float | None:
        """In how many seconds the source is tried again; nothing if it did not fail."""
        if self._retry_ns is None:
            return None
        return max(0.0, (self._retry_ns - self._clock.now_ns()) / 1e9)

    @property
    def user_id(self) -> str:
        """Whose row it is."""
        return self._row.user_id

    @property
    def params_hash(self) -> str:
        """The name of the parameters."""
        return self._row.params_hash

    @property
    def params_bytes(self) -> int:
        """How long the parameters are as JSON."""
        return len(self._row.search_params)

    @property
    def sources(self) -> tuple[str, ...]:
        """Where the loader had it from."""
        return tuple(self._row.sources)

    @property
    def total_results(self) -> int:
        """How many there are, as the loader has it."""
        return self._row.total_results

    @property
    def fetched_at(self) -> float:
        """When it was fetched."""
        return self._row.fetched_at

    @property
    def last_success_at(self) -> float | None:
        """When the key last succeeded."""
        return self._row.last_success_at

    @property
    def last_attempt_at(self) -> float | None:
        """When the key was last tried."""
        return self._row.last_attempt_at

    @property
    def fail_streak(self) -> int:
        """How often the key failed since it last succeeded."""
        return self._row.fail_streak

    @property
    def degraded_until(self) -> float | None:
        """Until when the key is left alone."""
        return self._row.degraded_until

    @property
    def fetch_duration_ms(self) -> int | None:
        """How long the fetch took."""
        return self._row.fetch_duration_ms

    @property
    def priority(self) -> str | None:
        """``hot``, ``warm`` or ``cold``, as of when it was last written down."""
        return self._row.priority

    def but(self, **changes: Any) -> Cached:
        """Return the same with something changed."""
        twin = object.__new__(Cached)
        for name in Cached.__slots__:
            setattr(twin, name, getattr(self, name))
        for name, value in changes.items():
            setattr(twin, name, value)
        return twin

    def after_failure(self, fail_streak: int, until: float, retry_ns: int) -> Cached:
        """Return the same after the source failed once more."""
        row = self._row._replace(fail_streak=fail_streak, degraded_until=until)
        return self.but(_row=row, _retry_ns=retry_ns)

    def __repr__(self) -> str:
        coverage = "" if self.coverage is None else f", coverage={str(self.coverage)!r}"
        return (
            f"Cached({self.value!r:.60}, {self.freshness!r}, age={self.age:.1f}, source={self.source!r}"
            f"{coverage}, next_retry={self.next_retry})"
        )
