"""The schemas of what operators get: upstreams, admin routes and the dashboard. Data only.

Times are Unix seconds.
"""

from __future__ import annotations

from typing import Final

from comporta.service.openapi.schema_types import (
    BOOLEAN,
    COVERAGE,
    FALLBACK,
    FORCED,
    INTEGER,
    INTEGER_OR_NULL,
    NUMBER,
    NUMBER_OR_NULL,
    STATUS,
    STRING,
    STRINGS,
    TEXT_OR_NULL,
    Schema,
    array,
    enum,
    event,
    nullable,
    object_of,
    record,
    reference,
)

# -- upstreams: for operators and the dashboard

_LIMIT_STATS = record(
    {
        "tokens_available": INTEGER,
        "requests_last_minute": INTEGER,
        "limit": INTEGER,
        "paused": NUMBER,
        "original": INTEGER,
        "fallback": FALLBACK,
    }
)
_UPSTREAMS: Final[Schema] = {
    "BreakerState": record(
        {
            "failures": INTEGER,
            "degraded": BOOLEAN,
            "degraded_until": NUMBER_OR_NULL,
            "phase": enum("closed", "open", "half_open", "ramp"),
            "reason": STRING,
            "since": NUMBER_OR_NULL,
            "probes": array(record({"owner": STRING})),
            "forced": FORCED,
            "share": NUMBER,
            "fallback": FALLBACK,
            "cooldown_seconds": NUMBER_OR_NULL,
            "window": nullable(
                record({"calls": INTEGER, "slow": INTEGER, "failure_ratio": NUMBER, "slow_ratio": NUMBER})
            ),
            "worker_phase": TEXT_OR_NULL,
        }
    ),
    "UpstreamState": record(
        {
            "name": STRING,
            "breaker": nullable(reference("BreakerState")),
            "limiter": _LIMIT_STATS,
            "limit": NUMBER,
            "original": NUMBER,
            "calls_in_flight": INTEGER_OR_NULL,
            "retries_last_minute": INTEGER_OR_NULL,
            "fallback": FALLBACK,
            "holders": nullable(object_of(INTEGER)),
            "configured": NUMBER_OR_NULL,
            "shadow": STRINGS,
            "limits": array(
                record({"name": STRING, "stats": _LIMIT_STATS, "limit": NUMBER, "original": NUMBER})
            ),
            "strategy": STRING,
            "limit_text": STRING,
            "configured_text": STRING,
        },
        {"limit_before": STRING},
    ),
    "UpstreamSummary": record(
        {
            "name": STRING,
            "phase": enum("closed", "open", "half-open", None),
            "reason": STRING,
            "since": NUMBER_OR_NULL,
            "until": NUMBER_OR_NULL,
            "forced": FORCED,
            "failures": INTEGER,
            "threshold": INTEGER_OR_NULL,
            "share": NUMBER,
            "probes": STRINGS,
            "tokens": INTEGER_OR_NULL,
            "capacity": INTEGER_OR_NULL,
            "limit": NUMBER,
            "original": NUMBER,
            "configured": NUMBER_OR_NULL,
            "limit_text": STRING,
            "configured_text": STRING,
            "paused": NUMBER,
            "in_flight": INTEGER_OR_NULL,
            "in_flight_max": INTEGER_OR_NULL,
            "holders": object_of(INTEGER),
            "in_words": STRING,
            "shadow": STRINGS,
            "limits": array(record({"name": STRING})),
            "minute": object_of(NUMBER_OR_NULL),
        },
        {
            "burst": INTEGER_OR_NULL,
            "strategy": STRING,
            "waiting": object_of(INTEGER),
        },
    ),
    "ChangedUpstream": {"anyOf": [reference("UpstreamState"), reference("UpstreamSummary")]},
    "UpstreamList": record({"upstreams": array(reference("UpstreamSummary"))}),
}

# -- other admin routes

_KEY = {
    "user_id": STRING,
    "params_hash": STRING,
    "total_results": INTEGER,
    "has_value": BOOLEAN,
    "fetched_at": NUMBER,
    "last_success_at": NUMBER_OR_NULL,
    "last_attempt_at": NUMBER_OR_NULL,
    "fail_streak": INTEGER_OR_NULL,
    "degraded_until": NUMBER_OR_NULL,
    "fetch_duration_ms": INTEGER_OR_NULL,
    "priority": TEXT_OR_NULL,
    "access_count": INTEGER_OR_NULL,
    "last_accessed_at": NUMBER_OR_NULL,
    "now": NUMBER,
}
_ADMIN: Final[Schema] = {
    "CacheKeyList": record({"keys": array(record({**_KEY, "due_at": NUMBER_OR_NULL}))}),
    "CacheKey": record(
        {
            **_KEY,
            "sources": STRINGS,
            "search_params": object_of({}),
            "coverage": nullable(record(COVERAGE)),
            "created_at": NUMBER_OR_NULL,
            "size_bytes": INTEGER,
        }
    ),
    "MarkedKeys": record({"marked": INTEGER}),
    "RemovedKeys": record({"removed": INTEGER}),
    "RetriedBackfill": record({"job_id": STRING, "result": BOOLEAN}),
    "JobList": record({"jobs": array(reference("JobOverview"))}),
    "ActionList": record(
        {
            "actions": array(
                record(
                    {
                        "id": INTEGER,
                        "at": NUMBER,
                        **dict.fromkeys(
                            ("action", "target", "detail", "client", "worker", "outcome"), STRING
                        ),
                    }
                )
            )
        }
    ),
}

# -- the dashboard

_SERIES = object_of(array({"type": ["number", "null", "array", "string"]}))
_DASHBOARD: Final[Schema] = {
    "FleetEvent": record(
        {
            "at": NUMBER,
            "kind": STRING,
            "source": STRING,
            "text": STRING,
            "severity": enum("info", "warning", "error"),
            "worker": STRING,
            "workers": INTEGER,
        }
    ),
    "FleetWorker": record(
        {
            "name": STRING,
            "host": STRING,
            "pid": INTEGER,
            "started": NUMBER,
            "last_heartbeat": NUMBER,
            "probes": STRINGS,
            "permits": object_of(INTEGER),
            "leases": object_of(INTEGER),
            "fetches": INTEGER_OR_NULL,
            "jobs": INTEGER_OR_NULL,
        }
    ),
    "CacheSummary": record(
        {
            "hit_rate": NUMBER,
            "stale_served_rate": NUMBER,
            "entries": INTEGER,
            "degraded_keys_count": INTEGER,
            "avg_fail_streak": NUMBER,
            "fetching": INTEGER,
            "minute": nullable(object_of(NUMBER_OR_NULL)),
            "degraded": array(
                record(
                    {
                        "key": STRING,
                        "failures": INTEGER,
                        "next_retry": NUMBER,
                        "reason": STRING,
                        "coverage": TEXT_OR_NULL,
                    }
                )
            ),
            "coverage": array(record({"key": STRING, "of": STRING, "missing": STRINGS})),
        }
    ),
    "Dashboard": record(
        {
            "at": NUMBER,
            "as_of": NUMBER_OR_NULL,
            "worker": STRING,
            "version": STRING,
            "status": STATUS,
            "reasons": STRINGS,
            "state": record({"engine": STRING, "fallback": FALLBACK}),
            "database": record({"status": STATUS, "engine": STRING, "reason": TEXT_OR_NULL}),
            "upstreams": array(reference("UpstreamSummary")),
            "workers": nullable(array(reference("FleetWorker"))),
            "cache": nullable(reference("CacheSummary")),
            "jobs": nullable(array(reference("JobOverview"))),
            "events": nullable(array(reference("FleetEvent"))),
            "story": nullable(object_of({})),
            "demo": nullable(object_of({})),
            "admin": BOOLEAN,
            "recent": nullable(object_of(_SERIES)),
        }
    ),
    "DashboardHistory": record(
        {"slot_seconds": NUMBER, "at": NUMBER, "series": object_of(_SERIES), "reasons": STRINGS}
    ),
}

OPERATOR_SCHEMAS: Final[Schema] = {**_UPSTREAMS, **_ADMIN, **_DASHBOARD}

DASHBOARD_EVENT: Final[Schema] = {
    "oneOf": [
        event("history", reference("DashboardHistory")),
        event("document", reference("Dashboard")),
        event("changes", object_of({})),
        event("end", record({})),
    ]
}
"""The events of the dashboard's stream."""
