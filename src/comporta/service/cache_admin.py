"""Operator actions on cache keys: list, show, refresh, remove and clear.

The admin routes, which handle authentication and the audit log, call these functions.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from comporta.cache.invalidation import LOG_MAX, PublishInvalidation
from comporta.cache.local import key_digest
from comporta.cache.queries import decode_column
from comporta.cache.tables import CacheTables
from comporta.errors import StateError

if TYPE_CHECKING:
    from comporta.service.container import Container

CLEAR_BATCH: Final = 1000
CLEAR_MAX: Final = 10_000_000
"""Clearing stops after this many rows, because searches may refill the cache as fast as it is emptied."""


async def list_keys(
    container: Container, limit: int, user: str | None, degraded: bool
) -> list[dict[str, Any]]:
    """Return cached rows without their bodies."""
    rows = await CacheTables(container.database).list_rows_async(limit, user_id=user, degraded=degraded)
    return [row._asdict() for row in rows]


async def read_key(container: Container, user: str, params_hash: str) -> dict[str, Any] | None:
    """Return everything about one row except its body, or ``None`` if there is no such row."""
    entry = await CacheTables(container.database).read_async(user, params_hash)
    if entry is None:
        return None
    row = entry._asdict()
    row["size_bytes"] = len(row.pop("results")) if entry.has_value else 0
    row["search_params"] = decode_column(entry.search_params)
    row["coverage"] = decode_column(entry.coverage)
    return row


async def refresh_key(container: Container, params_hash: str, user: str | None) -> int:
    """Mark a key as due and wake the refresh loop of this worker; return how many rows the key has."""
    marked = await CacheTables(container.database).mark_due_async(params_hash, user)
    if marked:
        container.search.request_refresh()
    return marked


async def remove_key(container: Container, user: str, params_hash: str) -> bool:
    """Remove a row and invalidate it in all workers; return whether it existed."""
    existed = await CacheTables(container.database).remove_async(user, params_hash)
    await _invalidate(container, [params_hash])
    return existed


async def clear_cache(container: Container) -> int:
    """Remove all rows, ``CLEAR_BATCH`` at a time, and return how many there were."""
    table, count = CacheTables(container.database), 0
    keys = await table.clear_async(CLEAR_BATCH)
    while keys and count < CLEAR_MAX:
        # A worker that misses one entry of the invalidation log drops its whole local cache, so one more
        # than the log holds is enough.
        await _invalidate(container, keys[: LOG_MAX + 1])
        count += len(keys)
        keys = await table.clear_async(CLEAR_BATCH)
    return count + len(keys)


async def _invalidate(container: Container, keys: list[str]) -> None:
    """Make all workers drop keys; without the store, other workers drop them within a minute."""
    container.cache.clear_local_cache()
    with suppress(StateError):
        for key in keys:
            await container.store.apply_async(PublishInvalidation(container.cache.name, key_digest(key)))
