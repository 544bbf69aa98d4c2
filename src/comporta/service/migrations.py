"""All tables of the service, in the order in which they are migrated.

Version numbers start at 1 for the cache, 50 for sheets, 100 for the service itself and 200 for batches, so
that each part can add migrations independently.
"""

from __future__ import annotations

from typing import Final

from comporta.cache.migrations import MIGRATIONS as CACHE_MIGRATIONS
from comporta.database.migrations import Migration
from comporta.pipeline.sinks.sheet_rows import MIGRATIONS as SHEET_MIGRATIONS
from comporta.service.batch.migrations import MIGRATIONS as BATCH_MIGRATIONS


def _audit_table(id_type: str, timestamp_type: str) -> tuple[str, ...]:
    return (
        f"""
        CREATE TABLE service_audit (
            id {id_type},
            at {timestamp_type} NOT NULL,
            action TEXT NOT NULL,
            target TEXT NOT NULL,
            detail TEXT NOT NULL,
            client TEXT NOT NULL,
            worker TEXT NOT NULL,
            outcome TEXT NOT NULL
        )
        """,
    )


def _token_table(timestamp_type: str) -> tuple[str, ...]:
    return (
        f"""
        CREATE TABLE service_tokens (
            name TEXT PRIMARY KEY,
            digest TEXT NOT NULL UNIQUE,
            user_id TEXT NOT NULL,
            is_admin INTEGER NOT NULL,
            created_at {timestamp_type} NOT NULL,
            revoked_at {timestamp_type}
        )
        """,
    )


_AUDIT = Migration(
    100,
    "what operators did",
    _audit_table("INTEGER PRIMARY KEY AUTOINCREMENT", "REAL"),
    _audit_table("BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY", "TIMESTAMPTZ"),
)

_TOKENS = Migration(101, "API tokens", _token_table("REAL"), _token_table("TIMESTAMPTZ"))

_ADD_AUDIT_TOKEN = ("ALTER TABLE service_audit ADD COLUMN token TEXT NOT NULL DEFAULT ''",)
_AUDIT_TOKEN = Migration(102, "the token behind each action", _ADD_AUDIT_TOKEN, _ADD_AUDIT_TOKEN)

SERVICE_MIGRATIONS: Final = (_AUDIT, _TOKENS, _AUDIT_TOKEN)
"""The migrations of the service itself."""

MIGRATIONS: Final = (*CACHE_MIGRATIONS, *SHEET_MIGRATIONS, *SERVICE_MIGRATIONS, *BATCH_MIGRATIONS)
"""All migrations of the service, in order."""
