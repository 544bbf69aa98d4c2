"""What callers get (``Cached``) and what loaders return (``Loaded``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic

from comporta.cache.coverage import Coverage
from comporta.cache.rows import ResultRow
from comporta.clock import Clock

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    V_co = TypeVar("V_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    V_co = TypeVar("V_co", covariant=True)  # Python 3.13 is the first with defaults


@dataclass(frozen=True, slots=True)
class Loaded(Generic[V_co]):
    """What a loader returns if it has more to report than the value.

    ``value`` is the result, ``coverage`` says which units of the request it covers, and ``sources`` names
    where it came from. ``total_results`` defaults to the length of the value, if it has one.
    """

    value: V_co
    coverage: Coverage | Mapping[str, Any] | None = None
    sources: Sequence[str] = ()
    total_results: int | None = None


class Cached(Generic[V_co]):
    """A cached result and its health. All callers in a process share it: do not modify it.

    ``value`` is the result; a loader that returns a ``list[str]`` gives a ``Cached[list[str]]``.
    ``freshness`` is ``fresh``, ``stale`` or ``expired``. ``source`` is where this copy came from: ``origin``,
    ``database`` or ``memory``. ``coverage``, ``sources`` and ``total_results`` are what the loader reported.
    ``user_id`` and ``params_hash`` name the row. ``fail_streak`` counts failures in a row;
    ``fetch_duration_ms`` is how long the last fetch took. ``priority`` is ``hot``, ``warm`` or ``cold``, as
    last written to the database. ``fetched_at``, ``last_success_at``, ``last_attempt_at`` and
    ``degraded_until`` are Unix seconds by the database's clock, or ``None``.
    """

    __slots__ = (
        "__weakref__",  # for callers that check whether a result is still the same without keeping it
        "_clock",
        "_fetched_ns",
        "_retry_ns",
        "coverage",
        "degraded_until",
        "fail_streak",
        "fetch_duration_ms",
        "fetched_at",
        "freshness",
        "last_attempt_at",
        "last_success_at",
        "params_hash",
        "priority",
        "source",
        "sources",
        "total_results",
        "user_id",
        "value",
    )

    def __init__(  # noqa: PLR0917 - called for each database hit, where keywords would take longer than the rest
        self,
        value: V_co,
        freshness: str,
        coverage: Coverage | None,
        source: str,
        row: ResultRow,
        sources: tuple[str, ...],
        clock: Clock,
        fetched_ns: int,
        retry_ns: int | None = None,
    ) -> None:
        self.value = value
        self.freshness = freshness
        self.coverage = coverage
        self.source = source
        self._clock = clock
        self._fetched_ns = fetched_ns
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
        ) = row[:10]
        self.sources = sources

    @property
    def age(self) -> float:
        """Seconds since the result was fetched."""
        return max(0.0, (self._clock.now_ns() - self._fetched_ns) / 1e9)

    @property
    def next_retry(self) -> float | None:
        """Seconds until the source is tried again; ``None`` if the last attempt did not fail."""
        if self._retry_ns is None:
            return None
        return max(0.0, (self._retry_ns - self._clock.now_ns()) / 1e9)

    def _replace(self, **changes: Any) -> Cached[V_co]:
        """Return a copy with some attributes changed."""
        copy: Cached[V_co] = object.__new__(Cached)
        for name in _FIELDS:
            setattr(copy, name, getattr(self, name))
        for name, value in changes.items():
            setattr(copy, name, value)
        return copy

    def __repr__(self) -> str:
        coverage = "" if self.coverage is None else f", coverage={str(self.coverage)!r}"
        return (
            f"Cached({self.value!r:.60}, {self.freshness!r}, age={self.age:.1f}, source={self.source!r}"
            f"{coverage}, next_retry={self.next_retry})"
        )


_FIELDS = tuple(name for name in Cached.__slots__ if name != "__weakref__")
