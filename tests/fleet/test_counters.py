"""Counts of calls, answers and requests until they are published."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from comporta.fleet.counters import FleetCounters
from comporta.fleet.series import CACHE_LAYOUT, SERVICE_LAYOUT, UPSTREAM_LAYOUT, latency_column, wait_column
from comporta.metrics import InMemoryMetrics
from comporta.stores.history import COLUMNS, SERIES_MAX


def nonzero_counts(numbers: list[int]) -> dict[str, int]:
    return {name: number for name, number in zip(UPSTREAM_LAYOUT.sums, numbers, strict=False) if number}


def call(counters: FleetCounters, outcome: str, attempts: int = 1) -> None:
    counters.counter("upstream_calls", 1, upstream="pncp", outcome=outcome)
    counters.counter("upstream_attempts", attempts, upstream="pncp")


def test_counters__upstream_calls__are_counted_by_outcome() -> None:
    counters = FleetCounters()
    for outcome in ("ok", "ok", "failure", "refused", "open", "limited", "neither", "error", "cancelled"):
        call(counters, outcome)
    call(counters, "ok", attempts=4)
    call(counters, "open", attempts=0)
    for upstream in ("pncp", ""):
        counters.counter("would_refuse", 1, policy="limit", name="pncp", upstream=upstream)
    assert counters._pending.series() == ["upstream.pncp"]
    numbers = counters._pending.drain("upstream.pncp")
    assert len(numbers) == COLUMNS
    assert nonzero_counts(numbers) == {
        "calls": 11,
        "ok": 3,
        "failed": 1,
        "refused": 1,
        "open": 2,
        "limited": 1,
        "would_refuse": 1,
        "retries": 3,
    }
    assert counters._pending.series() == []
    assert counters._pending.drain("upstream.pncp") == []


def test_counters__waits__are_counted_by_duration() -> None:
    counters = FleetCounters()
    for seconds in (0.0, 0.0, 0.7):
        counters.histogram("upstream_wait_seconds", seconds, upstream="pncp")
    counters.histogram("upstream_call_seconds", 1.0, upstream="pncp")
    numbers = counters._pending.drain("upstream.pncp")
    assert (numbers[wait_column(0)], numbers[wait_column(0.7)], sum(numbers)) == (2, 1, 3)


def test_counters__latencies__are_counted_in_a_series_of_their_own() -> None:
    counters = FleetCounters()
    for seconds in (0.12, 0.12, 30.0):
        counters.histogram("upstream_latency_seconds", seconds, upstream="pncp")
    assert counters._pending.series() == ["latency.pncp"]
    numbers = counters._pending.drain("latency.pncp")
    assert (numbers[latency_column(0.12)], numbers[latency_column(30.0)], sum(numbers)) == (2, 1, 3)


def test_counters__cache_answers_and_requests__are_counted() -> None:
    counters = FleetCounters()
    for outcome, times in (("hit", 5), ("stale", 2), ("miss", 1), ("unknown", 9)):
        counters.counter("cache_answers", times, outcome=outcome)
    for status in ("200", "404", "429", "500", "503"):
        counters.counter("http_requests", 1, status=status, route="/", method="GET")
    assert counters._pending.drain("cache")[: len(CACHE_LAYOUT.sums)] == [5, 2, 1]
    assert counters._pending.drain("service")[: len(SERVICE_LAYOUT.sums)] == [5, 2, 1]


def test_counters__every_metric__is_forwarded_unchanged() -> None:
    metrics = InMemoryMetrics()
    counters = FleetCounters(metrics)
    call(counters, "ok")
    counters.counter("anything", 1.5, label="x")
    counters.histogram("upstream_wait_seconds", 0.5, upstream="pncp")
    counters.histogram("anything_seconds", 2.0)
    assert metrics.value("upstream_calls", upstream="pncp", outcome="ok") == 1
    assert metrics.value("anything", label="x") == 1.5
    assert set(metrics.snapshot()) >= {'upstream_wait_seconds{upstream="pncp"}', "anything_seconds"}


def test_counters__more_names_than_the_bound__ignores_new_ones() -> None:
    counters = FleetCounters()
    for number in range(SERIES_MAX + 5):
        counters.counter("upstream_calls", 1, upstream=f"u{number}", outcome="ok")
    counters.counter("upstream_calls", 1, upstream="no name", outcome="ok")
    assert len(counters._pending.series()) == SERIES_MAX
    counters.counter("cache_answers", 1, outcome="hit")
    counters.counter("http_requests", 1, status="200")
    assert counters._pending.series()[SERIES_MAX:] == ["cache", "service"], (
        "the cache and the service do not count against the bound"
    )
    for series in counters._pending.series():
        counters._pending.drain(series)
    counters.counter("upstream_calls", 1, upstream="u0", outcome="ok")
    counters.counter("upstream_calls", 1, upstream="u104", outcome="ok")
    assert counters._pending.series() == ["upstream.u0"], "the first names stay admitted"


def test_counters__new_data__calls_on_pending_once_until_drained() -> None:
    calls: list[str] = []
    counters = FleetCounters()
    counters._pending.on_pending = lambda: calls.append("pending")
    for _ in range(3):
        call(counters, "ok")
    assert calls == ["pending"]
    counters._pending.drain("upstream.pncp")
    call(counters, "ok")
    assert calls == ["pending", "pending"]


def test_counters__many_threads__lose_no_count() -> None:
    counters = FleetCounters()
    drained: list[int] = []

    def work(_: int) -> None:
        for _ in range(200):
            call(counters, "ok")
        drained.append(sum(counters._pending.drain("upstream.pncp")[:1]))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert sum(drained) + sum(counters._pending.drain("upstream.pncp")[:1]) == 1600


def test_counters__in_a_forked_child__start_at_zero() -> None:
    counters = FleetCounters()
    call(counters, "ok")
    counters._pending.after_fork()
    assert counters._pending.series() == []
