"""The arguments of one call of ``fetch``, and what is known about its result so far."""

from __future__ import annotations

from dataclasses import dataclass

from comporta.cache.entry import Cached
from comporta.cache.loader_result import Loader, Merge


@dataclass(slots=True)
class FetchJob:
    """What to load and for which user, and the cached result so far.

    ``size`` is the size of the cached result and its parameters in bytes. ``version`` is the version of the
    local cache before the database was read. ``is_read`` is true once it has been read. A background refresh
    calls ``refresh_loader`` if there is one. The caller waits for up to ``timeout`` seconds.
    """

    key: str
    user_id: str
    params_hash: str
    params_json: bytes
    loader: Loader
    started_ns: int
    cached: Cached | None = None
    size: int = 0
    version: int = 0
    is_read: bool = False
    timeout: float | None = None
    soft_timeout: float | None = None
    forced: bool = False
    background: bool = False
    merge: Merge | None = None
    refresh_loader: Loader | None = None
    tags: tuple[str, ...] = ()
