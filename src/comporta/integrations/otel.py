"""Figures for OpenTelemetry, through its API alone: where they go is up to the SDK the program sets up.

::

    from comporta.integrations.otel import OpenTelemetryMetrics
    from comporta.metrics import use_metrics

    use_metrics(OpenTelemetryMetrics())

:func:`trace_events` writes what happens into the span in which it happens.
"""

from __future__ import annotations

from collections.abc import Callable

from comporta.events import Event, listen
from comporta.metrics import DURATION_BUCKETS, LABEL_SETS_MAX, OTHER, Bounded

try:
    from opentelemetry.metrics import Counter, Histogram, Meter, get_meter
    from opentelemetry.trace import get_current_span
except ImportError as error:
    raise ImportError(
        "comporta.integrations.otel needs the package opentelemetry-api: pip install 'comporta[otel]'"
    ) from error


class OpenTelemetryMetrics:
    """A sink that hands its figures to a meter (left out: the program's own, under the name comporta).

    Labels become attributes. After ``label_sets_max`` label sets, new ones are added up with ``other`` as
    every attribute.
    """

    def __init__(self, meter: Meter | None = None, *, label_sets_max: int = LABEL_SETS_MAX) -> None:
        self._meter = get_meter("comporta") if meter is None else meter
        self._known = Bounded(label_sets_max)
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}

    def counter(self, name: str, value: float, /, **labels: str) -> None:
        """Add ``value`` to a counter."""
        counter = self._counters.get(name)
        if counter is None:
            counter = self._counters[name] = self._meter.create_counter(name)
        counter.add(value, self._attributes(name, labels))

    def histogram(self, name: str, value: float, /, **labels: str) -> None:
        """Note one more ``value`` of a distribution."""
        histogram = self._histograms.get(name)
        if histogram is None:
            histogram = self._histograms[name] = self._meter.create_histogram(
                name,
                unit="s" if name.endswith("_duration") else "",
                explicit_bucket_boundaries_advisory=DURATION_BUCKETS,
            )
        histogram.record(value, self._attributes(name, labels))

    def _attributes(self, name: str, labels: dict[str, str]) -> dict[str, str]:
        if self._known.admits((name, *labels.items())):
            return labels
        return dict.fromkeys(labels, OTHER)


def trace_events() -> Callable[[], None]:
    """Add every event to the span that is current where it happens; returns how to stop that."""
    return listen(_traced)


def _traced(event: Event) -> None:
    about = {"source": event.source, "text": event.text, "severity": event.severity}
    get_current_span().add_event(f"comporta.{event.kind}", about)
