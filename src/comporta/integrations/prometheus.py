"""A metrics sink for Prometheus, based on the official client library.

::

    from comporta.integrations.prometheus import PrometheusMetrics
    from comporta.metrics import use_metrics

    use_metrics(PrometheusMetrics())

The client library appends ``_total`` to the names of counters.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from threading import Lock
from typing import NamedTuple
from weakref import WeakKeyDictionary

from comporta.metrics import DURATION_BUCKETS, LABEL_SETS_MAX, OTHER, BoundedSet

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
except ImportError as error:
    raise ImportError(
        "comporta.integrations.prometheus needs the package prometheus-client: "
        "pip install 'comporta[prometheus]'"
    ) from error

MetricType = type[Counter] | type[Histogram]
AddValue = Callable[[float], None]


class MetricFamily(NamedTuple):
    """A metric in a registry, and the label names it was created with."""

    metric: Counter | Histogram
    labels: tuple[str, ...]


_HELP = {
    "rate_limit_requests": "Decisions made by a rate limiter.",
    "rate_limit_exceeded": "Requests refused by a rate limiter.",
    "rate_limit_errors": "Requests for which a rate limiter raised an exception.",
    "rate_limit_duration": "Seconds a rate limiter took to answer, including the time spent waiting.",
    "rate_limit_operations": "Operations recorded with RateLimitMonitor.",
}

_lock = Lock()
_families: WeakKeyDictionary[CollectorRegistry, dict[str, MetricFamily]] = WeakKeyDictionary()


class PrometheusMetrics:
    """A sink that keeps metrics in a Prometheus registry; by default the library's global one.

    Prometheus fixes the label names of a metric when it is created: here they are the labels of the first
    call plus ``extra_labels``. A label that appears later is dropped, with one warning in the log; a label
    that is absent is empty. After ``label_sets_max`` label sets, every label of a new one is ``other``.
    Several sinks on one registry share its metrics.
    """

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        *,
        extra_labels: Sequence[str] = (),
        buckets: Sequence[float] = DURATION_BUCKETS,
        label_sets_max: int = LABEL_SETS_MAX,
    ) -> None:
        self._registry = REGISTRY if registry is None else registry
        self._extra_labels = tuple(extra_labels)
        self._buckets = tuple(buckets)
        self._label_sets = BoundedSet(label_sets_max)
        self._add_by_series: dict[tuple[object, ...], AddValue] = {}
        self._warned_names: set[str] = set()

    def counter(self, name: str, value: float, /, **labels: str) -> None:
        """Add ``value`` to a counter."""
        series = (Counter, name, *labels.items())
        add = self._add_by_series.get(series) or self._series_adder(series, Counter, name, labels)
        add(value)

    def histogram(self, name: str, value: float, /, **labels: str) -> None:
        """Record ``value`` in a histogram."""
        series = (Histogram, name, *labels.items())
        add = self._add_by_series.get(series) or self._series_adder(series, Histogram, name, labels)
        add(value)

    def _series_adder(
        self, series: tuple[object, ...], kind: MetricType, name: str, labels: dict[str, str]
    ) -> AddValue:
        """Return the method that adds a value to a series, and cache it for the next call."""
        metric, names = self._family(kind, name, labels)
        self._warn_if_dropped(name, names, labels)
        has_room = self._label_sets.admits(series)
        values = [labels.get(label, "") if has_room else OTHER for label in names]
        child = metric.labels(*values) if names else metric
        add: AddValue = child.inc if isinstance(child, Counter) else child.observe
        if has_room:
            self._add_by_series[series] = add
        return add

    def _warn_if_dropped(self, name: str, names: tuple[str, ...], labels: dict[str, str]) -> None:
        dropped = set(labels).difference(names)
        if dropped and name not in self._warned_names:
            self._warned_names.add(name)
            logging.getLogger(__name__).warning(
                "Metric %s has the labels %s; dropped: %s. Name them in extra_labels.",
                name,
                ", ".join(names),
                ", ".join(sorted(dropped)),
            )

    def _family(self, kind: MetricType, name: str, labels: dict[str, str]) -> MetricFamily:
        with _lock:
            families = _families.setdefault(self._registry, {})
            family = families.get(name)
            if family is None:
                family = families[name] = self._create_family(kind, name, labels)
        if not isinstance(family.metric, kind):
            raise ValueError(f"{name} must stay a {type(family.metric).__name__}, got a {kind.__name__}")
        return family

    def _create_family(self, kind: MetricType, name: str, labels: dict[str, str]) -> MetricFamily:
        names = tuple(sorted({*labels, *self._extra_labels}))
        about = _HELP.get(name, f"{name}, as counted by comporta.")
        if kind is Counter:
            return MetricFamily(Counter(name, about, names, registry=self._registry), names)
        histogram = Histogram(name, about, names, registry=self._registry, buckets=self._buckets)
        return MetricFamily(histogram, names)
