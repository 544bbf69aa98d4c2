"""The OpenTelemetry sink, read back through the real SDK."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, Metric, NumberDataPoint
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer

from comporta import BreakerConfig, CircuitOpenError, FixedWindowLimiter, Retry, Upstream
from comporta.events import publish
from comporta.integrations.otel import OpenTelemetryMetrics, trace_attempts, trace_events
from comporta.limits.manager import RateLimitManager
from comporta.limits.monitor import RateLimitMonitor
from comporta.metrics import DURATION_BUCKETS
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock


class Telemetry:
    """An SDK and the metrics that it would export."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader], shutdown_on_exit=False)
        self.meter = self.provider.get_meter("test")

    def metrics(self) -> dict[str, Metric]:
        data = self.reader.get_metrics_data()
        assert data is not None
        [resource] = data.resource_metrics
        [scope] = resource.scope_metrics
        return {metric.name: metric for metric in scope.metrics}

    def points(self, name: str) -> list[tuple[dict[str, Any], Any]]:
        points = []
        for point in self.metrics()[name].data.data_points:
            if isinstance(point, NumberDataPoint):
                points.append((dict(point.attributes or {}), point.value))
            else:
                assert isinstance(point, HistogramDataPoint)
                points.append((dict(point.attributes or {}), point.sum))
        return points


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    made = Telemetry()
    yield made
    made.provider.shutdown()


def test_otel__manager_and_monitor__export_all_metrics(telemetry: Telemetry) -> None:
    sink = OpenTelemetryMetrics(telemetry.meter)
    manager = RateLimitManager(sink)
    manager.register_limiter("window", FixedWindowLimiter("2/hour"))

    async def use() -> None:
        for _ in range(3):
            await manager.acquire("test:a", "window")
        with pytest.raises(ValueError, match="cost"):
            await manager.acquire("test:a", "window", cost=3)
        await RateLimitMonitor(sink).record_operation("token", "test", True, 0.25, region="eu")

    asyncio.run(use())
    window = {"limiter": "window", "namespace": "test"}
    token = {"limiter": "token", "namespace": "test", "region": "eu"}
    exported = {
        name: telemetry.points(f"rate_limit_{name}")
        for name in ("requests", "exceeded", "errors", "operations")
    }
    assert exported == {
        "requests": [({**window, "allowed": "true"}, 2), ({**window, "allowed": "false"}, 1)],
        "exceeded": [(window, 1)],
        "errors": [(window, 1)],
        "operations": [({**token, "allowed": "true"}, 1)],
    }
    duration = telemetry.metrics()["rate_limit_duration"]
    assert duration.unit == "s"
    points = {point.attributes["limiter"]: point for point in duration.data.data_points if point.attributes}
    slow = points["token"]
    assert isinstance(slow, HistogramDataPoint)
    assert (slow.count, slow.sum, tuple(slow.explicit_bounds)) == (1, 0.25, DURATION_BUCKETS)


def test_otel__too_many_label_sets__are_counted_as_other(telemetry: Telemetry) -> None:
    metrics = OpenTelemetryMetrics(telemetry.meter, label_sets_max=2)
    for number in range(100):
        metrics.counter("hits", 1, page=str(number))
        metrics.histogram("sizes", 1, page=str(number))
    metrics.counter("hits", 1, page="0")
    assert telemetry.points("hits") == [({"page": "0"}, 2), ({"page": "other"}, 99)]
    assert telemetry.points("sizes") == [({"page": "0"}, 1), ({"page": "other"}, 99)]
    assert telemetry.metrics()["sizes"].unit == ""


def test_otel__no_meter_given__uses_the_global_meter_provider() -> None:
    code = """
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader]))
from comporta.events import publish
from comporta.integrations.otel import OpenTelemetryMetrics, trace_attempts, trace_events
OpenTelemetryMetrics().counter("hits", 3)
[scope] = reader.get_metrics_data().resource_metrics[0].scope_metrics
print(scope.scope.name, scope.metrics[0].data.data_points[0].value)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "comporta 3\n"


def test_import__library_missing__says_what_to_install() -> None:
    code = "import sys; sys.modules['opentelemetry.metrics'] = None\nimport comporta.integrations.otel"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "ImportError: comporta.integrations.otel needs the package opentelemetry-api" in ran.stderr
    assert "pip install 'comporta[otel]'" in ran.stderr


def test_otel__events__are_added_to_the_current_span() -> None:
    stop = trace_events()
    with TracerProvider(shutdown_on_exit=False).get_tracer("test").start_as_current_span("call") as span:
        publish("breaker_opened", "pncp", "open for 30.0 s: TimeoutError")
        stop()
        publish("breaker_closed", "pncp", "closed")
    [event] = span.events  # type: ignore[attr-defined]  # of the SDK's spans
    assert event.name == "comporta.breaker_opened"
    assert event.attributes["source"] == "pncp"


class Traces:
    """An SDK and the spans that it would export."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer: Tracer = self.provider.get_tracer("test")

    def attempts(self) -> list[dict[str, Any]]:
        """Return the attributes of all attempts, of the spans that have ended."""
        events = [event for span in self.exporter.get_finished_spans() for event in span.events]
        assert {event.name for event in events} == {"comporta.attempt"}
        return [dict(event.attributes or {}) for event in events]


@pytest.fixture
def traces() -> Iterator[Traces]:
    made, stop = Traces(), trace_attempts()
    yield made
    stop()
    made.provider.shutdown()


def failing_twice() -> Callable[[], str]:
    errors = [OSError("no route"), OSError("no route")]

    def call() -> str:
        if errors:
            raise errors.pop()
        return "a page"

    return call


def test_otel__attempts_of_an_upstream__are_span_events(
    traces: Traces, clock: ManualClock, runner: asyncio.Runner | None
) -> None:
    retry = Retry(draw=lambda low, high: low)
    upstream = Upstream("pncp", "10/s", retry=retry, state=MemoryStore(clock))
    call = failing_twice()

    async def call_async() -> str:
        return call()

    async def main() -> str:
        with traces.tracer.start_as_current_span("search"):
            return await upstream.call(call_async)

    if runner is None:
        with traces.tracer.start_as_current_span("search"):
            assert upstream.sync.call(call) == "a page"
    else:
        assert runner.run(main()) == "a page"
    failure = {"source": "pncp", "outcome": "failure", "reason": "OSError: no route"}
    assert traces.attempts() == [
        {**failure, "retry": 0, "wait_seconds": 0, "next_delay_seconds": 2},
        {**failure, "retry": 1, "wait_seconds": 2, "next_delay_seconds": 4},
        {"source": "pncp", "outcome": "ok", "reason": "", "retry": 2, "wait_seconds": 4},
    ]


def test_otel__attempts_of_a_retry__are_span_events(traces: Traces, clock: ManualClock) -> None:
    retry = Retry(draw=lambda low, high: low, clock=clock)
    with traces.tracer.start_as_current_span("search"):
        retry.sync.call(failing_twice())
    assert [(each["outcome"], each["retry"], each["wait_seconds"]) for each in traces.attempts()] == [
        ("failure", 0, 0),
        ("failure", 1, 2),
        ("ok", 2, 4),
    ]


def test_otel__attempt_that_is_refused__is_a_span_event_with_its_reason(
    traces: Traces, clock: ManualClock
) -> None:
    upstream = Upstream("pncp", "10/s", breaker=BreakerConfig(1), retry=False, state=MemoryStore(clock))
    with traces.tracer.start_as_current_span("search"):
        with pytest.raises(OSError, match="no route"):
            upstream.sync.call(failing_twice())
        with pytest.raises(CircuitOpenError):
            upstream.sync.call(failing_twice())
    assert [(each["outcome"], each["reason"]) for each in traces.attempts()] == [
        ("failure", "OSError: no route"),
        ("open", "OSError: no route"),
    ]


def test_otel__no_recording_span__adds_nothing(traces: Traces) -> None:
    Upstream("pncp", "10/s", state="memory://").sync.call(lambda: "a page")
    assert traces.exporter.get_finished_spans() == ()
