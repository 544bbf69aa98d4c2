"""Prometheus metrics of the service: what workers counted, and the current state that they share.

With several workers every page has the counters of all of them: ``comporta serve`` gives them a common
directory (``PROMETHEUS_MULTIPROC_DIR``, see prometheus-client). Shared state is read from the store for each
page and is the same at every worker.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector

from comporta.errors import DatabaseError
from comporta.integrations.prometheus import PrometheusMetrics
from comporta.service.config import MULTIPROCESS_DIR_VARIABLE
from comporta.service.health import read_cache_health

if TYPE_CHECKING:
    from comporta.service.container import Container


class ServiceMetrics:
    """The counters of this worker, or of all workers that share a directory; ``sink`` receives them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.sink = PrometheusMetrics(self.registry)
        self._multiprocess = bool(os.environ.get(MULTIPROCESS_DIR_VARIABLE))
        self._executor = ThreadPoolExecutor(1, "comporta-metrics")

    async def render(self, container: Container) -> bytes:
        """Return the metrics page; a separate thread reads the files of other workers."""
        shared = _StaticCollector(
            [*_health_metrics(await container.health.get(container)), *await _cache_metrics(container)]
        )
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._encode, shared)

    def close(self) -> None:
        """End the thread."""
        self._executor.shutdown(wait=False)

    def _encode(self, shared: _StaticCollector) -> bytes:
        counted = self.registry
        if self._multiprocess:
            counted = CollectorRegistry()
            MultiProcessCollector(counted)  # type: ignore[no-untyped-call]
        now = CollectorRegistry()
        now.register(shared)
        return generate_latest(counted) + generate_latest(now)


class _StaticCollector:
    """A Prometheus collector of metrics that are already computed."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        """Return the metrics."""
        return self._metrics


def _gauge(name: str, help_text: str, values: dict[str, Any], label: str = "") -> Metric:
    family = GaugeMetricFamily(name, help_text, labels=[label] if label else [])
    for label_value, value in values.items():
        family.add_metric([label_value] if label else [], float(value or 0))
    return family


def _health_metrics(health: dict[str, Any]) -> Iterator[Metric]:
    sources = health["sources"]
    breakers = {name: health[f"{name}_circuit_breaker"] for name in sources}
    limits = health["rate_limiter"]["sources"]

    def column(rows: dict[str, Any], field: str) -> dict[str, Any]:
        return {name: row[field] for name, row in rows.items()}

    for name, help_text, rows, field in (
        ("comporta_breaker_failures", "Consecutive failures, fleet-wide.", breakers, "failures"),
        ("comporta_breaker_open", "1 while the circuit is open.", breakers, "degraded"),
        ("comporta_limit_tokens", "Tokens available now.", limits, "tokens_available"),
        (
            "comporta_limit_requests_last_minute",
            "Requests granted in the last minute.",
            limits,
            "requests_last_minute",
        ),
        ("comporta_limit_per_second", "The effective limit.", sources, "limit_per_second"),
        ("comporta_limit_paused_seconds", "Remaining seconds of a pause.", limits, "paused_seconds"),
        ("comporta_calls_in_flight", "Calls in flight, fleet-wide.", sources, "calls_in_flight"),
    ):
        yield _gauge(name, help_text, column(rows, field), "source")
    yield _gauge("comporta_workers", "Live workers.", {"": health["workers"]["alive"]})
    in_fallback = health["state"]["fallback"] is not None
    yield _gauge("comporta_state_fallback", "1 while this worker is in fallback.", {"": in_fallback})
    is_down = health["database"]["status"] != "ok"
    yield _gauge("comporta_database_down", "1 while the database is unreachable.", {"": is_down})


async def _cache_metrics(container: Container) -> list[Metric]:
    """Return the metrics of the cache; none while its table is unreachable."""
    try:
        health = await read_cache_health(container)
    except DatabaseError:
        return []
    return [
        _gauge("comporta_cache_entries", "Cached rows by priority.", health["priorities"], "priority"),
        _gauge("comporta_cache_ages", "Cached rows by freshness.", health["ages"], "age"),
        _gauge("comporta_cache_degraded_keys", "Rows in backoff.", {"": health["degraded_keys_count"]}),
        _gauge(
            "comporta_cache_fail_streak", "Average consecutive failures.", {"": health["avg_fail_streak"]}
        ),
        _gauge("comporta_cache_fetching", "Fetches in progress, fleet-wide.", {"": health["fetching"]}),
    ]
