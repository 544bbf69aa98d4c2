"""A metrics sink for OpenTelemetry, and span events for comporta's events and for each attempt of a call.

::

    from comporta.integrations.otel import OpenTelemetryMetrics
    from comporta.metrics import use_metrics

    use_metrics(OpenTelemetryMetrics())

It uses the OpenTelemetry API only; the SDK that the program configures decides where the metrics go.
:func:`trace_events` adds comporta's events to the current span, and :func:`trace_attempts` the attempts of
calls through an upstream or a ``Retry``.
"""

from __future__ import annotations

from collections.abc import Callable

from comporta.events import Event, listen
from comporta.metrics import DURATION_BUCKETS, LABEL_SETS_MAX, OTHER, BoundedSet
from comporta.retry.attempts import RetryAttempt, listen_to_attempts

try:
    from opentelemetry.metrics import Counter, Histogram, Meter, get_meter
    from opentelemetry.trace import get_current_span
except ImportError as error:
    raise ImportError(
        "comporta.integrations.otel needs the package opentelemetry-api: pip install 'comporta[otel]'"
    ) from error


class OpenTelemetryMetrics:
    """A sink that passes metrics to an OpenTelemetry meter; by default the meter named ``comporta``.

    Labels become attributes. After ``label_sets_max`` label sets, every attribute of a new one is ``other``.
    """

    def __init__(self, meter: Meter | None = None, *, label_sets_max: int = LABEL_SETS_MAX) -> None:
        self._meter = get_meter("comporta") if meter is None else meter
        self._label_sets = BoundedSet(label_sets_max)
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}

    def counter(self, name: str, value: float, /, **labels: str) -> None:
        """Add ``value`` to a counter."""
        counter = self._counters.get(name)
        if counter is None:
            counter = self._counters[name] = self._meter.create_counter(name)
        counter.add(value, self._attributes(name, labels))

    def histogram(self, name: str, value: float, /, **labels: str) -> None:
        """Record ``value`` in a histogram."""
        histogram = self._histograms.get(name)
        if histogram is None:
            histogram = self._histograms[name] = self._meter.create_histogram(
                name,
                unit="s" if name.endswith("_duration") else "",
                explicit_bucket_boundaries_advisory=DURATION_BUCKETS,
            )
        histogram.record(value, self._attributes(name, labels))

    def _attributes(self, name: str, labels: dict[str, str]) -> dict[str, str]:
        if self._label_sets.admits((name, *labels.items())):
            return labels
        return dict.fromkeys(labels, OTHER)


def trace_events() -> Callable[[], None]:
    """Add every event to the span that is current when it happens, and return a function that stops this."""
    return listen(_add_span_event)


def trace_attempts() -> Callable[[], None]:
    """Add an event to the current span for every attempt, and return a function that stops this.

    The event ``comporta.attempt`` has the attributes ``source``, ``outcome``, ``reason``, ``retry`` (0 for
    the first attempt), ``wait_seconds`` and, if another attempt follows, ``next_delay_seconds``.
    """
    return listen_to_attempts(_add_attempt_event)


def _add_attempt_event(attempt: RetryAttempt) -> None:
    span = get_current_span()
    if not span.is_recording():
        return
    attributes: dict[str, str | int | float] = {
        "source": attempt.source,
        "outcome": attempt.outcome,
        "reason": attempt.reason,
        "retry": attempt.number - 1,
        "wait_seconds": attempt.waited,
    }
    if attempt.next_delay is not None:
        attributes["next_delay_seconds"] = attempt.next_delay
    span.add_event("comporta.attempt", attributes)


def _add_span_event(event: Event) -> None:
    attributes = {"source": event.source, "text": event.text, "severity": event.severity}
    get_current_span().add_event(f"comporta.{event.kind}", attributes)
