"""Which public name is described on which page of the API reference.

``tests/surface/test_website.py`` checks that every exported name, and every name that a page of the
documentation imports, has its place here.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator

API: dict[str, dict[str, str]] = {
    "Upstreams": {
        "comporta": "Upstream Upstreams CallReport last_call Outcome classify",
        "comporta.upstream.sync_upstream": "SyncUpstream",
        "comporta.headers": "requested_pause",
    },
    "Limits": {
        "comporta": (
            "LimitConfig LimitStrategy LimitKey BaseLimiter TokenBucketLimiter FixedWindowLimiter "
            "SlidingWindowLimiter LeakyBucketLimiter RedisLimiter Decision Stats LimitGroup ConcurrencyLimit "
            "Permit Degradation priority RateLimitManager RateLimitMonitor"
        ),
        "comporta.limits.sync_limiter": "SyncLimiter",
        "comporta.limits.group": "SyncLimitGroup",
        "comporta.limits.concurrency.limit": "SyncConcurrencyLimit",
        "comporta.limits.budgets.reservation": "Reservation",
        "comporta.limits.strategies.registry": "register_strategy",
        "comporta.limits.strategies.base": "Strategy",
        "comporta.limits.strategies.fixed_window": "FixedWindowStrategy",
    },
    "Circuit breakers": {
        "comporta": "CircuitBreaker BreakerConfig get_circuit_breaker",
        "comporta.breaker.breaker": "SyncBreaker",
    },
    "Retries": {
        "comporta": "Retry RetryAttempt current_attempt Budget RetryBudget",
        "comporta.retry": "Backoff Delays IDEMPOTENT_METHODS",
        "comporta.retry.retry": "SyncRetry",
    },
    "Cache": {
        "comporta": "HealthCache Cached Loaded Coverage calculate_backoff_minutes",
        "comporta.cache.sync_cache": "SyncHealthCache",
    },
    "Pipelines": {
        "comporta": "Pipeline Channel HierarchicalThrottle BatchWriter",
        "comporta.pipeline.run.pipeline": "SyncPipeline",
        "comporta.pipeline.channel": "SyncChannel",
        "comporta.pipeline.writer.writer": "SyncBatchWriter",
        "comporta.pipeline.throttle.throttle": "SyncThrottle",
        "comporta.pipeline.run.report": "Report",
        "comporta.pipeline.dead_letters": "DeadLetters",
        "comporta.pipeline.shared_run": "TableSource RunLine",
        "comporta.pipeline.throttle.degradation": "PartitionDegradation",
    },
    "Sinks": {
        "comporta.pipeline.sinks": (
            "Sink AsyncSink ResumableSink TransactionalSink SinkTransaction ResumePoint Row CsvSink "
            "JsonLinesSink SqliteSink PostgresSink XlsxSink SheetsSink GoogleAccount Spreadsheets Spreadsheet"
        ),
    },
    "Errors": {
        "comporta": (
            "ComportaError RefusedError LimitReachedError CircuitOpenError CacheUnavailableError "
            "CachePendingError ChannelClosedError StateError StateAuthError StatePermissionError "
            "StateFullError StateMovingError StateTimeoutError StateTypeError StateUnavailableError"
        ),
    },
    "Integrations": {
        "comporta.integrations.asgi": "RateLimitMiddleware RefusalMiddleware ClientAddress",
        "comporta.integrations.fastapi": "RateLimited RequestRefusedError add_problem_handlers",
        "comporta.integrations.wsgi": (
            "WsgiRateLimitMiddleware WsgiRefusalMiddleware WsgiClientAddress refusal_problem"
        ),
        "comporta.integrations.aiohttp_server": "add_rate_limit add_refusal_handler AiohttpClientAddress",
        "comporta.integrations.celery": "RefusalRetryTask refusal_countdown",
        "comporta.integrations.prometheus": "PrometheusMetrics",
        "comporta.integrations.otel": "OpenTelemetryMetrics trace_attempts trace_events",
        "comporta.compat.limiters": "TokenBucket RateLimiter",
    },
    "Metrics, events and fleet status": {
        "comporta.metrics": "Metrics InMemoryMetrics use_metrics current_metrics",
        "comporta.events": "Event listen latest_events publish",
        "comporta.fleet": (
            "FleetPublisher FleetCounters fleet_status_flow fleet_history_flow history_columns last_minute "
            "upstream_summary upstream_summary_flow"
        ),
    },
    "Settings and service": {
        "comporta.settings": (
            "load_settings explain Settings ExplainedSetting Origin SettingsReloader UpstreamSettings "
            "LimitSettings BreakerSettings RetrySettings DegradationSettings AddressesSettings "
            "ServiceSettings SearchSettings BatchSettings"
        ),
        "comporta.service.app": "create_app",
        "comporta.service.config": "ServiceConfig",
    },
    "Stores": {
        "comporta.stores": (
            "Store Operation Script State StateKey StateType RECORD GONE key_text register_scheme"
        ),
        "comporta.stores.registry": "open_store",
        "comporta.stores.memory": "MemoryStore",
        "comporta.clock": "Clock",
        "comporta.flow": "run run_async",
    },
    "Testing": {
        "comporta.testing": (
            "ManualClock SimulatedUpstream SimulatedLanguageModel FaultProxy Server Sentinels Cluster "
            "Certificate PostgresServer SheetsServer ProcurementServer SimulatedPortal StoreConformance "
            "find_servers find_postgres"
        ),
    },
    "Simulation": {
        "comporta.simulation": (
            "simulate FleetScenario Fault FleetHistory Request Call Moment AppliedReport check Failure "
            "run_scenario run_seed run_seeds draw_scenario shrink format_faults parse_faults"
        ),
        "comporta.simulation.invariants": "INVARIANTS",
    },
}
"""Title of a page: its modules and their names, in the order in which the page shows them."""


_FOREIGN = "object,BaseException,Exception,Protocol,tuple,dict,Enum"
"""Bases that are not ours: autodoc skips the members that a class inherits from them."""


def qualified_names() -> list[str]:
    """Return every name of the API reference, with its module."""
    return [
        f"{module}.{name}"
        for modules in API.values()
        for module, names in modules.items()
        for name in names.split()
    ]


def file_name(title: str) -> str:
    """Return the name of the file for a page, without its suffix."""
    return re.sub(r"\W+", "-", title.lower())


def page_text(title: str) -> str:
    """Return a page of the API reference in reStructuredText, with one directive per name."""
    heading = f"API: {title}"  # in search results, a guide may have the same title
    return "\n".join([heading, "=" * len(heading), "", *_directives(API[title])])


def _directives(modules: dict[str, str]) -> Iterator[str]:
    for module, names in modules.items():
        if len(modules) > 1 or module != "comporta":
            yield from (f"``{module}``", "-" * (len(module) + 4), "")
        for name in names.split():
            yield from _directive(module, name)


def _directive(module: str, name: str) -> Iterator[str]:
    """Yield the lines of one directive. A class whose base has one shows only what it adds."""
    member = getattr(importlib.import_module(module), name)
    if inspect.isclass(member):
        kind = "autoexception" if issubclass(member, BaseException) else "autoclass"
        described = {each.rpartition(".")[2] for each in qualified_names()}
        bases = {base.__name__ for base in member.__mro__[1:]}
        options = (
            [":show-inheritance:"] if bases & {*described, "Task"} else [f":inherited-members: {_FOREIGN}"]
        )
        if "Task" not in bases:  # celery.Task gives its subclasses dozens of attributes
            options.append(":members:")
    else:
        kind = "autofunction" if inspect.isroutine(member) else "autodata"
        options = [] if inspect.isroutine(member) else [":no-value:"]
    yield from (f".. {kind}:: {module}.{name}", *(f"   {option}" for option in options), "")
