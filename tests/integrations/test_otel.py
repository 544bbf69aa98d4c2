"""Figures through the OpenTelemetry API, read back from its real SDK."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, Metric, NumberDataPoint
from opentelemetry.sdk.trace import TracerProvider

from comporta import FixedWindowLimiter
from comporta.events import publish
from comporta.integrations.otel import OpenTelemetryMetrics, trace_events
from comporta.limits.manager import RateLimitManager
from comporta.limits.monitor import RateLimitMonitor
from comporta.metrics import DURATION_BUCKETS


class Telemetry:
    """An SDK of one's own, and what it would export."""

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
        found = []
        for point in self.metrics()[name].data.data_points:
            if isinstance(point, NumberDataPoint):
                found.append((dict(point.attributes or {}), point.value))
            else:
                assert isinstance(point, HistogramDataPoint)
                found.append((dict(point.attributes or {}), point.sum))
        return found


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    made = Telemetry()
    yield made
    made.provider.shutdown()


def test_otel__manager_and_monitor__export_the_figures_of_the_seed(telemetry: Telemetry) -> None:
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
    found = {
        name: telemetry.points(f"rate_limit_{name}")
        for name in ("requests", "exceeded", "errors", "operations")
    }
    assert found == {
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


def test_otel__more_label_sets_than_allowed__are_added_up_as_other(telemetry: Telemetry) -> None:
    metrics = OpenTelemetryMetrics(telemetry.meter, label_sets_max=2)
    for number in range(100):
        metrics.counter("hits", 1, page=str(number))
        metrics.histogram("sizes", 1, page=str(number))
    metrics.counter("hits", 1, page="0")
    assert telemetry.points("hits") == [({"page": "0"}, 2), ({"page": "other"}, 99)]
    assert telemetry.points("sizes") == [({"page": "0"}, 1), ({"page": "other"}, 99)]
    assert telemetry.metrics()["sizes"].unit == ""


def test_otel__no_meter_given__uses_the_programs_own() -> None:
    code = """
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader]))
from comporta.events import publish
from comporta.integrations.otel import OpenTelemetryMetrics, trace_events
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


def test_otel__events__are_in_the_span_in_which_they_happen() -> None:
    stop = trace_events()
    with TracerProvider(shutdown_on_exit=False).get_tracer("test").start_as_current_span("call") as span:
        publish("breaker_opened", "pncp", "open for 30.0 s: TimeoutError")
        stop()
        publish("breaker_closed", "pncp", "closed")
    [event] = span.events  # type: ignore[attr-defined]  # of the SDK's spans
    assert event.name == "comporta.breaker_opened"
    assert event.attributes["source"] == "pncp"
