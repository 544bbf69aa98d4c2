"""The Prometheus sink, read back from what a scraper would see."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import weakref
from typing import Any

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, Counter, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from comporta import FixedWindowLimiter
from comporta.integrations.prometheus import PrometheusMetrics
from comporta.limits.manager import RateLimitManager
from comporta.limits.monitor import RateLimitMonitor
from comporta.metrics import DURATION_BUCKETS


def samples(registry: CollectorRegistry) -> dict[str, float]:
    """Return what a scraper reads, by name and label values, without creation times."""
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {
        ",".join([sample.name, *(sample.labels[label] for label in sorted(sample.labels))]): sample.value
        for family in families
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def test_prometheus__manager_and_monitor__export_all_metrics() -> None:
    registry = CollectorRegistry()
    manager = RateLimitManager(PrometheusMetrics(registry))
    manager.register_limiter("window", FixedWindowLimiter("2/hour"))

    async def use() -> None:
        for _ in range(3):
            await manager.acquire("test:a", "window")
        with pytest.raises(ValueError, match="cost"):
            await manager.acquire("test:a", "window", cost=3)
        await RateLimitMonitor(PrometheusMetrics(registry)).record_operation("token", "test", True, 0.02)

    asyncio.run(use())
    exported = samples(registry)
    assert exported["rate_limit_requests_total,true,window,test"] == 2
    assert exported["rate_limit_requests_total,false,window,test"] == 1
    assert exported["rate_limit_exceeded_total,window,test"] == 1
    assert exported["rate_limit_errors_total,window,test"] == 1
    assert exported["rate_limit_operations_total,true,token,test"] == 1
    assert exported["rate_limit_duration_count,window,test"] == 3
    assert exported["rate_limit_duration_sum,token,test"] == 0.02
    bounds = [
        key.split(",")[1]
        for key in exported
        if key.startswith("rate_limit_duration_bucket") and "token" in key
    ]
    assert [float(bound) for bound in bounds] == [*DURATION_BUCKETS, float("inf")]
    assert "# HELP rate_limit_exceeded_total Requests refused by a rate limiter." in (
        generate_latest(registry).decode()
    )


def test_prometheus__no_registry_given__uses_the_global_registry() -> None:
    PrometheusMetrics().counter("comporta_test_default_registry", 2)
    assert REGISTRY.get_sample_value("comporta_test_default_registry_total") == 2


def test_prometheus__late_label__is_dropped_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry = CollectorRegistry()
    metrics = PrometheusMetrics(registry)
    metrics.counter("hits", 1, page="a", user="x")
    for region in ("eu", "us", "eu"):
        metrics.counter("hits", 1, page="a", region=region)
    assert samples(registry) == {"hits_total,a,x": 1, "hits_total,a,": 3}
    assert caplog.messages == [
        "Metric hits has the labels page, user; dropped: region. Name them in extra_labels."
    ]


def test_prometheus__extra_labels__exist_from_the_start(caplog: pytest.LogCaptureFixture) -> None:
    registry = CollectorRegistry()
    metrics = PrometheusMetrics(registry, extra_labels=["region"])
    metrics.histogram("seconds", 0.5, page="a")
    metrics.histogram("seconds", 0.25, page="a", region="eu")
    exported = samples(registry)
    assert (exported["seconds_sum,a,"], exported["seconds_sum,a,eu"]) == (0.5, 0.25)
    assert not caplog.records


def test_prometheus__buckets_given__are_used() -> None:
    registry = CollectorRegistry()
    PrometheusMetrics(registry, buckets=[1, 2]).histogram("seconds", 1.5)
    assert samples(registry) == {
        "seconds_bucket,1.0": 0,
        "seconds_bucket,2.0": 1,
        "seconds_bucket,+Inf": 1,
        "seconds_count": 1,
        "seconds_sum": 1.5,
    }


def test_prometheus__too_many_label_sets__are_counted_as_other() -> None:
    registry = CollectorRegistry()
    metrics = PrometheusMetrics(registry, label_sets_max=2)
    for number in range(100):
        metrics.counter("hits", 1, page=str(number))
    metrics.counter("hits", 1, page="0")
    assert samples(registry) == {"hits_total,0": 2, "hits_total,1": 1, "hits_total,other": 98}


def test_prometheus__unusual_namespaces__can_be_scraped() -> None:
    registry = CollectorRegistry()
    manager = RateLimitManager(PrometheusMetrics(registry))
    manager.register_limiter("default", FixedWindowLimiter("100/hour"))

    async def use() -> None:
        for namespace in ('a"b', "new\nline", "nul\0", "\ud800", "é"):
            await manager.acquire(f"{namespace}:x")

    asyncio.run(use())
    requests = {key for key in samples(registry) if key.startswith("rate_limit_requests_total")}
    labels = ['a"b', r"new\nline", r"nul\x00", r"\ud800", "é"]
    assert requests == {f"rate_limit_requests_total,true,default,{label}" for label in labels}


def test_prometheus__name_already_registered__loses_the_metric_not_the_decision(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry = CollectorRegistry()
    Counter("rate_limit_requests", "not ours", registry=registry)
    manager = RateLimitManager(PrometheusMetrics(registry))
    manager.register_limiter("default", FixedWindowLimiter("1/hour"))
    assert asyncio.run(_acquire(manager))
    [line] = caplog.messages
    assert line.startswith("Metrics were lost: ")
    assert "Duplicated timeseries" in line
    assert "rate_limit_requests" in line


async def _acquire(manager: RateLimitManager) -> bool:
    return await manager.acquire("a")


def test_prometheus__counter_used_as_histogram__raises() -> None:
    metrics = PrometheusMetrics(CollectorRegistry())
    metrics.counter("hits", 1)
    with pytest.raises(ValueError, match="hits must stay a Counter, got a Histogram"):
        metrics.histogram("hits", 1)


def test_prometheus__registry_deleted__is_garbage_collected() -> None:
    registry = CollectorRegistry()
    PrometheusMetrics(registry).counter("hits", 1, page="a")
    gone = weakref.ref(registry)
    del registry
    gc.collect()
    assert gone() is None


def test_import__library_missing__says_what_to_install() -> None:
    code = "import sys; sys.modules['prometheus_client'] = None\nimport comporta.integrations.prometheus"
    ran: Any = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "ImportError: comporta.integrations.prometheus needs the package prometheus-client" in ran.stderr
    assert "pip install 'comporta[prometheus]'" in ran.stderr
