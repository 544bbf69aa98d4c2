"""Figures for Prometheus, through its own client library.

::

    from comporta.integrations.prometheus import PrometheusMetrics
    from comporta.metrics import use_metrics

    use_metrics(PrometheusMetrics())

A counter is shown with ``_total`` after its name, as Prometheus wants it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from threading import Lock
from typing import NamedTuple
from weakref import WeakKeyDictionary

from comporta.metrics import DURATION_BUCKETS, LABEL_SETS_MAX, OTHER, Bounded

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
except ImportError as error:
    raise ImportError(
        "comporta.integrations.prometheus needs the package prometheus-client: "
        "pip install 'comporta[prometheus]'"
    ) from error

Kind = type[Counter] | type[Histogram]
Add = Callable[[float], None]


class Family(NamedTuple):
    """A metric in a registry, and the label names it was made with."""

    metric: Counter | Histogram
    labels: tuple[str, ...]


_HELP = {
    "rate_limit_requests": "Decisions asked of a rate limiter.",
    "rate_limit_exceeded": "Requests that a rate limiter refused.",
    "rate_limit_errors": "Requests on which a rate limiter raised instead of answering.",
    "rate_limit_duration": "Seconds until a rate limiter answered, waiting included.",
    "rate_limit_operations": "Operations recorded with RateLimitMonitor.",
}

_lock = Lock()
_families: WeakKeyDictionary[CollectorRegistry, dict[str, Family]] = WeakKeyDictionary()


class PrometheusMetrics:
    """A sink that keeps its figures in a Prometheus registry (left out: the library's own).

    Prometheus fixes the label names of a metric when it is made: here they are those of the first call and
    ``extra_labels``. A label that comes later is dropped, and the log says so once; one that is missing is
    empty. After ``label_sets_max`` label sets, new ones are added up with ``other`` as every label. Several
    sinks on one registry add to the same figures.
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
        self._known = Bounded(label_sets_max)
        self._adds: dict[tuple[object, ...], Add] = {}
        self._warned: set[str] = set()

    def counter(self, name: str, value: float, /, **labels: str) -> None:
        """Add ``value`` to a counter."""
        series = (Counter, name, *labels.items())
        add = self._adds.get(series) or self._add(series, Counter, name, labels)
        add(value)

    def histogram(self, name: str, value: float, /, **labels: str) -> None:
        """Note one more ``value`` of a distribution."""
        series = (Histogram, name, *labels.items())
        add = self._adds.get(series) or self._add(series, Histogram, name, labels)
        add(value)

    def _add(self, series: tuple[object, ...], kind: Kind, name: str, labels: dict[str, str]) -> Add:
        """Find, or make, what a figure is added to; the next call with the same labels finds it at once."""
        metric, names = self._family(kind, name, labels)
        dropped = set(labels).difference(names)
        if dropped and name not in self._warned:
            self._warned.add(name)
            logging.getLogger(__name__).warning(
                "Metric %s has the labels %s; dropped: %s. Name them in extra_labels.",
                name,
                ", ".join(names),
                ", ".join(sorted(dropped)),
            )
        known = self._known.admits(series)
        values = [labels.get(label, "") if known else OTHER for label in names]
        child = metric.labels(*values) if names else metric
        add: Add = child.inc if isinstance(child, Counter) else child.observe
        if known:
            self._adds[series] = add
        return add

    def _family(self, kind: Kind, name: str, labels: dict[str, str]) -> Family:
        with _lock:
            families = _families.setdefault(self._registry, {})
            family = families.get(name)
            if family is None:
                family = families[name] = self._new_family(kind, name, labels)
        if not isinstance(family.metric, kind):
            raise ValueError(f"{name} must stay a {type(family.metric).__name__}, got a {kind.__name__}")
        return family

    def _new_family(self, kind: Kind, name: str, labels: dict[str, str]) -> Family:
        names = tuple(sorted({*labels, *self._extra_labels}))
        about = _HELP.get(name, f"{name}, as counted by comporta.")
        if kind is Counter:
            return Family(Counter(name, about, names, registry=self._registry), names)
        return Family(Histogram(name, about, names, registry=self._registry, buckets=self._buckets), names)
