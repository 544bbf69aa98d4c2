"""Keys that are in backoff and have nothing to serve, remembered in this process.

Otherwise every caller of such a key would read and claim it in the database. A refusal ends when the key is
invalidated, because a worker stored or removed something, and after at most 1 s: then one caller reads the
health of the key again, so that an edit by hand shows.
"""

from __future__ import annotations

from threading import Lock
from typing import NamedTuple

from comporta import fork_safety
from comporta.cache.expiry import RECHECK_SECONDS
from comporta.cache.local import LocalCache
from comporta.errors import CacheUnavailableError

REFUSALS_MAX = 10_000
"""How many keys are remembered; the oldest are forgotten first."""

REFUSAL_NS = round(RECHECK_SECONDS * 1e9)
"""How long a key is refused without reading its health."""


class Refusal(NamedTuple):
    """When the source is tried again, the error that callers get, and until when they get it."""

    retry_ns: int
    text: str
    cause: BaseException | None
    expires_ns: int
    version: int


class Refusals:
    """The refusals of one cache. ``count`` is how many callers were refused since the last flush."""

    def __init__(self, local: LocalCache) -> None:
        self.count = 0
        self._local = local
        self._by_key: dict[str, Refusal] = {}
        self._lock = Lock()
        fork_safety.register(self)

    def get(self, key: str) -> Refusal | None:
        """Return the refusal of a key, and count it; ``None`` if the key has to be read again."""
        refusal = self._by_key.get(key)
        if (
            refusal is None
            or self._local.now_ns() >= refusal.expires_ns
            or self._is_invalidated(key, refusal)
        ):
            return None
        self.count += 1
        return refusal

    def is_unchanged(self, key: str) -> bool:
        """Whether a key was refused before, however long ago, and nothing is known to have changed since."""
        refusal = self._by_key.get(key)
        return refusal is not None and not self._is_invalidated(key, refusal)

    def _is_invalidated(self, key: str, refusal: Refusal) -> bool:
        version = refusal.version
        return version != self._local.version and self._local.is_invalidated(key, version)

    def is_known(self, key: str) -> bool:
        """Whether a key was refused before, however long ago."""
        return key in self._by_key

    def record(self, key: str, seconds: float, error: CacheUnavailableError, version: int) -> None:
        """Refuse a key with an error; ``version`` is that of the local cache before its health was read."""
        now_ns = self._local.now_ns()
        retry_ns = now_ns + round(seconds * 1e9)
        with self._lock:
            self._by_key.pop(key, None)
            expires_ns = min(retry_ns, now_ns + REFUSAL_NS)
            self._by_key[key] = Refusal(retry_ns, str(error), error.__cause__, expires_ns, version)
            if len(self._by_key) > REFUSALS_MAX:
                del self._by_key[next(iter(self._by_key))]

    def forget(self, key: str) -> None:
        """Serve a key again, because a result was stored or its health is good."""
        if key in self._by_key:
            with self._lock:
                self._by_key.pop(key, None)

    def after_fork(self) -> None:
        """Reset the lock in a forked child; the local cache invalidates all refusals."""
        fork_safety.reinit_lock(self._lock)
        self.count = 0
