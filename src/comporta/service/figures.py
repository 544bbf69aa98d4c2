"""Figures of the service for Prometheus: what its workers counted, and how what they share stands now.

Served by several workers, the counters of all of them are on every page: ``comporta serve`` gives them a
folder for it (``PROMETHEUS_MULTIPROC_DIR``, see prometheus-client). What is shared is read from the state
when the page is asked for, and is the same wherever one asks.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector

from comporta.errors import DatabaseError
from comporta.integrations.prometheus import PrometheusMetrics
from comporta.service.health import cache_health_of, health_of

if TYPE_CHECKING:
    from comporta.service.parts import Parts

FOLDER_VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"


class Figures:
    """The counters of this worker, or of all that are served together; ``sink`` takes them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.sink = PrometheusMetrics(self.registry)
        self._together = bool(os.environ.get(FOLDER_VARIABLE))
        self._thread = ThreadPoolExecutor(1, "comporta-metrics")

    async def page(self, parts: Parts) -> bytes:
        """Return the page; files of other workers are read on a thread of its own."""
        shared = _Given([*_standing(await health_of(parts)), *await _of_cache(parts)])
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._written, shared)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False)

    def _written(self, shared: _Given) -> bytes:
        counted = self.registry
        if self._together:
            counted = CollectorRegistry()
            MultiProcessCollector(counted)  # type: ignore[no-untyped-call]
        now = CollectorRegistry()
        now.register(shared)
        return generate_latest(counted) + generate_latest(now)


class _Given:
    """A collector of what was found already."""

    def __init__(self, found: list[Metric]) -> None:
        self._found = found

    def collect(self) -> Iterable[Metric]:
        """Return it."""
        return self._found


def _gauge(name: str, about: str, values: dict[str, Any], label: str = "") -> Metric:
    family = GaugeMetricFamily(name, about, labels=[label] if label else [])
    for labelled, value in values.items():
        family.add_metric([labelled] if label else [], float(value or 0))
    return family


def _standing(health: dict[str, Any]) -> Iterator[Metric]:
    sources = health["sources"]
    breakers = {name: health[f"{name}_circuit_breaker"] for name in sources}
    limits = health["rate_limiter"]["sources"]

    def each(found: dict[str, Any], field: str) -> dict[str, Any]:
        return {name: one[field] for name, one in found.items()}

    for name, about, found, field in (
        ("comporta_breaker_failures", "Failures in a row, in the whole fleet.", breakers, "failures"),
        ("comporta_breaker_open", "1 while a circuit is open.", breakers, "degraded"),
        ("comporta_limit_tokens", "What a limit would grant at once.", limits, "tokens_available"),
        (
            "comporta_limit_requests_last_minute",
            "What a limit granted in a minute.",
            limits,
            "requests_last_minute",
        ),
        ("comporta_limit_per_second", "The limit that is in force.", sources, "limit_per_second"),
        ("comporta_limit_paused_seconds", "For how long nothing is granted.", limits, "paused_seconds"),
        ("comporta_calls_in_flight", "Calls under way, in the whole fleet.", sources, "calls_in_flight"),
    ):
        yield _gauge(name, about, each(found, field), "source")
    yield _gauge("comporta_workers", "Workers that share the state.", {"": health["workers"]["alive"]})
    alone = health["state"]["fallback"] is not None
    yield _gauge("comporta_state_fallback", "1 while this worker is on its own.", {"": alone})
    down = health["database"]["status"] != "ok"
    yield _gauge("comporta_database_down", "1 while the database is out of reach.", {"": down})


async def _of_cache(parts: Parts) -> list[Metric]:
    """Return how the cache fares; nothing while its table is out of reach."""
    try:
        found = await cache_health_of(parts)
    except DatabaseError:
        return []
    return [
        _gauge("comporta_cache_entries", "Rows of the cache.", found["priorities"], "priority"),
        _gauge("comporta_cache_ages", "Rows of the cache by freshness.", found["ages"], "age"),
        _gauge("comporta_cache_degraded_keys", "Rows left alone.", {"": found["degraded_keys_count"]}),
        _gauge("comporta_cache_fail_streak", "Average failures in a row.", {"": found["avg_fail_streak"]}),
        _gauge("comporta_cache_fetching", "Fetches under way, in the fleet.", {"": found["fetching"]}),
    ]
