"""Where figures go, and that they stay bounded."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from comporta.metrics import Bounded, InMemoryMetrics, Summary, current_metrics, use_metrics


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    previous = use_metrics(None)
    yield
    use_metrics(previous)


def test_current_metrics__nobody_set_any__is_none() -> None:
    assert current_metrics() is None


def test_use_metrics__set_and_set_back__returns_the_one_before() -> None:
    first, second = InMemoryMetrics(), InMemoryMetrics()
    assert use_metrics(first) is None
    assert current_metrics() is first
    assert use_metrics(second) is first
    assert use_metrics(None) is second
    assert current_metrics() is None


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


def test_memory__histogram__keeps_count_total_least_and_most() -> None:
    metrics = InMemoryMetrics()
    for value in (3.0, 1.0, 2.0):
        metrics.histogram("seconds", value)
    [summary] = metrics.snapshot().values()
    assert summary == Summary(3, 6.0, 1.0, 3.0)
    assert isinstance(summary, Summary)
    assert summary.mean == 2.0


def test_memory__labels_called_like_parameters__are_labels() -> None:
    metrics = InMemoryMetrics()
    metrics.counter("hits", 1, name="n", value="v", self="s")
    metrics.histogram("seconds", 1, name="n", value="v", self="s")
    assert list(metrics.snapshot()) == [
        'hits{name="n",self="s",value="v"}',
        'seconds{name="n",self="s",value="v"}',
    ]


def test_memory__snapshot__writes_awkward_values_on_one_line() -> None:
    metrics = InMemoryMetrics()
    metrics.counter("hits", 1, page='a"b\\c\nd')
    assert list(metrics.snapshot()) == [r'hits{page="a\"b\\c\nd"}']


def test_memory__more_label_sets_than_allowed__are_folded_without_losing_any() -> None:
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
        'seconds{page="a"}': Summary(1, 1.0, 1.0, 1.0),
        'seconds{other="true"}': Summary(1000, 2000.0, 2.0, 2.0),
    }


def test_memory__cleared__begins_from_nothing() -> None:
    metrics = InMemoryMetrics()
    metrics.counter("hits", 1)
    metrics.histogram("seconds", 1)
    metrics.clear()
    assert metrics.snapshot() == {}


def test_memory__many_threads__lose_no_count() -> None:
    metrics = InMemoryMetrics()

    def count(worker: int) -> None:
        for _ in range(2000):
            metrics.counter("hits", 1, worker=str(worker % 2))
            metrics.histogram("seconds", 1)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(count, range(8)))
    assert metrics.value("hits") == 16_000
    assert metrics.snapshot()["seconds"] == Summary(16_000, 16_000, 1, 1)


@pytest.mark.parametrize(
    ("most", "error"), [(0, ValueError), (-1, ValueError), (True, TypeError), ("9", TypeError)]
)
def test_bounded__a_bound_that_is_none__is_refused_by_name(most: int, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"label_sets_max must be .*, got"):
        Bounded(most)


def test_bounded__full__admits_only_what_is_in() -> None:
    bounded = Bounded(2)
    assert [bounded.admits(item) for item in "abcab"] == [True, True, False, True, True]


def test_import__manager_and_settings__loads_nothing_that_is_slow_or_an_extra() -> None:
    """Without ``site``, which may load such things itself (to measure coverage, say)."""
    code = f"""
import sys
sys.path = {sys.path!r}
import comporta, comporta.legacy, comporta.limits.manager, comporta.metrics, comporta.settings
print(*sys.modules)
"""
    ran = subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True, capture_output=True, text=True)
    slow = {"asyncio", "logging", "opentelemetry", "prometheus_client", "redis", "tomllib"}
    assert slow.isdisjoint(ran.stdout.split())
