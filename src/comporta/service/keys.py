"""What operators may do with the keys of the cache: look, have one fetched anew, remove some or all."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from comporta.cache.changes import LOG_MAX, Announce
from comporta.cache.level import digest_of
from comporta.cache.table import CacheTable
from comporta.errors import StateError

if TYPE_CHECKING:
    from comporta.service.parts import Parts

CLEARED_AT_ONCE: Final = 1000
CLEARED_MAX: Final = 10_000_000
"""After so many it ends: others fill it as fast as it is emptied."""


async def listed(parts: Parts, limit: int, user: str | None, degraded: bool) -> list[dict[str, Any]]:
    """Return rows without their bodies."""
    rows = await CacheTable(parts.database).rows_async(limit, user_id=user, degraded=degraded)
    return [row._asdict() for row in rows]


async def shown(parts: Parts, user: str, params_hash: str) -> dict[str, Any] | None:
    """Return all about one row but its body."""
    entry = await CacheTable(parts.database).read_async(user, params_hash)
    if entry is None:
        return None
    found = entry._asdict()
    found["size_bytes"] = len(found.pop("results")) if entry.has_value else 0
    found["search_params"] = json.loads(entry.search_params)
    found["coverage"] = None if entry.coverage is None else json.loads(entry.coverage)
    return found


async def refreshed(parts: Parts, params_hash: str, user: str | None) -> int:
    """Have a key fetched anew, by this worker unless another is before it; returns how many rows it has."""
    marked = await CacheTable(parts.database).mark_due_async(params_hash, user)
    if marked:
        parts.search.refresh_soon()
    return marked


async def removed(parts: Parts, user: str, params_hash: str) -> bool:
    """Remove a row, and have all workers forget it."""
    found = await CacheTable(parts.database).rm_async(user, params_hash)
    await _tell(parts, [params_hash])
    return found


async def cleared(parts: Parts) -> int:
    """Remove everything, so many rows at a time; returns how many there were."""
    table, count = CacheTable(parts.database), 0
    keys = await table.clear_async(CLEARED_AT_ONCE)
    while keys and count < CLEARED_MAX:
        await _tell(parts, keys[: LOG_MAX + 1])  # who misses one forgets everything
        count += len(keys)
        keys = await table.clear_async(CLEARED_AT_ONCE)
    return count + len(keys)


async def _tell(parts: Parts, keys: list[str]) -> None:
    """Have all workers forget keys; those who cannot be told forget them within a minute."""
    parts.cache.forget_memory()
    with suppress(StateError):
        for key in keys:
            await parts.store.apply_async(Announce(parts.cache.name, digest_of(key)))
