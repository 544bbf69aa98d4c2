"""The schemas of what clients get: errors, searches, health and batches. Data only.

Times are Unix seconds where they are numbers, and ISO 8601 where they are text.
"""

from __future__ import annotations

from typing import Final

from comporta.service.openapi.schema_types import (
    BACKFILL,
    BOOLEAN,
    COUNTS,
    COVERAGE,
    DATE_TIME,
    DATE_TIME_OR_NULL,
    FALLBACK,
    FORCED,
    INTEGER,
    INTEGER_OR_NULL,
    JOB_STATUS,
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

# -- errors and search

_SEARCH: Final[Schema] = {
    "Problem": record(
        {"type": STRING, "title": STRING, "status": INTEGER, "detail": STRING},
        {
            "field": STRING,
            "retry_after": INTEGER,
            "errors": array(record({"in": STRING, "field": STRING, "detail": STRING})),
            "sources": object_of(record({"status": STRING, "reason": STRING})),
        },
    ),
    "Notice": record(
        {
            "id": STRING,
            "sources": STRINGS,
            "agency": TEXT_OR_NULL,
            "cnpj": TEXT_OR_NULL,
            "uf": STRING,
            "city": TEXT_OR_NULL,
            "object": STRING,
            "value": NUMBER_OR_NULL,
            "modality": INTEGER_OR_NULL,
            "modality_name": TEXT_OR_NULL,
            "published_at": TEXT_OR_NULL,
            "closes_at": TEXT_OR_NULL,
            "url": TEXT_OR_NULL,
        }
    ),
    "SourceAnswer": record(
        {"status": enum("fresh", "stale", "pending", "skipped", "failed"), "reason": TEXT_OR_NULL},
        {
            "coverage": nullable(record(COVERAGE)),
            "truncated_ufs": STRINGS,
            "truncated_days": STRINGS,
            "missing_days": STRINGS,
            "from": STRING,
            "fetched_at": DATE_TIME_OR_NULL,
            "next_retry_at": DATE_TIME_OR_NULL,
        },
    ),
    "PendingSource": record({"ufs": STRINGS, "days": STRINGS, "estimated_ready_at": DATE_TIME_OR_NULL}),
    "SearchResponse": record(
        {
            "freshness": enum("fresh", "stale"),
            "complete": BOOLEAN,
            "coverage": record({**COVERAGE, "text": STRING}),
            "missing_sources": STRINGS,
            "pending": object_of(reference("PendingSource")),
            "estimated_ready_at": DATE_TIME_OR_NULL,
            "sources": object_of(reference("SourceAnswer")),
            "warnings": STRINGS,
            "total": INTEGER,
            "offset": INTEGER,
            "limit": INTEGER,
            "notices": array(reference("Notice")),
        }
    ),
    "SearchProgress": record(
        {
            "source": STRING,
            **dict.fromkeys(
                ("listings_done", "listings_failed", "listings_total", "pages", "notices"), INTEGER
            ),
        }
    ),
}

# -- health

_LIMIT_NUMBERS = {
    "tokens_available": INTEGER,
    "requests_last_minute": INTEGER,
    "limit_per_second": NUMBER,
    "paused_seconds": NUMBER,
}
_HEALTH: Final[Schema] = {
    "LivenessStatus": record({"status": enum("ok")}),
    "SourceHealth": record(
        {
            "status": STATUS,
            "reasons": STRINGS,
            "phase": enum("closed", "open", "half_open", "ramp", None),
            "forced": FORCED,
            "limit_per_second": NUMBER,
            "original_limit_per_second": NUMBER,
            "configured_limit_per_second": NUMBER_OR_NULL,
            "limit": STRING,
            "configured_limit": STRING,
            "calls_in_flight": INTEGER_OR_NULL,
            "retries_last_minute": INTEGER_OR_NULL,
            "last_page_at": NUMBER_OR_NULL,
        }
    ),
    "BreakerHealth": record({"failures": INTEGER, "degraded": BOOLEAN, "degraded_until": NUMBER_OR_NULL}),
    "Health": record(
        {
            "status": STATUS,
            "reasons": STRINGS,
            "rate_limiter": record(
                {
                    "tokens_available": INTEGER_OR_NULL,
                    "requests_last_minute": INTEGER_OR_NULL,
                    "sources": object_of(
                        record(_LIMIT_NUMBERS, {"limits": object_of(record(_LIMIT_NUMBERS))})
                    ),
                }
            ),
            "sources": object_of(reference("SourceHealth")),
            "workers": record({"alive": INTEGER}),
            "state": record({"status": STATUS, "engine": STRING, "fallback": FALLBACK}),
            "database": record({"status": STATUS, "engine": STRING, "reason": TEXT_OR_NULL}),
            "disk": record({"status": STATUS, "reasons": STRINGS}),
            "worker": record({"name": STRING, "started": NUMBER}),
            "version": STRING,
        }
    )
    | {"patternProperties": {"_circuit_breaker$": reference("BreakerHealth")}},
    "CacheHealth": record(
        {
            "entries": INTEGER,
            "degraded_keys_count": INTEGER,
            "avg_fail_streak": NUMBER,
            "max_fail_streak": INTEGER,
            "fetching": INTEGER,
            "priorities": object_of(INTEGER),
            "ages": object_of(INTEGER),
            "last_24_hours": record(
                {"answers": INTEGER, "hit_rate": NUMBER, "stale_rate": NUMBER, "miss_rate": NUMBER}
            ),
            "worker": STRING,
            "memory": object_of(INTEGER),
            "top_keys": array(
                record(
                    {
                        "params_hash": STRING,
                        "accesses": INTEGER,
                        "users": INTEGER,
                        "age_seconds": NUMBER,
                        "fail_streak": INTEGER,
                    }
                )
            ),
        }
    ),
}

# -- batches

_JOB = {
    "job_id": STRING,
    "status": JOB_STATUS,
    **COUNTS,
    "created_at": DATE_TIME,
    "finished_at": DATE_TIME_OR_NULL,
}
_RESULT = {
    "position": INTEGER,
    "account": STRING,
    "success": BOOLEAN,
    "message": STRING,
    "processed_at": DATE_TIME,
}
_SHEET = {"spreadsheet_id": STRING, "spreadsheet_url": STRING, "spreadsheet_name": STRING}
_BATCHES: Final[Schema] = {
    "Authorization": record({"authorized": BOOLEAN}),
    "JobResult": record(_RESULT),
    "Job": record({**_JOB, "results": array(reference("JobResult")), "next_cursor": TEXT_OR_NULL}),
    "JobLine": {
        "oneOf": [
            record({"event": enum("job", "end"), **_JOB}),
            record({"event": enum("result"), **_RESULT}),
            record({"event": enum("interrupted"), "job_id": STRING, "next_cursor": STRING}),
        ]
    },
    "Sheet": record({"success": BOOLEAN, **_SHEET}, {"backfill_status": BACKFILL}),
    "SheetConfig": record(
        {
            "job_id": STRING,
            "enabled": BOOLEAN,
            **_SHEET,
            "created_at": DATE_TIME,
            "backfill_status": BACKFILL,
        },
        {"backfilled_rows": INTEGER, "backfill_error": TEXT_OR_NULL},
    ),
    "JobOverview": record(
        {
            "id": STRING,
            "status": JOB_STATUS,
            **COUNTS,
            "created_at": NUMBER,
            "finished_at": NUMBER_OR_NULL,
            "worker": TEXT_OR_NULL,
            "workers": INTEGER,
            "backfill": nullable(
                record({"status": BACKFILL, "rows": INTEGER_OR_NULL, "worker": TEXT_OR_NULL})
            ),
        }
    ),
}

PUBLIC_SCHEMAS: Final[Schema] = {**_SEARCH, **_HEALTH, **_BATCHES}

SEARCH_EVENT: Final[Schema] = {
    "oneOf": [
        event("progress", reference("SearchProgress")),
        event("result", reference("SearchResponse")),
        event("revalidated", reference("SearchResponse")),
        event("problem", reference("Problem")),
        event("end", record({})),
    ]
}
"""The events of a streamed search; each has the JSON form of a value as its data."""
