"""The tables of the service, after those of the cache.

Numbers from 1 are the cache's, from 50 the sheets', from 100 the service's own, from 200 those of
batches: each grows by itself.
"""

from __future__ import annotations

from typing import Final

from comporta.cache.migrations import MIGRATIONS as OF_CACHE
from comporta.database.migrations import Migration
from comporta.pipeline.sinks.addresses import MIGRATIONS as OF_SHEETS
from comporta.service.batch.migrations import MIGRATIONS as OF_BATCHES


def _audit(identity: str, moment: str) -> tuple[str, ...]:
    return (
        f"""
        CREATE TABLE service_audit (
            id {identity},
            at {moment} NOT NULL,
            action TEXT NOT NULL,
            target TEXT NOT NULL,
            detail TEXT NOT NULL,
            client TEXT NOT NULL,
            worker TEXT NOT NULL,
            outcome TEXT NOT NULL
        )
        """,
    )


_AUDIT = Migration(
    100,
    "what operators did",
    _audit("INTEGER PRIMARY KEY AUTOINCREMENT", "REAL"),
    _audit("BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY", "TIMESTAMPTZ"),
)

MIGRATIONS: Final = (*OF_CACHE, *OF_SHEETS, _AUDIT, *OF_BATCHES)
"""All of them, in order."""
