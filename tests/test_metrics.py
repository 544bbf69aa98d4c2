"""Metrics go to the current sink, and their memory stays bounded."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from comporta.metrics import (
    BoundedSet,
    HistogramSummary,
    InMemoryMetrics,
    Metrics,
    count,
    current_metrics,
    observe,
    use_metrics,
)


@pytest.fixture(autouse=True)
def restore_sink() -> Iterator[None]:
    """Start every test without a sink, and set the previous one again."""
    previous = use_metrics(None)
    yield
    use_metrics(previous)


def test_current_metrics__not_set__is_none() -> None:
    assert current_metrics() is None


def test_use_metrics__set_and_set_back__returns_the_previous_sink() -> None:
    first, second = InMemoryMetrics(), InMemoryMetrics()
    assert use_metrics(first) is None
    assert current_metrics() is first
    assert use_metrics(second) is first
    assert use_metrics(None) is second
    assert current_metrics() is None


class BrokenSink:
    """A sink that raises."""

    def counter(self, name: str, value: float, /, **labels: str) -> None:
        raise OSError("disk full")

    histogram = counter


def test_count_and_observe__sink_set__use_it() -> None:
    sink = InMemoryMetrics()
    use_metrics(sink)
    count("hits", page="a")
    count("hits", 2, page="a")
    observe("seconds", 0.5, page="a")
    assert sink.snapshot() == {
        'hits{page="a"}': 3,
        'seconds{page="a"}': HistogramSummary(1, 0.5, 0.5, 0.5),
    }


@pytest.mark.parametrize("sink", [None, BrokenSink()])
def test_count_and_observe__no_sink_or_one_that_raises__do_nothing(sink: Metrics | None) -> None:
    use_metrics(sink)
    count("hits")
    observe("seconds", 0.5)


def test_memory__counter__adds_up_by_label_set_in_any_order() -> None:
    metrics = InMemoryMetrics()
    metrics.counter("hits", 1, page="a", user="x")
    metrics.counter("hits", 2, user="x", page="a")
    metrics.counter("hits", 4, page="b", user="x")
    assert metrics.snapshot() == {'hits{page="a",user="x"}': 3, 'hits{page="b",user="x"}': 4}
    assert metrics.value("hits") == 7
    assert metrics.value("hits", page="b") == 4
    assert metrics.value("hits", page="c") == 0
    assert metrics.value("misses") == 0


def test_memory__histogram__keeps_count_total_minimum_and_maximum() -> None:
    metrics = InMemoryMetrics()
    for value in (3.0, 1.0, 2.0):
        metrics.histogram("seconds", value)
    [summary] = metrics.snapshot().values()
    assert summary == HistogramSummary(3, 6.0, 1.0, 3.0)
    assert isinstance(summary, HistogramSummary)
    assert summary.mean == 2.0


def test_memory__labels_named_like_parameters__are_labels() -> None:
    metrics = InMemoryMetrics()
    metrics.counter("hits", 1, name="n", value="v", self="s")
    metrics.histogram("seconds", 1, name="n", value="v", self="s")
    assert list(metrics.snapshot()) == [
        'hits{name="n",self="s",value="v"}',
        'seconds{name="n",self="s",value="v"}',
    ]


def test_memory__snapshot__escapes_special_characters() -> None:
    metrics = InMemoryMetrics()
    metrics.counter("hits", 1, page='a"b\\c\nd')
    assert list(metrics.snapshot()) == [r'hits{page="a\"b\\c\nd"}']


def test_memory__too_many_label_sets__are_counted_as_other() -> None:
    metrics = InMemoryMetrics(label_sets_max=2)
    metrics.counter("hits", 1, page="a")
    metrics.histogram("seconds", 1.0, page="a")
    for number in range(1000):
        metrics.counter("hits", 1, page=str(number))
        metrics.counter(f"new{number}", 1, page="a")
        metrics.histogram("seconds", 2.0, page=str(number))
    metrics.counter("hits", 1, page="a")
    assert metrics.snapshot() == {
        'hits{page="a"}': 2,
        'hits{other="true"}': 1000,
        'other{other="true"}': 1000,
        'seconds{page="a"}': HistogramSummary(1, 1.0, 1.0, 1.0),
        'seconds{other="true"}': HistogramSummary(1000, 2000.0, 2.0, 2.0),
    }


def test_memory__cleared__starts_from_zero() -> None:
    metrics = InMemoryMetrics()
    metrics.counter("hits", 1)
    metrics.histogram("seconds", 1)
    metrics.clear()
    assert metrics.snapshot() == {}


def test_memory__many_threads__lose_no_count() -> None:
    metrics = InMemoryMetrics()

    def count_hits(worker: int) -> None:
        for _ in range(2000):
            metrics.counter("hits", 1, worker=str(worker % 2))
            metrics.histogram("seconds", 1)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(count_hits, range(8)))
    assert metrics.value("hits") == 16_000
    assert metrics.snapshot()["seconds"] == HistogramSummary(16_000, 16_000, 1, 1)


@pytest.mark.parametrize(
    ("max_size", "error"), [(0, ValueError), (-1, ValueError), (True, TypeError), ("9", TypeError)]
)
def test_bounded_set__invalid_size__is_named(max_size: int, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"label_sets_max must be .*, got"):
        BoundedSet(max_size)


def test_bounded_set__full__admits_only_its_items() -> None:
    bounded = BoundedSet(2)
    assert [bounded.admits(item) for item in "abcab"] == [True, True, False, True, True]


def test_import__manager_and_settings__loads_no_slow_or_optional_module() -> None:
    """Without ``site``, which may load such modules itself, for example to measure coverage."""
    code = f"""
import sys
sys.path = {sys.path!r}
import comporta, comporta.compat.limiters, comporta.limits.manager, comporta.metrics, comporta.settings
print(*sys.modules)
"""
    ran = subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True, capture_output=True, text=True)
    slow = {"asyncio", "logging", "opentelemetry", "prometheus_client", "redis", "tomllib"}
    assert slow.isdisjoint(ran.stdout.split())
