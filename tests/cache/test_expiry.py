"""How long memory may serve a result, and what rows and loader results become."""

from __future__ import annotations

from typing import Any

import pytest

from comporta import Coverage
from comporta.cache.config import CacheConfig
from comporta.cache.entry import Cached
from comporta.cache.expiry import ExpiryPolicy
from comporta.cache.loader_result import validate_result
from comporta.cache.rows import ResultRow
from comporta.clock import MONOTONIC
from comporta.testing import ManualClock

NOW = 1_000_000.0
NOW_NS = 1_000_000_000_000_000
SECOND_NS = 1_000_000_000
CONFIG = CacheConfig(
    fresh=100.0,
    stale=1000.0,
    scope="params",
    lease_seconds=1.0,
    soft_timeout=None,
    refresh_timeout=10.0,
    refreshes_max=1,
    refresh_every=10.0,
    entries_per_user=None,
    table_entries=10,
    table_bytes=1000,
    local_entries=10,
    local_bytes=1000,
    local_ttl=500.0,
)
PARTIAL = b'{"succeeded": ["a"], "failed": ["b"]}'


class Recorder:
    """Stands in for the local cache and the invalidations."""

    def __init__(self) -> None:
        self.expiries_ns: list[int] = []

    def put(self, key: str, cached: Cached, expires_ns: int, size: int, version: int) -> None:
        self.expiries_ns.append(expires_ns)

    def ensure_listening(self) -> None:
        pass


class Bench:
    """A policy with what it works on."""

    def __init__(self, config: CacheConfig = CONFIG) -> None:
        self.clock = ManualClock(NOW)
        self.unreadable: list[tuple[str, Exception]] = []
        self.recorder = Recorder()
        stand_in: Any = self.recorder
        self.policy = ExpiryPolicy(
            config,
            stand_in,
            stand_in,
            self.clock,
            lambda digest, error: self.unreadable.append((digest, error)),
        )

    def cached(self, **fields: Any) -> Cached:
        found = self.policy.from_row(row(**fields))
        assert found is not None
        return found

    def expiry_ns(self, cached: Cached, seconds: float | None = None) -> int:
        """Return how long after now the local cache keeps a result."""
        self.policy.store_locally("key", cached, 1, 1, seconds)
        return self.recorder.expiries_ns.pop() - self.clock.now_ns()


def row(**fields: Any) -> ResultRow:
    plain = ResultRow("user", "digest", 1, NOW, NOW, NOW, 0, None, 5, "cold", b"[]", b"[1]", None, True, NOW)
    return plain._replace(**fields)


def test_from_row__age__gives_freshness_and_age() -> None:
    bench = Bench()
    found = [bench.cached(fetched_at=NOW - age) for age in (0.0, 99.0, 100.0, 999.0, 1000.0)]
    assert [cached.freshness for cached in found] == ["fresh", "fresh", "stale", "stale", "expired"]
    assert [cached.age for cached in found] == [0.0, 99.0, 100.0, 999.0, 1000.0]


def test_from_row__fetched_in_the_future__is_fresh_within_a_minute_and_stale_beyond() -> None:
    bench = Bench()
    found = [bench.cached(fetched_at=NOW + ahead) for ahead in (0.5, 60.0, 60.5)]
    assert [(cached.freshness, cached.age) for cached in found] == [
        *(("fresh", 0.0), ("fresh", 0.0)),
        ("stale", 100.0),
    ]


def test_from_row__degraded__says_when_the_source_is_tried_again() -> None:
    bench = Bench()
    found = [bench.cached(degraded_until=until).next_retry for until in (None, NOW - 1, NOW, NOW + 7)]
    assert found == [None, None, None, 7.0]
    soon = bench.cached(degraded_until=NOW + 0.5)
    bench.clock.advance(2)
    assert soon.next_retry == 0.0


def test_from_row__cannot_be_decoded__reports_the_digest_and_the_error() -> None:
    bench = Bench()
    assert bench.policy.from_row(row(results=b"[1")) is None
    [(digest, error)] = bench.unreadable
    assert digest == "digest"
    assert isinstance(error, Exception)


def test_from_row__last_success_that_is_no_number__matters_for_partial_results_only() -> None:
    bench = Bench()
    assert bench.cached(last_success_at="x").coverage is None
    assert bench.policy.from_row(row(last_success_at="x", coverage=PARTIAL)) is None


def test_from_result__loaded_some_time_ago__has_its_age() -> None:
    bench = Bench()
    cached = bench.policy.from_result(validate_result([1]), row(), 3.5)
    assert (cached.value, cached.freshness, cached.source) == ([1], "fresh", "origin")
    assert (cached.age, cached._fetched_ns) == (3.5, NOW_NS - 3_500_000_000)


def test_wall_time__test_clock_or_this_machine__is_in_unix_seconds() -> None:
    bench = Bench()
    assert bench.policy.wall_time() == NOW
    stand_in: Any = bench.recorder
    real = ExpiryPolicy(CONFIG, stand_in, stand_in, MONOTONIC, print)
    assert real.wall_time() > 1_600_000_000


def test_with_current_freshness__time_passes__changes_only_what_has_changed() -> None:
    bench = Bench()
    cached = bench.cached()
    assert bench.policy.with_current_freshness(cached) is cached
    bench.clock.advance(100)
    assert bench.policy.with_current_freshness(cached).freshness == "stale"


def test_with_failure__refresh_failed__says_how_often_and_when_it_is_tried_again() -> None:
    bench = Bench()
    failed = bench.policy.with_failure(bench.cached(), 3, 60.0)
    assert (failed.fail_streak, failed.degraded_until, failed.next_retry) == (3, NOW + 60, 60.0)


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({"fetched_at": NOW - 30}, 70.0),
        ({"fetched_at": NOW - 30, "priority": "hot"}, 60.0),
        ({"fetched_at": NOW - 90, "priority": "hot"}, None),
        ({"fetched_at": NOW - 100}, None),
        ({"coverage": PARTIAL}, 10.0),
        ({"coverage": PARTIAL, "fetched_at": NOW - 4, "last_success_at": NOW - 4}, 6.0),
        ({"coverage": PARTIAL, "fetched_at": NOW - 4, "last_success_at": NOW - 1}, 9.0),
        ({"coverage": PARTIAL, "fetched_at": NOW - 4, "last_success_at": None}, 6.0),
        ({"coverage": PARTIAL, "fetched_at": NOW - 99, "last_success_at": NOW}, 1.0),
        ({"coverage": b'{"succeeded": ["a"]}', "fetched_at": NOW - 30}, 70.0),
    ],
)
def test_servable_until__fresh_result__is_when_its_refresh_is_due(
    fields: dict[str, Any], seconds: float | None
) -> None:
    bench = Bench()
    until_ns = bench.policy.servable_until_ns(bench.cached(**fields))
    assert until_ns == (0 if seconds is None else NOW_NS + seconds * SECOND_NS)


def test_servable_until__partial_result_of_1970__is_due_after_the_pause() -> None:
    bench = Bench()
    bench.clock.advance(-NOW)
    cached = bench.cached(coverage=PARTIAL, fetched_at=0.0, last_success_at=None, now=0.0)
    assert bench.policy.servable_until_ns(cached) == 10 * SECOND_NS


@pytest.mark.parametrize(
    ("fetched_ago", "seconds", "kept"),
    [
        (30, None, 70.0),
        (30, 5.0, 5.0),
        (30, 80.0, 70.0),  # until it is stale
        (100, None, 0.9),  # a refresh is due, so it is read again soon
        (300, 600.0, 500.0),  # the local cache keeps nothing longer
        (900, 600.0, 100.0),  # until it has expired
    ],
)
def test_store_locally__any_age__keeps_it_until_due_stale_expired_or_the_ttl(
    fetched_ago: float, seconds: float | None, kept: float
) -> None:
    bench = Bench()
    cached = bench.cached(fetched_at=NOW - fetched_ago)
    assert bench.expiry_ns(cached, seconds) == kept * SECOND_NS


def test_store_locally__expired__keeps_nothing() -> None:
    bench = Bench()
    bench.policy.store_locally("key", bench.cached(fetched_at=NOW - 1000), 1, 1)
    assert bench.recorder.expiries_ns == []


def test_cached__as_text__shows_the_coverage_if_there_is_one() -> None:
    bench = Bench()
    plain = bench.cached()
    assert repr(plain) == "Cached([1], 'fresh', age=0.0, source='database', next_retry=None)"
    partial = plain._replace(coverage=Coverage(("a",), ("b",)))
    assert ", source='database', coverage='1 of 2', next_retry=None)" in repr(partial)
